"""What several verbs do with plans and releases: read files, print a plan, follow a build."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tracelake.cli import printing
from tracelake.cli.dag_file import check_dag_file, problems_shown, read_dag_file
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.cli.api import Remote
    from tracelake.cli.dag_file import DagFile
    from tracelake.wire.user.releases import Plan, PlannedDataset, ReleaseDetail, ReleaseRow

EVERY_SECONDS = 0.5
RANGES = 3
"""Of a dataset in a printed plan; `--json` has more."""
COLUMNS = (
    *("dataset", "dag", "why", "what happens", "partitions", "blocks", "rows", "seconds", "node requests"),
    *("read by", "users"),
)


def read_files(files: Sequence[str], *, json: bool) -> list[DagFile]:
    """Files with problems that can be found without a system end the command here, each named with its file."""
    found = []
    for file in files:
        with problems_shown(file, json=json):
            source = read_dag_file(file)
            check_dag_file(source)
            found.append(source)
    if not found:
        raise BadInput("no file was given", where="FILE", hint="give the YAML of each DAG that changes")
    return found


def push_bundles(gateway: Remote, sources: Sequence[DagFile], *, quiet: bool) -> None:
    from tracelake.cli.commands.data.udf import push_bundle

    for source in sources:
        for bundle in source.bundles:
            push_bundle(gateway, bundle.name, bundle.packed, quiet=quiet)


def print_plan(plan: Plan) -> None:
    from tracelake.cli import render

    if not plan.changes:
        render.note("nothing changes: these versions are active already")
        return
    render.table(COLUMNS, [_line(row) for row in plan.datasets])
    for note in _unread(plan.datasets):
        render.note(note)
    for dag in plan.dags:
        if dag.cause == "upstream":
            render.note(f"DAG {dag.dag} is built again with its own file: it reads what changes")
    for warning in plan.warnings:
        render.note(f"warning: {warning}")
    render.note(f"plan {plan.hash}")


def _line(row: PlannedDataset) -> tuple[object, ...]:
    seconds = None if row.seconds is None else round(row.seconds, 1)
    readers = ", ".join(row.readers) or None
    reused = f", {row.reused} there" if row.reused and row.action != "carry on" else ""
    built = row.partitions, _blocks(row), row.rows, seconds, row.requests or None
    return row.dataset, row.dag, row.cause, row.action + reused, *built, readers, row.users


def _blocks(row: PlannedDataset) -> str | None:
    shown = row.ranges[:RANGES]
    more = len(row.ranges) + row.more_ranges - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") or None


def _unread(datasets: Sequence[PlannedDataset]) -> Iterator[str]:
    for row in datasets:
        for item in row.unread:
            changed = f"only {', '.join(item.changed)} can change" if item.changed else "no rows change"
            read = "any column" if item.read is None else ", ".join(item.read)
            yield f"{row.dataset} uses its files again: in {item.input} {changed}, and it reads {read}"


def follow(gateway: Remote, release: ReleaseRow, *, quiet: bool, until_serving: bool) -> ReleaseDetail:
    """Until it is ready (or serves), was abandoned, or something failed; Ctrl-C leaves it running."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tracelake.cli import render
    from tracelake.wire.user.releases import ReleaseDetail

    waits = {"Building", "Ready"} if until_serving else {"Building"}
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=printing.err, disable=quiet or not printing.err.is_terminal) as progress:
        shown = progress.add_task(f"building {', '.join(release.dags)}", total=None)
        try:
            while True:
                found = gateway.call("show_release", ReleaseDetail, release=str(release.id))
                total, done = (sum(getattr(m, name) for m in found.members) for name in ("planned", "done"))
                progress.update(shown, total=total or None, completed=done, description=_doing(found))
                if found.release.state not in waits or found.release.message:
                    return found
                time.sleep(EVERY_SECONDS)
        except KeyboardInterrupt:
            if not quiet:
                render.note(f"the release goes on; `trace release abandon {release.id}` ends it")
            raise


def _doing(found: ReleaseDetail) -> str:
    what = ", ".join(found.release.dags)
    limited = [item for item in found.comparisons if item.limits]
    if found.release.state != "Ready" or not limited:
        return f"building {what}"
    return f"comparing {sum(item.state == 'Done' for item in limited)} of {len(limited)} datasets of {what}"


def print_release(found: ReleaseDetail | ReleaseRow, *, json: bool) -> None:
    from tracelake.cli import render
    from tracelake.wire.user.releases import ReleaseDetail

    if json:
        render.as_json(found)
        return
    release = found.release if isinstance(found, ReleaseDetail) else found
    render.pairs(
        [
            ("release", release.id),
            ("state", release.state),
            ("DAGs", ", ".join(release.dags)),
            ("message", release.message),
            ("started", release.created_at),
            ("by", release.created_by),
            ("ready", release.ready_at),
            ("promoted", release.promoted_at),
        ]
    )
    if isinstance(found, ReleaseDetail):
        columns = ("dag", "version", "before", "processed", "of", "failed")
        rows = [(m.dag, m.dag_version_id, m.former, m.done, m.planned, m.failed) for m in found.members]
        render.table(columns, rows)


def next_step(found: ReleaseDetail) -> str | None:
    """What a user can do with it now."""
    steps = {
        "Ready": f"next: trace release promote {found.release.id}",
        "Serving": f"`trace release rollback {found.release.id}` goes back",
        "Building": f"`trace release show {found.release.id} --wait` follows it",
    }
    return steps.get(found.release.state)
