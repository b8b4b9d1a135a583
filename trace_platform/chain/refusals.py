"""A node's error, read as one of ours. Codes are used as each provider likes, so the words count as well."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trace_platform.chain.rpc_pool import Endpoint
from trace_platform.chain.wire import RpcError
from trace_platform.errors import (
    MethodUnknown,
    ProviderError,
    ProviderLagged,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnavailable,
    SizeRefused,
)

METHOD_NOT_FOUND = -32601
_INVALID = {-32600, -32602}
_LONGEST = 300
"""Characters of a node's own words that are passed on."""

_LAGS = re.compile(
    r"beyond (current|latest|the) head|unknown block|(header|block)( was| is)? not (found|available)|"
    r"missing trie node|pruned|ahead of (head|latest)|greater than (the )?latest",
    re.IGNORECASE,
)
_THROTTLES = re.compile(
    r"rate.?limit|too many requests|per second|per minute|throughput|compute units|capacity|request count|quota",
    re.IGNORECASE,
)
_TOO_MUCH = re.compile(
    r"too (large|big|wide|long)|too many (results|logs|blocks|calls|requests in)|"
    r"more than [\d,]+ (results|logs|blocks)|"
    r"(size|range|results?|limit|blocks?) (is )?exceed|exceed\w* .*(size|range|results|limit|blocks)|"
    r"limited to .*(range|blocks|results)|max\w* (block )?range|batch (size|limit)|query timeout|reduce",
    re.IGNORECASE,
)


def read_error(endpoint: Endpoint, method: str, error: RpcError) -> ProviderError:
    """What one call's error means for whoever asked."""
    words = endpoint.hide(error.message)[:_LONGEST] or "no reason given"
    said, where = f"{endpoint.label} answered {method} with error {error.code}: {words}", endpoint.label
    if error.code == METHOD_NOT_FOUND:
        return MethodUnknown(said, where=where)
    if _LAGS.search(words):
        return ProviderLagged(said, where=where)
    if _TOO_MUCH.search(words):
        return SizeRefused(said, where=where)
    if error.code in {429, -32005, -32007, -32029} or _THROTTLES.search(words):
        return ProviderThrottled(said, where=where)
    if error.code in _INVALID or error.code in {401, 403}:
        return ProviderRefused(said, where=where)
    return ProviderUnavailable(said, where=where)


def read_status(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """What an HTTP status other than 200 means."""
    words = endpoint.hide(body[:_LONGEST].decode(errors="replace"))
    said, where = f"{endpoint.label} answered with HTTP status {status}: {words}", endpoint.label
    if status == 429:  # noqa: PLR2004 - too many requests
        return ProviderThrottled(said, where=where, retry_after=_seconds(headers.get("Retry-After")))
    if status == 413:  # noqa: PLR2004 - the request or its answer is too large
        return SizeRefused(said, where=where)
    if 400 <= status < 500 and status != 408:  # noqa: PLR2004 - the caller's fault, except for a timeout
        return SizeRefused(said, where=where) if _TOO_MUCH.search(words) else ProviderRefused(said, where=where)
    return ProviderUnavailable(said, where=where)


def _seconds(header: str | None) -> float | None:
    """Retry-After also may be a date: then our own rest must do."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
