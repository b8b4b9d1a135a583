"""Comparisons of releases as the Query service makes them, with figures of the test's choice."""

from __future__ import annotations

from typing import Any

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.releases.take_comparison import report_comparison, take_comparison
from tracelake.wire.internal.comparisons import ComparisonReport, ComparisonWork
from tracelake.wire.user.releases import ReleaseDiff


async def taken(control: Control) -> ComparisonWork | None:
    """The comparison that is due, taken now."""
    await control.pool.execute("UPDATE release_comparisons SET due_at = now() WHERE state = 'Waiting'")
    return (await take_comparison(control.pool, control.after_commit)).work


async def reported(control: Control, work: ComparisonWork, **report: Any) -> bool:
    fields: dict[str, Any] = {"steps": 1, "steps_planned": 3, **report}
    named = {name: getattr(work, name) for name in ("release_id", "dataset_uuid", "lease_token")}
    found = await report_comparison(control.pool, control.after_commit, ComparisonReport(**named, **fields))
    return found.wanted


async def compared(control: Control, **figures: int) -> list[str]:
    """Makes every comparison that is due, each with these figures; returns their datasets."""
    datasets = []
    while (work := await taken(control)) is not None:
        assert await reported(control, work, result=diff(work, **figures))
        datasets.append(work.dataset)
    return datasets


def diff(work: ComparisonWork, **figures: int) -> ReleaseDiff:
    counts = {"rows_a": 100, "rows_b": 100, "only_a": 0, "only_b": 0, "changed": 0, "equal": 100, **figures}
    return ReleaseDiff(
        former_commit=None if work.a is None else work.a.commit,
        commit=None if work.b is None else work.b.commit,
        key=["block_number"],
        note=None,
        schema=[],
        columns=[],
        **counts,
    )
