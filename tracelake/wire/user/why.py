"""Messages of the user API that explain a task or a partition."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from tracelake.wire.message import Message
from tracelake.wire.user.fields import PlainText


class WhyQuery(Message, frozen=True):
    """`task`, or `dataset`; with `partition`, that one of the dataset."""

    task: UUID | None = None
    dataset: PlainText | None = None
    partition: PlainText | None = None


class Step(Message, frozen=True):
    """One link of the chain, from cause to effect."""

    kind: Literal["event", "invalidation", "rule", "task", "attempt", "memo", "commit", "batch", "outbox_entry"]
    at: datetime | None
    sentence: str
    id: str | None = None


class Stop(Message, frozen=True):
    """Where the chain ends before a commit: the rule, and what to do about it."""

    rule: str
    sentence: str
    since: datetime | None = None
    hint: str | None = None


class Explanation(Message, frozen=True):
    subject: str
    verdict: str
    steps: list[Step]
    stopped: Stop | None
