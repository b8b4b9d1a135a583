"""The STS adapter over real HTTP: against moto, which is AWS as far as APIs go, and against one that is away. 5 s."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.support.programs.sts_stub import an_sts
from tracelake.adapters.credentials_sts import StsMinter
from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.session_policy import session_policy
from tracelake.errors import CredentialsUnavailable, Forbidden
from tracelake.lite.network_ports import free_port
from tracelake.settings import CredentialSettings, ObjectSettings, Settings
from tracelake.wiring import make_minter

pytestmark = pytest.mark.anyio

POLICY = session_policy(StorageGrant(frozenset({Folder.parse("s3://lake/a/foo/")}), frozenset()))
ROLE = "arn:aws:iam::123456789012:role/tasks"
SESSION = "0123456789abcdef.0123456789abcdef0123456789abcdef.1"


def minter_at(endpoint: str) -> StsMinter:
    given = {"role_arn": ROLE, "endpoint": endpoint, "access_key_id": "KEY", "secret_access_key": "secret"}
    return StsMinter(CredentialSettings.model_validate({**given, "timeout_seconds": 5}))


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


async def test_a_session_is_opened_under_its_name_and_for_its_time(moto: str) -> None:
    keys = await minter_at(moto).mint(POLICY, session=SESSION, seconds=1800)
    assert keys is not None
    assert timedelta(0) <= datetime.now(UTC) + timedelta(seconds=1800) - keys.expires_at <= timedelta(seconds=60)
    assert "secret" not in repr(keys)
    theirs = boto3.session.Session(
        aws_access_key_id=keys.access_key_id,
        aws_secret_access_key=keys.secret_access_key,
        aws_session_token=keys.session_token,
    ).client("sts", endpoint_url=moto, region_name="us-east-1")
    assert theirs.get_caller_identity()["Arn"] == f"arn:aws:sts::123456789012:assumed-role/tasks/{SESSION}"


async def test_the_policy_is_sent_as_it_was_judged() -> None:
    async with an_sts() as sts:
        await minter_at(sts.url).mint(POLICY, session=SESSION, seconds=900)
    (request,) = sts.asked
    assert request["Policy"] == POLICY
    assert (request["Action"], request["RoleArn"], request["RoleSessionName"]) == ("AssumeRole", ROLE, SESSION)
    assert request["DurationSeconds"] == "900"


async def test_without_a_policy_nothing_is_asked_for() -> None:
    async with an_sts() as sts:
        with pytest.raises(Forbidden):
            await minter_at(sts.url).mint("", session=SESSION, seconds=900)
    assert sts.asked == []


async def test_an_sts_that_is_away_is_worth_a_retry() -> None:
    with pytest.raises(CredentialsUnavailable) as refusal:
        await minter_at(f"http://127.0.0.1:{free_port()}").mint(POLICY, session=SESSION, seconds=900)
    assert refusal.value.retryable
    assert "KEY" not in refusal.value.message


def test_without_a_role_there_is_no_minter() -> None:
    assert make_minter(Settings.model_construct(objects=ObjectSettings(backend="s3"))) is None
