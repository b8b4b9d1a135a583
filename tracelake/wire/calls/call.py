"""A call of the user API. `wire/calls/user_calls.py` lists all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelake.domain.access.subjects import Role
from tracelake.wire.message import MAX_BODY_BYTES, Message

Service = Literal["worker", "runner", "sink", "query", "gateway", "scheduler", "delivery", "supervisor", "monitor"]
"""A service that calls internal listeners; `wire/service/calls.py` lists the calls of each."""

LARGE_DAG_SECONDS = 300.0
"""Hundreds of jobs are checked and stored job by job."""


@dataclass(frozen=True)
class Call:
    name: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    """Below `/v1` at the Gateway, and below `/internal/v1` at the service that answers it."""
    role: Role
    """The least role that may make it."""
    summary: str
    answer: type[Message]
    query: type[Message] | None = None
    body: type[Message] | None = None
    optional_body: bool = False
    takes_yaml: bool = False
    """The body may also be the YAML itself, under any content type but JSON."""
    takes_bytes: str | None = None
    """The content type of a body that is not a message: it is streamed, never held whole."""
    most_bytes: int = MAX_BODY_BYTES
    """How large a body may be."""
    seconds: float = 30.0
    """How long the answer may take."""
    adds_files: bool = False
    """Refused while the organisation stores as much as it may."""
    platform: bool = False
    """Only platform admins may make it."""
    service: Literal["dispatcher", "delivery", "query"] = "dispatcher"
    """Who answers it."""
