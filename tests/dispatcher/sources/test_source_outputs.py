"""What an always-on source writes: resets, state, reorgs, and the name of its output."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.sources import (
    DAG,
    claim,
    claim_of_job,
    emit,
    end,
    jobs_with_source,
    later,
    lose,
    settle,
)
from tests.support.dispatcher.staged_files import staged
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.errors import InvalidRequest, LeaseLost
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.outputs import (
    EventBody,
    InvalidationBody,
)

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}


BOOT = DAG.replace("source: {kind: always_on}", "source: {kind: always_on}, bootstrap: {reset_outputs: true}")


async def next_run(control: Control) -> Claimed:
    await lose(control)
    await settle(control)
    await later(control, 3600)
    await settle(control)
    return await claim(control)


def must_reset(claimed: Claimed) -> bool:
    return claimed.task.bootstrap is not None and claimed.task.bootstrap.reset_outputs


async def test_outputs_are_reset_until_the_first_event_and_never_again(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, BOOT)
    await settle(control)
    run = await claim(control)
    assert must_reset(run)
    stale, run = run, await next_run(control)  # killed before it emitted anything
    assert must_reset(run)
    with pytest.raises(LeaseLost):
        await emit(control, stale, state={"at": 0})
    await emit(control, run)  # says nothing, so it says nothing about the reset
    run = await next_run(control)
    assert must_reset(run)
    await emit(control, run, state={"at": 1})
    run = await next_run(control)
    assert not must_reset(run)
    assert run.task.state == {"at": 1}
    # The next version does it once more; and on the way back the former one does not.
    await deployed_and_active(control, org, BOOT.replace("backoff: 10s", "backoff: 11s"))
    await end(control, run)
    await settle(control)
    run = await claim_of_job(control)
    assert must_reset(run)
    assert run.task.state is None  # what was remembered is of what is reset now
    await end(control, run, state={"at": 2})
    await deployed_and_active(control, org, BOOT)
    await settle(control)
    run = await claim_of_job(control)
    assert run.task.job.name == "follow"
    assert list(await jobs_with_source(control)) == [first.jobs["follow"]]
    assert not must_reset(run)


@pytest.mark.parametrize("with_outputs", [False, True])
async def test_a_completion_with_events_records_that_the_reset_was_done(
    control: Control, org: Org, *, with_outputs: bool
) -> None:
    await deployed_and_active(control, org, BOOT)
    await settle(control)
    run = await claim(control)
    await end(control, run)  # stopped before it began, say
    await settle(control)
    await later(control, 3600)
    await settle(control)
    run = await claim_of_job(control)
    assert must_reset(run)
    [out] = run.task.outputs
    named: dict[str, Any] = {"dataset_uuid": out.dataset_uuid, "dataset_version": out.dataset_version}
    outputs = staged(control.objects, run, (0, 9)) if with_outputs else []
    await end(control, run, events=[EventBody(**named, start=0, end=9)], outputs=outputs)
    await settle(control)
    await later(control, 3600)
    await settle(control)
    assert not must_reset(await claim_of_job(control))


async def test_state_is_saved_with_the_events_or_not_at_all(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    run = await claim(control)
    [out] = run.task.outputs
    good = EventBody(dataset_uuid=out.dataset_uuid, dataset_version=out.dataset_version, cursor=1)
    assert (await emit(control, run, events=[good], state={"at": 1})).accepted == 1
    with pytest.raises(InvalidRequest):
        await emit(control, run, events=[msgspec.structs.replace(good, start=3)], state={"at": 2})
    stale, run = run, await next_run(control)
    assert run.task.state == {"at": 1}
    with pytest.raises(LeaseLost):
        await emit(control, stale, state={"at": 3})
    assert (await next_run(control)).task.state == {"at": 1}


async def test_two_reorgs_of_one_range_are_two_by_their_cause_and_a_repeated_call_is_one(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    run = await claim(control)
    [out] = run.task.outputs
    body = InvalidationBody(
        dataset_uuid=out.dataset_uuid, dataset_version=out.dataset_version, start=5, end=7, reason="reorg", cause="0xaa"
    )
    other = msgspec.structs.replace(body, cause="0xbb")
    assert (await emit(control, run, invalidations=[body])).accepted == 1
    assert (await emit(control, run, invalidations=[body])).accepted == 0
    assert (await emit(control, run, invalidations=[other])).accepted == 1
    run = await next_run(control)  # the same task, another attempt: still the same reorg
    assert (await emit(control, run, invalidations=[body, other])).accepted == 0
    mixed = (
        msgspec.structs.replace(body, cause='0xaa", "x', reason="y"),
        msgspec.structs.replace(body, cause="0xaa", reason='x", "y'),
    )
    assert (await emit(control, run, invalidations=list(mixed))).accepted == 2


async def test_a_claim_carries_the_name_under_which_its_output_is_published_now(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG + "publish: {first_name: {job: follow}}\n")
    await settle(control)
    run = await claim(control)
    assert [output.name for output in run.task.outputs] == ["first_name"]
    await control.pool.execute("UPDATE datasets SET name = 'next_name' WHERE name = 'first_name'")
    run = await next_run(control)  # the job is known from before, its name is not
    assert [output.name for output in run.task.outputs] == ["next_name"]
    granted = decode(parse_token(run.capability_token).payload).datasets
    assert [item.name for item in granted if item.access == "write"] == ["next_name"]
