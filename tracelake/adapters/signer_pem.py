"""The `Signer` port on a folder of PEM files, one P-256 private key each.

Rotation is by file: a new key is a new file, made by `rotate` or put there by a person. Several processes may share the
folder and any may be killed at any moment, because a file appears by a rename after its content is on the disk, and
only the holder of the lock makes one. Names that begin with a dot (the lock, a key being written) are skipped; any
other file that is not a key is an error that names it, since a key that cannot be read is a rotation that silently does
not happen. Until it is removed nothing changes: the signing key keeps signing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.capability.jws import header_of, public_jwk, sign_token
from tracelake.errors import SetupError, SigningUnavailable
from tracelake.ports import KeyPlan, PublicKey
from tracelake.runtime.disk import sync_folder

LOCK: Final = ".lock"
UNFINISHED: Final = ".new-"
FILE_LIMIT_BYTES: Final = 16 * 1024

log = structlog.get_logger(__name__)


class PemSigner:
    """One per process."""

    remote: Final = False

    def __init__(self, folder: Path) -> None:
        """Touch nothing yet."""
        self._folder = folder
        self._held: dict[str, _Key] = {}
        self._signing: _Key | None = None

    async def keys(self) -> tuple[PublicKey, ...]:
        self._held = await asyncio.to_thread(_read_folder, self._folder)
        return tuple(key.public for key in self._held.values())

    async def follow(self, plan: KeyPlan) -> None:
        self._signing = None if plan.signing is None else self._held.get(plan.signing)
        for kid in plan.retired:
            if key := self._held.pop(kid, None):
                await asyncio.to_thread(_destroy, key)

    async def rotate(self, *, known: Collection[str] | None = None) -> PublicKey:
        return (await asyncio.to_thread(_rotate, self._folder, known)).public

    async def sign(self, payload: bytes) -> str:
        return self.sign_now(payload)

    def sign_now(self, payload: bytes) -> str:
        """The same without a coroutine: it is 35 microseconds of arithmetic, and waits for nothing."""
        key = self._signing
        if key is None:
            raise SigningUnavailable(
                "no key signs capability tokens here yet",
                where=str(self._folder),
                hint="a new key signs after the overlap; every Dispatcher must see the same key folder",
            )
        return sign_token(key.header, payload, key.private)


@dataclass(frozen=True, slots=True)
class _Key:
    public: PublicKey
    private: ec.EllipticCurvePrivateKey
    header: bytes
    files: tuple[Path, ...]
    """More than one if it was copied."""


def _read_folder(folder: Path) -> dict[str, _Key]:
    """Every key by its kid; SetupError names every file that is none."""
    _make(folder)
    found: dict[str, _Key] = {}
    faults: list[str] = []
    for path in _entries(folder):
        try:
            private = _read_key(path)
        except FileNotFoundError:  # retired by another process since we looked
            continue
        except (OSError, ValueError) as wrong:
            faults.append(f"{path.name} ({_reason(wrong)})")
        else:
            key = _key(private, path)
            copy = found.get(key.public.kid)
            found[key.public.kid] = key if copy is None else _key(private, *copy.files, path)
    if faults:
        raise SetupError(
            f"the key folder holds what is not a key to sign with: {', '.join(faults)}",
            where=str(folder),
            hint="move it elsewhere; a key being copied in needs a name with a dot in front until it is whole",
        )
    return found


def _entries(folder: Path) -> list[Path]:
    with _as_setup_error(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("not a file")
    if facts.st_mode & stat.S_IRWXO:
        raise ValueError("open to every user of this machine; chmod 600 it")
    if facts.st_size > FILE_LIMIT_BYTES:
        raise ValueError("too large for a key")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("not a private key in PEM") from None
    except TypeError:
        raise ValueError("encrypted by a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 key")  # noqa: TRY004 - the file is wrong, not a type in the code
    return key


def _key(private: ec.EllipticCurvePrivateKey, *files: Path) -> _Key:
    jwk = public_jwk(private.public_key())
    return _Key(PublicKey(jwk["kid"], jwk), private, header_of(jwk["kid"]), files)


def _rotate(folder: Path, known: Collection[str] | None) -> _Key:
    _make(folder)
    with _as_setup_error(folder), _locked(folder):
        for left in folder.glob(f"{UNFINISHED}*"):
            left.unlink()  # left by a process that was killed: this one holds the lock
        if known is not None:
            others = [key for kid, key in _read_folder(folder).items() if kid not in known]
            if others:
                return others[0]
        private = ec.generate_private_key(ec.SECP256R1())
        path = folder / f"task-{public_jwk(private.public_key())['kid']}.pem"
        _write(path, _pem(private))
        return _key(private, path)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, durable when it returns, and readable by this user only."""
    fresh = path.parent / f"{UNFINISHED}{secrets.token_hex(8)}"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def _destroy(key: _Key) -> None:
    try:
        for path in key.files:
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
    except OSError as wrong:  # a folder that we may only read: the key is out of use all the same
        log.warning("retired key not removed", kid=key.public.kid, reason=_reason(wrong))


def _make(folder: Path) -> None:
    with _as_setup_error(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The kernel lets go when the process ends, however it ends."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _as_setup_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as wrong:
        raise SetupError(f"the key folder cannot be used: {_reason(wrong)}", where=str(folder)) from None


def _reason(wrong: Exception) -> str:
    return wrong.strerror or str(wrong) if isinstance(wrong, OSError) else str(wrong)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
