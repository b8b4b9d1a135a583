"""`trace datasets`: list datasets, show their state, rows and files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import Home, Json

if TYPE_CHECKING:
    from tracelake.wire.user_datasets import DatasetDetail, DatasetRow

app = typer.Typer(help="Datasets: list, show, sample, files.", no_args_is_help=True)

Rows = Annotated[int, typer.Option("--limit", help="Number of rows.", min=1, max=1000, metavar="N")]
Dataset = Annotated[str, typer.Argument(help="Its name or uuid.", metavar="DATASET", show_default=False)]


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List every dataset with its last commit; published ones first."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_datasets import DatasetList

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
    from tracelake.wire.user_datasets import DatasetDetail

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
    from tracelake.wire.user_datasets import DatasetFiles

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


def _show(found: DatasetDetail) -> None:
    from tracelake.cli import render
    from tracelake.cli.dead_batches import show_dead_batches

    render.pairs(
        [
            ("dataset", found.name or "not published"),
            ("uuid", found.dataset_uuid),
            ("made by", _made_by(found)),
            ("storage", found.storage),
            ("read by", found.read_roles or {"internal": "no user", "org": "everybody"}.get(found.visibility)),
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
