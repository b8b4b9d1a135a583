"""The `Signer` port with data keys: made here, encrypted by a key of KMS, and kept in the object store.

KMS is asked once for each key and process, and not for each token: a token is signed in this process, as quickly as by
a PEM file. The price is that the private half is in the memory of every Dispatcher while it runs. It is written nowhere
but encrypted, bound to its `kid`, and in a folder that no task can open.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.adapters.aws.service import AwsService
from tracelake.capability.jws import header_of, public_jwk, sign_token
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import NotFound, SettingsError, SetupError, SigningUnavailable, TraceError
from tracelake.ports import KeyPlan, ObjectStore, PublicKey
from tracelake.settings import TokenSettings

FOLDER: Final = ("keys", "task")
"""In the bucket of datasets: the second line of the buckets' policies keeps tasks out of it."""

log = structlog.get_logger(__name__)


class KmsSealedSigner:
    """One per process; it belongs to one event loop."""

    remote: Final = False

    def __init__(self, settings: TokenSettings, objects: ObjectStore, bucket: str) -> None:
        """Opens nothing yet."""
        if settings.kms_sealing_key is None:
            hint = "a symmetric key of KMS that encrypts the keys that sign, such as alias/trace-data"
            raise SettingsError("tokens.kms_sealing_key is not set", where="tokens.kms_sealing_key", hint=hint)
        self._key, self._objects, self._folder = settings.kms_sealing_key, objects, Folder(bucket, FOLDER)
        self._kms = AwsService("kms", settings.kms_region, settings.kms_endpoint, unavailable=SigningUnavailable)
        self._held: dict[str, _Key] = {}
        self._signing: _Key | None = None

    async def keys(self) -> tuple[PublicKey, ...]:
        names = await asyncio.to_thread(lambda: [found.name for found in self._objects.objects(self._folder)])
        found = [await self._opened(name) for name in sorted(names)]
        self._held = {key.public.kid: key for key in found if key is not None}
        return tuple(key.public for key in self._held.values())

    async def follow(self, plan: KeyPlan) -> None:
        self._signing = None if plan.signing is None else self._held.get(plan.signing)
        retired = [self._name(kid) for kid in plan.retired if self._held.pop(kid, None)]
        if retired:
            try:
                await asyncio.to_thread(self._objects.delete, retired)
            except TraceError as wrong:  # they are out of use all the same
                log.warning("retired keys not removed", keys=[str(name) for name in retired], reason=wrong.message)

    async def rotate(self, *, known: Collection[str] | None = None) -> PublicKey:
        if known is not None:
            others = [key for key in await self.keys() if key.kid not in known]
            if others:
                return others[0]
        private = ec.generate_private_key(ec.SECP256R1())
        key = _key(private)
        sealed = await self._kms.call(
            "encrypt", KeyId=self._key, Plaintext=_der(private), EncryptionContext=_context(key.public.kid)
        )
        text = base64.b64encode(sealed["CiphertextBlob"]).decode("ascii")
        body = json.dumps({"kid": key.public.kid, "sealed": text}).encode()
        await asyncio.to_thread(self._objects.put, self._name(key.public.kid), body)
        return key.public

    async def sign(self, payload: bytes) -> str:
        key = self._signing
        if key is None:
            raise SigningUnavailable(
                "no key signs capability tokens here yet",
                where=str(self._folder),
                hint="a new key signs after the overlap; every Dispatcher must see the same keys",
            )
        return sign_token(key.header, payload, key.private)

    async def close(self) -> None:
        await self._kms.close()

    async def _opened(self, name: ObjectName) -> _Key | None:
        """None if another replica has removed it since."""
        kid = name.segments[-1].removesuffix(".json")
        if kid in self._held:
            return self._held[kid]
        try:
            document: Mapping[str, Any] = json.loads(await asyncio.to_thread(self._objects.get, name))
            sealed = base64.b64decode(document["sealed"], validate=True)
        except NotFound:
            return None
        except (ValueError, KeyError, TypeError, binascii.Error):
            raise SetupError("this is no key that signs", where=str(name), hint="remove it") from None
        answer = await self._kms.call("decrypt", CiphertextBlob=sealed, EncryptionContext=_context(kid))
        private = serialization.load_der_private_key(answer["Plaintext"], password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise SetupError("this is not a P-256 key", where=str(name), hint="remove it")
        return _key(private)

    def _name(self, kid: str) -> ObjectName:
        return self._folder.object(f"{kid}.json")


@dataclass(frozen=True, slots=True)
class _Key:
    public: PublicKey
    private: ec.EllipticCurvePrivateKey = field(repr=False)
    header: bytes


def _key(private: ec.EllipticCurvePrivateKey) -> _Key:
    jwk = public_jwk(private.public_key())
    return _Key(PublicKey(jwk["kid"], jwk), private, header_of(jwk["kid"]))


def _der(private: ec.EllipticCurvePrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return private.private_bytes(serialization.Encoding.DER, kind, serialization.NoEncryption())


def _context(kid: str) -> dict[str, str]:
    """KMS decrypts it for this key id alone, and names it in its log."""
    return {"trace:task-key": kid}
