"""The STS adapter over real HTTP: against moto, which is AWS as far as APIs go, and against one that is away. 5 s."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

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


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "AccessDenied", "sts:AssumeRole"),
        (403, "ExpiredToken", "renew the credentials"),
        (403, "InvalidClientTokenId", "renew the credentials"),
        (403, "RequestTimeTooSkewed", "set the clock"),
        (400, "RequestExpired", "set the clock"),
    ],
)
async def test_a_refusal_that_lasts_is_not_repeated_and_says_what_to_do(status: int, code: str, hint: str) -> None:
    async with an_sts() as sts:
        sts.refuses = status, code
        with pytest.raises(CredentialsUnavailable, match=code) as refusal:
            await minter_at(sts.url).mint(POLICY, session=SESSION, seconds=900)
    assert hint in str(refusal.value.hint)
    assert len(sts.asked) == 1


@pytest.mark.parametrize("said", [(400, "Throttling"), (503, "ServiceUnavailable"), (500, "InternalFailure")])
async def test_an_sts_that_is_throttled_or_fails_for_a_moment_is_asked_again(said: tuple[int, str]) -> None:
    async with an_sts() as sts:
        sts.refuses, sts.times = said, 1
        assert await minter_at(sts.url).mint(POLICY, session=SESSION, seconds=900) is not None
    assert len(sts.asked) == 2


async def test_credentials_that_expired_are_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file.write_text("[default]\naws_access_key_id = OLD\naws_secret_access_key = x\n")
    async with an_sts() as sts:
        minter = StsMinter(CredentialSettings.model_validate({"role_arn": ROLE, "endpoint": sts.url}))
        sts.refuses, sts.times = (403, "ExpiredToken"), 1
        with pytest.raises(CredentialsUnavailable):
            await minter.mint(POLICY, session=SESSION, seconds=900)
        file.write_text("[default]\naws_access_key_id = NEW\naws_secret_access_key = y\n")
        assert await minter.mint(POLICY, session=SESSION, seconds=900) is not None
    assert [name.split("/")[0] for name in sts.signed] == ["OLD", "NEW"]


def test_without_a_role_there_is_no_minter() -> None:
    assert make_minter(Settings.model_construct(objects=ObjectSettings(backend="s3"))) is None
