"""What a worker wrote and the Dispatcher will never take: the task fails at once, and says what to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.dispatcher.staged_files import COLUMNS, Partition, staged
from tests.support.systems.walk import walking, working
from tests.support.verbs import trigger
from tracelake.operators.api.context import Resources, TaskApi
from tracelake.ports import ObjectStore
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.markers import ColumnEntry
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.worker.run_task import Finished, Runner

pytestmark = pytest.mark.anyio

WIDER = [*COLUMNS, ColumnEntry(name="hash", type="binary")]
WRITTEN: list[tuple[Partition, list[ColumnEntry]]] = [((0, 9), COLUMNS), ((10, 19), WIDER), ("all", COLUMNS)]
"""By the cursor of the event: what the task writes."""


@dataclass(frozen=True)
class Writers(Runner):
    """Writes files in the place of an operator, and needs no Spark."""

    def _outcome(self, claimed: Claimed, listener: TaskApi, fence: dict[str, Any], objects: ObjectStore) -> Finished:
        del listener, objects
        partition, columns = WRITTEN[claimed.task.scope.cursor or 0]
        outputs = staged(self.objects, claimed, partition, columns=columns)
        return Finished(CompleteRequest(**fence, status="Completed", outputs=outputs))


async def test_a_completion_that_does_not_fit_the_generation_is_not_retried_and_its_hint_is_reported(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with walking(state_db, queue_db, tmp_path) as walk:
        worker = replace(walk.worker("w"), runner=Writers(walk.control.objects, Resources()))
        async with working(worker):
            for cursor, ends in enumerate((["Completed"], ["Completed", "Failed"], ["Completed", "Failed", "Failed"])):
                await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
                await walk.until("work", ends)
        rows = await walk.control.pool.fetch(
            "SELECT t.attempt, t.next_retry_at, t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE j.name = 'work' AND t.status = 'Failed' ORDER BY t.id"
        )
        assert [(row["attempt"], row["next_retry_at"]) for row in rows] == [(1, None), (1, None)]
        schema, kind = (row["error_message"] for row in rows)
        assert "hash binary" in schema
        assert "deploy it" in schema
        assert "0-9" in kind
        assert "trigger: false" in kind
