"""What grows is deleted when it is old and nothing needs it; what is needed stays, however old it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained, tasks_of
from tests.support.dispatcher.staged_files import begun, finish, staged
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.delete_old_exports import DeleteOldExports
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.dispatcher.maintenance.reconcile import Reconciler
from tracelake.dispatcher.maintenance.retain import DeleteOldEvents, DeleteOldRows, DeleteOldTasks
from tracelake.dispatcher.process import loops
from tracelake.domain.access.object_names import Folder
from tracelake.settings import LoopSettings, Settings

pytestmark = pytest.mark.anyio

MONTH = timedelta(days=30)

DELETED_BY = {
    "tasks": "delete_old_tasks",
    "task_attempts": "delete_old_tasks",
    "task_inputs": "delete_old_tasks",
    "events": "delete_old_events",
    "data_invalidations": "delete_old_invalidations",
    "data_invalidation_jobs": "delete_old_invalidations",
    "buffer_publishes": "delete_old_publishes",
    "pauses": "delete_old_pauses",
    "outbox": "prune_outbox",
    "task_logs": "prune_logs",
    "query_audit": "prune_audit",
    "audit_entries": "prune_audit_entries",
    "udf_bundles": "delete_unused_bundles",
    "source_slots": "prune_sources",
    "source_deliveries": "prune_sources",
}
"""Growing tables of the state database, and the loop that deletes from them."""

STATIC = {
    "state": {
        # Made by people, and deleted by them.
        *(
            "orgs",
            "users",
            "org_roles",
            "org_role_memberships",
            "service_tokens",
            "org_secrets",
            "service_token_hashes",
            "audit_chains",
            "user_tokens",
            "url_keys",
        ),
        *("alert_channels", "alert_definitions", "alert_definition_channels", "backfills"),
        # One for each restore from a backup, for ever: the last one is the epoch.
        "restores",
        # Rows of deployed versions: as many as there are versions.
        *(
            "dag_versions",
            "deleted_versions",
            "dag_current_versions",
            "jobs",
            "datasets",
            "dag_version_datasets",
            "job_inputs",
        ),
        *("column_lineage", "buffered_datasets", "dataset_heads", "dataset_access"),
        # One for each time that somebody deploys or activates.
        *("dag_activations", "releases", "release_members", "release_comparisons"),
        # One for each job, input or key.
        *(
            "operator_state",
            "sources",
            "signing_keys",
            "catch_ups",
            "dags_behind",
            "source_schedules",
            "in_flight_limits",
        ),
        # One for each organisation and limit, or for each runtime.
        *("org_limits", "org_storage", "sandboxed_runtimes"),
        # The ledger: kept for ever. `delete_replaced_files` deletes the files of replaced partitions, and
        # `remove_left_generations` the partitions of generations that no version serves.
        *("commits", "partition_versions", "dataset_versions", "removed_generations", "processed_inputs"),
        # Deleted as soon as they are processed, or have expired when the next worker asks.
        *("held_events", "rpc_shares"),
        # One row.
        *("reconcile_marks", "source_drains", "orphan_file_marks"),
    },
    "data": {
        # One for each table, source or block that is not compacted yet.
        *("trace_meta.dataset_tables", "trace_meta.buffered_tables", "trace_meta.sources"),
        *("trace_meta.hot_blocks", "trace_meta.hot_swept"),
        # Deleted by their users: when they are sent, behind the head of the chain, when they are committed.
        *("trace_meta.announcements", "trace_meta.followed_blocks", "trace_meta.compactions"),
        *("trace_meta.batches_in_progress",),
        # `sink.applied_kept_days` and `delivery.kept_days`.
        *("trace_meta.applied_batches", "alerts.deliveries"),
    },
    "queue": {
        # Deleted when they are acknowledged; dead letters when they are redriven.
        *("pgqueue.messages", "pgqueue.dead_letters"),
    },
}


async def test_every_table_is_bounded_or_has_a_loop_that_deletes_from_it(
    control: Control, state_db: str, data_db: str, queue_db: str
) -> None:
    for database, dsn in (("state", state_db), ("data", data_db), ("queue", queue_db)):
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(
                "SELECT CASE table_schema WHEN 'public' THEN '' ELSE table_schema || '.' END || table_name"
                " FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
                " AND table_schema NOT IN ('pg_catalog', 'information_schema', 'trace_migrations')"
            )
            covered = STATIC[database] | (set(DELETED_BY) if database == "state" else set())
            assert {name for (name,) in rows} == covered, database
    names = {loop.name for loop in loops(control, Settings())}
    assert set(DELETED_BY.values()) <= names


async def grown_old(control: Control) -> None:
    """All that happened, happened 40 days ago, and files were swept since."""
    await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket, timedelta(0)).once()
    for change in (
        "UPDATE tasks SET completed_at = completed_at - interval '40 days'",
        "UPDATE tasks SET created_at = created_at - interval '40 days'",
        "UPDATE task_attempts SET started_at = started_at - interval '40 days'",
        "UPDATE events SET created_at = created_at - interval '40 days', routed_at = routed_at - interval '40 days'",
        "UPDATE dag_versions SET created_at = created_at - interval '60 days'",
        "UPDATE data_invalidations SET created_at = created_at - interval '40 days'",
        "UPDATE dag_current_versions SET updated_at = updated_at - interval '60 days'",
        "UPDATE commits SET created_at = created_at - interval '40 days'",
    ):
        await control.pool.execute(f"SET session_replication_role = replica; {change}")
    await control.pool.execute("RESET session_replication_role")


async def prune(control: Control) -> None:
    for work in (
        DeleteOldEvents(control.pool, MONTH),
        DeleteOldTasks(control.pool, MONTH),
        DeleteOldRows(control.pool, "delete_old_invalidations", MONTH),
    ):
        while await work.once():
            pass


async def cursor_event(control: Control, chain: Chain, cursor: int) -> UUID:
    """`first` reports a cursor, and `second` processes it; returns the task of `second`."""
    task, claims = await begun(control, chain)
    await control.completer()(completion(task, events=[chain.event("first", cursor=cursor)]), claims)
    await drained(control)
    *_, reader = await tasks_of(control, chain, "second")
    second, reads = await claimed(control, reader)
    await control.completer()(completion(second), reads)
    return reader


async def count(control: Control, sql: str, *values: Any) -> int:
    return int(await control.pool.fetchval(f"SELECT count(*) FROM {sql}", *values))  # noqa: S608


async def test_tasks_of_cursors_that_were_read_are_deleted_with_their_events_and_never_come_again(
    control: Control,
) -> None:
    chain = await deploy_chain(control)
    readers = [await cursor_event(control, chain, cursor) for cursor in (10, 20)]
    await grown_old(control)
    young = await cursor_event(control, chain, 30)
    await prune(control)
    assert await tasks_of(control, chain, "second") == [young]
    assert await count(control, "task_attempts WHERE task_id = ANY ($1)", readers) == 0
    assert await count(control, "events") == 1
    reconciler = Reconciler(
        control.pool,
        control.queue,
        {},
        control.after_commit.outbox,
        LoopSettings(reconcile_seconds=0.001, reconcile_grace_seconds=0, reconcile_slice_seconds=1e9),
    )
    for _ in range(3):
        await reconciler.once()
    await drained(control)
    assert await tasks_of(control, chain, "second") == [young]


async def test_what_has_a_commit_keeps_its_task_its_event_and_its_key_for_ever(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    outputs = staged(control.objects, task, (0, 99))
    await control.completer()(completion(task, outputs=outputs, events=[chain.event("first", start=0, end=99)]), claims)
    await drained(control)
    (reader,) = await tasks_of(control, chain, "second")
    second, reads = await claimed(control, reader)
    await finish(control, second, reads, [])
    await grown_old(control)
    await prune(control)
    assert await tasks_of(control, chain, "first") == [task.task.task_id]
    assert await tasks_of(control, chain, "second") == [reader], "one task for a partition is one task for ever"
    assert await count(control, "events") == 1, "else the reconciler would send it again"
    assert await count(control, "task_inputs WHERE task_id = $1", reader) == 1, "catching up compares what was read"


async def test_attempts_before_the_last_one_are_deleted_when_their_files_are_swept(control: Control) -> None:
    chain = await deploy_chain(control)
    task_id = await a_task(control, chain)
    for _ in range(2):
        task, claims = await claimed(control, task_id)
        await control.completer()(completion(task, status="Failed", error_message="no", retryable=True), claims)
        await control.pool.execute(
            "UPDATE tasks SET status = 'Queued', attempt = attempt + 1, queued_at = now(), next_retry_at = NULL,"
            " error_message = NULL, fault = NULL, lease_token = NULL, worker_id = NULL, started_at = NULL,"
            " last_heartbeat = NULL, progress = NULL, completed_at = NULL, completion_hash = NULL,"
            " completion_answer = NULL, woken_at = now()"
        )
    task, claims = await claimed(control, task_id)
    await finish(control, task, claims, staged(control.objects, task, (0, 99)))
    await grown_old(control)
    await control.pool.execute("UPDATE orphan_file_marks SET swept_until = '-infinity'")
    await prune(control)
    assert await count(control, "task_attempts") == 3, "their files are not swept"
    await control.pool.execute("UPDATE orphan_file_marks SET swept_until = now()")
    await prune(control)
    assert [row["attempt"] for row in await control.pool.fetch("SELECT attempt FROM task_attempts")] == [3]


async def test_an_invalidation_is_deleted_when_every_reader_has_processed_it(control: Control) -> None:
    chain = await deploy_chain(control)
    for n, processed in enumerate((True, False)):
        invalidation = await control.pool.fetchval(
            "INSERT INTO data_invalidations"
            " (org_id, dataset_uuid, dataset_version, block_range, partition_key, reason, requested_by, routed_at)"
            " VALUES ($1, $2, $3, int8range(0, 9), '0-8', $4, $5, now()) RETURNING id",
            chain.org.id,
            chain.datasets["first"],
            chain.versions["first"],
            f"reason {n}",
            chain.org.user,
        )
        await control.pool.execute(
            "INSERT INTO data_invalidation_jobs (invalidation_id, job_id, org_id, task_id, processed_at)"
            " VALUES ($1, $2, $3, $4, CASE WHEN $5 THEN now() END)",
            invalidation,
            chain.jobs["second"],
            chain.org.id,
            await a_task(control, chain, "second"),
            processed,
        )
    await grown_old(control)
    await prune(control)
    left = await control.pool.fetch("SELECT reason FROM data_invalidations")
    assert [row["reason"] for row in left] == ["reason 1"]


async def test_zero_days_keeps_everything(control: Control) -> None:
    chain = await deploy_chain(control)
    await cursor_event(control, chain, 10)
    await grown_old(control)
    nothing = timedelta()
    assert await DeleteOldTasks(control.pool, nothing).once() == 0
    assert await DeleteOldEvents(control.pool, nothing).once() == 0
    assert await DeleteOldRows(control.pool, "delete_old_pauses", nothing).once() == 0
    assert (await count(control, "tasks"), await count(control, "events")) == (2, 1)


async def test_exports_are_deleted_when_their_query_ended_long_ago(control: Control) -> None:
    chain = await deploy_chain(control)
    exports = Folder.parse("s3://trace/exports/")
    names = {}
    for days in (0, 40):
        query = await control.pool.fetchval(
            "INSERT INTO query_audit (id, org_id, user_id, asked_at, sql_sha256, verdict, row_count, stored_at)"
            " VALUES (gen_random_uuid(), $1, $2, now(), sha256(''), 'answered', 1, now() - $3 * interval '1 day')"
            " RETURNING id",
            chain.org.id,
            chain.org.user,
            days,
        )
        names[days] = exports.folder(str(chain.org.id), str(query)).object("part.parquet")
    being_written = exports.folder(str(chain.org.id), str(uuid4())).object("part.parquet")
    foreign = exports.object("readme.txt")
    for name in (*names.values(), being_written, foreign):
        control.objects.put(name, b"rows")
    assert await DeleteOldExports(control.pool, control.objects, str(exports), timedelta()).once() == 0
    await DeleteOldExports(control.pool, control.objects, str(exports), MONTH).once()
    assert {stored.name for stored in control.objects.objects(exports)} == {names[0], being_written, foreign}
