"""Maps a node's error to one of ours. Providers use codes differently, so the message counts as well."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelake.chain.nodes.responses import RpcError
from tracelake.chain.nodes.rpc_pool import Endpoint
from tracelake.errors import (
    MethodUnknown,
    ProviderError,
    ProviderLagged,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnavailable,
    SizeRefused,
)

METHOD_NOT_FOUND = -32601
_LIMIT_EXCEEDED = -32005
_INVALID = {-32600, -32602, 401, 403}
_THROTTLE_CODES = {429, _LIMIT_EXCEEDED, -32007, -32012, -32016, -32029, -32090, -32097}
_TOO_MANY_REQUESTS, _TOO_LARGE, _TIMEOUT = 429, 413, 408
_LONGEST = 300
"""The most characters of a node's message that are passed on."""

_LAGS = re.compile(
    r"beyond (current|latest|the) head|unknown block|(header|block)( was| is)? not (found|available)|"
    r"missing trie node|pruned|ahead of (head|latest)|greater than (the )?latest",
    re.IGNORECASE,
)
_THROTTLES = re.compile(
    r"rate.?limit|rate (is |was )?exceed|over rate|throttl|too many requests?\b(?! in)|too many concurrent|"
    r"(per|/) ?(s|sec|second|min|minute|hour|day)\b|\b(rps|qps|cups)\b|throughput|compute units|capacity|quota|"
    r"requests? (count|limit|rate)\b|usage limit|credits|slow down|\b(daily|monthly|hourly)\b",
    re.IGNORECASE,
)
_TOO_MUCH = re.compile(
    r"too (large|big|wide|long)|too many (results|logs|blocks|calls|requests in)|"
    r"more than [\d,]+ (results|logs|blocks)|"
    r"(size|range|results?|logs|blocks?)( limit)?( is| was)? exceed|exceed\w* .*(size|range|results|limit|blocks)|"
    r"(limited|up) to .*(range|blocks|results)|ranges? over|max\w* (block )?range|range should work|"
    r"(size|range) (should|must|can) ?not|batch (size|limit)|query timeout|reduc\w+ .*range",
    re.IGNORECASE,
)
_ONLY_LIMIT = re.compile(r"limit exceeded\W*", re.IGNORECASE)
_ASKED_TO_WAIT = re.compile(r"(?:retry|again) (?:in|after) (\d+(?:\.\d+)?) ?(ms|s|m)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def read_error(endpoint: Endpoint, method: str, error: RpcError) -> ProviderError:
    """The error of a call as one of ours."""
    words = endpoint.hide(error.message)[:_LONGEST] or "no reason given"
    message, where = f"{endpoint.label} answered {method} with error {error.code}: {words}", endpoint.label
    kind = _meaning(method, error.code, words)
    if kind is ProviderThrottled:
        return ProviderThrottled(message, where=where, retry_after=_wait_in(words))
    return kind(message, where=where)


def _meaning(method: str, code: int, words: str) -> type[ProviderError]:
    """The first that applies.

    A throttle passes and a size does not, so words that speak of pace come before those that speak of size; and both
    before the codes, which several providers use for either.
    """
    meanings: tuple[tuple[object, type[ProviderError]], ...] = (
        (code == METHOD_NOT_FOUND, MethodUnknown),
        (_LAGS.search(words), ProviderLagged),
        (_THROTTLES.search(words), ProviderThrottled),
        (_TOO_MUCH.search(words) or _is_limit_of_size(method, code, words), SizeRefused),
        (code in _THROTTLE_CODES, ProviderThrottled),
        (code in _INVALID, ProviderRefused),
    )
    return next((kind for applies, kind in meanings if applies), ProviderUnavailable)


def read_status(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """What an HTTP status other than 200 means. Secrets are redacted before the text is cut: half a key is one too."""
    words = endpoint.hide(body.decode(errors="replace"))[:_LONGEST]
    message, where = f"{endpoint.label} answered with HTTP status {status}: {words}", endpoint.label
    callers_fault = 400 <= status < 500 and status != _TIMEOUT  # noqa: PLR2004 - HTTP's classes
    if status == _TOO_MANY_REQUESTS or (callers_fault and status != _TOO_LARGE and _THROTTLES.search(words)):
        wait = _seconds(headers.get("Retry-After"))
        return ProviderThrottled(message, where=where, retry_after=_wait_in(words) if wait is None else wait)
    if status == _TOO_LARGE or (callers_fault and _TOO_MUCH.search(words)):
        return SizeRefused(message, where=where)
    return ProviderRefused(message, where=where) if callers_fault else ProviderUnavailable(message, where=where)


def _is_limit_of_size(method: str, code: int, words: str) -> bool:
    """Some nodes say no more than this, about ranges of logs and about batches."""
    bare = code == _LIMIT_EXCEEDED and _ONLY_LIMIT.fullmatch(words) is not None
    return bare and method in {"eth_getLogs", "a batch"}


def _wait_in(words: str) -> float | None:
    """`retry in 10s`, where nodes have no header to say it in."""
    match = _ASKED_TO_WAIT.search(words)
    return float(match[1]) * _SECONDS[match[2].lower()] if match else None


def _seconds(header: str | None) -> float | None:
    """Retry-After also may be a date: then our own rest must do."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
