"""`trace udf test`: runs a bundle on this machine against files or datasets. Nothing is sent anywhere."""

from __future__ import annotations

import json as jsons
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.lite.local_run.run import LocalResult

SHOWN_ROWS = 20

Source = Annotated[Path, typer.Argument(help="A zip, or a folder.", metavar="ZIP|FOLDER", show_default=False)]
Datasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        help="An input: a .jsonl, .csv or .parquet file and its name in SQL, or the name of a published dataset"
        " (read through the Gateway). Repeatable.",
        metavar="NAME[=FILE]",
    ),
]
Publishes = Annotated[
    list[str] | None,
    typer.Option("--publishes", help="A buffered dataset that it may write. Repeatable.", metavar="NAME"),
]
Emits = Annotated[
    list[str] | None,
    typer.Option("--emits", help="An output for which it may emit events. Repeatable.", metavar="NAME"),
]
Event = Annotated[
    str | None,
    typer.Option(
        "--event",
        help='The scope of the task: {"start": 0, "end": 9}, {"cursor": 5} or {"partition_key": "x"}.',
        metavar="JSON",
    ),
]
Config = Annotated[
    str | None, typer.Option("--config", help="The job's config, as JSON or as a file.", metavar="JSON|@FILE")
]
State = Annotated[str | None, typer.Option("--state", help="The state of the job.", metavar="JSON|@FILE")]
Alerts = Annotated[
    list[str] | None,
    typer.Option(
        "--alert",
        help='An alert\'s definition: {"name": "large", "severity": "warning", "params": {}}. Repeatable.',
        metavar="JSON|@FILE",
    ),
]
Handler = Annotated[
    str | None, typer.Option("--handler", help="The function; default: main.handler.", metavar="MODULE.FUNCTION")
]
Seconds = Annotated[float, typer.Option("--timeout", help="The time limit.", metavar="SECONDS", min=1)]


def run_here(
    source: Source,
    *,
    dataset: Datasets = None,
    publishes: Publishes = None,
    emits: Emits = None,
    event: Event = None,
    config: Config = None,
    state: State = None,
    alert: Alerts = None,
    handler: Handler = None,
    timeout: Seconds = 60.0,
    home: Home = None,
    json: Json = False,
) -> None:
    """Run a bundle on this machine and show what it would do: rows, events, state, log. Nothing is sent anywhere.

    Queries run on Spark, as in the platform, which takes some seconds to start. The code runs in a process of its own
    and finds the standard library and the content of the bundle; it is not in a sandbox, since it is your code. Exit
    code 1 if the function fails.
    """
    from tracelake.lite.local_run.run import LocalTask, run_locally
    from tracelake.udf.pack import judged, pack

    packed = pack(source, handler=handler) if source.is_dir() else judged(_bytes(source), handler=handler)
    with tempfile.TemporaryDirectory(prefix="trace-udf-data-") as folder:
        task = LocalTask(
            datasets=dict(_dataset(text, home, Path(folder)) for text in dataset or []),
            publishes=publishes or (),
            emits=emits or (),
            scope=_object(event, "--event"),
            config=_object(config, "--config"),
            state=_object(state, "--state") or None,
            alerts=[_object(text, "--alert") for text in alert or []],
            seconds=timeout,
        )
        result = run_locally(packed, task)
    _print_result(result, in_json=json)
    if result.status != "Completed":
        raise typer.Exit(1)


def _print_result(result: LocalResult, *, in_json: bool) -> None:
    from dataclasses import asdict

    from tracelake.cli import printing

    if in_json:
        printing.as_json(asdict(result))
        return
    if result.log.strip():
        printing.out.print(result.log.rstrip() + "\n", markup=False)
    for name, rows in result.rows.items():
        printing.out.print(f"{name}: {len(rows)} rows", markup=False)
        for row in rows[:SHOWN_ROWS]:
            printing.out.print(f"  {jsons.dumps(row)}", markup=False)
        if len(rows) > SHOWN_ROWS:
            printing.out.print(f"  ... and {len(rows) - SHOWN_ROWS} more", markup=False)
    for event in result.events:
        printing.out.print(f"event: {jsons.dumps(event)}", markup=False)
    if result.state is not None:
        printing.out.print(f"state: {jsons.dumps(result.state)}", markup=False)
    printing.out.print(f"{result.status} after {result.seconds:.1f} s", markup=False)
    if result.error:
        printing.err.print(result.error, markup=False)


def _dataset(text: str, home: Path | None, folder: Path) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    return name, Path(file) if equals else _fetched(name, home, folder)


def _fetched(name: str, home: Path | None, folder: Path) -> Path:
    """A published dataset's rows, as a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tracelake.cli.api import remote
    from tracelake.wire.internal.queries import QueryRequest

    with remote(home) as gateway:
        answer = gateway.query(QueryRequest(sql=f"SELECT * FROM {name}"), arrow=True)  # noqa: S608 - the service judges
    file = folder / f"{name}.parquet"
    pq.write_table(pa.ipc.open_stream(answer).read_all().replace_schema_metadata(None), file)
    return file


def _object(text: str | None, where: str) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = jsons.loads(_bytes(Path(text[1:])) if text.startswith("@") else text)
    except ValueError as error:
        raise BadInput(f"this is not JSON: {error}", where=where) from None
    if not isinstance(found, dict):
        raise BadInput("this is JSON, but not an object", where=where)
    return found


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"the file cannot be read: {error.strerror}", where=str(file)) from None
