"""A partition that is committed again with the same content is no update for its readers, however they find it."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, deployed_and_active
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained, tasks_of
from tests.support.dispatcher.run_tasks import caught_up, drain, read_input, settle
from tests.support.dispatcher.staged_files import current_partitions, staged
from tests.support.verbs import invalidate, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.reconcile import Reconciler
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.dispatcher.versions.units import last_unit
from tracelake.dispatcher.why.explain import explain_task
from tracelake.domain.ledger import content_hash
from tracelake.settings import RUNTIMES, LoopSettings
from tracelake.store.queries import queries
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.user.backfills import GapsQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"works": WORKS}

Span = tuple[int, int]
AT_ONCE = LoopSettings(reconcile_seconds=1e-6, reconcile_grace_seconds=0, lost_wake_up_seconds=300.0)
HELD = (
    "SELECT partition_key, valid_from, content_since FROM partition_versions"
    " WHERE valid_to IS NULL ORDER BY block_range"
)
MILL = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: works, source: {kind: manual}}
  - {name: grind, operator: works, inputs: [{from: {job: ask}}]}
  - {name: bake, operator: works, inputs: [{from: {job: grind}}]}
publish:
  grain: {job: ask}
  flour: {job: grind}
"""
SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: sell, operator: works, inputs: [{from: {dataset: flour}}]}
"""


@pytest.fixture
async def org(control: Control) -> Org:
    return await an_org(control.pool, "mills")


async def write(control: Control, chain: Chain, rows: Mapping[Span, str]) -> UUID:
    """A task of the first job commits these partitions, with an event about each."""
    task, claims = await claimed(control, await a_task(control, chain))
    return await finish(control, chain, (task, claims), rows)


async def finish(control: Control, chain: Chain, held: tuple[Claimed, object], rows: Mapping[Span, str]) -> UUID:
    task, claims = held
    outputs = staged(control.objects, task, *rows, content=lambda _, span: rows[span].encode())  # type: ignore[index]
    events = [chain.event("first", start=start, end=end) for start, end in rows]
    await control.completer()(completion(task, outputs=outputs, events=events), claims)  # type: ignore[arg-type]
    await drained(control)
    return task.task.task_id


async def read_keys(control: Control, chain: Chain) -> list[str]:
    rows = await control.pool.fetch("SELECT partitions FROM tasks WHERE job_id = $1 ORDER BY id", chain.jobs["second"])
    return [key for row in rows for key in row["partitions"]]


async def test_only_partitions_with_another_content_make_tasks_for_their_readers(control: Control) -> None:
    chain = await deploy_chain(control)
    await write(control, chain, {(0, 9): "a", (10, 19): "b", (20, 29): "c"})
    again = await write(control, chain, {(0, 9): "a", (10, 19): "other", (20, 29): "c"})
    assert await read_keys(control, chain) == ["0-9", "10-19", "20-29", "10-19"]
    rows = [tuple(row) for row in await control.pool.fetch(HELD)]
    assert rows == [("0-9", 2, 1), ("10-19", 2, None), ("20-29", 2, 1)]
    counted = control.after_commit.metrics.unchanged.labels(str(chain.org.id), "chain", "first")._value.get()
    assert counted == 2
    why = await explain_task(control.pool, chain.org.id, again)
    (commit,) = [step for step in why.steps if step.kind == "commit"]
    assert "2 partitions have the same content as before" in commit.sentence


async def test_what_is_written_the_same_a_third_time_has_had_its_content_since_the_first(control: Control) -> None:
    chain = await deploy_chain(control)
    for text in ("a", "a", "a", "b", "a"):
        await write(control, chain, {(0, 9): text})
    assert await read_keys(control, chain) == ["0-9"] * 3
    assert [tuple(row) for row in await control.pool.fetch(HELD)] == [("0-9", 5, None)]
    since = await control.pool.fetch("SELECT content_since FROM partition_versions ORDER BY valid_from")
    assert [row[0] for row in since] == [None, 1, 1, None, None]


async def test_the_event_is_recorded_with_the_reason_why_it_was_not_routed(control: Control) -> None:
    chain = await deploy_chain(control)
    await write(control, chain, {(0, 9): "a"})
    await write(control, chain, {(0, 9): "a"})
    events = (
        "SELECT commit_number, disposition::text, audit_reason, routed_at IS NULL FROM events ORDER BY commit_number"
    )
    first, second = [tuple(row) for row in await control.pool.fetch(events)]
    assert first == (1, "Route", None, False)
    assert second == (2, "AuditOnly", "the partition has the same content as before", True)


async def test_files_written_again_take_the_place_of_the_former_ones_which_may_be_damaged(control: Control) -> None:
    chain = await deploy_chain(control)
    await write(control, chain, {(0, 9): "a"})
    before = await control.pool.fetchval("SELECT location FROM partition_versions WHERE valid_to IS NULL")
    await write(control, chain, {(0, 9): "a"})
    assert await control.pool.fetchval("SELECT location FROM partition_versions WHERE valid_to IS NULL") != before


async def test_an_outdated_attempt_is_still_outdated_after_the_same_content_was_written_again(control: Control) -> None:
    chain = await deploy_chain(control)
    await write(control, chain, {(0, 9): "a"})
    early = await claimed(control, await a_task(control, chain))
    await write(control, chain, {(0, 9): "a"})
    await finish(control, chain, early, {(0, 9): "stale"})
    assert await current_partitions(control) == [("0-9", 2)]


async def test_another_range_with_the_same_files_is_an_update(control: Control) -> None:
    chain = await deploy_chain(control)
    await write(control, chain, {(0, 9): "a", (10, 19): "a"})
    await write(control, chain, {(0, 19): "a"})
    assert await read_keys(control, chain) == ["0-9", "10-19", "0-19"]


async def test_a_job_that_reads_everything_has_read_all_when_only_the_same_was_written_since(control: Control) -> None:
    chain = await deploy_chain(control)
    generation = chain.datasets["first"], chain.versions["first"]
    await write(control, chain, {(0, 9): "a"})
    await write(control, chain, {(10, 19): "b"})
    await write(control, chain, {(10, 19): "b", (0, 9): "a"})
    (last,) = await last_unit(control.pool, *generation)
    assert (last.partition_key, last.commit_number) == ("10-19", 2)
    await write(control, chain, {(0, 9): "other"})
    (last,) = await last_unit(control.pool, *generation)
    assert (last.partition_key, last.commit_number) == ("0-9", 4)


async def test_the_reconciler_sends_no_events_for_the_same_content_and_those_that_are_missing_once(
    control: Control,
) -> None:
    chain = await deploy_chain(control)
    await write(control, chain, {(0, 9): "a", (10, 19): "b"})
    await write(control, chain, {(0, 9): "a", (10, 19): "other"})
    reconciler = Reconciler(control.pool, control.queue, control.runtimes, control.after_commit.outbox, AT_ONCE)
    assert (await reconciler.repair()).total == 0
    await control.pool.execute("DELETE FROM outbox")
    await control.pool.execute("DELETE FROM tasks WHERE event_id IS NOT NULL")
    await control.pool.execute("DELETE FROM events")
    assert (await reconciler.repair()).missing_events == 2
    await drained(control)
    events = "SELECT partition_key, commit_number FROM events ORDER BY partition_key"
    assert [tuple(row) for row in await control.pool.fetch(events)] == [("0-9", 1), ("10-19", 2)]
    assert len(await tasks_of(control, chain, "second")) == 2


async def derived(control: Control, task: Claimed) -> bytes:
    """`ask` writes its range; `grind` the same whatever it reads; the others what they read."""
    if task.task.job.name == "ask":
        return f"{task.task.task_id}".encode()
    return b"flour" if task.task.job.name == "grind" else await read_input(control, task)


async def ran(control: Control, job: str) -> int:
    counted = "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.status = 'Completed'"
    return int(await control.pool.fetchval(counted, job))


async def asked(control: Control, org: Org, *spans: Span) -> None:
    for start, end in spans:
        await trigger(control, org.id, "mill", "ask", start=start, end=end, request_id=UUID(int=start + 1))
    await settle(control, content=derived)


async def test_an_invalidation_stops_where_what_is_made_again_is_the_same(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, MILL)
    await asked(control, org, (0, 9), (10, 19))
    assert [await ran(control, job) for job in ("ask", "grind", "bake")] == [2, 2, 2]
    span = {"start": 0, "end": 9, "reason": "reorg", "request_id": UUID(int=1)}
    await invalidate(control, org.id, org.user, "grain", **span)
    await settle(control, content=derived)
    assert [await ran(control, job) for job in ("ask", "grind", "bake")] == [2, 3, 2]
    assert (await list_gaps(control.pool, org.as_user, GapsQuery(of="mill"))).complete


async def test_catching_up_and_gaps_agree_that_there_is_nothing_to_do(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, MILL)
    await asked(control, org, (0, 9))
    span = {"start": 0, "end": 9, "reason": "reorg", "request_id": UUID(int=1)}
    await invalidate(control, org.id, org.user, "grain", **span)
    await settle(control, content=derived)
    await deployed_and_active(control, org, SHOP)  # a new reader gets one task, for the commit that set the content
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    await settle(control, content=derived)
    assert [await ran(control, job) for job in ("grind", "bake", "sell")] == [2, 1, 1]
    for _ in range(2):
        await control.pool.execute("UPDATE catch_ups SET due_at = now()")
        await caught_up(control)
        await drain(control)
    assert await control.pool.fetchval("SELECT count(*) FROM tasks WHERE status = 'Queued'") == 0
    for dag in ("mill", "shop"):
        gaps = await list_gaps(control.pool, org.as_user, GapsQuery(of=dag))
        assert gaps.complete, gaps
    reconciler = Reconciler(control.pool, control.queue, RUNTIMES, control.after_commit.outbox, AT_ONCE)
    assert (await reconciler.repair()).total == 0


async def test_of_events_about_the_same_content_only_the_records_of_what_is_replaced_are_deleted(
    control: Control,
) -> None:
    chain = await deploy_chain(control)
    await write(control, chain, {(0, 9): "a"})
    await write(control, chain, {(0, 9): "a"})
    old = queries("retention")["delete_old_events"]
    first = await control.pool.fetchval("SELECT min(created_at) FROM events")
    last = await control.pool.fetchval("SELECT max(created_at) + interval '1 s' FROM events")
    # Without the first event the reconciler would send it again: the content is still current.
    assert await control.pool.fetchval(old, first, last, 10) == 0
    await write(control, chain, {(0, 9): "b"})
    assert await control.pool.fetchval(old, first, last, 10) == 2


def test_the_hash_of_a_content_depends_on_schema_and_checksums_alone() -> None:
    first, second = {"name": "x", "rows": 1, "sha256": "aa"}, {"name": "y", "rows": 1, "sha256": "bb"}
    assert content_hash("s", [first, second]) == content_hash("s", [second, {**first, "name": "z"}])
    assert content_hash("s", [first]) != content_hash("s", [first, first])
    assert content_hash("s", [first]) != content_hash("t", [first])
    assert content_hash("s", []) != content_hash("t", [])
