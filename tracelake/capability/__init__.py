"""Capability tokens: what one attempt of one task may access, signed by the Dispatcher, verified by every task API.

In order: `claims` (the content of a token), `jws` (how it is encoded and signed, and the public keys), `keyset` (the
published keys as a verifier knows them), `verifier` (whether a token is valid). Dispatcher, Query service and sink
share this, so that they cannot judge a token differently. The port `Signer` signs; `store.signing_keys` decides which
key does.
"""

from __future__ import annotations

from tracelake.capability.claims import (
    AUDIENCE,
    LONGEST_LIFE_SECONDS,
    Claims,
    decode,
    encode,
    life_of,
    mint,
    new_claims,
    renewal_due,
)
from tracelake.capability.jws import MAX_TOKEN_CHARS
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.domain.grants import GrantedDataset, S3Prefixes
from tracelake.wire.message import CAPABILITY_HEADER

__all__ = [
    "AUDIENCE",
    "CAPABILITY_HEADER",
    "LONGEST_LIFE_SECONDS",
    "MAX_TOKEN_CHARS",
    "Claims",
    "GrantedDataset",
    "Reason",
    "S3Prefixes",
    "TokenRefused",
    "Verifier",
    "decode",
    "encode",
    "life_of",
    "mint",
    "new_claims",
    "renewal_due",
]
