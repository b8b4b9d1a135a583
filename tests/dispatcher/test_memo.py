"""A task whose inputs, config and code are those of a completed one is completed with its files, and does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.memo import MILL, MILLS, SERVED, SPANS, asked, ground, reused, tasks_of
from tests.support.dispatcher.releases import build, promoted, started, state_of
from tests.support.operators import registered
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.dispatcher.why.explain import explain_task
from tracelake.domain.object_names import Folder
from tracelake.query.verify.chain import check_chain
from tracelake.wire.user_backfills import GapsQuery
from tracelake.wire.user_ledger import LedgerQuery

pytestmark = pytest.mark.anyio


@pytest.fixture
async def control(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Control]:
    with registered(works=WORKS, mills=MILLS):
        async with control_for(state_db, queue_db, tmp_path) as made:
            yield made


@pytest.fixture
async def org(control: Control) -> Org:
    """With a mill that has processed four ranges."""
    made = await an_org(control.pool, "mills")
    await deployed_and_active(control, made, MILL.format(1, 1))
    await asked(control, made, *SPANS)
    return made


async def content(control: Control, org: Org, dataset: str) -> list[bytes]:
    rows = await control.pool.fetch(SERVED, dataset, org.id)
    return [control.objects.get(Folder.parse(row["location"]).object(row["name"])) for row in rows]


async def test_after_an_edit_that_changes_one_partition_the_job_behind_it_runs_for_that_one(
    control: Control, org: Org
) -> None:
    release = await started(control, org, MILL.format(2, 1))
    await build(control, content=ground)
    assert await state_of(control, org, release) == "Ready"
    assert await reused(control, "grind") == [], "its config is another one"
    assert await reused(control, "bake") == ["0-9", "20-29", "30-39"]
    await promoted(control, org, release)
    assert await content(control, org, "bread") == [
        b"grain of 0-9, baked 1",
        b"grain of 10-19, 2 times, baked 1",
        b"grain of 20-29, baked 1",
        b"grain of 30-39, baked 1",
    ]
    assert (await list_gaps(control.pool, org.id, GapsQuery(of="mill"))).complete
    page = await list_ledger(control.pool, org.as_user, "bread", LedgerQuery())
    assert [len(page.entries), list(check_chain(page, 0))] == [8, []]
    assert control.metrics.memoized.labels("mill", "bake")._value.get() == 3
