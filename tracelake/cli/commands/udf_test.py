"""`trace udf test`: a bundle run here, against files or a dataset's rows, with nothing sent anywhere."""

from __future__ import annotations

import json as jsons
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.lite.local_run.run import Played

SHOWN_ROWS = 20

Source = Annotated[Path, typer.Argument(help="A zip, or a folder.", metavar="ZIP|FOLDER", show_default=False)]
Datasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        help="An input: a .jsonl, .csv or .parquet file by the name SQL calls it, or a published dataset by its name"
        " alone (read through the Gateway). Again for each.",
        metavar="NAME[=FILE]",
    ),
]
Publishes = Annotated[
    list[str] | None,
    typer.Option("--publishes", help="A buffered dataset that it may write. Again for each.", metavar="NAME"),
]
Tells = Annotated[
    list[str] | None, typer.Option("--tells", help="An output that it may tell of. Again for each.", metavar="NAME")
]
Event = Annotated[
    str | None,
    typer.Option(
        "--event",
        help='What the task is about: {"start": 0, "end": 9}, {"cursor": 5} or {"partition_key": "x"}.',
        metavar="JSON",
    ),
]
Config = Annotated[
    str | None, typer.Option("--config", help="The job's config, as JSON or as a file.", metavar="JSON|@FILE")
]
State = Annotated[str | None, typer.Option("--state", help="What the job remembers.", metavar="JSON|@FILE")]
Alerts = Annotated[
    list[str] | None,
    typer.Option(
        "--alert",
        help='An alert\'s definition: {"name": "large", "severity": "warning", "params": {}}. Again for each.',
        metavar="JSON|@FILE",
    ),
]
Handler = Annotated[
    str | None, typer.Option("--handler", help="The function; unset: main.handler.", metavar="MODULE.FUNCTION")
]
Seconds = Annotated[float, typer.Option("--timeout", help="Ended after so long.", metavar="SECONDS", min=1)]


def run_here(
    source: Source,
    *,
    dataset: Datasets = None,
    publishes: Publishes = None,
    tells: Tells = None,
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

    SQL is the platform's own, on Spark, which takes some seconds to start. The code runs in a
    process of its own and finds the standard library and what the bundle brings; it is not in a sandbox here, as it is
    yours. Ends with 1 if the function fails.
    """
    from tracelake.lite.local_run.run import Rehearsal, rehearse
    from tracelake.udf.pack import judged, pack

    packed = pack(source, handler=handler) if source.is_dir() else judged(_bytes(source), handler=handler)
    with tempfile.TemporaryDirectory(prefix="trace-udf-data-") as kept:
        asked = Rehearsal(
            datasets=dict(_dataset(item, home, Path(kept)) for item in dataset or []),
            publishes=publishes or (),
            tells=tells or (),
            scope=_object(event, "--event"),
            config=_object(config, "--config"),
            state=_object(state, "--state") or None,
            alerts=[_object(item, "--alert") for item in alert or []],
            seconds=timeout,
        )
        played = rehearse(packed, asked)
    _say(played, in_json=json)
    if played.status != "Completed":
        raise typer.Exit(1)


def _say(played: Played, *, in_json: bool) -> None:
    from dataclasses import asdict

    from tracelake.cli import printing

    if in_json:
        printing.as_json(asdict(played))
        return
    if played.log.strip():
        printing.out.print(played.log.rstrip() + "\n", markup=False)
    for name, rows in played.rows.items():
        printing.out.print(f"{name}: {len(rows)} rows", markup=False)
        for row in rows[:SHOWN_ROWS]:
            printing.out.print(f"  {jsons.dumps(row)}", markup=False)
        if len(rows) > SHOWN_ROWS:
            printing.out.print(f"  ... and {len(rows) - SHOWN_ROWS} more", markup=False)
    for told in played.events:
        printing.out.print(f"event: {jsons.dumps(told)}", markup=False)
    if played.state is not None:
        printing.out.print(f"state: {jsons.dumps(played.state)}", markup=False)
    printing.out.print(f"{played.status} after {played.seconds:.1f} s", markup=False)
    if played.error:
        printing.err.print(played.error, markup=False)


def _dataset(told: str, home: Path | None, folder: Path) -> tuple[str, Path]:
    name, equals, file = told.partition("=")
    return name, Path(file) if equals else _fetched(name, home, folder)


def _fetched(name: str, home: Path | None, folder: Path) -> Path:
    """A published dataset's rows, as a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tracelake.cli.api import remote
    from tracelake.wire.query_messages import QueryRequest

    with remote(home) as gateway:
        answer = gateway.query(QueryRequest(sql=f"SELECT * FROM {name}"), arrow=True)  # noqa: S608 - the service judges
    file = folder / f"{name}.parquet"
    pq.write_table(pa.ipc.open_stream(answer).read_all().replace_schema_metadata(None), file)
    return file


def _object(told: str | None, where: str) -> dict[str, Any]:
    if told is None:
        return {}
    text = _bytes(Path(told[1:])) if told.startswith("@") else told.encode()
    try:
        found = jsons.loads(text)
    except ValueError as wrong:
        raise BadInput(f"this is not JSON: {wrong}", where=where) from None
    if not isinstance(found, dict):
        raise BadInput("this is JSON, and not an object", where=where)
    return found


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as wrong:
        raise BadInput(f"it cannot be read: {wrong.strerror}", where=str(file)) from None
