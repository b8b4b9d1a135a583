"""Keccak-256 as Ethereum uses it (the padding of the submission, not of the later standard: not hashlib's sha3)."""

from __future__ import annotations

from sha3 import keccak_256

__all__ = ["keccak", "keccak_256"]


def keccak(data: bytes) -> bytes:
    digest: bytes = keccak_256(data).digest()
    return digest
