"""`trace query`: runs a SELECT on the running system; without one, runs the query service itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake.cli import printing
from tracelake.cli.commands.operate.processes import SettingsFrom, run_component
from tracelake.cli.options import Home, Json
from tracelake.domain.text.count_of import count_of
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.wire.internal.queries import QueryAnswer, ReadDataset

SHOWN = 1_000


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"


Sql = Annotated[
    str | None,
    typer.Argument(help="One SELECT; `-` reads it from standard input.", metavar="[SQL]", show_default=False),
]
As = Annotated[Format, typer.Option("--format", help="The output format.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.", metavar="FILE")
]
AsOf = Annotated[
    list[str] | None,
    typer.Option("--as-of", help="Read a dataset as of NAME=COMMIT or NAME=TIME; repeatable.", metavar="NAME=WHEN"),
]
Limit = Annotated[int | None, typer.Option("--limit", help="Maximum number of rows.", min=1, metavar="N")]
Export = Annotated[bool, typer.Option("--export", help="Let the service write the rows as Parquet files.")]


def query(  # noqa: PLR0917 - options of a verb
    sql: Sql = None,
    format: As = Format.TABLE,  # noqa: A002 - the option's name
    output: Output = None,
    as_of: AsOf = None,
    limit: Limit = None,
    export: Export = False,
    home: Home = None,
    json: Json = False,
    settings: SettingsFrom = None,
) -> None:
    """Query the datasets that you may read with SQL. Without SQL: run the query service in the foreground."""
    if sql is None:
        run_component("query", home, settings)
        return
    text = sys.stdin.read() if sql == "-" else sql
    options = {
        "limit": limit or (SHOWN if format is Format.TABLE and not json else None),
        "as_of": moments(as_of or ()),
    }
    run_query(text, Format.JSON if json else format, output, home=home, whole=json, export=export, **options)


def run_query(
    sql: str, form: Format, output: Path | None, *, home: Path | None, whole: bool, export: bool = False, **more: Any
) -> None:
    """`whole`: print the whole answer of the API, with its figures."""
    from tracelake.cli.api import remote
    from tracelake.wire.internal.queries import Export as Wanted
    from tracelake.wire.internal.queries import QueryRequest

    request = QueryRequest(sql=sql, export=Wanted() if export else None, **more)
    arrow = form in {Format.CSV, Format.PARQUET, Format.ARROW} and not export
    with remote(home) as gateway:
        body = gateway.query(request, arrow=arrow)
    if arrow:
        _write(_as_form(body, form), output, binary=form is not Format.CSV)
    else:
        _print_answer(body, form, output, whole=whole)


def moments(texts: Sequence[str]) -> dict[str, int | datetime]:
    return dict(_moment(text) for text in texts)


def _moment(text: str) -> tuple[str, int | datetime]:
    name, _, when = text.partition("=")
    try:
        return name, int(when) if when.isdecimal() else datetime.fromisoformat(when)
    except ValueError:
        raise BadInput(
            f"{text[:120]!r} is neither a commit nor a time",
            where="--as-of",
            hint="for example --as-of orders=42, or --as-of orders=2026-01-31T12:00:00Z",
        ) from None


def _print_answer(body: bytes, form: Format, output: Path | None, *, whole: bool) -> None:
    import msgspec

    from tracelake.cli import render
    from tracelake.wire.internal.queries import QueryAnswer

    answer = msgspec.json.decode(body, type=QueryAnswer)
    if whole:
        _write(printing.json_text(msgspec.json.format(body, indent=2)) + b"\n", output)
    elif answer.exported is not None:
        done = answer.exported
        render.pairs([("location", done.location), ("files", done.files), ("rows", done.rows), ("bytes", done.bytes)])
    elif form is Format.JSON:
        _write(printing.json_text(msgspec.json.encode(_objects(answer))) + b"\n", output)
    else:
        render.table([column.name for column in answer.columns], answer.rows, whole=())
        render.note(_footer(answer))
    if not whole:
        for dataset in answer.datasets:
            if dataset.behind is not None:
                render.note(_lag(dataset))


def _lag(dataset: ReadDataset) -> str:
    left = f"{dataset.behind} tasks to go" if dataset.behind else "its jobs compare what they lack"
    return f"{dataset.name} is not complete: another version has become active, and its DAG catches up, {left}"


def _objects(answer: QueryAnswer) -> list[Mapping[str, Any]]:
    names = [column.name for column in answer.columns]
    return [dict(zip(names, row, strict=True)) for row in answer.rows]


def _footer(answer: QueryAnswer) -> str:
    # A table is read in its current state, with what was committed while the query ran.
    read = ", ".join(
        f"{dataset.name} at commit {dataset.commit}{' or later' * dataset.hot}" for dataset in answer.datasets
    )
    more = " and more (--limit shows them)" if answer.truncated else ""
    took = f"{answer.milliseconds} ms on {answer.engine.capitalize()}"
    return f"{count_of(answer.row_count, 'row')}{more}, {took}" + (f"; {read}" if read else "")


def _as_form(stream: bytes, form: Format) -> bytes:
    if form is Format.ARROW:
        return stream
    import pyarrow as pa

    table = pa.ipc.open_stream(stream).read_all()
    sink = pa.BufferOutputStream()
    if form is Format.PARQUET:
        import pyarrow.parquet as pq

        pq.write_table(table, sink)
    else:
        _csv(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def _csv(table: Any, sink: Any) -> None:
    """Writes bytes as 0x... and nested values as JSON."""
    import csv
    import io

    import msgspec

    from tracelake.wire.json_values import plain

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        cells = [plain(value) for value in row]
        writer.writerow(
            [msgspec.json.encode(cell).decode() if isinstance(cell, list | dict) else cell for cell in cells]
        )
    sink.write(text.getvalue().encode())


def _write(body: bytes, output: Path | None, *, binary: bool = False) -> None:
    if output is not None:
        output.write_bytes(body)
        return
    if binary and sys.stdout.isatty():
        raise BadInput("this format is binary", where="--format", hint="name a file: --output rows.parquet")
    printing.document(body)
