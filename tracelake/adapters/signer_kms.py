"""The `Signer` port on KMS: keys of ECC_NIST_P256 that never leave it, one request for each token.

A key is ours by an alias with our prefix, which `rotate` gives it, or a person. A key that is disabled or about to be
deleted is not held: the state database then has another one made. Public halves never change and are fetched once.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.adapters.aws.service import AwsRefusal, AwsService
from tracelake.capability.jws import encode_part, header_of, jws_signature, public_jwk
from tracelake.errors import SetupError, SigningUnavailable
from tracelake.ports import KeyPlan, PublicKey
from tracelake.settings import TokenSettings

RAW_LIMIT_BYTES: Final = 4096
"""The longest message that KMS hashes itself."""
ALGORITHM: Final = "ECDSA_SHA_256"
KIND: Final[dict[str, Any]] = {"KeySpec": "ECC_NIST_P256", "KeyUsage": "SIGN_VERIFY"}
DELETED_AFTER_DAYS: Final = 7
"""The shortest time that KMS allows. The key signs no more from the first moment on."""
OUT_OF_USE: Final = frozenset({"DisabledException", "KMSInvalidStateException", "NotFoundException"})

log = structlog.get_logger(__name__)


class KmsSigner:
    """One per process; it belongs to one event loop."""

    remote: Final = True

    def __init__(self, settings: TokenSettings) -> None:
        """Opens nothing yet."""
        self._kms = AwsService("kms", settings.kms_region, settings.kms_endpoint, unavailable=SigningUnavailable)
        self._prefix = settings.kms_alias_prefix
        self._public: dict[str, PublicKey] = {}
        self._held: dict[str, _Key] = {}
        self._signing: _Key | None = None

    async def keys(self) -> tuple[PublicKey, ...]:
        self._held = {key.public.kid: key async for key in self._look()}
        return tuple(key.public for key in self._held.values())

    async def follow(self, plan: KeyPlan) -> None:
        self._signing = None if plan.signing is None else self._held.get(plan.signing)
        for kid in plan.retired:
            if key := self._held.pop(kid, None):
                await self._destroy(key)

    async def rotate(self, *, known: Collection[str] | None = None) -> PublicKey:
        if known is not None:
            others = [key.public async for key in self._look() if key.public.kid not in known]
            if others:
                return others[0]
        made = {"Description": "signs capability tokens of Trace", **KIND}
        answer = await self._kms.call("create_key", **made)
        key_id = str(answer["KeyMetadata"]["KeyId"])
        await self._kms.call("create_alias", AliasName=f"{self._prefix}{uuid4().hex}", TargetKeyId=key_id)
        return await self._public_key(key_id)

    async def sign(self, payload: bytes) -> str:
        key = self._signing
        if key is None:
            raise SigningUnavailable(
                "no key signs capability tokens here yet",
                where=f"{self._prefix}*",
                hint="a new key signs after the overlap; every Dispatcher must see the same keys",
            )
        signed = key.header + b"." + encode_part(payload)
        try:
            answer = await self._kms.call(
                "sign", handled=OUT_OF_USE, KeyId=key.id, SigningAlgorithm=ALGORITHM, **_message(signed)
            )
        except AwsRefusal as refusal:
            raise _out_of_use(key, refusal.code) from None
        return (signed + b"." + encode_part(jws_signature(answer["Signature"]))).decode("ascii")

    async def close(self) -> None:
        await self._kms.close()

    async def _look(self) -> AsyncIterator[_Key]:
        """Every key that can sign, once, in the order in which they were made."""
        found: dict[str, list[str]] = {}
        async for alias, key_id in self._aliases():
            found.setdefault(key_id, []).append(alias)
        facts = {key_id: await self._facts(key_id) for key_id in found}
        for key_id in sorted(found, key=lambda each: facts[each]["CreationDate"]):
            if facts[key_id]["KeyState"] == "Enabled":
                _check_kind(facts[key_id], found[key_id][0])
                public = await self._public_key(key_id)
                yield _Key(public, key_id, header_of(public.kid), tuple(found[key_id]))

    async def _aliases(self) -> AsyncIterator[tuple[str, str]]:
        more: dict[str, Any] = {}
        while True:
            answer = await self._kms.call("list_aliases", **more)
            for alias in answer["Aliases"]:
                if alias["AliasName"].startswith(self._prefix) and "TargetKeyId" in alias:
                    yield alias["AliasName"], alias["TargetKeyId"]
            if not answer.get("Truncated"):
                return
            more = {"Marker": answer["NextMarker"]}

    async def _facts(self, key_id: str) -> dict[str, Any]:
        facts: dict[str, Any] = (await self._kms.call("describe_key", KeyId=key_id))["KeyMetadata"]
        return facts

    async def _public_key(self, key_id: str) -> PublicKey:
        if key_id not in self._public:
            answer = await self._kms.call("get_public_key", KeyId=key_id)
            key = serialization.load_der_public_key(answer["PublicKey"])
            assert isinstance(key, ec.EllipticCurvePublicKey)  # noqa: S101 - its KeySpec was checked
            jwk = public_jwk(key)
            self._public[key_id] = PublicKey(jwk["kid"], jwk)
        return self._public[key_id]

    async def _destroy(self, key: _Key) -> None:
        """The deletion first: a key without an alias would be left for ever."""
        try:
            await self._kms.call(
                "schedule_key_deletion",
                handled=OUT_OF_USE,
                KeyId=key.id,
                PendingWindowInDays=DELETED_AFTER_DAYS,
            )
        except AwsRefusal:
            pass  # another replica was first
        except SigningUnavailable as wrong:  # we may not: the key is out of use all the same
            log.warning("retired key not removed", kid=key.public.kid, reason=wrong.message)
            return
        for alias in key.aliases:
            with suppress(AwsRefusal):
                await self._kms.call("delete_alias", handled=OUT_OF_USE, AliasName=alias)


@dataclass(frozen=True, slots=True)
class _Key:
    public: PublicKey
    id: str
    header: bytes
    aliases: tuple[str, ...]


def _message(signed: bytes) -> dict[str, Any]:
    """The same signature either way; a digest only where the message is too long for KMS."""
    if len(signed) <= RAW_LIMIT_BYTES:
        return {"MessageType": "RAW", "Message": signed}
    return {"MessageType": "DIGEST", "Message": hashlib.sha256(signed).digest()}


def _check_kind(facts: dict[str, Any], alias: str) -> None:
    if {name: facts.get(name) for name in KIND} != KIND:
        raise SetupError(
            f"the key of {alias} cannot sign capability tokens: it is {facts.get('KeySpec')}, {facts.get('KeyUsage')}",
            where="tokens.kms_alias_prefix",
            hint="delete the alias, or choose another prefix; a key has ECC_NIST_P256 and SIGN_VERIFY",
        )


def _out_of_use(key: _Key, code: str) -> SigningUnavailable:
    return SigningUnavailable(
        f"the key {key.public.kid} cannot sign: {code}",
        where=key.aliases[0],
        hint=f"enable the key {key.id} in KMS; or wait: without it another key is made, and signs after the overlap",
    )
