"""Batches that the sink refused, as the verbs show them: where, why, and how they are tried again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelake.cli import render

if TYPE_CHECKING:
    from tracelake.wire.user_datasets import DeadBatchRow

REPLAY = "`trace sink replay PUBLISH_ID` tries one again, with `--batch FILE` a repaired one"


def show_dead_batches(batches: Sequence[DeadBatchRow], total: int) -> None:
    """Below what they belong to; nothing where there are none."""
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
