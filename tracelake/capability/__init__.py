"""Capability tokens: what one attempt of one task may touch, signed by the Dispatcher, checked at every task door.

In order: `claims` (what a token says), `jws` (how it is written and signed, and the public keys), `keyset` (the
published keys as a verifier knows them), `verifier` (whether a token holds). Dispatcher, Query service and sink share
this, so that they cannot judge a token differently. Who signs is the port `Signer`; which key does is decided in
`store.signing_keys`.
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
from tracelake.capability.refusal import CAPABILITY_HEADER, Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.domain.grants import GrantedDataset, S3Prefixes

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
