"""What a task does on an S3 server, inside of its folders and outside of them, as calls of boto3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import boto3
from botocore.config import Config

from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.object_names import Folder
from tracelake.lite.seaweedfs import SeaweedFS

DATA, SCRATCH = "trace", "trace-scratch"
PART: Final = b"x" * 5 * 1024 * 1024


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


def s3_client(server: SeaweedFS, access: str, secret: str, token: str | None = None, service: str = "s3") -> Any:
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


def grant_in(root: str) -> StorageGrant:
    """`in/foo/` to read, `out/1/` to write."""
    read, write = (Folder(DATA, (*root.split("/"), *names)) for names in (("in", "foo"), ("out", "1")))
    return StorageGrant(frozenset({read, write}), frozenset({write}))


def fill(world: World) -> None:
    for name in ("in/foo/x", "in/foobar/x", "in/y", "out/1/mine", "out/10/x", "out/2/x"):
        world.ours.put_object(Bucket=DATA, Key=world.key(name), Body=name.encode())
    world.ours.put_object(Bucket=SCRATCH, Key=world.key("in/foo/x"), Body=b"elsewhere")


def clear(world: World) -> None:
    for bucket in (DATA, SCRATCH):
        for found in world.ours.list_objects_v2(Bucket=bucket, Prefix=f"{world.root}/").get("Contents", []):
            world.ours.delete_object(Bucket=bucket, Key=found["Key"])


def everything(world: World) -> dict[str, str]:
    """What is there, and what it holds."""
    found = {}
    for bucket in (DATA, SCRATCH):
        for item in world.ours.list_objects_v2(Bucket=bucket, Prefix=f"{world.root}/").get("Contents", []):
            found[f"{bucket}/{item['Key']}"] = item["ETag"]
    return found


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
