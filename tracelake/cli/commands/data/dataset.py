"""`trace datasets`: list datasets, show their state, rows and files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.commands.data.dataset_access import access
from tracelake.cli.options import Home, Json, Yes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelake.cli.api import Remote
    from tracelake.wire.user.datasets import DatasetDetail, DatasetRow
    from tracelake.wire.user.ledger import LedgerEntry

app = typer.Typer(help="Datasets: list, show, sample, files, ledger, access, drop.", no_args_is_help=True)
app.command("access", short_help="Show or decide who may read a dataset.")(access)

Rows = Annotated[int, typer.Option("--limit", help="Number of rows.", min=1, max=1000, metavar="N")]
After = Annotated[int, typer.Option("--after", help="Begin behind this commit.", metavar="COMMIT", min=0)]
Dataset = Annotated[str, typer.Argument(help="Its name or uuid.", metavar="DATASET", show_default=False)]

READERS = {"internal": "no user", "org": "everybody", "roles": "only admins"}
"""Who reads a dataset that is shared with no role."""


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List every dataset with its last commit; published ones first."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.datasets import DatasetList

    with remote(home) as gateway:
        found = gateway.call("list_datasets", DatasetList)
    if json:
        render.as_json(found)
    elif not found.datasets:
        render.note("no datasets yet; `trace dag deploy FILE` creates those of its jobs")
    else:
        render.table(
            ("name", "uuid", "made by", "storage", "commit", "at", "dead batches"),
            [
                (
                    dataset.name,
                    dataset.dataset_uuid,
                    _made_by(dataset),
                    dataset.storage,
                    dataset.last_commit,
                    dataset.committed_at,
                    dataset.dead_batches or None,
                )
                for dataset in found.datasets
            ],
            whole=("uuid",),
        )


@app.command("show", short_help="Show a dataset: generations, ranges, commits, dead batches.")
def show(dataset: Dataset, home: Home = None, json: Json = False) -> None:
    """Show a dataset: its generations, current ranges, last commits, published ranges and dead batches."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.datasets import DatasetDetail

    with remote(home) as gateway:
        found = gateway.call("show_dataset", DatasetDetail, dataset=dataset)
    if json:
        render.as_json(found)
    else:
        _show(found)


@app.command("sample")
def sample(dataset: Dataset, limit: Rows = 10, home: Home = None, json: Json = False) -> None:
    """Show some rows of a published dataset, in no particular order."""
    from tracelake.cli.commands.data.query import Format, run_query
    from tracelake.errors import BadInput

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,127}", dataset):
        raise BadInput("only published datasets can be sampled, by their name", where="DATASET")
    form = Format.JSON if json else Format.TABLE
    run_query(f"SELECT * FROM {dataset} LIMIT {limit}", form, None, home=home, whole=json)  # noqa: S608 - a checked name


@app.command("files")
def files(dataset: Dataset, home: Home = None, json: Json = False) -> None:
    """List the current files of a dataset, by partition."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.datasets import DatasetFiles

    with remote(home) as gateway:
        found = gateway.call("list_dataset_files", DatasetFiles, dataset=dataset)
    if json:
        render.as_json(found)
    elif not found.partitions:
        render.note("no files: nothing was committed yet, or its rows are in a Postgres table")
    else:
        render.table(
            ("partition", "commit", "rows", "file"),
            [
                (partition.partition_key, partition.commit, file["rows"], f"{partition.location}{file['name']}")
                for partition in found.partitions
                for file in partition.files
            ],
            whole=("file",),
        )


@app.command("drop", short_help="Remove a dataset that nothing produces or reads.")
def drop(dataset: Dataset, yes: Yes = False, home: Home = None, json: Json = False) -> None:
    """Remove the rows and files of a dataset that no active version produces and no other DAG reads. For admins.

    Its commits stay in the ledger. A version that produces it can be activated again, and builds it anew.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.confirm import confirm
    from tracelake.wire.user.datasets import DropAnswer

    confirm(f"This removes all rows and files of dataset {dataset}.", yes=yes)
    with remote(home) as gateway:
        done = gateway.call("drop_dataset", DropAnswer, repeatable=True, dataset=dataset)
    removed = f"{done.generations} generations are removed within some minutes"
    render.answer(done, removed if done.generations else "it has no rows in files", in_json=json)


@app.command("ledger")
def ledger(dataset: Dataset, *, after: After = 0, home: Home = None, json: Json = False) -> None:
    """List the commits of a dataset with the hashes that link them. JSON is one line per commit, with all it covers."""
    import msgspec

    from tracelake.cli import printing, render
    from tracelake.cli.api import remote

    with remote(home) as gateway:
        entries = _ledger(gateway, dataset, after)
        if json:
            for entry in entries:
                printing.as_json_line(msgspec.to_builtins(entry))
            return
        render.table(
            ("commit", "at", "rows", "files", "hash", "task"),
            [
                (
                    entry.commit,
                    entry.committed_at,
                    entry.rows,
                    sum(len(partition.files) for partition in entry.partitions),
                    entry.hash or "before the ledger",
                    entry.task_id,
                )
                for entry in entries
            ],
            whole=("hash", "task"),
        )


def _ledger(gateway: Remote, dataset: str, after: int) -> Iterator[LedgerEntry]:
    from tracelake.cli.api import next_page
    from tracelake.wire.user.ledger import LedgerPage

    following: int | None = after
    while following is not None:
        page = gateway.call("list_ledger", LedgerPage, query={"after": following}, dataset=dataset)
        yield from page.entries
        following = next_page(page.next, following)


def _show(found: DatasetDetail) -> None:
    from tracelake.cli import render
    from tracelake.cli.dead_batches import show_dead_batches

    render.pairs(
        [
            ("dataset", found.name or "not published"),
            ("uuid", found.dataset_uuid),
            ("made by", _made_by(found)),
            ("storage", found.storage),
            ("read by", found.read_roles or READERS[found.visibility]),
            ("last commit", found.last_commit or "none yet"),
        ]
    )
    render.title("generations")
    render.table(
        ("id", "state", "partitions", "rows", "current blocks"),
        [
            (
                generation.dataset_version,
                "active" if generation.current else "",
                generation.partitions,
                generation.rows,
                [f"{start}-{end}" for start, end in generation.ranges],
            )
            for generation in found.generations
        ],
    )
    if found.lineage:
        render.title("columns")
        render.table(
            ("column", "made from"), [(row.column, f"{row.input}.{row.input_column}") for row in found.lineage]
        )
    if found.commits:
        render.title("last commits")
        render.table(
            ("commit", "rows", "bytes", "at", "task"),
            [
                (commit.commit, commit.rows, commit.bytes, commit.committed_at, commit.task_id)
                for commit in found.commits
            ],
            whole=("task",),
        )
    if found.newest_published_ranges:
        render.title(f"published ranges ({found.published_ranges})")
        render.table(
            ("range", "files", "config", "at"),
            [
                (
                    f"{item.start}-{item.end}",
                    f"{item.storage_location}{item.storage_glob}",
                    item.config_hash,
                    item.published_at,
                )
                for item in found.newest_published_ranges
            ],
            whole=("files",),
        )
    show_dead_batches(found.newest_dead_batches, found.dead_batches)


def _made_by(dataset_row: DatasetRow | DatasetDetail) -> str:
    return (
        dataset_row.dag
        if dataset_row.job is None
        else f"{dataset_row.dag}.{dataset_row.job}[{dataset_row.output_index}]"
    )
