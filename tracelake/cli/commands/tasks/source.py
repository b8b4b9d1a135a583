"""`trace source`: list and show sources, pause and resume them, fire them, and see what was delivered to them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID, uuid4

import typer

from tracelake.cli.options import Home, Json, RequestId
from tracelake.domain.text.count_of import count_of
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.wire.user.sources import FireAnswer, SourceDetail, SourceRow

app = typer.Typer(help="Sources: list, show, pause, resume, fire, deliveries, replay.", no_args_is_help=True)

Dag = Annotated[str, typer.Argument(help="The DAG's name.", metavar="DAG", show_default=False)]
Job = Annotated[str, typer.Argument(help="The source's name.", metavar="JOB", show_default=False)]
OfDag = Annotated[str | None, typer.Option("--dag", help="Only sources of this DAG.", metavar="DAG")]
Body = Annotated[
    Path | None,
    typer.Option("--body", help="A JSON file that the task gets as what fired it.", metavar="FILE", show_default=False),
]
DeliveryId = Annotated[
    UUID, typer.Argument(help="As `trace source deliveries` lists it.", metavar="DELIVERY", show_default=False)
]
Most = Annotated[int, typer.Option("--limit", help="At most so many.", metavar="N", min=1, max=500)]
Below = Annotated[
    int | None, typer.Option("--below", help="Only those with a lower number: the next page.", metavar="NUMBER")
]

MESSAGES = {
    (True, True): "is paused; `trace {} resume` resumes it",
    (True, False): "was paused already; nothing changed",
    (False, True): "is resumed",
    (False, False): "was not paused; nothing changed",
}
"""By whether it is paused now, and whether that is new."""
PAUSES = {"manual": "by a user", "failure": "after a failed task", "depth": "by a long queue", "age": "by an old queue"}


@app.command("list", short_help="List the sources of active DAGs.")
def list_(dag: OfDag = None, home: Home = None, json: Json = False) -> None:
    """List the sources of active DAGs: when each fires next, what became of its last slot, and whether it can fire."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.sources import SourceList

    with remote(home) as gateway:
        found = gateway.call("list_sources", SourceList, query={"dag": dag})
    if render.json_or_empty(found, found.sources, "no sources; `source:` in a job makes it one", in_json=json):
        return
    columns = ("source", "kind", "operator", "state", "next fire", "last slot", "outcome", "open")
    rows = [
        (
            f"{row.dag}.{row.job}",
            row.kind,
            row.operator,
            _state(row),
            row.next_fire,
            row.last_slot,
            _outcome(row),
            row.open_tasks,
        )
        for row in found.sources
    ]
    render.table(columns, rows, whole=("source",))


@app.command("show", short_help="Show a source: its next fires and its last slots.")
def show(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Show a source: its next five fires in its time zone and in UTC, and its last slots with outcome and reason."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.sources import SourceDetail

    with remote(home) as gateway:
        found = gateway.call("show_source", SourceDetail, dag=dag, job=job)
    if json:
        render.as_json(found)
        return
    _print_detail(found)


@app.command("pause", short_help="Pause a source, until it is resumed.")
def pause(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Pause a source of any kind, also across deploys, until it is resumed.

    An always-on source stops after its current work. Slots of a schedule are recorded as paused and do not fire later.
    Deliveries to a webhook are accepted, and fire when it is resumed. A manual source is not fired.
    """
    set_paused("source", "pause_job", dag, job, home, json=json)


@app.command("resume", short_help="Resume a paused source.")
def resume(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Resume a paused source: an always-on one where it stopped, a webhook with what was held."""
    set_paused("source", "resume_job", dag, job, home, json=json)


@app.command("fire")
def fire(
    dag: Dag, job: Job, *, body: Body = None, request_id: RequestId = None, home: Home = None, json: Json = False
) -> None:
    """Fire a cron, webhook or manual source now, out of turn."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.sources import FireAnswer, FireRequest

    request = FireRequest(body=_read_json(body), request_id=request_id or uuid4())
    with remote(home) as gateway:
        done = gateway.call("fire_source", FireAnswer, body=request, dag=dag, job=job, repeatable=True)
    _print_fired(f"{dag}.{job} was fired", done, json=json)


@app.command("deliveries")
def deliveries(
    dag: Dag, job: Job, *, limit: Most = 50, below: Below = None, home: Home = None, json: Json = False
) -> None:
    """List what was delivered to a webhook source, the newest first."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.sources import SourceDeliveryList

    with remote(home) as gateway:
        query = {"limit": limit, "below": below}
        found = gateway.call("list_deliveries_of_source", SourceDeliveryList, query=query, dag=dag, job=job)
    if render.json_or_empty(found, found.deliveries, "no deliveries yet", in_json=json):
        return
    rows = [
        (
            row.id,
            row.number,
            row.received_at,
            row.key,
            row.size_bytes,
            "held" if row.held else row.task_status,
            row.task_id,
        )
        for row in found.deliveries
    ]
    render.table(("id", "number", "received", "key", "bytes", "state", "task"), rows, whole=("id", "task"))


@app.command("replay")
def replay(
    dag: Dag, job: Job, delivery: DeliveryId, *, request_id: RequestId = None, home: Home = None, json: Json = False
) -> None:
    """Deliver the body of a delivery once more, as a new one."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.sources import FireAnswer, ReplayDeliveryRequest

    request = ReplayDeliveryRequest(request_id=request_id or uuid4())
    with remote(home) as gateway:
        done = gateway.call(
            "replay_delivery", FireAnswer, body=request, dag=dag, job=job, delivery=delivery, repeatable=True
        )
    _print_fired(f"{delivery} was delivered to {dag}.{job} once more", done, json=json)


def set_paused(group: str, call: str, dag: str, job: str, home: Home, *, json: bool) -> None:
    """`group`: the verbs that the user has called, for the hint."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.dags import PauseAnswer

    with remote(home) as gateway:
        done = gateway.call(call, PauseAnswer, dag=dag, job=job)
    if json:
        render.as_json(done)
        return
    render.note(f"{dag}.{job} {MESSAGES[done.paused, done.changed].format(group)}")


def _print_detail(found: SourceDetail) -> None:
    from tracelake.cli import render

    rules = [(name, value) for name, value in found.source.items() if name != "kind"]
    render.pairs(
        [
            ("source", f"{found.dag}.{found.job}"),
            ("kind", found.kind),
            ("operator", f"{found.operator} on {found.runtime}"),
            ("state", _state(found)),
            ("paused since", found.paused_since),
            ("held deliveries", found.held or None),
            ("open tasks", found.open_tasks),
            ("posts to", found.hook_path),
            *rules,
        ]
    )
    if found.next_fires:
        render.title("Next fires")
        fires = [(fire.local, _utc(fire.slot), _delay(fire.fires_at - fire.slot)) for fire in found.next_fires]
        render.table(("in its zone", "slot", "later by"), fires, whole=("in its zone", "slot"))
    if found.slots:
        render.title("Last slots")
        slots = [(_utc(slot.slot), slot.reason or slot.task_status or "fired", slot.task_id) for slot in found.slots]
        render.table(("slot", "outcome", "task"), slots, whole=("slot", "task"))


def _print_fired(what: str, done: FireAnswer, *, json: bool) -> None:
    from tracelake.cli import render

    if json:
        render.as_json(done)
        return
    if not done.created:
        render.note("this request was made before; nothing happened")
        return
    made = f"task {done.task_id}" if done.task_id else f"{count_of(len(done.event_ids), 'event')} for its readers"
    render.note(f"{what}: {'held, because the source is paused' if done.held else made}")


def _state(row: SourceRow) -> str:
    if row.paused:
        return f"paused {PAUSES.get(row.pause_reason or '', '')}".strip()
    return row.not_ready or row.state or "ready"


def _outcome(row: SourceRow) -> str | None:
    return None if row.last_slot is None else row.last_reason or "fired"


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _delay(delay: timedelta) -> str | None:
    seconds = int(delay.total_seconds())
    return f"{seconds} s" if seconds else None


def _read_json(file: Path | None) -> Any:
    import msgspec

    if file is None:
        return None
    try:
        return msgspec.json.decode(file.read_bytes())
    except OSError as wrong:
        raise BadInput(f"{file} cannot be read: {wrong.strerror}", where="--body") from None
    except msgspec.MsgspecError as wrong:
        raise BadInput(f"{file} is not JSON: {wrong}", where="--body") from None
