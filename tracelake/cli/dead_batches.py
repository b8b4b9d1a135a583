"""Shows batches that the sink refused: where, why, and how to replay them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelake.cli import render

if TYPE_CHECKING:
    from tracelake.wire.user.datasets import DeadBatchRow

REPLAY = "`trace sink replay PUBLISH_ID` replays one; `--batch FILE` replays a repaired file instead"


def show_dead_batches(batches: Sequence[DeadBatchRow], total: int) -> None:
    if not batches:
        return
    render.title(f"dead batches ({total})")
    dead_batch_table(batches)
    render.note(REPLAY)


def dead_batch_table(batches: Sequence[DeadBatchRow]) -> None:
    render.table(
        ("publish", "dataset", "task", "attempt", "line", "reason", "at"),
        [
            (
                batch.publish_id,
                batch.dataset or batch.dataset_uuid,
                batch.task_id,
                batch.attempt,
                batch.line,
                batch.reason,
                batch.died_at,
            )
            for batch in batches
        ],
        whole=("publish",),
    )
