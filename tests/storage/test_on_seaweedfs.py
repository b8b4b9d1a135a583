"""Minted keys on a real S3 server: whatever lies outside the token's folders is refused, whatever lies inside works.

Costs 8 s, of which the server's start is 4.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from botocore.exceptions import ClientError, ParamValidationError

from tests.support.aws.s3_cases import (
    DATA,
    INSIDE,
    OUTSIDE,
    SCRATCH,
    World,
    clear,
    everything,
    fill,
    get,
    grant_in,
    s3_client,
)
from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.session_policy import session_policy
from tracelake.errors import CredentialsUnavailable
from tracelake.lite.seaweedfs import ROLE_ARN, AccessKey, SeaweedFS
from tracelake.ports import CredentialMinter
from tracelake.settings import CredentialSettings, ObjectSettings, Settings
from tracelake.wiring import make_minter, s3_objects


def minter_of(server: SeaweedFS, **more: Any) -> CredentialMinter:
    credentials = server.credentials(CredentialSettings()).model_copy(update=more)
    settings = Settings.model_construct(objects=ObjectSettings(backend="seaweedfs"), credentials=credentials)
    minter = make_minter(settings)
    assert minter is not None
    return minter


@pytest.fixture(scope="module")
def world(seaweedfs: SeaweedFS) -> Iterator[World]:
    root = f"w{uuid4().hex[:8]}"
    grant = grant_in(root)
    keys = asyncio.run(minter_of(seaweedfs).mint(session_policy(grant), session="org.task.1", seconds=900))
    assert keys is not None
    theirs = s3_client(seaweedfs, keys.access_key_id, keys.secret_access_key, keys.session_token)
    platform = seaweedfs.keys.platform
    ours = s3_client(seaweedfs, platform.access, platform.secret)
    made = World(root, seaweedfs, theirs, ours, grant)
    fill(made)
    yield made
    clear(made)


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
    sts = s3_client(world.server, keys.access_key, keys.secret_key, keys.token, "sts")
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
    s3 = s3_client(seaweedfs, key.access, key.secret)
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
        s3_client(seaweedfs, key.access, key.secret).put_object(Bucket=DATA, Key=world.key("in/y"), Body=b"x")


def test_processes_without_access_to_objects_get_no_key(seaweedfs: SeaweedFS) -> None:
    for process in ("gateway", "scheduler", "delivery"):
        objects = seaweedfs.objects_for(process)
        assert (objects.access_key_id, objects.secret_access_key) == (None, None)


def test_an_empty_grant_opens_nothing(world: World, seaweedfs: SeaweedFS) -> None:
    nothing = session_policy(StorageGrant(frozenset(), frozenset()))
    keys = asyncio.run(minter_of(seaweedfs).mint(nothing, session="s1", seconds=900))
    assert keys is not None
    s3 = s3_client(seaweedfs, keys.access_key_id, keys.secret_access_key, keys.session_token)
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
