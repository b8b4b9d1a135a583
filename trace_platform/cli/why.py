"""`trace why`: why a task or a partition is as it is."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from trace_platform.cli.options import Home, Json
from trace_platform.errors import BadInput

Subject = Annotated[
    str, typer.Argument(help="A task's id, or a dataset's name or uuid.", metavar="TASK|DATASET", show_default=False)
]
Partition = Annotated[
    str | None, typer.Argument(help="With a dataset: the partition, such as 1000-1999.", show_default=False)
]


def why(subject: Subject, partition: Partition = None, home: Home = None, json: Json = False) -> None:
    """Tell the causal chain: event, rule, task, attempts, commit; or the exact rule that stopped it."""
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.user_contracts import Explanation

    asked = {"dataset": subject, "partition": partition} if partition else {"task": _task(subject)}
    with remote(home) as gateway:
        found = gateway.ask("why", Explanation, query=asked)
    if json:
        rows.as_json(found)
    else:
        rows.pairs([(found.subject, found.verdict)])
        if found.steps:
            rows.table(
                ("at", "what", "happened"), [(one.at, one.kind, one.sentence) for one in found.steps], whole=("at",)
            )
        if found.stopped:
            rows.note(
                f"stopped by {found.stopped.rule}" + (f"; try {found.stopped.hint}" if found.stopped.hint else "")
            )


def _task(subject: str) -> UUID:
    try:
        return UUID(subject)
    except ValueError:
        raise BadInput(
            f"{subject[:80]!r} is not a task's id", where="TASK", hint="for a dataset, name the partition too"
        ) from None
