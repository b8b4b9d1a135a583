"""Limits of a cutover: a release is compared with what serves first, and is not promoted beyond its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.comparisons import compared, diff, reported, taken
from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active
from tests.support.dispatcher.releases import abandoned, build, plan, promoted, shown, started, state_of
from tests.support.dispatcher.run_tasks import settle
from tests.support.operators import registered
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS, until
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.releases.request_comparisons import request_comparisons
from tracelake.dispatcher.releases.run_releases import RunReleases
from tracelake.dispatcher.releases.take_comparison import take_comparison
from tracelake.errors import Conflict, NotFound
from tracelake.wire.user.releases import ReleaseComparison

pytestmark = pytest.mark.anyio

MILL = """
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: pull, source: {{kind: manual}}}}
  - name: grind
    operator: pull
    config: {{n: {0}}}
    inputs: [{{from: {{job: ask}}}}]
    unique_key: [block_number]
    cutover: {{max_changed_rows: {1}, max_missing_keys: 0}}
  - {{name: bake, operator: pull, inputs: [{{from: {{job: grind}}}}]}}
publish:
  flour: {{job: grind}}
"""


@pytest.fixture(autouse=True)
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


@pytest.fixture
async def org(control: Control) -> Org:
    made = await an_org(control.pool)
    await deployed_and_active(control, made, MILL.format(1, "1%"))
    await ask(control, made, 0)
    return made


async def ask(control: Control, org: Org, first: int) -> None:
    await trigger(control, org.id, "mill", "ask", start=first, end=first + 9, request_id=uuid4())
    await settle(control)


async def step(control: Control) -> None:
    """One look at every release, as its loop does."""
    await control.pool.execute("UPDATE releases SET check_at = now()")
    while await RunReleases(control.pool, control.after_commit, control.runtime_specs).once():
        pass


async def flour(control: Control, org: Org, release: UUID) -> ReleaseComparison:
    return next(item for item in (await shown(control, org, release)).comparisons if item.dataset == "flour")


async def test_a_query_service_that_waits_is_woken_when_comparisons_are_requested(control: Control, org: Org) -> None:
    """By the answer to its waiting call, which names the work; until then nothing is due at any time."""
    release = await started(control, org, MILL.format(2, "1%"))
    await build(control)
    signal = control.after_commit.comparisons
    idle = await take_comparison(control.pool, control.after_commit)
    assert (idle.work, idle.next_in_seconds) == (None, None)
    waiting = asyncio.create_task(signal.after(idle.mark, SECONDS))
    await until(lambda: signal.waiting == 1, "the Query service waits")
    assert not waiting.done()
    await request_comparisons(control.pool, control.after_commit, org.as_user, release)
    assert (await waiting).changed
    due = [await take_comparison(control.pool, control.after_commit) for _ in range(3)]
    assert [answer.work is not None for answer in due] == [True, True, False]
    assert due[-1].next_in_seconds is not None, "a lease may run out"


async def test_a_promotion_requests_comparisons_once_and_wakes_for_them_once(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, "1%"))
    await build(control)
    mark = control.after_commit.comparisons.mark
    await promoted(control, org, release)
    assert (await control.after_commit.comparisons.after(mark, SECONDS)).changed
    mark = control.after_commit.comparisons.mark
    await step(control)
    assert not (await control.after_commit.comparisons.after(mark, 0.2)).changed


async def test_a_promotion_waits_for_the_comparison_and_follows_it_within_the_limits(
    control: Control, org: Org
) -> None:
    release = await started(control, org, MILL.format(2, "1%"))
    await build(control)
    answer = await promoted(control, org, release)
    assert (answer.release.state, answer.release.when_ready) == ("Ready", True)
    await step(control)
    assert await state_of(control, org, release) == "Ready"
    assert await compared(control, changed=1) == ["flour"]  # bake has no limits, and nobody asked for it
    await step(control)
    assert await state_of(control, org, release) == "Serving"


@pytest.mark.parametrize("when_ready", [False, True])
async def test_a_release_that_exceeds_a_limit_is_not_promoted_and_says_by_how_much(
    control: Control, org: Org, when_ready: bool
) -> None:
    release = await started(control, org, MILL.format(2, "1%"), when_ready=when_ready)
    await build(control)
    if not when_ready:
        await promoted(control, org, release)
    await compared(control, changed=2, only_a=1)
    await step(control)
    detail = await shown(control, org, release)
    assert (detail.release.state, detail.release.when_ready) == ("Ready", False)
    figures = "flour: changed rows: 2 (2% of 100 rows), and `max_changed_rows` is 1%; flour: missing keys: 1"
    assert figures in (detail.release.message or "")
    with pytest.raises(Conflict, match="missing keys: 1") as refusal:
        await promoted(control, org, release)
    assert "--diff" in (refusal.value.hint or "")
    assert await compared(control) == [], "nothing was committed since: it is not compared again"
    answer = await promoted(control, org, release, force=True)
    assert answer.release.state == "Serving"
    assert "promoted by force: flour: changed rows: 2" in (answer.release.message or "")


async def test_a_comparison_of_earlier_commits_is_made_again_before_a_promotion(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, "1%"))
    await build(control)
    await request_comparisons(control.pool, control.after_commit, org.as_user, release)
    assert sorted(await compared(control)) == ["bake[0]", "flour"]
    assert (await flour(control, org, release)).is_current
    await request_comparisons(control.pool, control.after_commit, org.as_user, release)
    assert await compared(control) == [], "stored for these commits"
    await ask(control, org, 10)
    await build(control)
    assert not (await flour(control, org, release)).is_current
    await promoted(control, org, release)
    await ask(control, org, 20)  # data that arrives while it is compared does not start it again
    await build(control)
    assert await compared(control, changed=100) == ["flour"]
    await step(control)
    assert await state_of(control, org, release) == "Ready"


async def test_data_that_arrives_while_it_is_compared_does_not_keep_a_release_from_its_promotion(
    control: Control, org: Org
) -> None:
    release = await started(control, org, MILL.format(2, "1%"), when_ready=True)
    await build(control)
    work = await taken(control)
    assert work is not None
    await ask(control, org, 10)
    assert await reported(control, work, result=diff(work))
    assert not (await flour(control, org, release)).is_current
    await step(control)
    assert await state_of(control, org, release) == "Serving"


async def test_without_a_query_service_a_promotion_waits_and_says_so(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, "1%"), when_ready=True)
    await build(control)
    await control.pool.execute("UPDATE release_comparisons SET requested_at = now() - interval '2 minutes'")
    await step(control)
    detail = await shown(control, org, release)
    assert (detail.release.state, detail.release.when_ready) == ("Ready", True)
    assert "as soon as the Query service has compared flour" in (detail.release.message or "")
    await compared(control)
    await step(control)
    assert await state_of(control, org, release) == "Serving"


async def test_a_comparison_that_failed_for_a_while_is_made_again(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, "1%"), when_ready=True)
    await build(control)
    work = await taken(control)
    assert work is not None
    assert await reported(control, work, error="Spark was lost", retryable=True)
    await step(control)
    assert "Spark was lost" in ((await shown(control, org, release)).release.message or "")
    assert not await reported(control, work, result=diff(work)), "its lease has ended"
    await compared(control)
    await step(control)
    assert await state_of(control, org, release) == "Serving"


async def test_a_comparison_that_cannot_be_made_blocks_until_the_next_promotion_asks_again(
    control: Control, org: Org
) -> None:
    release = await started(control, org, MILL.format(2, "1%"), when_ready=True)
    await build(control)
    work = await taken(control)
    assert work is not None
    assert await reported(control, work, error="no column in common")
    await step(control)
    detail = await shown(control, org, release)
    assert (detail.release.state, detail.release.when_ready) == ("Ready", False)
    assert "flour cannot be compared: no column in common" in (detail.release.message or "")
    assert (await promoted(control, org, release)).release.when_ready
    await compared(control)
    await step(control)
    assert await state_of(control, org, release) == "Serving"


async def test_a_lease_that_ends_gives_the_comparison_to_another_and_the_first_report_is_refused(
    control: Control, org: Org
) -> None:
    release = await started(control, org, MILL.format(2, "1%"), when_ready=True)
    await build(control)
    first = await taken(control)
    assert first is not None
    assert await taken(control) is None
    assert await reported(control, first, steps=2)
    running = await flour(control, org, release)
    assert (running.state, running.steps, running.steps_planned) == ("Running", 2, 3)
    await control.pool.execute("UPDATE release_comparisons SET due_at = now() WHERE state = 'Running'")
    second = await taken(control)
    assert second is not None
    assert not await reported(control, first, result=diff(first, changed=100))
    assert await reported(control, second, result=diff(second))
    await step(control)
    assert await state_of(control, org, release) == "Serving"


async def test_an_abandoned_release_is_not_compared_any_more(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, "1%"), when_ready=True)
    await build(control)
    work = await taken(control)
    assert work is not None
    await abandoned(control, org, release)
    assert not await reported(control, work, result=diff(work))
    await control.pool.execute("UPDATE release_comparisons SET due_at = now()")
    assert await taken(control) is None
    with pytest.raises(Conflict, match="this release is Abandoned"):
        await request_comparisons(control.pool, control.after_commit, org.as_user, release)
    with pytest.raises(NotFound):
        await request_comparisons(control.pool, control.after_commit, org.as_user, uuid4())


async def test_what_a_release_has_not_processed_yet_is_not_taken_for_missing(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, "1%"))
    await build(control)
    await request_comparisons(control.pool, control.after_commit, org.as_user, release)
    await ask(control, org, 10)  # the serving version has processed it
    assert await taken(control) is None, "it waits for the release"
    await control.pool.execute("UPDATE release_comparisons SET requested_at = now() - interval '31 seconds'")
    late = await taken(control)
    assert late is not None
    assert (late.start, late.end) == (0, 9), "not for ever: but what is behind is left out"
    await build(control)
    work = await taken(control)
    assert work is not None
    assert {(late.dataset, *late.key), (work.dataset, *work.key)} == {("flour", "block_number"), ("bake[0]",)}
    assert work.start is None
    assert work.a is not None
    assert work.b is not None
    for side in (work.a, work.b):
        assert [part.partition_key for part in side.partitions or ()] == ["0-9", "10-19"]


async def test_other_limits_make_no_new_generation_and_are_those_of_the_new_version(control: Control, org: Org) -> None:
    found = await plan(control, org, MILL.format(1, 7))
    assert {row.action for row in found.datasets} == {"carry on"}
    release = await started(control, org, MILL.format(2, 7))
    assert (await flour(control, org, release)).limits == {"max_changed_rows": 7, "max_missing_keys": 0}
