"""The object store on S3, or a server that speaks it: whole PUTs, no renames. `replace=False` is If-None-Match.

One store per bucket, made with the first call for it; a copy in another process makes its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import NotFound, ObjectExists, ObjectsUnavailable
from tracelake.ports import SessionKeys, StoredObject
from tracelake.settings import ObjectSettings

RETRIES: Final[Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
TIMEOUT: Final = "60s"
CHUNK: Final = 1024 * 1024
ANSWER: Final = re.compile(
    r"performing (?P<method>[A-Z]+) .*status code: (?P<status>\d{3})\b.*?<Code>(?P<code>\w+)</Code>"
    r"(?:.*?<Message>(?P<said>[^<]*)</Message>)?"
)
"""What obstore repeats of an answer of S3 that it does not expect."""
OPERATIONS: Final = {"LIST": "list_bucket", "PUT": "put_object", "POST": "put_object", "DELETE": "delete_object"}
"""By the method of a request; each has the name of the right that it needs."""


@dataclass(frozen=True)
class S3Objects:
    region: str
    endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    keys: Callable[[], SessionKeys] | None = field(default=None, repr=False)
    """What returns keys that end, in place of those above: asked when there are none, and before they end."""
    _stores: dict[str, S3Store] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, settings: ObjectSettings) -> Self:
        secret = settings.secret_access_key
        return cls(
            settings.region, settings.endpoint, settings.access_key_id, secret.get_secret_value() if secret else None
        )

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        with _failures(name):
            # A multipart upload cannot be refused because the name is taken: what must not replace goes in one piece.
            obstore.put(
                self._store(name.bucket),
                name.key,
                body,
                mode="overwrite" if replace else "create",
                use_multipart=None if replace else False,
            )

    def get(self, name: ObjectName) -> bytes:
        with _failures(name):
            return obstore.get(self._store(name.bucket), name.key).bytes().to_bytes()

    def chunks(self, name: ObjectName) -> Iterator[bytes]:
        with _failures(name):
            for chunk in obstore.get(self._store(name.bucket), name.key).stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def head(self, name: ObjectName) -> StoredObject | None:
        try:
            with _failures(name):
                return _stored(name.bucket, obstore.head(self._store(name.bucket), name.key))
        except NotFound:
            return None

    def objects(self, folder: Folder) -> Iterator[StoredObject]:
        with _failures(folder):
            for batch in obstore.list(self._store(folder.bucket), folder.key):
                yield from (_stored(folder.bucket, found) for found in batch)

    def delete(self, names: Sequence[ObjectName]) -> None:
        by_bucket: dict[str, list[str]] = {}
        for name in names:
            by_bucket.setdefault(name.bucket, []).append(name.key)
        for bucket, keys in by_bucket.items():
            with _failures(ObjectName.parse(f"s3://{bucket}/{keys[0]}")):
                obstore.delete(self._store(bucket), keys)

    def signed_url(self, name: ObjectName, seconds: int) -> str | None:
        with _failures(name):
            return obstore.sign(self._store(name.bucket), "GET", name.key, timedelta(seconds=seconds))

    def for_spark(self, name: ObjectName) -> str | None:  # noqa: ARG002 - the port's
        """None: the JVM has no S3 of its own, so Spark's Python workers read (`data/files/parquet_reader.py`)."""
        return None

    def _store(self, bucket: str) -> S3Store:
        found = self._stores.get(bucket)
        if found is None:
            found = self._stores[bucket] = self._open(bucket)
        return found

    def _open(self, bucket: str) -> S3Store:
        more: dict[str, Any] = {}
        if self.endpoint is not None:
            more |= {"endpoint": self.endpoint, "virtual_hosted_style_request": False}
        if self.keys is not None:
            more |= {"credential_provider": partial(_credential, self.keys)}
        if self.access_key_id is not None:
            more |= {"access_key_id": self.access_key_id, "secret_access_key": self.secret_access_key}
        if self.session_token is not None:
            more |= {"session_token": self.session_token}
        client: Any = {"allow_http": (self.endpoint or "").startswith("http://"), "timeout": TIMEOUT}
        return S3Store(bucket, region=self.region, client_options=client, retry_config=RETRIES, **more)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_stores"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _stores={})


def _credential(keys: Callable[[], SessionKeys]) -> dict[str, Any]:
    found = keys()
    return {
        "access_key_id": found.access_key_id,
        "secret_access_key": found.secret_access_key,
        "token": found.session_token,
        "expires_at": found.expires_at,
    }


def _stored(bucket: str, found: Any) -> StoredObject:
    return StoredObject(ObjectName.parse(f"s3://{bucket}/{found['path']}"), found["size"])


@contextmanager
def _failures(name: ObjectName | Folder) -> Iterator[None]:
    """Raises our errors for those of obstore."""
    try:
        yield
    except (FileNotFoundError, NotFoundError):
        raise NotFound("no such object", where=str(name)) from None
    except AlreadyExistsError:
        raise ObjectExists("an object of this name is there", where=str(name)) from None
    except (BaseError, OSError) as wrong:
        raise _unavailable(str(wrong).split("\n", 1)[0], name) from None


def _unavailable(text: str, name: ObjectName | Folder) -> ObjectsUnavailable:
    """With what to do, where the server has said what is wrong."""
    found = ANSWER.search(text)
    if found is None:
        return ObjectsUnavailable(f"the object store does not answer: {text[:300]}", where=str(name))
    from tracelake.adapters.aws.faults import refusal

    error = {"Error": {"Code": found["code"], "Message": found["said"] or ""}}
    of_many = {"list request": "LIST", "?delete": "DELETE"}
    method = next((kind for sign, kind in of_many.items() if sign in text), found["method"])
    fault = refusal(error, int(found["status"]), "s3", OPERATIONS.get(method, "get_object"), {"Bucket": name.bucket})
    return ObjectsUnavailable(fault.message, where=str(name), hint=fault.hint)
