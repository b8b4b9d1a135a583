"""JSON-RPC methods, answered as a node answers them: results as encoded JSON, errors with a node's codes and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tracelake.chain.keccak import keccak
from tracelake_devchain.build_block import Made
from tracelake_devchain.chain import Chain
from tracelake_devchain.find_logs import find_logs
from tracelake_devchain.node_error import INVALID_PARAMS, METHOD_NOT_FOUND, NodeError

_encode = msgspec.json.Encoder().encode
_HASH_LENGTH = 66


class NodeView:
    """The chain as one node sees it: `behind` blocks late."""

    def __init__(self, chain: Chain, behind: int = 0) -> None:
        self.chain = chain
        self.behind = behind

    @property
    def head(self) -> int:
        return max(0, self.chain.head - self.behind)

    def number(self, tag: object) -> int:
        """Of a tag or a hex number; may be higher than the head."""
        if not isinstance(tag, str):
            raise NodeError(INVALID_PARAMS, "invalid argument 0: a block number or tag is a string")
        tags = {"latest": self.head, "pending": self.head, "earliest": 0}
        late = {"safe": self.chain.safe, "finalized": self.chain.finalized}
        if tag in tags:
            return tags[tag]
        if tag in late:
            return min(late[tag], self.head)
        try:
            return int(tag, 16) if tag.startswith("0x") else int("")
        except ValueError:
            raise NodeError(INVALID_PARAMS, "invalid argument 0: hex string without 0x prefix or unknown tag") from None

    def block(self, which: object) -> Made | None:
        """By number, tag or hash."""
        if isinstance(which, str) and len(which) == _HASH_LENGTH:
            made = self.chain.by_hash(which)
            return made if made is not None and made.number <= self.head else None
        number = self.number(which)
        return self.chain.block(number) if number <= self.head else None


def answer(view: NodeView, method: str, params: list[Any]) -> bytes:
    """The result, encoded; or a `NodeError` error."""
    if method not in METHODS:
        raise NodeError(METHOD_NOT_FOUND, f"the method {method} does not exist/is not available")
    try:
        return METHODS[method](view, *params)
    except TypeError:
        raise NodeError(INVALID_PARAMS, f"invalid arguments for {method}") from None


def _block(view: NodeView, which: object, full: object = False) -> bytes:
    made = view.block(which)
    if made is None:
        return b"null"
    return made.full_json if full else made.hashes_json


def _block_by_hash(view: NodeView, which: object, full: object = False) -> bytes:
    if not isinstance(which, str) or len(which) != _HASH_LENGTH:
        raise NodeError(INVALID_PARAMS, "invalid argument 0: a hash has 32 bytes")
    return _block(view, which, full)


def _block_receipts(view: NodeView, which: object) -> bytes:
    made = view.block(which)
    return b"null" if made is None else made.receipts_json


def _transaction_receipt(view: NodeView, wanted: object) -> bytes:
    place = view.chain.transaction(wanted) if isinstance(wanted, str) else None
    if place is None or place[0] > view.head:
        return b"null"
    return _encode(view.chain.block(place[0]).receipts[place[1]])


def _logs(view: NodeView, query: object) -> bytes:
    return find_logs(view, query)


def _sha3(_: NodeView, data: object) -> bytes:
    try:
        return _encode("0x" + keccak(bytes.fromhex(str(data).removeprefix("0x"))).hex())
    except ValueError:
        raise NodeError(INVALID_PARAMS, "invalid argument 0: not hex") from None


METHODS: dict[str, Callable[..., bytes]] = {
    "eth_chainId": lambda view: _encode(hex(view.chain.chain_id)),
    "eth_blockNumber": lambda view: _encode(hex(view.head)),
    "eth_getBlockByNumber": _block,
    "eth_getBlockByHash": _block_by_hash,
    "eth_getBlockReceipts": _block_receipts,
    "eth_getTransactionReceipt": _transaction_receipt,
    "eth_getLogs": _logs,
    "net_version": lambda view: _encode(str(view.chain.chain_id)),
    "web3_clientVersion": lambda _: _encode("trace-devchain/1"),
    "web3_sha3": _sha3,
}
