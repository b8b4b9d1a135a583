"""Encrypts secrets that are stored: AES-256-GCM, bound to the row that they are stored in.

Several keys may be given: the first encrypts, and each decrypts what it encrypted.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12


@dataclass(frozen=True)
class Seal:
    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By their ids; the first one encrypts. None: nothing can be stored or read."""

    def close(self, value: str, *bound: str) -> tuple[str, bytes]:
        """The id of the key, and what is stored; it can be read only with the same `bound`."""
        key_id, key = next(iter(self.keys.items()))
        nonce = os.urandom(NONCE_BYTES)
        return key_id, nonce + AESGCM(key).encrypt(nonce, value.encode(), _bound(bound))

    def open(self, key_id: str, sealed: bytes, *bound: str) -> str | None:
        """None if its key is not here, or if it was stored for something else."""
        if key_id not in self.keys:
            return None
        cipher = AESGCM(self.keys[key_id])
        try:
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _bound(bound)).decode()
        except InvalidTag:
            return None


def new_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def read_keys(text: str) -> dict[str, bytes]:
    """By their ids. ValueError if there is none, or if one of them is no key; the value is not repeated."""
    keys = [_read_key(word) for word in text.split() or [""]]
    return {hashlib.sha256(b"trace secret key " + key).hexdigest()[:16]: key for key in keys}


def _read_key(word: str) -> bytes:
    try:
        key = base64.b64decode(word.encode(), altchars=b"-_", validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key is {KEY_BYTES} random bytes in base64; several are separated by blanks")
    return key


def _bound(parts: tuple[str, ...]) -> bytes:
    return "\0".join(parts).encode()
