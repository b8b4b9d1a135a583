"""Messages between the Query service and the Dispatcher about comparisons of releases."""

from __future__ import annotations

from uuid import UUID

from tracelake.wire.internal.queries import ColdFilesAnswer
from tracelake.wire.message import LongText, Message, Number
from tracelake.wire.user.releases import ReleaseDiff


class ComparisonWork(Message, frozen=True):
    """A dataset that is to be compared, with the files of both sides. Its lease ends unless it is reported about."""

    release_id: UUID
    dataset_uuid: UUID
    org_id: UUID
    lease_token: UUID
    dataset: str
    key: list[str]
    """The columns that it is known by; empty: none are known."""
    a: ColdFilesAnswer | None
    """What serves; None: nothing was committed."""
    b: ColdFilesAnswer | None
    start: int | None
    end: int | None
    """Only these blocks; None: all rows."""


class ComparisonTaken(Message, frozen=True):
    work: ComparisonWork | None
    """None: nothing is to be compared now."""
    next_in_seconds: float | None
    """When the next comparison is due; None: none is requested."""
    mark: str
    """To wait for requests of comparisons from here on."""


class ComparisonReport(Message, frozen=True):
    """Progress; with a result or an error, the last report."""

    release_id: UUID
    dataset_uuid: UUID
    lease_token: UUID
    steps: Number
    steps_planned: Number
    result: ReleaseDiff | None = None
    error: LongText | None = None
    retryable: bool = False
    """Whether another attempt may help."""


class ComparisonHeld(Message, frozen=True):
    wanted: bool
    """False: another process has taken it, or the release has ended. Stop."""
