"""Folders name the organisation; generations of an earlier version keep theirs, and share no files with new ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, deployed_and_active
from tests.support.dispatcher.memo import MILL, MILLS, SPANS, asked, content, files, made_again, reused
from tests.support.dispatcher.run_tasks import caught_up, claim_one, drain
from tests.support.dispatcher.staged_files import EIGHT_DAYS_PASS
from tests.support.verbs import trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.storage_locations import bundle_folder, org_segment
from tracelake.store.jobs import JobCache

pytestmark = pytest.mark.anyio

OPERATORS = {"works": WORKS, "mills": MILLS}
BREAD = [f"grain of {start}-{end}, baked 1".encode() for start, end in SPANS]
SAME = 0
WATCH = """
name: watch
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: find, operator: works, inputs: [{from: {job: ask}}], outputs: [{dataset: found}, rows]}
publish:
  found: {storage: postgres, write_mode: buffered, columns: {id: text}, unique_key: [id]}
"""
SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: sell, operator: works, inputs: [{from: {dataset: bread}}]}
"""
GENERATIONS = "SELECT id, dataset_uuid, storage_location FROM dataset_versions WHERE storage_location LIKE 's3://%'"


def folder_of_datasets(control: Control, *names: str) -> Folder:
    return Folder(control.places.bucket, ("datasets", *names))


async def test_what_two_organisations_store_is_in_folders_that_name_them(control: Control) -> None:
    orgs = [await an_org(control.pool, name) for name in ("mills", "bakers")]
    for org in orgs:
        await deployed_and_active(control, org, MILL.format(1, 1))
        await asked(control, org, *SPANS)
    stored = [item.name for item in control.objects.objects(folder_of_datasets(control))]
    for org in orgs:
        rows = await control.pool.fetch("SELECT id FROM datasets WHERE org_id = $1", org.id)
        own = {str(row["id"]) for row in rows}
        assert {name.segments[2] for name in stored if name.segments[1] == org_segment(org.id)} <= own
        assert set(await files(control, org, "bread")) <= set(stored)
        assert str(org.id).startswith(bundle_folder("trace", org.id).segments[1][: len(org_segment(org.id))])
    assert {name.segments[1] for name in stored} == {org_segment(org.id) for org in orgs}


async def test_every_folder_that_a_task_may_reach_names_its_organisation_but_those_of_batches(
    control: Control,
) -> None:
    """Those have the path that the specification gives them, below a dataset or a task of the organisation."""
    org = await an_org(control.pool, "mills")
    await deployed_and_active(control, org, WATCH)
    await trigger(control, org.id, "watch", "ask", cursor=1, request_id=UUID(int=1))
    await drain(control)
    await caught_up(control)
    held = await claim_one(control)
    assert held is not None
    task, claims = held
    folders = [Folder.parse(text) for text in (*claims.s3.read, *claims.s3.write)]
    assert {folder.segments[0] for folder in folders} == {"buffers", "datasets", "scratch"}
    for folder in folders:
        if folder.segments[0] == "buffers":
            assert str(task.task.task_id) in folder.segments
        else:
            assert folder.segments[1] in {org_segment(org.id), str(org.id)}, folder


@pytest.fixture
async def former(control: Control) -> Org:
    """With generations where an earlier version had them."""
    org = await an_org(control.pool, "mills")
    await deployed_and_active(control, org, MILL.format(1, 1))
    await asked(control, org, *SPANS)
    async with control.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for generation, dataset, place in await connection.fetch(GENERATIONS):
            folder = folder_of_datasets(control, str(dataset), str(generation))
            for item in list(control.objects.objects(Folder.parse(place))):
                inside = item.name.segments[len(Folder.parse(place).segments) :]
                control.objects.put(folder.folder(*inside[:-1]).object(inside[-1]), control.objects.get(item.name))
                control.objects.delete([item.name])
            moved = "UPDATE dataset_versions SET storage_location = $2 WHERE id = $1"
            await connection.execute(moved, generation, str(folder))
            moved = "UPDATE partition_versions SET location = replace(location, $2, $3) WHERE dataset_version = $1"
            await connection.execute(moved, generation, place, str(folder))
    return org


async def test_a_generation_of_an_earlier_version_is_read_and_written_where_it_is(
    control: Control, former: Org
) -> None:
    control = replace(control, jobs=JobCache(control.pool))  # as after the restart of an upgrade
    await asked(control, former, (40, 49))
    assert await content(control, former, "bread") == [*BREAD, b"grain of 40-49, baked 1"]
    await deployed_and_active(control, former, SHOP)
    await drain(control)
    await caught_up(control)
    held = await claim_one(control)
    assert held is not None
    assert all(held[1].grants.storage.may_read(name) for name in await files(control, former, "bread"))


async def test_a_new_generation_is_in_the_organisations_folder_with_files_of_its_own(
    control: Control, former: Org
) -> None:
    """The token of a reader names one folder of a dataset, so what it reads is all below it."""
    before = await files(control, former, "bread")
    await made_again(control, former, grind=SAME)
    after = await files(control, former, "bread")
    assert await content(control, former, "bread") == BREAD
    assert {name.segments[1] for name in after} == {org_segment(former.id)}
    assert not set(before) & set(after)
    assert await reused(control, "bake") == []


async def test_a_dataset_is_left_in_the_organisations_folder_alone_when_its_former_generations_are_removed(
    control: Control, former: Org
) -> None:
    await made_again(control, former, grind=SAME)
    await made_again(control, former, grind=-1)
    assert len(await reused(control, "bake")) == len(SPANS), "generations in one folder use each other's files again"
    await control.pool.execute(EIGHT_DAYS_PASS)
    removes = RemoveLeftGenerations(control.pool, control.objects, timedelta(days=7))
    while await removes.once():
        pass
    assert await content(control, former, "bread") == BREAD
    for dataset in ("flour", "bread"):
        id_ = await control.pool.fetchval("SELECT id FROM datasets WHERE name = $1", dataset)
        assert list(control.objects.objects(folder_of_datasets(control, str(id_)))) == []
