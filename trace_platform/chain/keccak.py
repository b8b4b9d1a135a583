"""Keccak-256 as Ethereum uses it (the padding of the submission, not of the later standard: not hashlib's sha3)."""

from __future__ import annotations

import sha3


def keccak(data: bytes) -> bytes:
    digest: bytes = sha3.keccak_256(data).digest()
    return digest
