"""Messages of the user API about what jobs have not processed yet, and about backfills."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Edge, PlainText

MAX_GAPS = 1000
MAX_BUDGET = 2**53
GapState = Literal["missing", "pending", "failed"]


class GapsQuery(Message, frozen=True):
    of: PlainText
    """A dataset, a DAG, or `DAG.JOB`."""
    limit: Annotated[int, Meta(ge=1, le=MAX_GAPS)] = 100
    """Of gaps for each input; counts are of all."""


class Gap(Message, frozen=True):
    state: GapState
    """No task has been created yet; a task waits, runs or is retried; a task failed or was canceled for good."""
    scope: str
    """A range of blocks, both ends included; or a partition, a cursor, or `all`."""
    units: int
    """Partitions of the input in it."""


class InputGaps(Message, frozen=True):
    """An input of a job. `planned` = `done` + `pending` + `failed`."""

    dag: str
    job: str
    input: str
    planned: int
    """Partitions that the input has now, or events that no partition shows."""
    done: int
    pending: int
    """With or without a task: the next pass creates those that are missing."""
    failed: int
    gaps: list[Gap]
    """In the order of their blocks; neighbours in the same state are one."""
    more: int = 0
    """Gaps that `limit` left out."""


class Gaps(Message, frozen=True):
    of: str
    complete: bool
    inputs: list[InputGaps]
    """Those with gaps: none if everything was processed."""
    checked: int
    """Inputs that were compared."""


class BackfillBudget(Message, frozen=True):
    """What a stopped backfill may use from now on, if it is resumed; None: as before."""

    tasks: Annotated[int, Meta(ge=1, le=MAX_BUDGET)] | None = None
    hours: Annotated[float, Meta(gt=0, le=24 * 365)] | None = None
    """From now on."""
    requests: Annotated[int, Meta(ge=1, le=MAX_BUDGET)] | None = None
    """In all, since it was started; so are tasks and bytes."""
    bytes: Annotated[int, Meta(ge=1, le=MAX_BUDGET)] | None = None


class BackfillRequest(Message, frozen=True):
    job: PlainText | None = None
    """None: the only manual source of the DAG; without a range, all of its jobs."""
    start: Edge | None = None
    end: Edge | None = None
    """Both inclusive. Without them: everything that the jobs lack."""
    order: Literal["oldest", "newest"] = "oldest"
    tasks: Annotated[int, Meta(ge=1, le=MAX_BUDGET)] | None = None
    """It stops when it has created so many tasks."""
    hours: Annotated[float, Meta(gt=0, le=24 * 365)] | None = None
    """It stops after so much time."""
    again: bool = False
    """Also what was processed before."""
    dry_run: bool = False
    requests: Annotated[int, Meta(ge=1, le=MAX_BUDGET)] | None = None
    """It stops when its tasks have sent so many calls to chain nodes."""
    bytes: Annotated[int, Meta(ge=1, le=MAX_BUDGET)] | None = None
    """It stops when its tasks have written so many bytes of files."""


class BackfillRow(Message, frozen=True):
    id: UUID
    dag: str
    job: str | None
    scope: str
    """A range of blocks, both ends included, or `gaps`."""
    status: Literal["Running", "Paused", "Done", "Canceled"]
    ended_because: str | None
    order: str
    again: bool
    stopped_because: str | None
    """Which budget is used up: it is paused until it is resumed with a larger one."""
    budget_tasks: int | None
    budget_until: datetime | None
    budget_requests: int | None
    budget_bytes: int | None
    planned: int
    """Partitions that were to be processed when it began; of a source, blocks."""
    created: int
    """How many of them have got a task; of a source, blocks whose event was sent."""
    used_requests: int | None
    """Calls to chain nodes of the DAG's tasks about such data since it began; None in a list, if it has ended."""
    used_bytes: int | None
    """The same: bytes of files that were committed."""
    open_tasks: int
    """Tasks of the DAG about such data that wait or run."""
    created_at: datetime
    ended_at: datetime | None
    created_by: str | None


class BackfillAnswer(Message, frozen=True):
    planned: int
    """Partitions that it processes; of a source, blocks."""
    there: int
    """Partitions of the range that were processed before; of a source, blocks that have an event."""
    backfill: BackfillRow | None
    """None: a dry run, or there is nothing to do."""


class BackfillList(Message, frozen=True):
    backfills: list[BackfillRow]
