"""A mill whose jobs write what they read, so that an edit of one of them changes as few partitions as a test wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from tests.support.dispatcher.control import WORKS, Org
from tests.support.dispatcher.releases import build, promoted, started
from tests.support.dispatcher.run_tasks import partition_key, read_input, settle
from tests.support.verbs import trigger
from tracelake.dispatcher.control import Control
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.wire.task.lifecycle import Claimed

MILLS = replace(WORKS, reproduces=lambda _config, _inputs: True, tuning=("files",))
"""An operator whose outputs are decided by its config and what it reads."""
MILL = """
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: works, source: {{kind: manual}}}}
  - {{name: grind, operator: mills, config: {{n: {0}}}, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: bake, operator: mills, config: {{n: {1}}}, inputs: [{{from: {{job: grind}}}}]}}
publish:
  grain: {{job: ask}}
  flour: {{job: grind}}
  bread: {{job: bake}}
"""
SPANS = ((0, 9), (10, 19), (20, 29), (30, 39))
TASKS = """
SELECT t.id, t.memoized_from, t.memo_key, t.partitions[1] AS key, t.status::text
  FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE j.name = $1
 ORDER BY t.id
"""
SERVED = """
SELECT p.partition_key, p.location, p.files -> 0 ->> 'name' AS name, p.dataset_version
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
  JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.valid_to IS NULL
 WHERE d.name = $1 AND d.org_id = $2
 ORDER BY p.block_range
"""


async def ground(control: Control, task: Claimed) -> bytes:
    """`ask` writes its range. `grind` copies; with n above 1 it changes the range 10-19. `bake` adds its n."""
    name, n = task.task.job.name, task.task.config.get("n", 1)
    if name == "ask":
        return f"grain of {partition_key((task.task.scope.start or 0, task.task.scope.end or 0))}".encode()
    read = await read_input(control, task)
    if name == "grind":
        return b"%s, %d times" % (read, n) if n > 1 and task.task.scope.start == 10 else read
    return b"%s, baked %d" % (read, n)


async def asked(control: Control, org: Org, *spans: tuple[int, int]) -> None:
    for start, end in spans:
        await trigger(control, org.id, "mill", "ask", start=start, end=end, request_id=UUID(int=start + 1))
    await settle(control, content=ground)


async def tasks_of(control: Control, job: str) -> list[Any]:
    return list(await control.pool.fetch(TASKS, job))


async def reused(control: Control, job: str) -> list[str]:
    """The partitions of the tasks that used files of others."""
    return [task["key"] for task in await tasks_of(control, job) if task["memoized_from"]]


async def made_again(control: Control, org: Org, *, grind: int = 2, bake: int = 1) -> None:
    """A release with these configs is built and promoted."""
    release = await started(control, org, MILL.format(grind, bake))
    await build(control, content=ground)
    await promoted(control, org, release)


async def files(control: Control, org: Org, dataset: str) -> list[ObjectName]:
    """The file of each current partition."""
    rows = await control.pool.fetch(SERVED, dataset, org.id)
    return [Folder.parse(row["location"]).object(row["name"]) for row in rows]


async def content(control: Control, org: Org, dataset: str) -> list[bytes]:
    """What they hold."""
    return [control.objects.get(name) for name in await files(control, org, dataset)]
