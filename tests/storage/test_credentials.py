"""`POST /v1/task/credentials` over real TLS, with an STS behind it that records its requests. 20 s."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import a_task
from tests.support.dispatcher.listeners import Listeners, opened, settings_in
from tests.support.programs.sts_stub import StsStub, an_sts
from tests.support.verbs import cancel_task
from tests.support.waiting import SECONDS
from tracelake.capability.claims import Claims, decode, mint
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.audit.link import LinkAudit
from tracelake.dispatcher.audit.show import verify_audit
from tracelake.dispatcher.credentials.mint import session_name
from tracelake.errors import LeaseLost
from tracelake.settings import CredentialSettings, ObjectSettings, load_settings
from tracelake.wire.internal.identity import CredentialsRequest, MountedStorage
from tracelake.wiring import make_minter

pytestmark = pytest.mark.anyio

KEYS = {"access_key_id": "KEY", "secret_access_key": "the secret of the minter"}
ROLE = "arn:aws:iam::000000000000:role/tasks"


def claims_of(token: str) -> Claims:
    return decode(parse_token(token).payload)


@dataclass(frozen=True)
class Minting:
    listeners: Listeners
    sts: StsStub

    async def request_keys(self, claimed: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
        answer = await self.listeners.say("credentials", claimed, **more)
        return answer.status_code, answer.json()


@pytest.fixture
async def minting(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Minting]:
    async with an_sts() as sts, control_for(state_db, queue_db, tmp_path) as plain:
        settings = settings_in(tmp_path).model_copy(
            update={
                "objects": ObjectSettings(backend="s3", endpoint="http://127.0.0.1:1", region="eu-central-1"),
                "credentials": CredentialSettings.model_validate({"role_arn": ROLE, "endpoint": sts.url, **KEYS}),
            }
        )
        control = replace(
            plain, minter=make_minter(settings), credentials=settings.credentials, places=settings.objects
        )
        async with opened(control, settings) as listeners:
            yield Minting(listeners, sts)


async def test_keys_are_for_the_folders_of_the_token_and_end_before_it_does(minting: Minting) -> None:
    claimed = await minting.listeners.claim()
    status, keys = await minting.request_keys(claimed)
    assert status == 200, keys
    claims = claims_of(claimed["capability_token"])
    assert (keys["kind"], keys["secret_access_key"]) == ("session", "secret-1")
    assert (keys["endpoint"], keys["region"]) == ("http://127.0.0.1:1", "eu-central-1")
    assert keys["write"] == sorted(claims.s3.write)
    assert keys["read"] == sorted({*claims.s3.read, *claims.s3.write})
    assert datetime.fromisoformat(keys["expires_at"]).timestamp() <= claims.exp
    (request,) = minting.sts.asked
    assert (request["RoleArn"], request["DurationSeconds"]) == (ROLE, "3600")
    statements = json.loads(request["Policy"])["Statement"]
    folders = [f"arn:aws:s3:::{prefix.removeprefix('s3://')}*" for prefix in keys["write"]]
    assert [sorted(item["Resource"]) for item in statements if "s3:PutObject" in item["Action"]] == [folders]


async def entries_of(minting: Minting) -> list[dict[str, Any]]:
    sql = "SELECT * FROM audit_entries WHERE action = 'credentials' ORDER BY id"
    return [dict(row) for row in await minting.listeners.control.pool.fetch(sql)]


async def test_the_audit_has_each_session_with_its_folders_and_without_its_secret(minting: Minting) -> None:
    listeners = minting.listeners
    claimed = await listeners.claim()
    (_, keys), (status, _) = [await minting.request_keys(claimed) for _ in range(2)]
    assert status == 200
    first, second = await entries_of(minting)
    assert (first["org_id"], first["actor"]) == (listeners.chain.org.id, f"task {claimed['task']['task_id']}")
    job = claimed["task"]["job"]
    assert first["object"] == f"dag={job['dag_name']} job={job['name']} attempt=1"
    assert (first["origin"], first["outcome"], first["code"]) == ("127.0.0.1", "done", None)
    detail = first["detail"]
    assert (detail["read"], detail["write"]) == (keys["read"], keys["write"])
    assert detail["session"] == minting.sts.asked[0]["RoleSessionName"]
    assert (detail["access_key_id"], second["id"] != first["id"]) == (keys["access_key_id"], True)
    assert not any(secret in str([first, second]) for secret in (keys["secret_access_key"], keys["session_token"]))
    await LinkAudit(listeners.control.pool).once()
    assert (await verify_audit(listeners.control.pool, listeners.chain.org.id)).problem is None
    assert [row["seq"] for row in await entries_of(minting)] == [1, 2]


async def test_a_task_gets_no_keys_that_cannot_be_recorded(minting: Minting) -> None:
    claimed = await minting.listeners.claim()
    await minting.listeners.control.pool.execute(
        "ALTER TABLE audit_entries ADD CONSTRAINT nothing_more CHECK (false) NOT VALID"
    )
    answer = await minting.listeners.say("credentials", claimed)
    assert (answer.status_code, len(minting.sts.asked)) == (500, 1), "STS has answered"
    assert "secret-1" not in answer.text


async def test_a_session_names_organisation_task_and_attempt(minting: Minting) -> None:
    claimed = await minting.listeners.claim()
    await minting.request_keys(claimed)
    name = minting.sts.asked[0]["RoleSessionName"]
    org, task, attempt = name.split(".")
    assert minting.listeners.chain.org.id.hex.startswith(org)
    assert (UUID(task), attempt) == (UUID(claimed["task"]["task_id"]), "1")
    assert len(session_name(replace(claims_of(claimed["capability_token"]), attempt=2**31 - 1))) <= 64  # type: ignore[arg-type]


async def token_that_ends_in(minting: Minting, claimed: dict[str, Any], seconds: int) -> str:
    claims: Claims = claims_of(claimed["capability_token"])
    now = int(minting.listeners.control.clock())
    return await mint(minting.listeners.control.signer, replace(claims, iat=now - 10, exp=now + seconds, jti=uuid4()))


async def test_keys_never_outlive_the_token(minting: Minting) -> None:
    claimed = await minting.listeners.claim()
    status, keys = await minting.request_keys(claimed, token=await token_that_ends_in(minting, claimed, 1200))
    assert status == 200
    assert 1100 < int(minting.sts.asked[0]["DurationSeconds"]) <= 1200
    assert datetime.fromisoformat(keys["expires_at"]) <= datetime.now(UTC) + timedelta(seconds=1200)
    status, refusal = await minting.request_keys(claimed, token=await token_that_ends_in(minting, claimed, 600))
    assert (status, refusal["error"]["code"]) == (409, "conflict")
    assert "heartbeat" in refusal["error"]["hint"]
    assert len(minting.sts.asked) == 1


async def completed(listeners: Listeners, claimed: dict[str, Any]) -> None:
    await listeners.say("complete", claimed, status="Completed")


async def failed_and_to_be_tried_again(listeners: Listeners, claimed: dict[str, Any]) -> None:
    await listeners.say("complete", claimed, status="Failed", error_message="x")


async def canceled(listeners: Listeners, claimed: dict[str, Any]) -> None:
    await cancel_task(listeners.control, listeners.chain.org.id, UUID(claimed["task"]["task_id"]), "not needed")


async def given_up_unheard(listeners: Listeners, claimed: dict[str, Any]) -> None:
    """As an expired lease leaves it: attempt and lease token stay, so that a late reply may count."""
    task = UUID(claimed["task"]["task_id"])
    await listeners.control.pool.execute(
        "UPDATE tasks SET lease_expires_at = now() - interval '1 h' WHERE id = $1", task
    )
    for _ in range(600):
        if await listeners.control.pool.fetchval("SELECT status::text FROM tasks WHERE id = $1", task) != "Running":
            return
        listeners.control.after_commit.leases.notify()
        await asyncio.sleep(0.1)
    raise AssertionError("the lease was not expired")


async def taken_by_a_newer_attempt(listeners: Listeners, claimed: dict[str, Any]) -> None:
    task = UUID(claimed["task"]["task_id"])
    await listeners.control.pool.execute("UPDATE tasks SET attempt = 2, lease_token = $2 WHERE id = $1", task, uuid4())


@pytest.mark.parametrize(
    "end",
    [completed, failed_and_to_be_tried_again, canceled, given_up_unheard, taken_by_a_newer_attempt],
    ids=lambda end: end.__name__,
)
async def test_an_attempt_that_has_ended_gets_no_keys(minting: Minting, end: Any) -> None:
    claimed = await minting.listeners.claim()
    await end(minting.listeners, claimed)
    status, refusal = await minting.request_keys(claimed)
    assert (status, refusal["error"]["code"]) == (409, "lease_lost")
    assert minting.sts.asked == []
    assert await entries_of(minting) == []


async def test_keys_that_come_after_the_attempt_has_ended_are_thrown_away(minting: Minting) -> None:
    claimed = await minting.listeners.claim()
    minting.sts.held.clear()
    requesting = asyncio.create_task(minting.request_keys(claimed))
    await asyncio.wait_for(minting.sts.heard.wait(), SECONDS)
    await completed(minting.listeners, claimed)
    minting.sts.held.set()
    status, refusal = await requesting
    assert (status, refusal["error"]["code"]) == (409, "lease_lost")
    assert "secret-1" not in json.dumps(refusal)
    assert await entries_of(minting) == []


async def test_the_token_of_one_task_gets_no_keys_of_another(minting: Minting) -> None:
    first, other = await minting.listeners.claim(), await minting.listeners.claim()
    for mine, token in ((first, other), (other, first)):
        status, refusal = await minting.request_keys(mine, token=token["capability_token"])
        assert (status, refusal["error"]["where"]) == (403, "/task_id")
    status, refusal = await minting.request_keys({**first, "attempt": 2})
    assert (status, refusal["error"]["where"]) == (403, "/attempt")
    status, _ = await minting.request_keys({**first, "lease_token": str(uuid4())})
    assert status == 409
    status, _ = await minting.request_keys(first, token="x")
    assert status == 401
    assert minting.sts.asked == []


async def test_a_body_cannot_ask_for_more(minting: Minting) -> None:
    claimed = await minting.listeners.claim()
    for more in ({"s3": {"read": ["s3://trace/"]}}, {"prefix": "s3://trace/x/"}, {"policy": "{}"}, {"org_id": "x"}):
        status, _ = await minting.request_keys(claimed, **more)
        assert status == 400
    assert minting.sts.asked == []


async def test_an_sts_that_refuses_is_said_without_its_secrets(minting: Minting) -> None:
    claimed = await minting.listeners.claim()
    for said, status, code in (
        ((403, "AccessDenied"), 503, "credentials_unavailable"),
        ((503, "ServiceUnavailable"), 503, "credentials_unavailable"),
        ((400, "PackedPolicyTooLarge"), 403, "forbidden"),
    ):
        minting.sts.refuses = said
        answered, refusal = await minting.request_keys(claimed)
        assert (answered, refusal["error"]["code"]) == (status, code)
        assert refusal["error"]["retryable"] is (status == 503)
        assert not any(secret in json.dumps(refusal) for secret in (*KEYS.values(), ROLE))


async def test_on_a_disk_the_answer_is_the_folders_that_are_mounted(minting: Minting, tmp_path: Path) -> None:
    claimed = await minting.listeners.claim()
    control = replace(minting.listeners.control, minter=make_minter(load_settings({}, home=tmp_path)))
    fence = {"task_id": UUID(claimed["task"]["task_id"]), "lease_token": UUID(claimed["lease_token"])}
    request, claims = CredentialsRequest(attempt=1, **fence), claims_of(claimed["capability_token"])
    answer = await control.credential_mint().mint(request, claims, "127.0.0.1")
    assert isinstance(answer, MountedStorage)
    assert set(answer.write) == set(claims.s3.write)
    assert set(answer.read) == {*claims.s3.read, *claims.s3.write}
    assert await entries_of(minting) == [], "there is no key"
    await completed(minting.listeners, claimed)
    with pytest.raises(LeaseLost):
        await control.credential_mint().mint(request, claims, "127.0.0.1")


async def test_every_claim_brings_a_scratch_folder_of_its_own(minting: Minting) -> None:
    listeners = minting.listeners
    first, other = await listeners.claim(), await listeners.claim(await a_task(listeners.control, listeners.chain))
    own = [
        {place for place in claims_of(claim["capability_token"]).s3.write if "/scratch/" in place}
        for claim in (first, other)
    ]
    task, org = first["task"]["task_id"], listeners.chain.org.id
    assert own[0] == {f"s3://trace-scratch/scratch/{org}/{task}/1/"}
    assert not own[0] & own[1]
