"""The audit: what it records, that it stays as it is, and that a change of it is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.systems.gateway import DAG, System, system
from tracelake.dispatcher.audit.link import LinkAudit, PruneAuditEntries
from tracelake.dispatcher.audit.record import CallEntry, recorded
from tracelake.dispatcher.datasets.store_audit import store_audit
from tracelake.wire.internal.queries import AuditRequest, AuditRow

pytestmark = pytest.mark.anyio

READER, WRITER, ADMIN, RIVAL = "acme|reader", "acme|writer", "acme|admin", "rival|admin"


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


async def linked(trace: System) -> list[dict[str, Any]]:
    """The audit of acme, the oldest first, when all of it is linked."""
    await LinkAudit(trace.control.pool).once()
    found = await trace.got(ADMIN, "GET", "/v1/audit", params={"after": 0})
    return list(found["entries"])


async def some_entries(trace: System, count: int = 5) -> None:
    for number in range(count):
        await trace.got(ADMIN, "POST", "/v1/roles", json={"role": f"role_{number}"})
    await LinkAudit(trace.control.pool).once()


async def problem(trace: System) -> str | None:
    found = (await trace.got(ADMIN, "GET", "/v1/audit/verify"))["problem"]
    return None if found is None else str(found["what"])


async def tampered(trace: System, statement: str) -> None:
    """As somebody who may do anything in the database, and turns its triggers off."""
    async with trace.control.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(statement)


async def test_a_call_that_changes_something_is_recorded_with_its_outcome(trace: System) -> None:
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.refused(WRITER, "DELETE", "/v1/roles/finance")
    await trace.refused(ADMIN, "DELETE", "/v1/roles/nothing")
    await trace.deploy("shop", DAG)
    entries = await linked(trace)
    shown = [(item["actor"], item["action"], item["object"], item["outcome"], item["code"]) for item in entries]
    assert shown[:4] == [
        (ADMIN, "create_role", "", "done", None),
        (WRITER, "delete_role", "role=finance", "refused", "forbidden"),
        (ADMIN, "delete_role", "role=nothing", "refused", "not_found"),
        (WRITER, "deploy", "dag=shop", "done", None),
    ]
    assert [item["seq"] for item in entries] == list(range(1, len(entries) + 1))


async def test_a_read_is_recorded_only_if_the_role_does_not_allow_it(trace: System) -> None:
    await trace.got(ADMIN, "GET", "/v1/users")
    await trace.refused(READER, "GET", "/v1/dags/nothing")
    await trace.refused(READER, "GET", "/v1/users")
    entries = await linked(trace)
    assert [(item["actor"], item["action"], item["code"]) for item in entries] == [(READER, "list_users", "forbidden")]


async def test_an_entry_says_from_where_and_with_which_token_the_user_called(trace: System) -> None:
    token = (await trace.got(ADMIN, "POST", "/v1/tokens", json={"name": "robot", "role": "admin"}))["token"]
    headers = {"authorization": f"Bearer {token}", "x-trace-client": "forged"}
    await trace.gateway.post("/v1/roles", json={"role": "finance"}, headers=headers)
    by_user, by_token = await linked(trace)
    token_id = await trace.control.pool.fetchval("SELECT id FROM user_tokens")
    assert (by_user["origin"], by_token["origin"]) == ("127.0.0.1", f"127.0.0.1 token {token_id}")


async def test_no_body_or_parameter_is_recorded(trace: System) -> None:
    channel = {"name": "ops", "url": "https://example.com/secret-path", "secret": "a secret of sixteen"}
    await trace.got(WRITER, "POST", "/v1/alerts/channels", json=channel)
    text = str(await linked(trace))
    assert "create_channel" in text
    assert not any(secret in text for secret in ("secret-path", "a secret of sixteen"))


async def test_a_query_of_a_user_is_recorded_once_with_its_hash_and_datasets(trace: System) -> None:
    pool, dataset = trace.control.pool, uuid4()
    user = await pool.fetchrow("SELECT id, org_id FROM users WHERE external_id = $1", READER)
    assert user is not None
    row = AuditRow(
        id=uuid4(),
        org_id=user["org_id"],
        user_id=user["id"],
        asked_at=datetime.now(UTC),
        sql_sha256="ab" * 32,
        datasets=[dataset],
        verdict="canceled",
    )
    for _ in range(2):
        await store_audit(pool, AuditRequest(rows=[row]))
    (entry,) = await linked(trace)
    assert (entry["actor"], entry["action"], entry["outcome"], entry["code"]) == (READER, "query", "failed", "canceled")
    assert entry["detail"] == {"sql_sha256": "ab" * 32, "datasets": [str(dataset)]}


async def test_only_admins_see_the_audit_and_only_that_of_their_organisation(trace: System) -> None:
    await some_entries(trace)
    assert (await trace.got(RIVAL, "GET", "/v1/audit"))["entries"] == []
    assert (await trace.got(RIVAL, "GET", "/v1/audit/verify"))["entries"] == 0
    for path in ("/v1/audit", "/v1/audit/verify"):
        assert await trace.refused(WRITER, "GET", path) == (403, "forbidden")


async def test_pages_are_read_forwards_and_backwards(trace: System) -> None:
    await some_entries(trace)
    newest = await trace.got(ADMIN, "GET", "/v1/audit", params={"limit": 2})
    assert ([item["seq"] for item in newest["entries"]], newest["next"]) == ([5, 4], 4)
    older = await trace.got(ADMIN, "GET", "/v1/audit", params={"limit": 3, "before": 4})
    assert ([item["seq"] for item in older["entries"]], older["next"]) == ([3, 2, 1], None)
    oldest = await trace.got(ADMIN, "GET", "/v1/audit", params={"limit": 2, "after": 0})
    assert ([item["seq"] for item in oldest["entries"]], oldest["next"]) == ([1, 2], 2)
    both = {"after": 1, "before": 3}
    assert await trace.refused(ADMIN, "GET", "/v1/audit", params=both) == (400, "invalid_request")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entries SET actor = 'somebody else'",
        "UPDATE audit_entries SET outcome = 'done', code = NULL",
        "UPDATE audit_entries SET seq = seq + 100",
        "DELETE FROM audit_entries",
        "TRUNCATE audit_entries",
        "UPDATE audit_chains SET seq = 1",
        "DELETE FROM audit_chains",
    ],
)
async def test_the_database_refuses_to_change_the_audit(trace: System, statement: str) -> None:
    await some_entries(trace)
    await trace.refused(ADMIN, "DELETE", "/v1/roles/nothing")  # an entry that is not linked
    with pytest.raises(asyncpg.CheckViolationError):
        await trace.control.pool.execute(statement)
    assert await problem(trace) is None


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE audit_entries SET actor = 'nobody' WHERE seq = 3", "entry 3 is not the one"),
        ("UPDATE audit_entries SET happened_at = happened_at + interval '1 s' WHERE seq = 3", "entry 3 is not the one"),
        ("DELETE FROM audit_entries WHERE seq = 3", "entry 3 is missing"),
        ("DELETE FROM audit_entries WHERE seq = 1", "entry 1 is missing"),
        ("DELETE FROM audit_entries WHERE seq >= 4", "the entries 4 to 5 are missing"),
        (
            (
                "UPDATE audit_entries SET seq = -seq WHERE seq IN (2, 3);"
                " UPDATE audit_entries SET seq = 5 + seq WHERE seq IN (-2, -3)"
            ),
            "entry 2 is not the one",
        ),
        (
            (
                "UPDATE audit_entries SET seq = -seq WHERE seq >= 3;"
                " UPDATE audit_entries SET seq = 1 - seq WHERE seq < 0;"
                " INSERT INTO audit_entries (org_id, actor, action, object, origin, outcome, seq, hash)"
                " SELECT org_id, actor, 'forged', object, origin, outcome, 3, hash FROM audit_entries WHERE seq = 4"
            ),
            "entry 3 is not the one",
        ),
    ],
    ids=["changed", "moved_in_time", "removed", "first_removed", "last_removed", "reordered", "inserted"],
)
async def test_an_audit_that_was_tampered_with_is_found(trace: System, statement: str, what: str) -> None:
    await some_entries(trace)
    assert await problem(trace) is None
    await tampered(trace, statement)
    assert what in str(await problem(trace))


async def test_old_entries_are_deleted_and_the_rest_can_still_be_verified(trace: System) -> None:
    await some_entries(trace)
    await tampered(
        trace, "UPDATE audit_entries SET happened_at = happened_at - interval '500 days' WHERE seq IN (1, 2, 4)"
    )
    pruner = PruneAuditEntries(trace.control.pool, timedelta(days=400))
    assert [await pruner.once(), await pruner.once()] == [2, 0], "up to the first that is kept"
    found = await trace.got(ADMIN, "GET", "/v1/audit/verify")
    assert (found["first"], "entry 4" in found["problem"]["what"]) == (3, True), "its time was changed by hand"
    assert await PruneAuditEntries(trace.control.pool, timedelta(0)).once() == 0


async def test_the_part_that_is_left_after_pruning_is_intact(trace: System) -> None:
    await some_entries(trace)
    pruner = PruneAuditEntries(trace.control.pool, timedelta(microseconds=1))
    assert await pruner.once() == 5
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "later"})
    await LinkAudit(trace.control.pool).once()
    found = await trace.got(ADMIN, "GET", "/v1/audit/verify")
    assert (found["entries"], found["first"], found["last"], found["problem"]) == (1, 6, 6, None)
    with pytest.raises(asyncpg.CheckViolationError):
        await trace.control.pool.execute("DELETE FROM audit_entries")


async def test_replicas_that_link_at_once_make_one_chain(trace: System) -> None:
    for number in range(20):
        await trace.got(ADMIN, "POST", "/v1/roles", json={"role": f"role_{number}"})
    counts = await asyncio.gather(*(LinkAudit(trace.control.pool).once() for _ in range(4)))
    assert sorted(counts) == [0, 0, 0, 20]
    assert await problem(trace) is None


async def test_calls_do_not_wait_while_entries_are_linked(trace: System) -> None:
    async with trace.control.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('audit_chains'))")
        await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    assert len(await linked(trace)) == 1


async def test_a_call_whose_process_ended_has_an_entry_without_an_outcome(trace: System) -> None:
    pool = trace.control.pool
    user: UUID = await pool.fetchval("SELECT id FROM users WHERE external_id = $1", ADMIN)
    with pytest.raises(asyncio.CancelledError):  # as a kill: nothing of the process runs on
        async with recorded(pool, CallEntry(user, "deploy", "dag=shop", "127.0.0.1"), reads=False):
            raise asyncio.CancelledError
    assert await linked(trace) == [], "its outcome may still come"
    await tampered(trace, "UPDATE audit_entries SET happened_at = now() - interval '2 hours'")
    (entry,) = await linked(trace)
    assert (entry["action"], entry["outcome"]) == ("deploy", "begun")


async def test_a_fault_of_the_platform_is_recorded_as_failed(trace: System) -> None:
    pool = trace.control.pool
    user: UUID = await pool.fetchval("SELECT id FROM users WHERE external_id = $1", ADMIN)
    with pytest.raises(ZeroDivisionError):
        async with recorded(pool, CallEntry(user, "deploy", "dag=shop", "127.0.0.1"), reads=False):
            raise ZeroDivisionError
    (entry,) = await linked(trace)
    assert (entry["outcome"], entry["code"]) == ("failed", "ZeroDivisionError")
