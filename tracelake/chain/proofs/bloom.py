"""The bloom filter of a block's logs: 2,048 bits, three for every address and topic. Kept as one number."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tracelake.chain.keccak import keccak
from tracelake.chain.nodes.responses import Log

SIZE = 256
"""Bytes of the filter."""
_LAST_BIT = 8 * SIZE - 1


def bloom_of(logs: Iterable[Log]) -> int:
    bloom = 0
    for log in logs:
        bloom |= bits_of(log.address)
        for topic in log.topics:
            bloom |= bits_of(topic)
    return bloom


@lru_cache(maxsize=1 << 16)
def bits_of(item: str) -> int:
    """The three bits of one address or topic, given in hex: tokens and their users come again and again."""
    digest = keccak(bytes.fromhex(item[2:]))
    bits = 0
    for position in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[position : position + 2], "big") & _LAST_BIT)
    return bits
