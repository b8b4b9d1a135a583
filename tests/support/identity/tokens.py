"""Tokens of every kind, good and hostile, and clocks that move by hand."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.capability.claims import Claims
from tracelake.capability.jws import header_of, public_jwk, sign_token
from tracelake.domain.access.grants import GrantedDataset, S3Prefixes
from tracelake.domain.ids import Attempt, CommitNumber, DatasetId, DatasetName, DatasetVersion, OrgId, TaskId

NOW = 1_800_000_000
ISSUER = "trace-dispatcher"
TASK = UUID("00000000-0000-4000-8000-00000000000a")

CLAIMS = Claims(
    iss=ISSUER,
    iat=NOW - 10,
    exp=NOW + 890,
    jti=UUID(int=5),
    org_id=OrgId(UUID(int=6)),
    task_id=TaskId(TASK),
    attempt=Attempt(1),
    datasets=(
        GrantedDataset(
            DatasetId(UUID(int=1)),
            DatasetVersion(UUID(int=2)),
            CommitNumber(7),
            DatasetName("blocks"),
            "s3://lake/org/blocks/",
            "read",
        ),
        GrantedDataset(DatasetId(UUID(int=3)), DatasetVersion(UUID(int=4)), None, None, "hot.logs", "write"),
    ),
    s3=S3Prefixes(read=("s3://lake/org/blocks/",), write=("s3://lake/org/out/task=a/1/",)),
)


@dataclass(frozen=True)
class Key:
    """A key pair, as a signer or an attacker has it."""

    private: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def jwk(self) -> dict[str, str]:
        return public_jwk(self.private.public_key())

    @property
    def kid(self) -> str:
        return self.jwk["kid"]

    @property
    def public_pem(self) -> bytes:
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.private.public_key().public_bytes(serialization.Encoding.PEM, spki)

    def sign(self, payload: bytes) -> str:
        return sign_token(header_of(self.kid), payload, self.private)

    def sign_with(self, header: bytes, payload: bytes) -> str:
        """Under any header, with a signature that is good."""
        return sign_token(b64(header).encode(), payload, self.private)


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
PLAIN = serialization.NoEncryption()


def put(folder: Path, name: str, content: bytes, mode: int = 0o600) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    path.chmod(mode)
    return path


def pem(key: Key) -> bytes:
    return key.private.private_bytes(PEM, PKCS8, PLAIN)
