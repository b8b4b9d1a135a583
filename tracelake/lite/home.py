"""The home folder of a Lite system, and its lock."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.domain.access.seal import new_key
from tracelake.domain.access.service_tokens import new_service_token
from tracelake.errors import HomeInUse, SetupError
from tracelake.runtime.disk import NO_SPACE

STATUS_BYTES: Final = 16 * 1024
"""The size of the status file is a multiple of this; most systems need one."""


@dataclass(frozen=True)
class Home:
    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def seaweedfs(self) -> Path:
        """Data of the S3 server, if there is one; it creates the folder itself."""
        return self.root / "seaweedfs"

    @property
    def objects(self) -> Path:
        """The disk store, unless a setting names another folder."""
        return self.root / "objects"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def work(self) -> Path:
        """Scratch of running processes, emptied at every start."""
        return self.root / "work"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def lock(self) -> Path:
        return self.root / "run" / "lock"

    @property
    def status(self) -> Path:
        return self.root / "run" / "status.json"

    @property
    def ready(self) -> Path:
        """Endpoints and tokens of the running system, for verbs; exists while its listeners are open."""
        return self.root / "run" / "ready.json"

    @property
    def all_ready(self) -> Path:
        """The same; exists while all of it is ready, with Spark."""
        return self.root / "run" / "all_ready.json"

    def service_token(self, service: str) -> Path:
        """The token of a service, which only its process is given."""
        return self.keys / "services" / f"{service}.token"

    def make(self) -> None:
        try:
            for folder in (
                self.root,
                self.postgres,
                self.logs,
                self.tls,
                self.keys,
                self.work,
                self.cache,
                self.lock.parent,
            ):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.root, self.objects, self.logs, self.keys):  # an older home, or one made by hand
                if folder.exists():
                    folder.chmod(0o700)
        except OSError as error:
            raise SetupError(
                f"the home folder cannot be created: {error.strerror}",
                where=str(self.root),
                hint="choose another: --home DIR",
            ) from None


@contextmanager
def held(home: Home) -> Iterator[None]:
    """Only one `trace up` may hold a home; the kernel releases the lock when it ends."""
    handle = os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use(home) from None
        os.truncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "since": time.time()}).encode())
        yield
        os.truncate(handle, 0)
    finally:
        os.close(handle)


def holder(home: Home) -> int | None:
    """The process that holds the home, or None."""
    try:
        handle = os.open(home.lock, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(_noted(home).get("pid", 0)) or None
    else:
        return None
    finally:
        os.close(handle)


def in_use(home: Home) -> HomeInUse:
    """The error that names the holder."""
    noted = _noted(home)
    pid = noted.get("pid", "unknown")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(noted.get("since", 0))))
    return HomeInUse(
        f"Trace is up already: {home.root} is in use by `trace up`, process {pid}, since {since}",
        where=str(home.root),
        hint=f"`trace down --home '{home.root}'` stops it; or choose another --home",
    )


def write_private(path: Path, text: str) -> None:
    """Writes atomically, readable by this user only."""
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # made with mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(fresh).replace(path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def write_status(path: Path, text: str) -> None:
    """As `write_private`; on a full disk it overwrites the file in place, which has spare bytes for that."""
    padded = text.ljust(-(-len(text.encode()) // STATUS_BYTES) * STATUS_BYTES)
    try:
        write_private(path, padded)
    except OSError as error:
        if error.errno not in NO_SPACE or len(padded.encode()) > path.stat().st_size:
            raise
        with path.open("r+b", buffering=0) as file:
            file.write(padded.encode())


def socket_folder(home: Home) -> Path:
    """A new one each time; removes the one that a killed `trace up` left."""
    note = home.lock.parent / "sockets"
    if note.exists():
        left = Path(note.read_text().strip())
        if left.name.startswith("trace-") and left.parent == Path(tempfile.gettempdir()):  # ours, and nothing else
            shutil.rmtree(left, ignore_errors=True)
    folder = new_socket_folder()
    write_private(note, str(folder))
    return folder


def new_socket_folder() -> Path:
    """Unix sockets need a short path that the server's user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="trace-"))
    folder.chmod(0o711)
    return folder


def ensure_service_tokens(home: Home, services: Iterable[str]) -> dict[str, str]:
    """The token of each service of this machine; made once. Removes the one token that all processes shared before."""
    (home.keys / "worker.token").unlink(missing_ok=True)
    return {service: _service_token(home, service) for service in services}


def replace_service_token(home: Home, service: str) -> str:
    token = new_service_token()
    home.service_token(service).parent.mkdir(exist_ok=True, mode=0o700)
    write_private(home.service_token(service), token + "\n")
    return token


def _service_token(home: Home, service: str) -> str:
    try:
        token = home.service_token(service).read_text().strip()
    except FileNotFoundError:
        token = ""
    return token or replace_service_token(home, service)


def ensure_secret_key(home: Home) -> str:
    """The keys that encrypt the secrets of organisations; one is made at the first start."""
    path = home.keys / "secrets.key"
    if not path.exists():
        write_private(path, new_key() + "\n")
    return path.read_text().strip()


def ensure_issuer_key(home: Home) -> ec.EllipticCurvePrivateKey:
    """The key with which Lite signs its users' tokens; made once."""
    path = home.keys / "issuer.pem"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(path, _pem(key))
    except ValueError as error:
        raise SetupError(
            f"the local issuer's key cannot be read: {error}",
            where=str(path),
            hint="remove the file: a new key is made, and tokens signed by the old one become invalid",
        ) from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - we wrote it
    return key


def public_pem(key: ec.EllipticCurvePrivateKey) -> str:
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, spki).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _noted(home: Home) -> dict[str, Any]:
    try:
        noted = json.loads(home.lock.read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}
