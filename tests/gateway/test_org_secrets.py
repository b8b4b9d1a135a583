"""Secrets of an organisation: set by its admins, given to its own jobs and webhook sources, and never shown."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
import structlog

from tests.support.dispatcher.job_chain import claimed, completion, retry_now, status
from tests.support.identity.hook_signatures import sign
from tests.support.systems.gateway import System, connected, system
from tracelake.dispatcher.audit.link import LinkAudit
from tracelake.dispatcher.control import Control
from tracelake.domain.access.seal import Seal, new_key, read_keys
from tracelake.domain.sources.signatures import HookScheme
from tracelake.errors import SecretsUnavailable
from tracelake.settings import RUNTIMES, RuntimeSettings
from tracelake.wire.task.lifecycle import Claimed, NotClaimed
from tracelake.worker.run_task import secrets_of_job

pytestmark = pytest.mark.anyio

ADMIN, RIVAL = "acme|admin", "rival|admin"
VALUE, OTHER = "acme-value-5f3a9c", "rival-value-77be01"
HOOK = "hook-value-of-acme-c04d2e"
JOB, WEBHOOK = "/v1/secrets/job/api_key", "/v1/secrets/webhook/shop_key"
DAG = """
name: desk
defaults: {runtime: ecs_platform}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: hook
    operator: noop
    runtime: dispatcher
    source: {kind: webhook, scheme: hmac, secret: SHOP_KEY}
  - name: load
    operator: python
    inputs: [{from: {job: go}}]
    config: {function: "somewhere:load"}
    secrets: [API_KEY, other]
"""
READABLE = Seal(read_keys(new_key()))


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    """Both organisations have the same DAG."""
    async with system(state_db, queue_db, tmp_path, READABLE) as made:
        for slug in ("acme", "rival"):
            await made.deploy("desk", DAG, f"{slug}|writer")
        yield made


async def put(trace: System, user: str, path: str, value: str) -> Any:
    return await trace.got(user, "PUT", path, json={"value": value})


async def a_task(trace: System, slug: str = "acme") -> UUID:
    """One of `load` that can be claimed, as if it had been routed."""
    sql = (
        "INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)"
        " SELECT o.id, j.id, $2, 3600, now() FROM orgs o JOIN jobs j ON j.org_id = o.id AND j.name = 'load'"
        " WHERE o.slug = $1 RETURNING id"
    )
    found: UUID = await trace.control.pool.fetchval(sql, slug, str(uuid4()))
    return found


@asynccontextmanager
async def other(trace: System, **changes: Any) -> AsyncIterator[System]:
    """The same system, whose Dispatcher has other keys or settings."""
    async with connected(replace(trace.control, **changes), trace.key, trace.identity) as made:
        yield made


async def delivered(trace: System, slug: str, secret: str) -> int:
    """The status of a call to a webhook source that is signed with this secret."""
    body = str(uuid4()).encode().join([b'"'] * 2)
    headers = sign(HookScheme.HMAC, body, secret, time.time())
    return (await trace.gateway.post(f"/v1/hooks/{slug}/desk/hook", content=body, headers=headers)).status_code


async def is_ready(trace: System) -> bool:
    found = await trace.got(ADMIN, "GET", "/v1/dags/desk/jobs/hook/source")
    return bool(found["ready"])


async def given(control: Control, task: UUID) -> dict[str, str | None]:
    answer, _ = await claimed(control, task)
    return answer.secret_values or {}


async def rows(pool: asyncpg.Pool) -> str:
    """Every row of the state database, as text; bytes also as the text that they may be."""
    names = await pool.fetch("SELECT tablename::text AS name FROM pg_tables WHERE schemaname = 'public'")
    tables = [await pool.fetch(f'SELECT t::text AS row FROM "{item["name"]}" t') for item in names]  # noqa: S608
    return "\n".join(row["row"] for found in tables for row in found)


def spellings(value: str) -> set[str]:
    return {value, value.encode().hex()}


async def test_a_job_gets_the_value_of_its_own_organisation(trace: System) -> None:
    await put(trace, ADMIN, JOB, VALUE)
    await put(trace, RIVAL, JOB, OTHER)
    await put(trace, RIVAL, "/v1/secrets/job/other", "another-of-the-rival")
    assert await given(trace.control, await a_task(trace)) == {"api_key": VALUE}
    assert await given(trace.control, await a_task(trace, "rival")) == {
        "api_key": OTHER,
        "other": "another-of-the-rival",
    }


async def test_a_value_is_in_no_answer_log_audit_entry_or_table(trace: System) -> None:
    with structlog.testing.capture_logs() as log:
        answers = [
            await trace.ask(ADMIN, "PUT", JOB, json={"value": VALUE}),
            await trace.ask(ADMIN, "PUT", WEBHOOK, json={"value": HOOK}),
            await trace.ask(ADMIN, "PUT", WEBHOOK, json={"value": HOOK, "more": VALUE}),
            await trace.ask(ADMIN, "PUT", JOB, json={"value": [VALUE]}),
            await trace.ask(ADMIN, "PUT", JOB, content=f'{{"value": "{VALUE}'.encode()),
            await trace.ask(ADMIN, "PUT", JOB, json={"value": VALUE + "\0"}),
            await trace.ask(ADMIN, "PUT", WEBHOOK, json={"value": f"{HOOK} {VALUE[:9]}"}),
            await trace.ask(RIVAL, "DELETE", JOB),
            await trace.ask(ADMIN, "GET", "/v1/secrets"),
            await trace.ask(ADMIN, "GET", "/v1/sources"),
            await trace.ask(ADMIN, "GET", "/v1/dags/desk/jobs/hook/source"),
        ]
        answer, _ = await claimed(trace.control, task := await a_task(trace))
        await LinkAudit(trace.control.pool).once()
        answers.append(await trace.ask(ADMIN, "GET", "/v1/audit"))
        answers.append(await trace.ask(ADMIN, "GET", f"/v1/tasks/{task}"))
    assert [item.status_code for item in answers[:9]] == [200, 200, 400, 400, 400, 400, 400, 404, 200]
    assert answer.secret_values == {"api_key": VALUE}
    texts = [
        *(item.text for item in answers),
        json.dumps(log, default=str),
        await rows(trace.control.pool),
        repr(answer),
    ]
    found = [text for text in texts for value in (VALUE, HOOK) for way in spellings(value) if way in text]
    assert found == []
    (*_, entry) = [item for item in answers[-2].json()["entries"] if item["action"] == "set_secret"]
    assert (entry["actor"], entry["object"], entry["outcome"]) == (ADMIN, "kind=job secret=api_key", "done")


async def test_a_list_says_who_set_a_secret_and_which_jobs_use_it(trace: System) -> None:
    assert await put(trace, ADMIN, JOB, VALUE) == {"kind": "job", "name": "api_key", "created": True}
    assert await put(trace, ADMIN, JOB, VALUE + "2") == {"kind": "job", "name": "api_key", "created": False}
    await put(trace, ADMIN, WEBHOOK, HOOK)
    found = (await trace.got(ADMIN, "GET", "/v1/secrets"))["secrets"]
    assert [row.pop("set_at") is not None for row in found] == [True, True]
    assert found == [
        {"kind": "job", "name": "api_key", "set_by": ADMIN, "used_by": ["desk.load"], "readable": True},
        {"kind": "webhook", "name": "shop_key", "set_by": ADMIN, "used_by": ["desk.hook"], "readable": True},
    ]
    assert (await trace.got(RIVAL, "GET", "/v1/secrets"))["secrets"] == []


@pytest.mark.parametrize("user", ["acme|reader", "acme|writer"])
async def test_only_admins_manage_secrets(trace: System, user: str) -> None:
    assert await trace.refused(user, "GET", "/v1/secrets") == (403, "forbidden")
    assert await trace.refused(user, "PUT", JOB, json={"value": VALUE}) == (403, "forbidden")
    assert await trace.refused(user, "DELETE", JOB) == (403, "forbidden")
    assert await trace.refused(None, "GET", "/v1/secrets") == (401, "unauthenticated")


async def test_another_organisation_cannot_remove_a_secret_and_its_own_of_that_name_stays_apart(trace: System) -> None:
    await put(trace, ADMIN, JOB, VALUE)
    assert await trace.refused(RIVAL, "DELETE", f"{JOB}?force=true") == (404, "not_found")
    await put(trace, RIVAL, JOB, OTHER)
    await trace.got(RIVAL, "DELETE", f"{JOB}?force=true")
    assert await given(trace.control, await a_task(trace)) == {"api_key": VALUE}


@pytest.mark.parametrize("name", ["API_KEY", "api-key", "a__b", "_a", "1a", "a" * 65, "a b", "%2e%2e", "a%00"])
async def test_a_name_that_no_dag_can_write_is_not_found(trace: System, name: str) -> None:
    assert await trace.refused(ADMIN, "PUT", f"/v1/secrets/job/{name}", json={"value": VALUE}) == (404, "not_found")


async def test_a_kind_that_does_not_exist_is_not_found(trace: System) -> None:
    assert await trace.refused(ADMIN, "PUT", "/v1/secrets/user/api_key", json={"value": VALUE}) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "value"),
    [(JOB, ""), (JOB, "short"), (JOB, " " * 20), (JOB, "x" * 16_385), (WEBHOOK, "x" * 15), (WEBHOOK, f"{HOOK} short")],
    ids=["empty", "short", "blank", "large", "short_of_webhook", "second_is_short"],
)
async def test_a_value_that_is_too_short_or_too_large_is_refused(trace: System, path: str, value: str) -> None:
    answer = await trace.ask(ADMIN, "PUT", path, json={"value": value})
    assert (answer.status_code, answer.json()["error"]["where"]) == (400, "/value")
    assert (await trace.got(ADMIN, "GET", "/v1/secrets"))["secrets"] == []


async def test_a_value_of_the_largest_size_reaches_the_job_unchanged(trace: System) -> None:
    value = "-----BEGIN KEY-----\n" + "ß\t\"'\\" * 3_000 + "\n-----END KEY-----\n"
    await put(trace, ADMIN, JOB, value)
    assert await given(trace.control, await a_task(trace)) == {"api_key": value}


async def test_without_a_key_nothing_is_stored_and_the_error_names_the_setting(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with system(state_db, queue_db, tmp_path) as bare:
        answer = await bare.ask(ADMIN, "PUT", JOB, json={"value": VALUE})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["where"]) == (409, "conflict", "dispatcher.secret_keys")
        assert "TRACE_DISPATCHER__SECRET_KEYS" in error["hint"]
        assert (await bare.got(ADMIN, "GET", "/v1/secrets"))["secrets"] == []


async def test_the_first_key_encrypts_and_all_of_them_decrypt(trace: System) -> None:
    old, new = new_key(), new_key()
    before, both, after = (Seal(read_keys(text)) for text in (old, f"{new}\n{old}", new))
    pool, task = trace.control.pool, await a_task(trace)
    async with other(trace, seal=before) as own:
        await put(own, ADMIN, JOB, VALUE)
    async with other(trace, seal=both) as own:
        await put(own, ADMIN, "/v1/secrets/job/other", OTHER)
    assert await given(replace(trace.control, seal=both), task) == {"api_key": VALUE, "other": OTHER}
    keys = {row["name"]: row["key_id"] for row in await pool.fetch("SELECT name, key_id FROM org_secrets")}
    assert keys == {"api_key": next(iter(before.keys)), "other": next(iter(after.keys))}
    async with other(trace, seal=both) as own:
        await put(own, ADMIN, JOB, VALUE)
    assert await given(replace(trace.control, seal=after), await a_task(trace)) == {"api_key": VALUE, "other": OTHER}


async def test_a_secret_changed_while_a_task_waits_is_used_by_its_next_claim(trace: System) -> None:
    await put(trace, ADMIN, JOB, VALUE)
    task, later = await a_task(trace), await a_task(trace)
    assert await given(trace.control, task) == {"api_key": VALUE}
    await put(trace, ADMIN, JOB, "the-next-value")
    assert await given(trace.control, later) == {"api_key": "the-next-value"}


async def test_a_secret_in_use_is_removed_with_force_only_and_then_reaches_no_job(trace: System) -> None:
    await put(trace, ADMIN, JOB, VALUE)
    refused = (await trace.ask(ADMIN, "DELETE", JOB)).json()["error"]
    assert (refused["code"], "desk.load" in refused["message"]) == ("conflict", True)
    done = await trace.got(ADMIN, "DELETE", f"{JOB}?force=true")
    assert done == {"kind": "job", "name": "api_key", "used_by": ["desk.load"]}
    answer, _ = await claimed(trace.control, await a_task(trace))
    assert answer.secret_values is msgspec.UNSET
    assert await trace.refused(ADMIN, "DELETE", JOB) == (404, "not_found")
    assert await trace.control.pool.fetchval("SELECT count(*) FROM org_secrets") == 0


async def test_a_value_moved_to_another_organisation_or_name_by_hand_is_not_decrypted(trace: System) -> None:
    """Whoever can write to the database cannot make one organisation's job read the secret of another."""
    await put(trace, ADMIN, JOB, VALUE)
    await trace.control.pool.execute("UPDATE org_secrets SET org_id = (SELECT id FROM orgs WHERE slug = 'rival')")
    assert await given(trace.control, await a_task(trace, "rival")) == {"api_key": None}
    await trace.control.pool.execute(
        "UPDATE org_secrets SET org_id = o.id, name = 'other' FROM orgs o WHERE slug = 'acme'"
    )
    assert await given(trace.control, await a_task(trace)) == {"other": None}


async def test_a_missing_key_is_the_fault_of_the_platform_and_costs_no_attempt(trace: System) -> None:
    await put(trace, ADMIN, JOB, VALUE)
    lost = replace(trace.control, seal=Seal(read_keys(new_key())))
    task = await a_task(trace)
    answer, claims = await claimed(lost, task)
    assert answer.secret_values == {"api_key": None}
    with pytest.raises(SecretsUnavailable, match="does not have the key that encrypted the secret API_KEY") as wrong:
        secrets_of_job(["API_KEY"], {}, answer.secret_values or {})
    assert "`trace secret set api_key`" in str(wrong.value.hint)
    failed = {"error_message": wrong.value.message, "error_code": wrong.value.code, "retryable": wrong.value.retryable}
    await lost.completer()(completion(answer, status="Failed", **failed), claims)
    assert await status(lost, task) == "Failed"
    attempts = "SELECT attempt, platform_failures, next_retry_at IS NOT NULL AS again FROM tasks WHERE id = $1"
    assert dict((await lost.pool.fetch(attempts, task))[0]) == {"attempt": 1, "platform_failures": 1, "again": True}
    await retry_now(lost, task)
    assert await given(trace.control, task) == {"api_key": VALUE}, "the key is there again"
    async with other(trace, seal=lost.seal) as own:
        (row,) = (await own.got(ADMIN, "GET", "/v1/secrets"))["secrets"]
        assert row["readable"] is False


@pytest.mark.parametrize("runtimes", [{}, {**RUNTIMES, "ecs_platform": RuntimeSettings(queue="q", untrusted=True)}])
async def test_code_that_is_not_trusted_gets_no_value(trace: System, runtimes: dict[str, RuntimeSettings]) -> None:
    await put(trace, ADMIN, JOB, VALUE)
    task = await a_task(trace)
    answer, _ = await claimed(replace(trace.control, runtimes=runtimes), task)
    assert answer.secret_values is msgspec.UNSET


async def test_where_none_is_stored_a_claim_has_no_such_field_which_older_workers_would_refuse(trace: System) -> None:
    answer, _ = await claimed(trace.control, await a_task(trace))
    assert "secret_values" not in msgspec.json.decode(msgspec.json.encode(answer))
    await put(trace, ADMIN, JOB, VALUE)
    answer, _ = await claimed(trace.control, await a_task(trace))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Claimed | NotClaimed) == answer


async def test_a_webhook_secret_verifies_deliveries_to_its_own_organisation_at_once(trace: System) -> None:
    assert await delivered(trace, "acme", HOOK) == 503
    assert not await is_ready(trace)
    await put(trace, ADMIN, WEBHOOK, HOOK)
    assert await delivered(trace, "acme", HOOK) == 202
    assert await delivered(trace, "acme", HOOK[:-1]) == 401
    assert await delivered(trace, "rival", HOOK) == 503, "it has set none"
    assert await is_ready(trace)
    await put(trace, ADMIN, WEBHOOK, f"a-second-value-of-it {HOOK}")
    assert [await delivered(trace, "acme", value) for value in (HOOK, "a-second-value-of-it")] == [202, 202]
    await put(trace, ADMIN, WEBHOOK, "a-second-value-of-it")
    assert await delivered(trace, "acme", HOOK) == 401
    await trace.got(ADMIN, "DELETE", f"{WEBHOOK}?force=true")
    assert await delivered(trace, "acme", "a-second-value-of-it") == 503


async def test_the_organisations_webhook_secret_is_used_before_that_of_the_settings(
    trace: System,
) -> None:
    settings = {"shop_key": ("the-value-of-the-settings",)}
    async with other(trace, hook_secrets=settings) as own:
        assert await delivered(own, "acme", "the-value-of-the-settings") == 202
        await put(own, ADMIN, WEBHOOK, HOOK)
        assert await delivered(own, "acme", "the-value-of-the-settings") == 401
        assert await delivered(own, "acme", HOOK) == 202
        assert await delivered(own, "rival", "the-value-of-the-settings") == 202
    async with other(trace, hook_secrets=settings, seal=Seal(read_keys(new_key()))) as lost:
        assert await delivered(lost, "acme", "the-value-of-the-settings") == 503
        shown = await lost.got(ADMIN, "GET", "/v1/dags/desk/jobs/hook/source")
        assert shown["not_ready"].startswith("the Dispatcher does not have the key that encrypted the secret SHOP_KEY")


async def test_a_kind_is_no_other_kind(trace: System) -> None:
    await put(trace, ADMIN, "/v1/secrets/webhook/api_key", HOOK)
    await put(trace, ADMIN, "/v1/secrets/job/shop_key", HOOK)
    assert await given(trace.control, await a_task(trace)) == {}
    assert await delivered(trace, "acme", HOOK) == 503
