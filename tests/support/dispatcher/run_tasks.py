"""Runs queued tasks as workers would: each writes the partition that it reads, through the real verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from tests.support.dispatcher.staged_files import Partition, staged, text_of
from tracelake.capability.claims import Claims, decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.versions.catch_up import CatchUp
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import inclusive
from tracelake.operators.api.outputs import Output
from tracelake.settings import LoopSettings
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest
from tracelake.wire.task.outputs import CompleteRequest, EventBody

if TYPE_CHECKING:
    import pyarrow as pa

Held = tuple[Claimed, Claims]
"""A claimed task and the claims of its token."""
Fails = Callable[[Claimed], bool]
Content = Callable[[Control, Claimed], Awaitable["bytes | pa.Table"]]
"""What a task writes as the file of its partition; rows are written as workers do."""
QUEUED = "SELECT id FROM tasks WHERE status = 'Queued' AND woken_at IS NOT NULL ORDER BY id"


async def caught_up(control: Control) -> None:
    """Runs the loop until nothing is due."""
    loop = CatchUp(control.pool, control.after_commit, LoopSettings(), control.reuse_outputs())
    while await loop.once():
        pass


async def settle(control: Control, fails: Fails = lambda _: False, content: Content | None = None) -> int:
    """Drains the outbox, catches up and runs every queued task, until there is nothing left; how many tasks ran."""
    ran = 0
    while True:
        await drain(control)
        await caught_up(control)
        tasks = [row["id"] for row in await control.pool.fetch(QUEUED)]
        if not tasks:
            return ran
        for task in tasks:
            ran += await run_one(control, task, fails, content)


async def drain(control: Control) -> None:
    loop = control.drain()
    while await loop.once():
        pass


async def run_some(control: Control, most: int, fails: Fails = lambda _: False, content: Content | None = None) -> None:
    """The first queued tasks."""
    for row in (await control.pool.fetch(QUEUED))[:most]:
        await run_one(control, row["id"], fails, content)


async def run_one(
    control: Control, task_id: UUID, fails: Fails = lambda _: False, content: Content | None = None
) -> int:
    """1 if it was claimed."""
    held = await _claim(control, task_id)
    if held is None:
        return 0
    await finish(control, held, fails, content)
    return 1


async def claim_one(control: Control) -> Held | None:
    """The first queued task, claimed, if there is one."""
    found = await control.pool.fetchval(QUEUED)
    return None if found is None else await _claim(control, found)


async def finish(
    control: Control, held: Held, fails: Fails = lambda _: False, content: Content | None = None, *, requests: int = 0
) -> None:
    """`content`: else the file is another one each time. `requests`: to nodes, as the worker counted them."""
    task, claims = held
    fence = {"task_id": task.task.task_id, "attempt": task.attempt, "lease_token": task.lease_token}
    if fails(task):
        request = CompleteRequest(**fence, status="Failed", error_message="no", retryable=False)  # type: ignore[arg-type]
    else:
        request = _completed(control, task, fence, await content(control, task) if content else None)
    await control.completer()(msgspec.structs.replace(request, requests=requests), claims)


async def _claim(control: Control, task_id: UUID) -> Held | None:
    (task,) = await control.claimer().claim([ClaimRequest(task_id=task_id, worker_id="w")])
    return (task, decode(parse_token(task.capability_token).payload)) if isinstance(task, Claimed) else None


async def read_input(control: Control, task: Claimed) -> bytes:
    """The file of the task's partition in its first input, as of the commit that its claim pinned."""
    read = task.task.inputs[0]
    part = await control.pool.fetchrow(
        "SELECT location, files -> 0 ->> 'name' AS name FROM partition_versions"
        " WHERE dataset_version = $1 AND partition_key = $2 AND commits @> $3::bigint",
        read.dataset_version,
        partition_key(partition_of(task)),
        read.commit,
    )
    assert part is not None, f"{task.task.job.name} reads a partition that is not there"
    return control.objects.get(Folder.parse(part["location"]).object(part["name"]))


def partition_key(partition: Partition) -> str:
    return partition if isinstance(partition, str) else f"{partition[0]}-{partition[1]}"


def _completed(
    control: Control, task: Claimed, fence: dict[str, object], content: bytes | pa.Table | None
) -> CompleteRequest:
    outputs = task.task.outputs
    if not outputs or not outputs[0].storage_location.startswith("s3://"):
        return CompleteRequest(**fence, status="Completed")  # type: ignore[arg-type]
    if content is not None and not isinstance(content, bytes):
        return _with_rows(control, task, fence, content)
    fixed = text_of if content is None else lambda _stem, _partition: content
    bodies = staged(control.objects, task, partition_of(task), content=fixed)
    events = [
        EventBody(
            dataset_uuid=body.dataset_uuid,
            dataset_version=body.dataset_version,
            partition_key=body.partition_key,
            start=body.start,
            end=body.end,
        )
        for body in bodies
    ]
    return CompleteRequest(**fence, status="Completed", outputs=bodies, events=events)  # type: ignore[arg-type]


def _with_rows(control: Control, task: Claimed, fence: dict[str, object], rows: pa.Table) -> CompleteRequest:
    (ref,), where = task.task.outputs, partition_of(task)
    output = Output(ref, task.task.task_id, task.attempt, control.objects, task.task.job.name)
    output.write_table(rows, where if isinstance(where, str) else inclusive(*where))
    written = {"outputs": output.finish(), "events": output.events()}
    return CompleteRequest(**fence, **written, status="Completed")  # type: ignore[arg-type]


def partition_of(task: Claimed) -> Partition:
    scope = task.task.scope
    if scope.start is not None and scope.end is not None:
        return scope.start, scope.end
    return scope.partition_key or "all"
