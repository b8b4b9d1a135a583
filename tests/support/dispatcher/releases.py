"""Plans, starts, builds and switches releases through the real verbs; loops are stepped."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from tests.support.dispatcher.control import Org
from tests.support.dispatcher.run_tasks import Content, settle
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.releases import abandon, promote, show
from tracelake.dispatcher.releases import plan as planning
from tracelake.dispatcher.releases import start as starting
from tracelake.dispatcher.releases.run_releases import RunReleases
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.user.releases import Plan, ReleaseAnswer, ReleaseDetail, ReleaseRequest, ReleaseRow, SwitchAnswer

STEPS = 50


async def plan(control: Control, org: Org, *texts: str) -> Plan:
    runtimes = control.runtime_specs()
    return (await planning.plan_change(control.pool, org.id, texts, runtimes=runtimes)).plan


async def start(
    control: Control, org: Org, *texts: str, plan_hash: str | None = None, when_ready: bool = False
) -> ReleaseAnswer:
    request = ReleaseRequest(dags=list(texts), plan=plan_hash, when_ready=when_ready)
    places = {"runtimes": control.runtime_specs(), "bucket": control.places.bucket}
    return await starting.start_release(control.pool, control.after_commit, org.as_user, request, **places)  # type: ignore[arg-type]


async def started(control: Control, org: Org, *texts: str, when_ready: bool = False) -> UUID:
    answer = await start(control, org, *texts, when_ready=when_ready)
    assert answer.release is not None
    return answer.release.id


MOVED = """
SELECT (SELECT count(*) FROM tasks WHERE status = 'Completed'), (SELECT count(*) FROM tasks),
       (SELECT count(*) FROM events), array_agg((id, state)::text ORDER BY id)
  FROM releases
"""


async def build(
    control: Control, fails: Callable[[Claimed], bool] = lambda _: False, content: Content | None = None
) -> None:
    """Runs every task and steps the loops, until nothing changes any more."""
    loop = RunReleases(control.pool, control.after_commit, control.runtime_specs)
    for _ in range(STEPS):
        await control.pool.execute("UPDATE catch_ups SET due_at = now()")
        await control.pool.execute("UPDATE releases SET check_at = now()")
        before = await control.pool.fetchrow(MOVED)
        await settle(control, fails, content)
        while await loop.once():
            pass
        if before == await control.pool.fetchrow(MOVED):
            return
    raise AssertionError(f"tasks are still created after {STEPS} steps")


async def promoted(control: Control, org: Org, release: UUID, *, force: bool = False) -> SwitchAnswer:
    named = control.pool, control.after_commit, org.id, release
    return await promote.promote_release(*named, runtimes=control.runtime_specs(), force=force)


async def rolled_back(control: Control, org: Org, release: UUID) -> SwitchAnswer:
    named = control.pool, control.after_commit, org.id, release
    return await promote.rollback_release(*named, runtimes=control.runtime_specs())


async def abandoned(control: Control, org: Org, release: UUID) -> ReleaseRow:
    return await abandon.abandon_release(control.pool, control.after_commit, org.id, release)


async def shown(control: Control, org: Org, release: UUID) -> ReleaseDetail:
    return await show.show_release(control.pool, org.as_user, release)


async def state_of(control: Control, org: Org, release: UUID) -> str:
    return (await shown(control, org, release)).release.state
