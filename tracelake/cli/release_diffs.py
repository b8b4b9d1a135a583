"""What verbs do with the comparisons of a release: have them made, wait for them, and print them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from tracelake.cli import printing
from tracelake.cli.releases import EVERY_SECONDS, follow
from tracelake.domain.text.count_of import count_of
from tracelake.errors import Conflict

if TYPE_CHECKING:
    from tracelake.cli.api import Remote
    from tracelake.wire.user.releases import ReleaseComparison, ReleaseDetail, ReleaseRow


def compare(gateway: Remote, release: UUID, *, quiet: bool) -> ReleaseDetail:
    """Until every comparison has ended; Ctrl-C leaves them to the Query service."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tracelake.wire.user.releases import ReleaseDetail

    found = gateway.call("compare_release", ReleaseDetail, repeatable=True, release=str(release))
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=printing.err, disable=quiet or not printing.err.is_terminal) as progress:
        shown = progress.add_task("comparing", total=None)
        while open_ := [item for item in found.comparisons if item.state in {"Waiting", "Running"}]:
            steps = sum(item.steps for item in open_)
            total = max(sum(item.steps_planned for item in open_), steps)
            what = f"comparing {', '.join(item.dataset for item in open_)}"
            progress.update(shown, description=what, completed=steps, total=total or None)
            time.sleep(EVERY_SECONDS)
            found = gateway.call("show_release", ReleaseDetail, release=str(release))
    return found


def until_compared(gateway: Remote, release: ReleaseRow, *, quiet: bool) -> None:
    """Until a release that waits for comparisons serves; what keeps it from that is raised."""
    found = follow(gateway, release, quiet=quiet, until_serving=True)
    if found.release.state != "Serving":
        raise Conflict(
            found.release.message or f"the release is {found.release.state}",
            where=str(release.id),
            hint=f"`trace release show {release.id} --diff` has the figures",
        )


def disregarded(found: ReleaseDetail) -> Iterator[str]:
    """What a promotion by force disregards, a sentence each."""
    missing = sum(member.planned - member.done for member in found.members)
    if missing:
        yield f"Not built: {count_of(missing, 'partition')}, whose rows are missing until they are."
    for item in found.comparisons:
        if item.limits and item.exceeded:
            yield f"{item.dataset} exceeds its limits: {'; '.join(item.exceeded)}."
        elif item.limits and not item.is_current:
            reason = f": {item.error}" if item.error else ""
            yield f"{item.dataset} has limits and was not compared as it is now{reason}."


def print_comparisons(found: ReleaseDetail, *, columns: bool) -> None:
    """Those that somebody asked for, or that decide a promotion; all of them with `columns`."""
    from tracelake.cli import render

    shown = [item for item in found.comparisons if columns or item.limits or item.state not in {"Idle", "Skipped"}]
    if shown:
        render.title("compared with what serves (A: serves, B: built)")
        titles = ("dataset", "state", "rows A", "rows B", "only A", "only B", "changed", "equal", "by")
        render.table(titles, [_line(item) for item in shown])
    for item in shown:
        for sentence in _notes(item):
            render.note(f"{item.dataset}: {sentence}")
        if columns and item.result is not None:
            _print_columns(item)


def _line(item: ReleaseComparison) -> tuple[object, ...]:
    state = item.state if item.state != "Done" or item.is_current else "Done, has advanced"
    diff = item.result
    if diff is None:
        return item.dataset, state, None, None, None, None, None, None, None
    changed = diff.changed if diff.key else None
    counts = diff.rows_a, diff.rows_b, diff.only_a, diff.only_b, changed, diff.equal
    return item.dataset, state, *counts, ", ".join(diff.key) or "whole rows"


def _notes(item: ReleaseComparison) -> Iterator[str]:
    yield from (f"exceeded: {sentence}" for sentence in item.exceeded)
    if item.error:
        yield item.error if item.state == "Failed" else f"{item.error}; it is tried again"
    if item.state == "Skipped":
        yield "its rows are in a Postgres table, which has one state only"
    if item.result is not None:
        if item.result.note:
            yield item.result.note
        if item.result.start is not None:
            yield f"blocks {item.result.start}-{item.result.end} were compared"
        for change in item.result.schema:
            yield f"column {change.column}: {change.a or 'none'} in A, {change.b or 'none'} in B"


def _print_columns(item: ReleaseComparison) -> None:
    from tracelake.cli import render

    if item.result is None or not item.result.key:
        return
    render.title(f"{item.dataset}: keys with equal values")
    rows = [(part.column, "" if part.share is None else f"{part.share:.4%}") for part in item.result.columns]
    render.table(("column", "equal"), rows)
