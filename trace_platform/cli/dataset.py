"""`trace dataset`: what there is, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trace_platform.cli.options import Home, Json

if TYPE_CHECKING:
    from trace_platform.user_contracts import DatasetDetail

app = typer.Typer(help="Datasets: list, show, files.", no_args_is_help=True)

Dataset = Annotated[str, typer.Argument(help="Its name or uuid.", metavar="DATASET", show_default=False)]


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List every dataset with its last commit; published ones first."""
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.user_contracts import DatasetList

    with remote(home) as gateway:
        found = gateway.ask("list_datasets", DatasetList)
    if json:
        rows.as_json(found)
    elif not found.datasets:
        rows.note("no datasets yet; `trace dag deploy FILE` makes those of its jobs")
    else:
        rows.table(
            ("name", "uuid", "made by", "storage", "commit", "at"),
            [
                (
                    one.name,
                    one.dataset_uuid,
                    f"{one.dag}.{one.job}[{one.output_index}]",
                    one.storage,
                    one.last_commit,
                    one.committed_at,
                )
                for one in found.datasets
            ],
            whole=("uuid",),
        )


@app.command("show")
def show(dataset: Dataset, home: Home = None, json: Json = False) -> None:
    """Show a dataset: its generations, the ranges in force, and its last commits."""
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.user_contracts import DatasetDetail

    with remote(home) as gateway:
        found = gateway.ask("show_dataset", DatasetDetail, dataset=dataset)
    if json:
        rows.as_json(found)
    else:
        _show(found)


@app.command("files")
def files(dataset: Dataset, home: Home = None, json: Json = False) -> None:
    """List the files that hold a dataset now, by partition."""
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.user_contracts import DatasetFiles

    with remote(home) as gateway:
        found = gateway.ask("list_dataset_files", DatasetFiles, dataset=dataset)
    if json:
        rows.as_json(found)
    elif not found.partitions:
        rows.note("no files yet: nothing has been committed, or its rows lie in a table")
    else:
        rows.table(
            ("partition", "commit", "rows", "file"),
            [
                (one.partition_key, one.commit, file["rows"], f"{one.location}{file['name']}")
                for one in found.partitions
                for file in one.files
            ],
            whole=("file",),
        )


def _show(found: DatasetDetail) -> None:
    from trace_platform.cli import rows

    rows.pairs(
        [
            ("dataset", found.name or "not published"),
            ("uuid", found.dataset_uuid),
            ("made by", f"{found.dag}.{found.job}[{found.output_index}]"),
            ("storage", found.storage),
            ("read by", found.read_roles or {"internal": "no user", "org": "everybody"}.get(found.visibility)),
            ("last commit", found.last_commit or "none yet"),
        ]
    )
    rows.title("generations")
    rows.table(
        ("id", "state", "partitions", "rows", "blocks in force"),
        [
            (
                one.dataset_version,
                "active" if one.current else "",
                one.partitions,
                one.rows,
                [f"{start}-{end}" for start, end in one.ranges],
            )
            for one in found.generations
        ],
    )
    if found.lineage:
        rows.title("columns")
        rows.table(("column", "made from"), [(one.column, f"{one.input}.{one.input_column}") for one in found.lineage])
    if found.commits:
        rows.title("last commits")
        rows.table(
            ("commit", "rows", "bytes", "at", "task"),
            [(one.commit, one.rows, one.bytes, one.committed_at, one.task_id) for one in found.commits],
            whole=("task",),
        )
