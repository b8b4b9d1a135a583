"""Readers see the generations that serve, and a commit in its own, whatever is released meanwhile."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.support.dispatcher.control import Org
from tests.support.dispatcher.mill_and_shop import MILL, ask
from tests.support.dispatcher.releases import (
    build,
    promoted,
    rolled_back,
    started,
    state_of,
)
from tests.support.dispatcher.run_tasks import caught_up, claim_one, drain, finish, settle
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.resolve_relations import user_relations
from tracelake.dispatcher.flow.list_in_flight import list_in_flight
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.errors import NotFound
from tracelake.wire.internal.queries import RelationAnswer, RelationRequest, RelationsRequest

pytestmark = pytest.mark.anyio


async def test_a_commit_is_read_in_its_own_generation_whichever_version_serves(control: Control, org: Org) -> None:
    first = await relation(control, org)
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    second = await relation(control, org)
    assert first.dataset_version != second.dataset_version
    for known in (first, second):
        found = await relation(control, org, as_of=known.commit)
        assert (found.dataset_version, found.commit) == (known.dataset_version, known.commit)
        assert keys(found) == keys(known) == ["0-9", "10-19"]
    await rolled_back(control, org, release)
    assert (await relation(control, org, as_of=second.commit)).dataset_version == second.dataset_version
    assert (await relation(control, org)).dataset_version == first.dataset_version


async def test_a_time_is_read_in_the_generation_that_served_then(control: Control, org: Org) -> None:
    first = await relation(control, org)
    then = await control.pool.fetchval("SELECT clock_timestamp()")
    await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    found = await relation(control, org, as_of=then)
    assert (found.dataset_version, found.commit) == (first.dataset_version, first.commit)


async def test_while_a_release_builds_the_answer_names_a_commit_of_what_serves(control: Control, org: Org) -> None:
    before = await relation(control, org)
    await started(control, org, MILL.format(2, 1))
    await build(control)
    assert (await relation(control, org)).commit == before.commit


async def test_a_commit_of_a_removed_generation_is_said_to_be_gone(control: Control, org: Org) -> None:
    first = await relation(control, org)
    await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    await remove_left(control)
    with pytest.raises(NotFound, match="are gone"):
        await relation(control, org, as_of=first.commit)


async def test_a_release_whose_generations_were_removed_is_retired(control: Control, org: Org) -> None:
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    await rolled_back(control, org, release)
    await remove_left(control)
    assert await state_of(control, org, release) == "Retired"


async def test_after_a_rollback_answers_and_status_say_how_far_the_former_versions_are_behind(
    control: Control, org: Org
) -> None:
    """New data came while the release served: the former versions have it when they have caught up."""
    release = await started(control, org, MILL.format(2, 1), when_ready=True)
    await build(control)
    assert await lag(control, org) == {"flour": None, "bread": None}
    await ask(control, org, 20)
    await settle(control)
    newest = await relation(control, org)
    await rolled_back(control, org, release)
    assert await lag(control, org) == {"flour": 0, "bread": 0}, "nothing is compared yet"
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    await caught_up(control)
    assert await lag(control, org) == {"flour": 1, "bread": 0}
    assert (await relation(control, org, as_of=newest.commit)).behind is None, "a commit is what it is"
    behind = (await list_in_flight(control.pool, org.id)).catching_up
    assert [(item.dag, item.tasks) for item in behind] == [("mill", 1), ("shop", 0)]
    await drain(control)
    held = await claim_one(control)
    assert held is not None
    await finish(control, held)
    await caught_up(control)
    assert (await lag(control, org))["bread"] is not None, "it has not processed the new flour"
    await build(control)
    assert await lag(control, org) == {"flour": None, "bread": None}
    assert (await list_in_flight(control.pool, org.id)).catching_up == []
    assert keys(await relation(control, org)) == ["0-9", "10-19", "20-29"]


async def lag(control: Control, org: Org) -> dict[str, int | None]:
    """As the answer to a query says."""
    request = RelationsRequest(tables=[RelationRequest(name="flour"), RelationRequest(name="bread")])
    return {r.name: r.behind for r in (await user_relations(control.pool, org.as_user, request)).relations}


async def remove_left(control: Control) -> None:
    """As if eight days had passed."""
    left = "UPDATE dataset_versions SET left_at = now() - interval '8 days' WHERE left_at IS NOT NULL"
    await control.pool.execute(left)
    loop = RemoveLeftGenerations(control.pool, control.objects, timedelta(days=7))
    while await loop.once():
        pass


async def relation(control: Control, org: Org, as_of: int | datetime | None = None) -> RelationAnswer:
    request = RelationsRequest(tables=[RelationRequest(name="flour", as_of=as_of)])
    (found,) = (await user_relations(control.pool, org.as_user, request)).relations
    return found


def keys(found: RelationAnswer) -> list[str]:
    assert found.cold is not None
    assert found.cold.partitions is not None
    return [partition.partition_key for partition in found.cold.partitions]


async def test_readers_during_promotions_and_rollbacks_see_one_group_or_the_other(
    control: Control, org: Org, pytestconfig: pytest.Config
) -> None:
    """At least so many switches, and reads while they are made: none is of both groups, and none finds nothing."""
    most, switches = pytestconfig.getoption("switch_reads"), 0
    served_pairs = {await pair(control, org)}
    seen: list[tuple[UUID, UUID]] = []
    stop = asyncio.Event()

    async def read() -> None:
        while not stop.is_set():
            seen.append(await pair(control, org))

    readers = [asyncio.create_task(read()) for _ in range(4)]
    while switches < most // 100 or len(seen) < most:
        release = await started(control, org, MILL.format(2, 1))
        await build(control)
        await promoted(control, org, release)
        served_pairs.add(await pair(control, org))
        await rolled_back(control, org, release)
        switches += 2
    stop.set()
    await asyncio.gather(*readers)
    assert len(served_pairs) == 2
    assert set(seen) == served_pairs


async def pair(control: Control, org: Org) -> tuple[UUID, UUID]:
    """The generations of both datasets, resolved as one query does."""
    request = RelationsRequest(tables=[RelationRequest(name="flour"), RelationRequest(name="bread")])
    found = {r.name: r for r in (await user_relations(control.pool, org.as_user, request)).relations}
    assert len(found) == 2
    assert keys(found["flour"]) == keys(found["bread"]) == ["0-9", "10-19"]
    return found["flour"].dataset_version, found["bread"].dataset_version
