"""Messages about the limits of organisations, and what is used of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from tracelake.domain.flow.org_limits import LimitName
from tracelake.wire.message import Message

LimitText = Annotated[str, Meta(max_length=200)]


class OrgLimitsChange(Message, frozen=True):
    limits: Annotated[Mapping[LimitText, int | LimitText], Meta(min_length=1, max_length=100)]
    """By name: a number from 1, or `none` for no limit, or `default` for that of the settings. The others stay."""


class LimitRow(Message, frozen=True):
    limit: LimitName
    unit: str
    about: str
    most: int | None = None
    """None: no limit."""
    own: bool = False
    """False: by default, from the settings."""
    set_by: str | None = None
    set_at: datetime | None = None


class OrgLimits(Message, frozen=True):
    org: str
    limits: Sequence[LimitRow]


class LimitUse(Message, frozen=True):
    limit: LimitName
    most: int | None
    """None: no limit."""
    used: int | None
    """None: each Query service counts for itself; the metrics of the process show it."""
    waiting: int = 0
    """Tasks that wait for this limit or another."""


class DatasetUse(Message, frozen=True):
    dataset_uuid: UUID
    dataset: str | None
    dag: str
    job: str
    current_bytes: int
    replaced_bytes: int
    """Files of replaced partitions that are still there."""
    rows: int


class OrgUsage(Message, frozen=True):
    org: str
    limits: Sequence[LimitUse]
    datasets: Sequence[DatasetUse]
    """The largest ones."""
    queries: int
    """That ended within a day, as the audit of queries has them."""
    query_seconds: float
    """How long those took together."""
