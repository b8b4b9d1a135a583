"""The root of a list: a Merkle-Patricia tree whose keys are the encoded positions.

Keys are written as strings of hex digits: one digit is one step down the tree. No key is the beginning of another, so no
branch holds a value of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from trace_platform.chain.keccak import keccak
from trace_platform.chain.rlp import encode_bytes, encode_int, encode_list

EMPTY_ROOT = keccak(b"\x80")
"""The root of an empty list."""
_NOTHING = b"\x80"
_HASH_SIZE = 32

Leaf = tuple[str, bytes]


def ordered_root(values: Sequence[bytes]) -> bytes:
    """The root that a header names for these transactions, receipts or withdrawals."""
    if not values:
        return EMPTY_ROOT
    return keccak(_node([(key, values[position]) for key, position in _keys(len(values))], 0))


@lru_cache(maxsize=1024)
def _keys(count: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((encode_int(position).hex(), position) for position in range(count)))


def _node(leaves: Sequence[Leaf], depth: int) -> bytes:
    first = leaves[0][0]
    if len(leaves) == 1:
        return encode_list((encode_bytes(_path(first[depth:], leaf=True)), encode_bytes(leaves[0][1])))
    last, split = leaves[-1][0], depth
    while first[split] == last[split]:  # sorted: what the ends share, all share
        split += 1
    branch = _branch(leaves, split)
    if split == depth:
        return branch
    return encode_list((encode_bytes(_path(first[depth:split], leaf=False)), _reference(branch)))


def _branch(leaves: Sequence[Leaf], depth: int) -> bytes:
    slots = [_NOTHING] * 17
    start, digit = 0, leaves[0][0][depth]
    for position, (key, _) in enumerate(leaves):
        if key[depth] != digit:
            slots[int(digit, 16)] = _reference(_node(leaves[start:position], depth + 1))
            start, digit = position, key[depth]
    slots[int(digit, 16)] = _reference(_node(leaves[start:], depth + 1))
    return encode_list(slots)


def _reference(node: bytes) -> bytes:
    """How a parent names a node: by its hash, or by itself if it is shorter than one."""
    return node if len(node) < _HASH_SIZE else b"\xa0" + keccak(node)


def _path(digits: str, *, leaf: bool) -> bytes:
    """Digits packed two a byte; the first digit says leaf or not, odd or even."""
    flag = 2 if leaf else 0
    return bytes.fromhex(f"{flag + 1}{digits}" if len(digits) & 1 else f"{flag}0{digits}")
