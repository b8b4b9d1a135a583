"""`trace trigger`: start a manual source."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID, uuid4

import typer

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

Dag = Annotated[str, typer.Argument(help="The DAG.", metavar="DAG", show_default=False)]
Job = Annotated[str, typer.Argument(help="Its source, of kind `manual`.", metavar="JOB", show_default=False)]
Cursor = Annotated[int | None, typer.Option("--cursor", help="Up to this number.", metavar="N", min=0)]
Partition = Annotated[str | None, typer.Option("--partition", help="One partition.", metavar="KEY")]
Range = Annotated[str | None, typer.Option("--range", help="A range of blocks, both ends included.", metavar="A-B")]
RequestId = Annotated[
    UUID | None,
    typer.Option(
        "--request-id",
        help="A request with an id that was used before does nothing.",
        metavar="UUID",
        show_default="a new one",
    ),
]


def trigger(
    dag: Dag,
    job: Job,
    *,
    cursor: Cursor = None,
    partition: Partition = None,
    blocks: Range = None,
    request_id: RequestId = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Start a manual source for a cursor, a partition or a range; without any of them, for the whole."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.domain.ranges import parse_partition_key
    from tracelake.wire.user_dags import TriggerAnswer, TriggerRequest

    if sum(scope is not None for scope in (cursor, partition, blocks)) > 1:
        raise BadInput("give one of --cursor, --partition and --range", where="--cursor, --partition, --range")
    start, end = parse_partition_key(blocks).edges if blocks else (None, None)
    request = TriggerRequest(cursor=cursor, partition=partition, start=start, end=end, request_id=request_id or uuid4())
    with remote(home) as gateway:
        done = gateway.call("trigger", TriggerAnswer, body=request, dag=dag, job=job)
    if json:
        render.as_json(done)
        return
    if not done.created:
        render.note("this request was made before; nothing happened")
        return
    render.note(f"{dag}.{job} was triggered (request {done.request_id}): {len(done.event_ids)} events for its readers")
    render.note("  `trace task list` shows the resulting tasks")
