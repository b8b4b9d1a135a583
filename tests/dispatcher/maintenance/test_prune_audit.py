"""Audit rows of queries are kept for as long as the setting says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dispatcher.control import an_org, control_for
from tracelake.dispatcher.process import loops
from tracelake.settings import DispatcherSettings, Settings

pytestmark = pytest.mark.anyio


async def test_audit_rows_older_than_they_are_kept_are_deleted_and_no_others(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with control_for(state_db, queue_db, tmp_path) as control:
        org = await an_org(control.pool)
        await control.pool.execute(
            "INSERT INTO query_audit (id, org_id, user_id, asked_at, sql_sha256, verdict, row_count, stored_at)"
            " SELECT gen_random_uuid(), $1, $2, now(), sha256(''), 'answered', days, now() - days * interval '1 day'"
            " FROM unnest('{0, 9, 11, 400}'::int[]) AS days",
            org.id,
            org.user,
        )
        settings = Settings(dispatcher=DispatcherSettings(query_audit_kept_days=10))
        (pruning,) = [loop for loop in loops(control, settings) if loop.name == "prune_audit"]
        assert [await pruning.once(), await pruning.once()] == [2, 0]
        left = await control.pool.fetch("SELECT row_count FROM query_audit ORDER BY row_count")
        assert [row["row_count"] for row in left] == [0, 9]
