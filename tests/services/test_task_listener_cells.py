"""Every cell of the table of callers in docs/reference/task_api.md: each call of tasks by each identity."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support import ROOT
from tests.support.dispatcher.control import HOLLOW, NOTHING, an_org, deployed_and_active
from tests.support.identity.service_tokens import TOKENS
from tests.support.identity.tokens import Key
from tests.support.systems.services import PLATFORM_ADMIN, Services, services_of
from tests.support.systems.walk import DAG
from tracelake.adapters.credentials_mounts import Mounts
from tracelake.capability.claims import Claims, decode, mint
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.domain.access.grants import ALWAYS, BUFFER_PUBLISH, FILES, QUERY, S3Prefixes
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.domain.ids import Attempt
from tracelake.errors import ObjectExists
from tracelake.lite.user_token import mint_user_token
from tracelake.settings import IdentitySettings
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.task.lifecycle import Claimed

pytestmark = pytest.mark.anyio

PAGE: Final = ROOT / "docs" / "reference" / "task_api.md"
TABLE: Final = re.search(r"\| call \|.*?\n\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
BATCH, BUNDLE, COMPLETE = "POST /v1/task/complete-batch", "GET /v1/udf/bundle/{sha256}", "POST /v1/task/complete"
SAID: Final = {"forbidden": 403, "unauthenticated": 401, "lease_lost": 409, "conflict": 409}
"""The statuses of errors of items."""
BODIES: Final[dict[str, dict[str, Any]]] = {
    COMPLETE: {"status": "Completed"},
    "POST /v1/task/events": {"events": []},
    "POST /v1/task/logs": {"first": 0, "lines": []},
    "POST /v1/task/files": {"dataset_uuid": "DATASET"},
    "POST /v1/task/buffer-publish": {
        "dataset_uuid": "DATASET",
        "batch_uri": "s3://trace-scratch/buffers/DATASET/TASK/1/batch.jsonl",
    },
    QUERY: {"sql": "SELECT * FROM VIEW"},
}
"""Of the calls that need more than the fence: what passes as far as the token."""


def rows_of_page() -> dict[str, dict[str, str]]:
    assert TABLE is not None
    head, _, *lines = ([cell.strip(" `") for cell in line.split("|")[1:-1]] for line in TABLE[0].strip().splitlines())
    return {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}


ROWS: Final = rows_of_page()


@dataclass(frozen=True)
class World:
    services: Services
    running: Claimed
    ended: Claimed
    foreign: Claimed
    """Of another organisation."""
    tokens: dict[str, str]
    """What callers show who are not the running task, by the head of their column."""

    async def rich(self, task: Claimed) -> str:
        """A token of the task that grants every call: it may also write into a folder of batches."""
        claims, control = claims_of(task), self.services.walk.control
        attempt = claims.task_id, claims.attempt
        folder = buffer_folder(control.places.scratch_bucket, UUID(_written(task)), *attempt)
        with suppress(ObjectExists):
            control.objects.put(folder.object("batch.jsonl"), b"{}")
        return await self.signed(replace(claims, s3=S3Prefixes((), (str(folder),))))

    async def signed(self, claims: Claims) -> str:
        return await mint(self.services.walk.control.signer, claims)

    async def answer(self, call: str, token: str, task: Claimed, **more: Any) -> tuple[int, str]:
        """The status, and the text of the answer."""
        method, _, path = call.partition(" ")
        body = {**fence(task), **BODIES.get(call, {}), **more}
        body = {name: _about(value, task) for name, value in body.items()}
        if call == BATCH:
            item = {"capability_token": token, "completion": {**body, **BODIES[COMPLETE]}}
            body = {"items": [item]}
        http = self.services.http["query_task" if call == QUERY else "dispatcher_task"]
        headers = {CAPABILITY_HEADER: token} if token and call != BATCH else {}
        sent = None if method == "GET" else body
        found = await http.request(method, path.format(sha256="ab" * 32), headers=headers, json=sent)
        if call != BATCH or found.is_error:
            return found.status_code, found.text
        (outcome,) = found.json()["outcomes"]
        return SAID[outcome["error"]["code"]] if outcome.get("error") else 200, found.text


def _about(value: Any, task: Claimed) -> Any:
    if not isinstance(value, str):
        return value
    read, written = next(iter(claims_of(task).grants.views)), _written(task)
    return value.replace("TASK", str(task.task.task_id)).replace("DATASET", written).replace("VIEW", read)


def _written(task: Claimed) -> str:
    """The dataset that it writes."""
    return str(next(iter(claims_of(task).grants.written)))


def claims_of(task: Claimed) -> Claims:
    return decode(parse_token(task.capability_token).payload)


def fence(task: Claimed) -> dict[str, Any]:
    return {"task_id": str(task.task.task_id), "attempt": task.attempt, "lease_token": str(task.lease_token)}


@pytest.fixture
async def world(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[World]:
    async with services_of(state_db, queue_db, data_db, tmp_path, minter=Mounts()) as services:
        control = services.walk.control
        rival = await an_org(control.pool, "rival")
        await deployed_and_active(control, rival, DAG)
        running, ended, other = [await services.claimed(cursor=cursor) for cursor in (1, 2, 3)]
        foreign = await services.claimed(rival)
        made = World(services, running, ended, foreign, {})
        claims = claims_of(running)
        life = claims.exp - claims.iat
        made.tokens.update(
            {
                "its other attempt": await made.signed(replace(claims, attempt=Attempt(running.attempt + 1))),
                "another task": other.capability_token,
                "another organisation": foreign.capability_token,
                "forged": Key().sign(parse_token(running.capability_token).payload),
                "expired": await made.signed(replace(claims, iat=claims.iat - 2 * life, exp=claims.iat - life)),
                "a user": mint_user_token(ec.generate_private_key(ec.SECP256R1()), IdentitySettings(), PLATFORM_ADMIN),
                "a service": TOKENS["worker"],
                "nobody": "",
            }
        )
        yield made


def test_the_page_has_every_call_of_both_listeners_and_every_identity() -> None:
    app: Any = task_api(HOLLOW, NOTHING)
    routes = {f"{method} {route.path}" for route in app.routes for method in route.methods - {"HEAD"}}
    assert set(ROWS) == (routes - {"GET /healthz", "GET /readyz"}) | {QUERY}
    assert {call for call, cells in ROWS.items() if cells["the task"] == "always"} == ALWAYS | {BATCH}
    assert {call for call, cells in ROWS.items() if cells["the task"] == "if granted"} == set(ROWS) - ALWAYS - {
        BATCH,
        BUNDLE,
    }


async def test_every_caller_who_is_not_the_task_is_refused_as_the_page_says(world: World) -> None:
    asked = 0
    for call, cells in ROWS.items():
        for who, token in world.tokens.items():
            status, text = await world.answer(call, token, world.running)
            assert str(status) == cells[who], (call, who, text)
            asked += 1
    assert asked == len(ROWS) * (len(next(iter(ROWS.values()))) - 2), "the columns of the task itself are below"
    sql = "SELECT count(*) FROM tasks WHERE status = 'Running'"
    assert await world.services.walk.control.pool.fetchval(sql) == 4, "nobody has ended another's task"


async def test_a_task_that_has_ended_is_refused_as_the_page_says(world: World) -> None:
    failed = {**fence(world.ended), "status": "Failed", "error_message": "no", "retryable": False}
    headers = {CAPABILITY_HEADER: world.ended.capability_token}
    ended = await world.services.http["dispatcher_task"].post("/v1/task/complete", json=failed, headers=headers)
    assert ended.status_code == httpx.codes.OK, ended.text
    token = await world.rich(world.ended)
    for call, cells in ROWS.items():
        status, text = await world.answer(call, token, world.ended)
        assert str(status) == cells["the task, ended"], (call, text)


async def test_the_task_itself_makes_each_call_that_its_token_grants_and_no_other(world: World) -> None:
    poor = await world.signed(replace(claims_of(world.running), datasets=(), s3=S3Prefixes((), ())))
    rich = await world.rich(world.running)
    granted = [call for call, cells in ROWS.items() if cells["the task"] == "if granted"]
    for call in granted:
        status, text = await world.answer(call, poor, world.running)
        assert status == httpx.codes.FORBIDDEN, (call, text)
        assert "does not grant" in text, (call, text)
        unknown = {"sql": "SELECT * FROM nothing"} if call == QUERY else {}  # so that Spark is not started here
        status, text = await world.answer(call, rich, world.running, **unknown)
        assert status == (httpx.codes.BAD_REQUEST if call == QUERY else httpx.codes.OK), (call, text)
    for call in [call for call, cells in ROWS.items() if cells["the task"] == "always" and "complete" not in call]:
        status, text = await world.answer(call, poor, world.running)
        assert status == httpx.codes.OK, (call, text)
    status, text = await world.answer(BUNDLE, rich, world.running)
    assert str(status) == ROWS[BUNDLE]["the task"], text
    for call in (COMPLETE, BATCH):  # the second is the same completion again
        status, text = await world.answer(call, poor, world.running)
        assert status == httpx.codes.OK, (call, text)


async def test_a_dataset_of_another_organisation_is_to_a_task_as_one_that_nobody_has(world: World) -> None:
    token, theirs = await world.rich(world.running), _written(world.foreign)
    for call in (FILES, BUFFER_PUBLISH, "POST /v1/task/events"):
        answers = []
        for dataset in (theirs, str(uuid4())):
            named = {"dataset_uuid": dataset}
            more = {"events": [{**named, "dataset_version": str(uuid4())}]} if call.endswith("events") else named
            status, text = await world.answer(call, token, world.running, **more)
            answers.append((status, text.replace(dataset, "")))
        assert answers[0] == answers[1], call
        assert answers[0][0] == httpx.codes.FORBIDDEN, (call, answers)
