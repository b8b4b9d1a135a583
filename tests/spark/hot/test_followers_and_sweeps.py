"""One process at a time follows a source into hot tables, and sweeps remove what was compacted and nothing newer."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from tests.support.spark.hot_rows import Connection, made, marks, rows_in
from tests.support.spark.hot_tables import chain, rows_of, unheld
from tracelake.data.hot.follower_outbox import (
    FollowerProgress,
    FollowerRun,
    advance,
    announce,
    begin,
    delete_source,
    lock_source,
    mark_sent,
    unsent_entries,
)
from tracelake.data.hot.sweep import mark_compacted, sweep
from tracelake.data.hot.view import Run, view_of
from tracelake.data.hot.writer import rewrite
from tracelake.errors import LeaseLost, SnapshotTooOld

RUN = FollowerRun(UUID(int=7), 1)


def test_writes_of_the_caller_share_the_transaction_of_the_rows(data: Connection, data_db: str) -> None:
    table = made(data)
    with psycopg.connect(data_db) as follower:
        assert lock_source(follower, "eth", RUN) == FollowerProgress(None, None)
        rewrite(follower, {table: rows_of([(0, 0, 1)])}, chain(0, 1))
        advance(follower, "eth", FollowerProgress(0, None))
        announce(follower, "eth", "event", start=0, stop=1)
        follower.rollback()
    assert (rows_in(data, table), unsent_entries(data, "eth")) == ([], [])
    with psycopg.connect(data_db) as follower:
        lock_source(follower, "eth", RUN)
        rewrite(follower, {table: rows_of([(0, 0, 1)])}, chain(0, 1))
        advance(follower, "eth", FollowerProgress(0, 0))
        announce(follower, "eth", "invalidation", start=0, stop=1, cause="fork at 0")
        announce(follower, "eth", "event", start=0, stop=1)
    waiting = unsent_entries(data, "eth")
    assert [
        (announcement.kind, announcement.start, announcement.stop, announcement.cause) for announcement in waiting
    ] == [
        ("invalidation", 0, 1, "fork at 0"),
        ("event", 0, 1, ""),
    ]
    mark_sent(data, "eth", waiting[:1])
    assert unsent_entries(data, "eth") == waiting[1:]
    assert lock_source(data, "eth", RUN) == FollowerProgress(0, 0)
    delete_source(data, "eth")
    assert (unsent_entries(data, "eth"), lock_source(data, "eth", RUN)) == ([], FollowerProgress(None, None))


def test_a_source_is_advanced_by_one_process_at_a_time(data: Connection, data_db: str) -> None:
    lock_source(data, "eth", RUN)
    with psycopg.connect(data_db) as first, psycopg.connect(data_db) as second:
        lock_source(first, "eth", RUN)
        second.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lock_source(second, "eth", RUN)


def test_a_run_superseded_by_a_later_one_cannot_take_the_source(data: Connection) -> None:
    later = [FollowerRun(RUN.run_id, 2), FollowerRun(UUID(int=RUN.run_id.int + 1), 1)]
    assert not begin(data, "eth", RUN)
    advance(data, "eth", FollowerProgress(7, 3))
    assert begin(data, "eth", later[0]), "another attempt of the same run"
    assert not begin(data, "eth", later[1])
    for old in (RUN, later[0]):
        with pytest.raises(LeaseLost, match="a later one"):
            lock_source(data, "eth", old)
    delete_source(data, "eth")
    with pytest.raises(LeaseLost):
        lock_source(data, "eth", RUN)
    assert lock_source(data, "eth", later[1]) == FollowerProgress(None, None)


def test_a_compaction_that_wrote_an_older_reading_over_a_newer_makes_blocks_hot_again(
    data: Connection, data_db: str
) -> None:
    table = made(data)
    rewrite(data, {table: rows_of([])}, chain(0, 2))
    old = max(marks(data).values())
    rewrite(data, {table: rows_of([])}, chain(1, 1))
    new = max(marks(data).values())
    assert mark_compacted(data, table, start=0, stop=2, up_to_seq=new, commit=1) == 2
    assert mark_compacted(data, table, start=0, stop=2, up_to_seq=old, commit=2) == 0
    with unheld(data_db) as now:
        assert view_of(now, table, start=0, stop=9, commit=2).runs == (Run(1, 2),)


def test_a_sweep_waits_for_its_grace_period_and_refuses_later_readers(data: Connection, data_db: str) -> None:
    table = made(data)
    rewrite(data, {table: rows_of([(n, 0, n) for n in range(4)])}, chain(0, 4))
    mark_compacted(data, table, start=0, stop=2, up_to_seq=max(marks(data).values()), commit=5)
    assert sweep(data, table, timedelta(hours=1)) == 0
    assert len(rows_in(data, table)) == 4
    assert sweep(data, table, timedelta(0)) == 2
    assert rows_in(data, table) == [(2, 0, 2), (3, 0, 3)]
    with unheld(data_db) as now:
        assert view_of(now, table, start=0, stop=9, commit=5).runs == (Run(2, 4),)
        assert view_of(now, table, start=2, stop=9, commit=4).runs == (Run(2, 4),)
        with pytest.raises(SnapshotTooOld, match=r"\[0,2\)"):
            view_of(now, table, start=0, stop=9, commit=4)


def test_old_sweeps_are_merged_into_one_row_that_refuses_the_same_readers(data: Connection, data_db: str) -> None:
    table = made(data)
    rewrite(data, {table: rows_of([])}, chain(0, 6))
    seq = max(marks(data).values())
    for commit in (1, 2, 3):
        mark_compacted(data, table, start=commit - 1, stop=commit, up_to_seq=seq, commit=commit)
        sweep(data, table, timedelta(0))
    data.execute("UPDATE trace_meta.hot_swept SET swept_at = now() - interval '32 days'")
    for commit in (4, 5):
        mark_compacted(data, table, start=commit - 1, stop=commit, up_to_seq=seq, commit=commit)
        sweep(data, table, timedelta(0))
    swept = data.execute("SELECT commit, numbers::text FROM trace_meta.hot_swept ORDER BY commit").fetchall()
    assert swept == [(3, "{[0,3)}"), (4, "{[3,4)}"), (5, "{[4,5)}")]
    with unheld(data_db) as now:
        assert view_of(now, table, start=0, stop=9, commit=5).runs == (Run(5, 6),)
        with pytest.raises(SnapshotTooOld, match=r"\[3,5\)"):
            view_of(now, table, start=0, stop=9, commit=3)
        with pytest.raises(SnapshotTooOld, match=r"\[0,5\)"):
            view_of(now, table, start=0, stop=9, commit=0)
