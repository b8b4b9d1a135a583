"""Signers under test: each adapter over its keys."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.identity.tokens import Key, pem, put
from tracelake.adapters.aws.service import AwsService
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.adapters.signer_kms import KmsSigner
from tracelake.adapters.signer_kms_sealed import KmsSealedSigner
from tracelake.adapters.signer_pem import PemSigner
from tracelake.errors import SigningUnavailable
from tracelake.ports import KeyPlan, Signer
from tracelake.settings import TokenSettings


@dataclass(frozen=True)
class Signers:
    """One adapter under test."""

    open: Callable[[], Signer]
    """Another instance over the same keys."""
    add_key: Callable[[], Awaitable[None]]
    """As a person does it."""

    async def signing(self) -> Signer:
        """With a new key."""
        signer = self.open()
        made = await signer.rotate()
        await signer.keys()
        await signer.follow(KeyPlan(made.kid, (), rotation_due=False))
        return signer


def pem_signers(folder: Path) -> Signers:
    async def add_key() -> None:
        put(folder, f"{secrets.token_hex(4)}.pem", pem(Key()))

    return Signers(lambda: PemSigner(folder), add_key)


def kms_settings(endpoint: str) -> TokenSettings:
    """With a prefix that no other test has."""
    return TokenSettings(signer="kms", kms_endpoint=endpoint, kms_alias_prefix=f"alias/{secrets.token_hex(4)}-")


@asynccontextmanager
async def kms_signers(settings: TokenSettings) -> AsyncIterator[Signers]:
    made: list[KmsSigner] = []
    async with a_kms(settings) as kms:

        def opened() -> Signer:
            made.append(KmsSigner(settings))
            return made[-1]

        async def add_key() -> None:
            await new_kms_key(kms, f"{settings.kms_alias_prefix}by-hand", KeySpec="ECC_NIST_P256")

        yield Signers(opened, add_key)
        for signer in made:
            await signer.close()


@asynccontextmanager
async def sealed_signers(endpoint: str, folder: Path) -> AsyncIterator[Signers]:
    """Data keys in a folder, encrypted by a new key of KMS."""
    made: list[KmsSealedSigner] = []
    async with a_kms(TokenSettings(signer="kms", kms_endpoint=endpoint)) as kms:
        key = str((await kms.call("create_key"))["KeyMetadata"]["KeyId"])
        settings = sealed_settings(endpoint, key)

        def opened() -> KmsSealedSigner:
            made.append(KmsSealedSigner(settings, DiskObjects(folder), "trace"))
            return made[-1]

        async def add_key() -> None:
            await opened().rotate()

        yield Signers(opened, add_key)
        for signer in made:
            await signer.close()


def sealed_settings(endpoint: str, key: str) -> TokenSettings:
    return TokenSettings(signer="kms_sealed", kms_endpoint=endpoint, kms_sealing_key=key)


@asynccontextmanager
async def a_kms(settings: TokenSettings) -> AsyncIterator[AwsService]:
    kms = AwsService("kms", settings.kms_region, settings.kms_endpoint, unavailable=SigningUnavailable)
    try:
        yield kms
    finally:
        await kms.close()


async def new_kms_key(kms: AwsService, alias: str, **kind: str) -> str:
    created = await kms.call("create_key", handled=frozenset(), waits=0.0, KeyUsage="SIGN_VERIFY", **kind)
    key_id = str(created["KeyMetadata"]["KeyId"])
    await kms.call("create_alias", AliasName=alias, TargetKeyId=key_id)
    return key_id
