"""A local certificate authority and the certificate of the listeners.

Three files, each replaced atomically (written beside, synced, renamed), so a kill leaves the old or the new:

- `ca.pem`      public: the authority's certificate and its predecessors' until they expire. Clients trust this file.
- `ca-key.pem`  the authority's key with its certificate.
- `server.pem`  the listeners' key with their certificate. One file, so that the pair is replaced atomically.

The authority is valid for ten years and is replaced only when it nearly expires or cannot be used, always with a note;
the server's certificate is valid for 90 days and is renewed when 30 are left, at start or while running. Running
listeners and clients follow with `reload_if_changed`.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tracelake.errors import SetupError
from tracelake.runtime.disk import sync_folder
from tracelake.runtime.tls import TlsFiles

AUTHORITY_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
BACKDATED: Final = timedelta(hours=1)
"""A client whose clock is a little behind ours must not refuse a certificate made just now."""

PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


def ensure_certificates(
    folder: Path,
    now: datetime,
    names: Sequence[str] = ("localhost",),
    addresses: Sequence[str] = ("127.0.0.1", "::1"),
) -> TlsFiles:
    """Creates, renews or repairs the files as needed. Any number of processes may call it at once."""
    now = now.astimezone(UTC)
    wanted = _alternative_names(names, addresses)
    files = TlsFiles(folder / "ca.pem", folder / "server.pem", folder / "server.pem")
    notes: list[str] = []
    try:
        with _alone_in(folder):
            authority = _authority(folder, now, notes)
            _server(files.cert, authority, wanted, now, notes)
    except OSError as error:
        raise SetupError(
            f"the certificates cannot be stored: {error.strerror}",
            where=str(error.filename or folder),
            hint="make the folder readable and writable for the user who runs Trace",
        ) from error
    return TlsFiles(files.ca, files.cert, files.key, tuple(notes))


@dataclass(frozen=True)
class _Pair:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _tighten(folder, 0o700)
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _authority(folder: Path, now: datetime, notes: list[str]) -> _Pair:
    secret, public = folder / "ca-key.pem", folder / "ca.pem"
    known = [item for item in _certificates(_content(public)) if _is_authority(item)]
    # Both files contain the certificate: a lost copy is restored from the other.
    found = _pair(_content(secret), known)
    if found is not None and _is_authority(found.certificate):
        _refuse_early_clock(found.certificate, now, secret)
    else:
        found = None
    if found is None or _ends_within(found.certificate, now, SERVER_LIFE + RENEW_BEFORE):
        notes += _why_new(found, secret, known)
        known += [] if found is None else [found.certificate]
        found = _new_authority(now)
        _write(secret, _pem(found), 0o600)
    _tighten(secret, 0o600)
    _publish(public, found, known, now, notes)
    return found


def _refuse_early_clock(authority: x509.Certificate, now: datetime, secret: Path) -> None:
    """Raises for an authority that is not valid yet: replacing it would lock out every client that trusts it."""
    if authority.not_valid_before_utc > now:
        raise SetupError(
            f"the clock is {now:%Y-%m-%d %H:%M} UTC, but the certificate authority was made later",
            where=str(secret),
            hint="set the clock; if it is right, remove that file to make a new authority",
        )


def _why_new(found: _Pair | None, secret: Path, known: Sequence[x509.Certificate]) -> list[str]:
    if found is not None:
        return ["the certificate authority was about to expire: a new one was made, and ca.pem contains both"]
    if known or secret.exists():
        return [f"{secret} could not be used: a new certificate authority was made; clients must read ca.pem again"]
    return []  # the first start


def _publish(
    public: Path, authority: _Pair, known: Iterable[x509.Certificate], now: datetime, notes: list[str]
) -> None:
    """Writes the public file before anything is signed, so that clients can already trust the new authority."""
    older = [item for item in known if item.not_valid_after_utc > now]
    bundle = b"".join(_certificate_pem(item) for item in dict.fromkeys([authority.certificate, *older]))
    before = _content(public)
    if before is not None and not _certificates(before):
        notes.append(f"{public} could not be read and was written again")
    if before != bundle:
        _write(public, bundle, 0o644)


def _server(
    place: Path, authority: _Pair, wanted: x509.SubjectAlternativeName, now: datetime, notes: list[str]
) -> None:
    content = _content(place)
    found = _pair(content, ())
    if found is None and content is not None:
        notes.append(f"{place} could not be used: a new server certificate was made")
    if found is None or not _serves(found.certificate, authority, wanted, now):
        _write(place, _pem(_new_server(authority, wanted, now)), 0o600)
    _tighten(place, 0o600)


def _serves(item: x509.Certificate, by: _Pair, wanted: x509.SubjectAlternativeName, now: datetime) -> bool:
    try:
        item.verify_directly_issued_by(by.certificate)
        has = item.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # noqa: BLE001 - any complaint about it has one answer: make a new one
        return False
    in_time = item.not_valid_before_utc <= now and not _ends_within(item, now, RENEW_BEFORE)
    return in_time and set(has) == set(wanted)


def _ends_within(item: x509.Certificate, now: datetime, span: timedelta) -> bool:
    return item.not_valid_after_utc - now < span


def _is_authority(item: x509.Certificate) -> bool:
    try:
        return item.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _new_authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Trace local CA {now:%Y-%m-%d} {os.urandom(4).hex()}")
    builder = (
        _builder(name, name, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return _Pair(key, builder.sign(key, hashes.SHA256()))


def _new_server(authority: _Pair, wanted: x509.SubjectAlternativeName, now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(_name("Trace"), authority.certificate.subject, key, now, SERVER_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .add_extension(wanted, critical=False)
    )
    return _Pair(key, builder.sign(authority.key, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Trace"), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(names: Sequence[str], addresses: Sequence[str]) -> x509.SubjectAlternativeName:
    try:
        return x509.SubjectAlternativeName(
            [
                *(x509.DNSName(name) for name in dict.fromkeys(names)),
                *(x509.IPAddress(ipaddress.ip_address(address)) for address in dict.fromkeys(addresses)),
            ]
        )
    except ValueError as error:
        raise SetupError(
            f"no certificate can be made for these names and addresses: {error}",
            where=", ".join([*names, *addresses]),
            hint="give host names in ASCII and plain IP addresses",
        ) from error


def _pair(content: bytes | None, others: Iterable[x509.Certificate]) -> _Pair | None:
    """The key in the file, and the newest certificate of it in the file or among the others."""
    key = _private_key(content)
    if key is None:
        return None
    own = [item for item in (*_certificates(content), *others) if item.public_key() == key.public_key()]
    newest = max(own, key=lambda item: item.not_valid_after_utc, default=None)
    return None if newest is None else _Pair(key, newest)


def _private_key(content: bytes | None) -> ec.EllipticCurvePrivateKey | None:
    for block in PEM.finditer(content or b""):
        if block[1].endswith(b"PRIVATE KEY"):
            try:
                key = serialization.load_pem_private_key(block[0], None)
            except (ValueError, TypeError):
                return None
            return key if isinstance(key, ec.EllipticCurvePrivateKey) else None
    return None


def _certificates(content: bytes | None) -> list[x509.Certificate]:
    """The certificates that can be read; damaged ones are skipped."""
    found = []
    for block in PEM.finditer(content or b""):
        if block[1] == b"CERTIFICATE":
            try:
                found.append(x509.load_pem_x509_certificate(block[0]))
            except ValueError:
                continue
    return found


def _pem(pair: _Pair) -> bytes:
    key = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key + _certificate_pem(pair.certificate)


def _certificate_pem(item: x509.Certificate) -> bytes:
    return item.public_bytes(serialization.Encoding.PEM)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _tighten(path: Path, mode: int) -> None:
    if path.stat().st_mode & 0o777 != mode:
        path.chmod(mode)


def _write(path: Path, content: bytes, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)  # of a writer that was killed: we hold the lock
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask is
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)
    sync_folder(path.parent)
