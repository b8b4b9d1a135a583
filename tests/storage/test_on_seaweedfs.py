"""Minted keys on a real S3 server: whatever lies outside the token's folders is refused, whatever lies inside works.

Costs 8 s, of which the server's start is 4.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError

from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.session_policy import session_policy
from tracelake.errors import CredentialsUnavailable
from tracelake.lite.seaweedfs import ROLE_ARN, AccessKey, SeaweedFS
from tracelake.ports import CredentialMinter
from tracelake.settings import CredentialSettings, ObjectSettings, Settings
from tracelake.wiring import make_minter, s3_objects

DATA, SCRATCH = "trace", "trace-scratch"
PART = b"x" * 5 * 1024 * 1024


@dataclass(frozen=True)
class World:
    """One attempt's folders (`in/foo/` to read, `out/1/` to write), and what lies beside them."""

    root: str
    server: SeaweedFS
    theirs: Any = field(repr=False)
    """A client with minted keys."""
    ours: Any = field(repr=False)
    grant: StorageGrant

    def key(self, name: str) -> str:
        return f"{self.root}/{name}"


def client(server: SeaweedFS, access: str, secret: str, token: str | None = None, service: str = "s3") -> Any:
    return boto3.session.Session().client(
        service,
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        aws_session_token=token,
        # Tried again when the server stumbles; a refusal is final.
        config=Config(retries={"mode": "standard", "total_max_attempts": 5}, s3={"addressing_style": "path"}),
    )


def minter_of(server: SeaweedFS, **more: Any) -> CredentialMinter:
    credentials = server.credentials(CredentialSettings()).model_copy(update=more)
    settings = Settings.model_construct(objects=ObjectSettings(backend="seaweedfs"), credentials=credentials)
    minter = make_minter(settings)
    assert minter is not None
    return minter


@pytest.fixture(scope="module")
def world(seaweedfs: SeaweedFS) -> Iterator[World]:
    root = f"w{uuid4().hex[:8]}"
    read, write = Folder(DATA, (root, "in", "foo")), Folder(DATA, (root, "out", "1"))
    grant = StorageGrant(frozenset({read, write}), frozenset({write}))
    keys = asyncio.run(minter_of(seaweedfs).mint(session_policy(grant), session="org.task.1", seconds=900))
    assert keys is not None
    theirs = client(seaweedfs, keys.access_key_id, keys.secret_access_key, keys.session_token)
    platform = seaweedfs.keys.platform
    ours = client(seaweedfs, platform.access, platform.secret)
    made = World(root, seaweedfs, theirs, ours, grant)
    for name in ("in/foo/x", "in/foobar/x", "in/y", "out/1/mine", "out/10/x", "out/2/x"):
        ours.put_object(Bucket=DATA, Key=made.key(name), Body=name.encode())
    ours.put_object(Bucket=SCRATCH, Key=made.key("in/foo/x"), Body=b"elsewhere")
    yield made
    for bucket in (DATA, SCRATCH):
        for found in ours.list_objects_v2(Bucket=bucket, Prefix=f"{root}/").get("Contents", []):
            ours.delete_object(Bucket=bucket, Key=found["Key"])


def multipart(world: World, key: str, copy_from: str | None = None) -> None:
    s3, target = world.theirs, {"Bucket": DATA, "Key": world.key(key)}
    target["UploadId"] = s3.create_multipart_upload(**target)["UploadId"]
    if copy_from:
        source = {"Bucket": DATA, "Key": world.key(copy_from)}
        s3.upload_part_copy(**target, PartNumber=1, CopySource=source)
        return
    parts = [{"PartNumber": n, "ETag": s3.upload_part(**target, PartNumber=n, Body=PART)["ETag"]} for n in (1, 2)]
    assert len(s3.list_parts(**target)["Parts"]) == 2
    s3.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})


def aborted(world: World) -> None:
    target = {"Bucket": DATA, "Key": world.key("out/1/never")}
    upload = world.theirs.create_multipart_upload(**target)["UploadId"]
    world.theirs.abort_multipart_upload(**target, UploadId=upload)


def get(name: str, bucket: str = DATA) -> Callable[[World], Any]:
    return lambda world: world.theirs.get_object(Bucket=bucket, Key=world.key(name))


def put(name: str, bucket: str = DATA) -> Callable[[World], Any]:
    return lambda world: world.theirs.put_object(Bucket=bucket, Key=world.key(name), Body=b"theirs")


def delete(name: str, bucket: str = DATA) -> Callable[[World], Any]:
    return lambda world: world.theirs.delete_object(Bucket=bucket, Key=world.key(name))


def listed(prefix: str | None, bucket: str = DATA, **more: Any) -> Callable[[World], Any]:
    def list_objects(world: World) -> Any:
        given = more if prefix is None else {"Prefix": world.key(prefix), **more}
        return world.theirs.list_objects_v2(Bucket=bucket, **given)

    return list_objects


def copied(source: str, target: str) -> Callable[[World], Any]:
    return lambda world: world.theirs.copy_object(
        Bucket=DATA, Key=world.key(target), CopySource={"Bucket": DATA, "Key": world.key(source)}
    )


INSIDE: dict[str, Callable[[World], Any]] = {
    "get": get("in/foo/x"),
    "head": lambda world: world.theirs.head_object(Bucket=DATA, Key=world.key("in/foo/x")),
    "list": listed("in/foo/"),
    "list deeper": listed("in/foo/bar/"),
    "list by level": listed("in/foo/", Delimiter="/"),
    "put": put("out/1/new"),
    "put deeper": put("out/1/a/b/c"),
    "read back": get("out/1/mine"),
    "list its own": listed("out/1/"),
    "delete": delete("out/1/new"),
    "copy what it reads": copied("in/foo/x", "out/1/copy"),
    "multipart": lambda world: multipart(world, "out/1/large"),
    "multipart given up": aborted,
}

OUTSIDE: dict[str, Callable[[World], Any]] = {
    "get a neighbour by name": get("in/foobar/x"),
    "get beside the folder": get("in/y"),
    "get in another bucket": get("in/foo/x", SCRATCH),
    "get another attempt": get("out/2/x"),
    "get an attempt that begins alike": get("out/10/x"),
    "get by dots": get("in/foo/../y"),
    "put where it reads": put("in/foo/new"),
    "put over what it reads": put("in/foo/x"),
    "put beside": put("out/2/new"),
    "put where a name begins alike": put("out/1x"),
    "put in another bucket": put("out/1/new", SCRATCH),
    "put by dots": put("out/1/../2/new"),
    "delete where it reads": delete("in/foo/x"),
    "delete beside": delete("out/2/x"),
    "delete by dots": delete("out/1/../2/x"),
    "list without a prefix": listed(None),
    "list with no prefix": lambda world: world.theirs.list_objects_v2(Bucket=DATA, Prefix=""),
    "list a shorter prefix": listed("in/"),
    "list without the slash": listed("in/foo"),
    "list a name that begins alike": listed("in/foobar/"),
    "list another bucket": listed("in/foo/", SCRATCH),
    "list by the old call": lambda world: world.theirs.list_objects(Bucket=DATA, Prefix=world.key("in/")),
    "list uploads": lambda world: world.theirs.list_multipart_uploads(Bucket=DATA),
    "list versions": lambda world: world.theirs.list_object_versions(Bucket=DATA),
    "copy from a foreign key": copied("in/y", "out/1/stolen"),
    "copy to a foreign key": copied("in/foo/x", "out/2/given"),
    "multipart where it reads": lambda world: multipart(world, "in/foo/large"),
    "multipart beside": lambda world: multipart(world, "out/2/large"),
    "a part copied from a foreign key": lambda world: multipart(world, "out/1/parts", "in/y"),
    "the rights of an object": lambda world: world.theirs.get_object_acl(Bucket=DATA, Key=world.key("in/foo/x")),
    "give all users rights": lambda world: world.theirs.put_object_acl(
        Bucket=DATA, Key=world.key("out/1/mine"), ACL="public-read"
    ),
    "a policy for the bucket": lambda world: world.theirs.put_bucket_policy(Bucket=DATA, Policy="{}"),
    "the bucket's policy": lambda world: world.theirs.get_bucket_policy(Bucket=DATA),
    "make a bucket": lambda world: world.theirs.create_bucket(Bucket="theirs"),
    "remove a bucket": lambda world: world.theirs.delete_bucket(Bucket=SCRATCH),
}


@pytest.mark.parametrize("case", INSIDE)
def test_what_lies_inside_is_allowed(case: str, world: World) -> None:
    INSIDE[case](world)


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_lies_outside_is_refused(case: str, world: World) -> None:
    before = everything(world)
    with pytest.raises((ClientError, ParamValidationError)) as refusal:
        OUTSIDE[case](world)
    if isinstance(refusal.value, ClientError):
        assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] in {400, 403}
    assert everything(world) == before


def test_dots_that_are_encoded_are_a_name_and_lead_nowhere(world: World) -> None:
    with pytest.raises(ClientError) as refusal:
        get("in/foo/%2e%2e/y")(world)
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def everything(world: World) -> dict[str, str]:
    """What is there, and what it holds."""
    found = {}
    for bucket in (DATA, SCRATCH):
        for item in world.ours.list_objects_v2(Bucket=bucket, Prefix=f"{world.root}/").get("Contents", []):
            found[f"{bucket}/{item['Key']}"] = item["ETag"]
    return found


def test_deleting_many_at_once_deletes_only_its_own(world: World) -> None:
    world.theirs.put_object(Bucket=DATA, Key=world.key("out/1/gone"), Body=b"x")
    keys = [{"Key": world.key(name)} for name in ("out/1/gone", "in/y")]
    answer = world.theirs.delete_objects(Bucket=DATA, Delete={"Objects": keys})
    assert [error["Key"] for error in answer["Errors"]] == [world.key("in/y")]
    assert f"{DATA}/{world.key('in/y')}" in everything(world)
    assert f"{DATA}/{world.key('out/1/gone')}" not in everything(world)


def test_a_session_shows_no_bucket_and_opens_no_other_session(world: World) -> None:
    assert world.theirs.list_buckets()["Buckets"] == []
    keys = world.theirs._request_signer._credentials
    sts = client(world.server, keys.access_key, keys.secret_key, keys.token, "sts")
    with pytest.raises(ClientError, match="AccessDenied"):
        sts.assume_role(RoleArn=ROLE_ARN, RoleSessionName="again")


@pytest.mark.parametrize("whose", ["platform", "query", "steward"])
def test_only_the_minter_may_assume_the_role_of_tasks(whose: str, seaweedfs: SeaweedFS) -> None:
    key: AccessKey = getattr(seaweedfs.keys, whose)
    other_minter = minter_of(seaweedfs, access_key_id=key.access, secret_access_key=_secret(key))
    with pytest.raises(CredentialsUnavailable, match="AccessDenied"):
        asyncio.run(
            other_minter.mint(session_policy(StorageGrant(frozenset(), frozenset())), session="s1", seconds=900)
        )


def test_the_minter_may_do_nothing_else(world: World, seaweedfs: SeaweedFS) -> None:
    key = seaweedfs.keys.minter
    s3 = client(seaweedfs, key.access, key.secret)
    calls: list[Callable[[], Any]] = [
        lambda: s3.list_objects_v2(Bucket=DATA),
        lambda: s3.get_object(Bucket=DATA, Key=world.key("in/y")),
        lambda: s3.put_object(Bucket=DATA, Key=world.key("in/z"), Body=b"x"),
    ]
    for call in calls:
        with pytest.raises(ClientError, match="AccessDenied"):
            call()


def test_the_query_service_reads_and_writes_only_what_it_exports(world: World, seaweedfs: SeaweedFS) -> None:
    query = s3_objects(seaweedfs.objects_for("query"))
    assert query.get(Folder(DATA, (world.root, "in")).object("y")) == b"in/y"
    query.put(Folder(SCRATCH, (world.root, "export")).object("x"), b"x")
    key = seaweedfs.keys.query
    with pytest.raises(ClientError, match="AccessDenied"):
        client(seaweedfs, key.access, key.secret).put_object(Bucket=DATA, Key=world.key("in/y"), Body=b"x")


def test_processes_without_access_to_objects_get_no_key(seaweedfs: SeaweedFS) -> None:
    for process in ("gateway", "scheduler", "delivery"):
        objects = seaweedfs.objects_for(process)
        assert (objects.access_key_id, objects.secret_access_key) == (None, None)


def test_an_empty_grant_opens_nothing(world: World, seaweedfs: SeaweedFS) -> None:
    nothing = session_policy(StorageGrant(frozenset(), frozenset()))
    keys = asyncio.run(minter_of(seaweedfs).mint(nothing, session="s1", seconds=900))
    assert keys is not None
    s3 = client(seaweedfs, keys.access_key_id, keys.secret_access_key, keys.session_token)
    calls: list[Callable[[], Any]] = [
        lambda: s3.get_object(Bucket=DATA, Key=world.key("in/foo/x")),
        lambda: s3.put_object(Bucket=DATA, Key=world.key("out/1/x"), Body=b"x"),
        lambda: s3.list_objects_v2(Bucket=DATA, Prefix=world.key("in/foo/")),
    ]
    for call in calls:
        with pytest.raises(ClientError, match="AccessDenied"):
            call()


def test_without_keys_every_port_refuses_what_it_holds(world: World, seaweedfs: SeaweedFS) -> None:
    key, ports = world.key("in/y"), seaweedfs.ports
    for url in (
        f"{seaweedfs.endpoint}/{DATA}/{key}",
        f"http://127.0.0.1:{ports.filer}/buckets/{DATA}/{key}",
    ):
        assert httpx.get(url).status_code in {401, 403}, url
        assert httpx.put(url, content=b"x").status_code in {401, 403}, url


def test_its_keys_are_in_no_file_and_no_argument(seaweedfs: SeaweedFS) -> None:
    launch = seaweedfs.launch()
    keys = seaweedfs.keys
    secrets = [key.secret for key in (keys.steward, keys.platform, keys.query, keys.minter)] + [keys.signing]
    said = json.dumps([*launch.argv, *launch.env.values()])
    assert not any(secret in said for secret in secrets)
    held = b"".join(path.read_bytes() for path in seaweedfs.folder.rglob("*") if path.is_file())
    assert not any(secret.encode() in held for secret in secrets)


def _secret(key: AccessKey) -> Any:
    from pydantic import SecretStr

    return SecretStr(key.secret)
