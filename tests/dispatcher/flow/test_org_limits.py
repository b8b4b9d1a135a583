"""Limits of organisations, with the real Dispatcher: what waits at a limit, and what others get meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.dispatcher.control import an_org, deployed_and_active
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.list_in_flight import list_in_flight
from tracelake.dispatcher.flow.set_limits import set_limits
from tracelake.dispatcher.limits.measure_storage import MeasureStorage, measure_storage
from tracelake.dispatcher.limits.set_org_limits import set_org_limits
from tracelake.dispatcher.outbox.drain import give_slots
from tracelake.dispatcher.why.explain import explain_task
from tracelake.settings import RUNTIMES, LimitSettings, OperatorSettings, RuntimeSettings
from tracelake.store.identity import User, find_user
from tracelake.wire.user.limits import OrgLimits, OrgLimitsChange

pytestmark = pytest.mark.anyio

DAG = """
name: shop
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
"""
IN_FLIGHT = """
SELECT t.id, o.slug, j.name, t.priority::text
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN orgs o ON o.id = t.org_id
 WHERE t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL AND j.name <> 'first'
 ORDER BY t.woken_at, t.id
"""


async def an_admin(control: Control) -> User:
    """The platform admin: of an organisation that is no part of the test."""
    if (known := await find_user(control.pool, "root")) is not None:
        return known
    org = await an_org(control.pool, "operations")
    await control.pool.execute("INSERT INTO users (org_id, external_id, role) VALUES ($1, 'root', 'admin')", org.id)
    user = await find_user(control.pool, "root")
    assert user is not None
    return user


async def limit(control: Control, org: str, **limits: int | str) -> OrgLimits:
    admin = await an_admin(control)
    return await set_org_limits(control.pool, control.after_commit, admin, org, OrgLimitsChange(limits=limits))


async def make(control: Control, chain: Chain, cursors: range, *, history: bool = False) -> None:
    """So many tasks of `second`."""
    task = await a_task(control, chain)
    await control.pool.execute("UPDATE tasks SET history = $2 WHERE id = $1", task, history)
    source, claims = await claimed(control, task)
    events = [chain.event("first", cursor=cursor) for cursor in cursors]
    await control.completer()(completion(source, events=events), claims)
    await drained(control)


async def in_flight(control: Control) -> Counter[str]:
    return Counter(slug for _, slug, _, _ in await control.pool.fetch(IN_FLIGHT))


async def end_one(control: Control, slug: str) -> str:
    """Completes the first task of an organisation in flight; its priority."""
    task, priority = next((id_, tier) for id_, org, _, tier in await control.pool.fetch(IN_FLIGHT) if org == slug)
    running, claims = await claimed(control, task)
    await control.completer()(completion(running), claims)
    await drained(control)
    return str(priority)


async def run_all(control: Control, slug: str, most: int) -> int:
    done = 0
    while (now := (await in_flight(control))[slug]) > 0:
        assert now <= most
        await end_one(control, slug)
        done += 1
    return done


async def test_a_flood_of_one_organisation_waits_and_every_task_of_it_runs(control: Control) -> None:
    flood, other = await deploy_chain(control, slug="flood"), await deploy_chain(control, slug="other")
    await limit(control, "flood", tasks=3)
    await make(control, flood, range(20))
    await make(control, other, range(5))
    assert await in_flight(control) == {"flood": 3, "other": 5}
    assert await run_all(control, "flood", 3) == 20
    assert await control.pool.fetchval("SELECT max(attempt) FROM tasks") == 1, "to wait is no attempt"


async def test_an_organisation_at_its_limit_does_not_keep_others_from_a_shared_one(control: Control) -> None:
    """The flood has fewer in flight than the other, so its tasks would be next if its limit did not hold them."""
    flood, other = await deploy_chain(control, slug="flood"), await deploy_chain(control, slug="other")
    await limit(control, "flood", tasks=1)
    await set_limits(control.pool, RUNTIMES, {"noop": OperatorSettings(max_in_flight=6)})
    await make(control, flood, range(30))
    await make(control, other, range(30))
    assert await in_flight(control) == {"flood": 1, "other": 5}
    for _ in range(10):
        await end_one(control, "other")
        assert await in_flight(control) == {"flood": 1, "other": 5}


async def test_a_limit_that_is_raised_or_taken_away_lets_what_waits_go_on_without_a_restart(control: Control) -> None:
    chain = await deploy_chain(control)
    await limit(control, "acme", tasks=1)
    await make(control, chain, range(10))
    assert await in_flight(control) == {"acme": 1}
    await limit(control, "acme", tasks=4)
    await drained(control)
    assert await in_flight(control) == {"acme": 4}
    await limit(control, "acme", tasks="none")
    await drained(control)
    assert await in_flight(control) == {"acme": 10}
    await make(control, chain, range(10, 12))
    assert await in_flight(control) == {"acme": 12}


async def test_a_limit_that_is_lowered_ends_nothing_and_wakes_nothing(control: Control) -> None:
    chain = await deploy_chain(control)
    await make(control, chain, range(5))
    await limit(control, "acme", tasks=2)
    await make(control, chain, range(5, 8))
    assert await in_flight(control) == {"acme": 5}
    for left in (4, 3, 2, 2):
        await end_one(control, "acme")
        assert await in_flight(control) == {"acme": left}


async def test_the_default_of_the_settings_counts_where_there_is_no_own_limit(control: Control) -> None:
    chains = [await deploy_chain(control, slug=slug) for slug in ("plain", "own", "free")]
    await limit(control, "own", tasks=4)
    await limit(control, "free", tasks="none")
    await set_limits(control.pool, RUNTIMES, {}, LimitSettings(tasks=2))
    for chain in chains:
        await make(control, chain, range(6))
    assert await in_flight(control) == {"plain": 2, "own": 4, "free": 6}
    shown = await limit(control, "own", tasks="default")
    assert [(row.most, row.own) for row in shown.limits if row.limit == "tasks"] == [(2, False)]
    await set_limits(control.pool, RUNTIMES, {})
    await drained(control)
    assert await in_flight(control) == {"plain": 6, "own": 6, "free": 6}


async def test_bulk_has_a_part_of_an_organisations_limit_and_new_data_the_rest(control: Control) -> None:
    chain = await deploy_chain(control)
    await limit(control, "acme", tasks=4)
    await make(control, chain, range(100, 130), history=True)
    await make(control, chain, range(30))
    ended = [await end_one(control, "acme") for _ in range(20)]
    assert ended[4:].count("normal") >= 8
    tiers = Counter(tier for *_, tier in await control.pool.fetch(IN_FLIGHT))
    assert tiers == {"normal": 3, "bulk": 1}, "it is neither shut out nor in the way"


FUNCTIONS = {**RUNTIMES, "ecs_platform": RuntimeSettings(queue="tasks-ecs_platform", untrusted=True)}


async def test_sandboxes_are_limited_apart_from_other_tasks(control: Control) -> None:
    """`second` is in a sandbox by the settings; `tasks` of other runtimes are not."""
    chain = await deploy_chain(control)
    trusted = chain.jobs["third"]
    await control.pool.execute("UPDATE jobs SET runtime = 'dispatcher' WHERE id = $1", trusted)
    await set_limits(control.pool, FUNCTIONS, {})
    await limit(control, "acme", sandboxes=2, tasks=5)
    await make(control, chain, range(10))
    assert await in_flight(control) == {"acme": 2}
    for _ in range(7):
        await control.pool.execute(
            "INSERT INTO tasks (org_id, job_id, dedupe_key) VALUES ($1, $2, gen_random_uuid()::text)",
            chain.org.id,
            trusted,
        )
    await give_slots(control.hot)
    names = Counter(name for _, _, name, _ in await control.pool.fetch(IN_FLIGHT))
    assert names == {"second": 2, "third": 3}


async def test_functions_are_those_of_runtimes_that_the_dispatcher_calls(control: Control) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute("UPDATE jobs SET runtime = 'lambda' WHERE id = $1", chain.jobs["second"])
    await limit(control, "acme", functions=3, sandboxes=7)
    await make(control, chain, range(10))
    assert await in_flight(control) == {"acme": 3}


async def test_why_and_in_flight_name_the_limit_of_the_organisation(control: Control) -> None:
    chain = await deploy_chain(control)
    await limit(control, "acme", tasks=2)
    await make(control, chain, range(5))
    waiting = await control.pool.fetchval("SELECT id FROM tasks WHERE woken_at IS NULL ORDER BY id LIMIT 1")
    stopped = (await explain_task(control.pool, chain.org.id, waiting)).stopped
    assert stopped is not None
    assert stopped.rule == "waits_for_slot"
    assert "2 of the organisation's limit of 2 (tasks)" in stopped.sentence
    (shown,) = (await list_in_flight(control.pool, chain.org.id)).org_limits
    assert (shown.limit, shown.most, shown.used, shown.waiting) == ("tasks", 2, 2, 3)


async def test_two_replicas_that_give_slots_at_once_keep_an_organisations_limit(control: Control) -> None:
    chain = await deploy_chain(control)
    await limit(control, "acme", tasks=3)
    await control.pool.execute(
        "INSERT INTO tasks (org_id, job_id, dedupe_key) SELECT $1, $2, n::text FROM generate_series(1, 50) n",
        chain.org.id,
        chain.jobs["second"],
    )
    await asyncio.gather(*(give_slots(control.hot) for _ in range(6)))
    assert await in_flight(control) == {"acme": 3}


async def stored(control: Control, chain: Chain, size: int) -> None:
    """A partition of so many bytes, as a commit leaves it."""
    await control.pool.execute(
        "WITH c AS (INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt, created_at)"
        " VALUES ($1, 1, $2, $3, (SELECT id FROM tasks WHERE org_id = $2 LIMIT 1), 1, now()))"
        " INSERT INTO partition_versions (dataset_version, partition_key, valid_from, org_id, dataset_uuid, location,"
        " files, row_count, bytes) VALUES ($3, 'a', 1, $2, $1, 's3://trace/x/', '[]', 7, $4)",
        chain.datasets["first"],
        chain.org.id,
        chain.versions["first"],
        size,
    )


async def test_an_organisation_that_is_full_has_its_tasks_held_and_loses_nothing(control: Control) -> None:
    full, other = await deploy_chain(control, slug="full"), await deploy_chain(control, slug="other")
    await make(control, full, range(1))
    running = await control.pool.fetchval("SELECT id FROM tasks WHERE job_id = $1", full.jobs["second"])
    claim, claims = await claimed(control, running)
    await stored(control, full, 1000)
    await limit(control, "full", object_bytes=1000)
    await control.completer()(completion(claim, events=[full.event("second", cursor=0)]), claims)
    await make(control, full, range(1, 6))
    await make(control, other, range(5))
    assert await in_flight(control) == {"other": 5}, "what was committed is kept, and what follows waits"
    waiting = await control.pool.fetchval("SELECT id FROM tasks WHERE woken_at IS NULL ORDER BY id LIMIT 1")
    stopped = (await explain_task(control.pool, full.org.id, waiting)).stopped
    assert stopped is not None
    assert stopped.rule == "storage_full"
    assert "stores 1,000 bytes, and its limit is 1,000" in stopped.sentence
    await limit(control, "full", object_bytes=1001)
    await drained(control)
    assert await in_flight(control) == {"other": 5, "full": 6}
    assert await control.pool.fetchval("SELECT max(attempt) FROM tasks") == 1


async def test_files_that_are_deleted_set_tasks_free_at_the_next_measurement(control: Control) -> None:
    chain = await deploy_chain(control)
    await make(control, chain, range(1))
    await stored(control, chain, 5000)
    await limit(control, "acme", object_bytes=4000)
    await make(control, chain, range(1, 3))
    assert await in_flight(control) == {"acme": 1}
    await control.pool.execute("DELETE FROM partition_versions")
    measure = MeasureStorage(control.pool, control.after_commit.outbox)
    woken = asyncio.create_task(control.after_commit.outbox.wait(3600))
    await measure.once()
    await until(woken.done, "the drain was not notified")
    await drained(control)
    assert await in_flight(control) == {"acme": 3}
    assert await measure_storage(control.pool) == 0


async def test_a_dag_that_is_deployed_under_a_limit_keeps_it(control: Control) -> None:
    org = await an_org(control.pool)
    await limit(control, org.slug, tasks=1)
    await deployed_and_active(control, org, DAG)
    assert await control.pool.fetchval("SELECT bool_and(shares_limit) FROM jobs WHERE org_id = $1", org.id)
