"""The root of a list: a Merkle-Patricia tree whose keys are the encoded positions.

The keys of a list depend on its length alone, so the tree's shape does too: it is planned once for each length and then
only filled. No key is the beginning of another, so no branch holds a value of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tracelake.chain.keccak import keccak, keccak_256
from tracelake.chain.proofs.rlp import BYTES_PREFIX, LIST_PREFIX, SHORT, TABLE, encode_bytes, encode_int, encode_list

EMPTY_ROOT = keccak(b"\x80")
"""The root of an empty list."""
_FREE = [b"\x80"] * 17
"""A branch without anything below it: no branch is longer than the table of prefixes reaches."""
_HASH_SIZE = 32
_TABLED = TABLE - 64
"""Values below this have their leaf's prefix in the table too: a path is at most 33 bytes, a prefix three."""

TrieKey = tuple[str, int]
"""Hex digits, one per level of the tree, and their position."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: bytes
    position: int

    def fill(self, values: Sequence[bytes]) -> bytes:
        value = values[self.position]
        size = len(value)
        if not SHORT <= size < _TABLED:
            return encode_list((self.path, encode_bytes(value)))
        prefix = BYTES_PREFIX[size]
        return b"".join((LIST_PREFIX[len(self.path) + len(prefix) + size], self.path, prefix, value))


@dataclass(frozen=True, slots=True)
class _Branch:
    below: tuple[tuple[int, _Node], ...]
    """The slots that are taken."""

    def fill(self, values: Sequence[bytes]) -> bytes:
        slots = _FREE.copy()
        for slot, node in self.below:
            filled = node.fill(values)
            slots[slot] = filled if len(filled) < _HASH_SIZE else b"\xa0" + keccak_256(filled).digest()
        body = b"".join(slots)
        return LIST_PREFIX[len(body)] + body


@dataclass(frozen=True, slots=True)
class _Extension:
    path: bytes
    branch: _Branch

    def fill(self, values: Sequence[bytes]) -> bytes:
        return encode_list((self.path, _reference(self.branch.fill(values))))


_Node = _Leaf | _Branch | _Extension


def ordered_root(values: Sequence[bytes]) -> bytes:
    """The root that a header names for these transactions, receipts or withdrawals."""
    return keccak(_plan(len(values)).fill(values)) if values else EMPTY_ROOT


@lru_cache(maxsize=512)
def _plan(count: int) -> _Node:
    return _node(sorted((encode_int(position).hex(), position) for position in range(count)), 0)


def _node(keys: Sequence[TrieKey], depth: int) -> _Node:
    first, position = keys[0]
    if len(keys) == 1:
        return _Leaf(_path(first[depth:], leaf=True), position)
    last, split = keys[-1][0], depth
    while first[split] == last[split]:  # sorted: what the ends share, all share
        split += 1
    branch = _branch(keys, split)
    return branch if split == depth else _Extension(_path(first[depth:split], leaf=False), branch)


def _branch(keys: Sequence[TrieKey], depth: int) -> _Branch:
    below: list[list[TrieKey]] = [[] for _ in range(17)]
    for key in keys:
        below[int(key[0][depth], 16)].append(key)
    return _Branch(tuple((slot, _node(group, depth + 1)) for slot, group in enumerate(below) if group))


def _reference(node: bytes) -> bytes:
    """How a parent names a node: by its hash, or by itself if it is shorter than one."""
    return node if len(node) < _HASH_SIZE else b"\xa0" + keccak(node)


def _path(digits: str, *, leaf: bool) -> bytes:
    """Digits packed two per byte, encoded; the first digit marks leaf and odd length."""
    flag = 2 if leaf else 0
    return encode_bytes(bytes.fromhex(f"{flag + 1}{digits}" if len(digits) & 1 else f"{flag}0{digits}"))
