"""eth_getLogs: by range or block hash, address and topics, refused in a node's own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tracelake.chain.nodes.responses import Log
from tracelake_devchain.node_error import INVALID_PARAMS, NodeError

if TYPE_CHECKING:
    from tracelake_devchain.build_block import Made
    from tracelake_devchain.methods import NodeView

_encode = msgspec.json.Encoder().encode


def find_logs(view: NodeView, query: object) -> bytes:
    if not isinstance(query, dict):
        raise NodeError(INVALID_PARAMS, "invalid argument 0: a filter is an object")
    blocks = _blocks(view, query)
    if not query.get("address") and not query.get("topics"):
        return b"[" + b",".join(filter(None, (made.logs_json for made in blocks))) + b"]"
    return _encode(list(_matching(blocks, _addresses(query.get("address")), _topics(query.get("topics")))))


def span(view: NodeView, query: dict[str, Any]) -> tuple[int, int]:
    """The range that a filter names, both included."""
    return view.number(query.get("fromBlock") or "latest"), view.number(query.get("toBlock") or "latest")


def _blocks(view: NodeView, query: dict[str, Any]) -> Iterator[Made]:
    if "blockHash" in query:
        if "fromBlock" in query or "toBlock" in query:
            both = "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other"
            raise NodeError(INVALID_PARAMS, f"invalid argument 0: {both}")
        made = view.block(query["blockHash"])
        if made is None:
            raise NodeError(-32000, "unknown block")
        return iter([made])
    first, last = span(view, query)
    if first > last:
        raise NodeError(INVALID_PARAMS, "invalid block range params")
    if last > view.head:
        raise NodeError(INVALID_PARAMS, "block range extends beyond current head block")
    return view.chain.blocks(first, last)


def _addresses(given: object) -> set[str]:
    if given is None:
        return set()
    several: list[Any] = given if isinstance(given, list) else [given]
    if not all(isinstance(answer, str) for answer in several):
        raise NodeError(INVALID_PARAMS, "invalid argument 0: an address is hex")
    return {answer.lower() for answer in several}


def _topics(given: object) -> list[set[str]]:
    """For each place, the topics that may stand there; an empty set takes anything."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise NodeError(INVALID_PARAMS, "invalid argument 0: topics are a list")
    return [_addresses(item) for item in given]


def _matching(blocks: Iterable[Made], addresses: set[str], topics: list[set[str]]) -> Iterator[Log]:
    for made in blocks:
        for log in made.logs:
            if addresses and log.address not in addresses:
                continue
            if len(log.topics) < len(topics):
                continue
            if all(not wanted or topic in wanted for wanted, topic in zip(topics, log.topics, strict=False)):
                yield log
