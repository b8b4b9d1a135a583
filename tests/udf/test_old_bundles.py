"""Old code leaves the store when no job names it, and only then."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import httpx
import pytest

from tests.support.systems.gateway import System
from tests.support.udf.bundles import BUNDLE, dag, deployed, pushed, uploaded, zipped
from tests.support.waiting import until
from tracelake.dispatcher.maintenance.delete_unused_bundles import REASON, DeleteUnusedBundles
from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import ObjectsUnavailable
from tracelake.ports import ObjectStore, StoredObject
from tracelake.udf.fetch_bundle import Bundles, delete_old_bundles
from tracelake.udf.unpack import unpack
from tracelake.wire.task.lifecycle import UdfRef

pytestmark = pytest.mark.anyio

OTHER = zipped(("main.py", b"def handler(event, context): return 1\n"))
NOW, LATER = timedelta(), timedelta(hours=1)


async def stored(trace: System) -> dict[str, bool]:
    """Every bundle's status, and whether its bytes are there."""
    rows = await trace.control.pool.fetch("SELECT status::text, location FROM udf_bundles")
    return {row["status"]: trace.control.objects.head(ObjectName.parse(row["location"])) is not None for row in rows}


async def test_a_bundle_that_no_job_names_is_removed_after_its_time_and_can_be_pushed_again(trace: System) -> None:
    made = await pushed(trace)
    row = await trace.control.pool.fetchrow("SELECT location FROM udf_bundles")
    assert row is not None
    assert await DeleteUnusedBundles(trace.control.pool, trace.control.objects, LATER).once() == 0
    assert await stored(trace) == {"Ready": True}
    assert await DeleteUnusedBundles(trace.control.pool, trace.control.objects, NOW).once() == 1
    assert await stored(trace) == {}
    assert trace.control.objects.head(ObjectName.parse(row["location"])) is None
    again = await pushed(trace)
    assert (again["status"], again["sha256"]) == ("Ready", made["sha256"])
    await deployed(trace, dag())


async def test_a_bundle_that_any_version_names_stays_and_one_that_was_never_finished_goes(trace: System) -> None:
    await pushed(trace)
    await deployed(trace, dag())
    await uploaded(trace, OTHER, name="other")
    assert await DeleteUnusedBundles(trace.control.pool, trace.control.objects, NOW).once() == 1
    assert await DeleteUnusedBundles(trace.control.pool, trace.control.objects, NOW).once() == 0
    assert await stored(trace) == {"Ready": True}


@pytest.mark.parametrize("old", [True, False])
async def test_a_runner_keeps_what_is_used_and_removes_what_is_not(tmp_path: Path, old: bool) -> None:
    used, unused, half = tmp_path / ("a" * 64), tmp_path / ("b" * 64), tmp_path / f".{'c' * 64}.x.partial"
    for place in (used, unused, half):
        unpack(BUNDLE, place)
        os.utime(place, (0, time.time() - 3 * 86400 * old))
    ref = UdfRef(
        bundle="x", sha256=used.name, kind="python", handler="main.handler", size_bytes=1, url="http://nowhere"
    )
    async with httpx.AsyncClient() as http:
        await Bundles(tmp_path, http, timedelta(days=2)).get(ref)
    delete_old_bundles(tmp_path, timedelta(days=2))
    assert [place.is_dir() for place in (used, unused, half)] == [True, not old, not old]


class Away:
    """A store that is away when something is to be removed."""

    def delete(self, names: Sequence[ObjectName]) -> None:
        raise ObjectsUnavailable(f"{len(names)} cannot be removed now")


async def test_a_removal_that_was_cut_off_is_finished_and_nothing_half_removed_can_be_deployed(trace: System) -> None:
    await pushed(trace)
    broken = replace(trace.control, objects=cast("ObjectStore", Away()))
    with pytest.raises(ObjectsUnavailable):
        await DeleteUnusedBundles(broken.pool, broken.objects, NOW).once()
    assert await stored(trace) == {"Refused": True}
    assert (await pushed(trace, BUNDLE))["status"] == "Ready", "pushed again meanwhile, it is ready"
    with pytest.raises(ObjectsUnavailable):
        await DeleteUnusedBundles(broken.pool, broken.objects, NOW).once()
    assert await DeleteUnusedBundles(trace.control.pool, trace.control.objects, LATER).once() == 1
    assert await stored(trace) == {}


WAITS_TO_NAME_A_BUNDLE = """
CREATE FUNCTION wait_to_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$;
CREATE TRIGGER wait_to_name BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.udf_bundle_id IS NOT NULL)
    EXECUTE FUNCTION wait_to_name();
"""
"""A deploy that has found the bundle ready waits before it writes the job that names it."""


class CutOff:
    """A store that deletes the objects, and whose answer is lost."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def delete(self, names: Sequence[ObjectName]) -> None:
        self._store.delete(names)
        raise ObjectsUnavailable("it did not answer")

    def head(self, name: ObjectName) -> StoredObject | None:
        return self._store.head(name)


@pytest.mark.parametrize("cut_off", [True, False])
async def test_a_bundle_that_a_deploy_is_adopting_keeps_its_bytes(trace: System, cut_off: bool) -> None:
    await pushed(trace)
    control = trace.control
    store = cast("ObjectStore", CutOff(control.objects)) if cut_off else control.objects
    await control.pool.execute(WAITS_TO_NAME_A_BUNDLE)
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted)"
    async with control.pool.acquire() as other:
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(7)")
            deploy = asyncio.create_task(deployed(trace, dag()))
            await until(lambda: other.fetchval(waits), "another connection waits for the lock")
            with suppress(ObjectsUnavailable):
                await DeleteUnusedBundles(control.pool, store, NOW).once()
        await deploy
    assert await DeleteUnusedBundles(control.pool, control.objects, NOW).once() == 0
    assert await stored(trace) == {"Ready": True}


async def test_a_bundle_without_bytes_does_not_come_back_because_a_job_names_it(trace: System) -> None:
    await pushed(trace)
    await deployed(trace, dag())
    location = await trace.control.pool.fetchval(
        "UPDATE udf_bundles SET status = 'Refused', error_message = $1 RETURNING location", REASON
    )
    trace.control.objects.delete([ObjectName.parse(location)])
    assert await DeleteUnusedBundles(trace.control.pool, trace.control.objects, NOW).once() == 0
    assert await stored(trace) == {"Refused": False}
    assert (await pushed(trace))["status"] == "Ready"
    assert await stored(trace) == {"Ready": True}


async def test_a_bundle_that_is_named_at_the_moment_of_its_removal_stays(trace: System) -> None:
    await pushed(trace)
    await deployed(trace, dag())
    # As if the deploy had looked at it just before.
    await trace.control.pool.execute("UPDATE udf_bundles SET status = 'Refused', error_message = $1", REASON)
    assert await DeleteUnusedBundles(trace.control.pool, trace.control.objects, NOW).once() == 0
    assert await stored(trace) == {"Ready": True}
