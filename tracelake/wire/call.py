"""What a call of the user API is. All of them stand in `wire/user_calls.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelake.wire.task_messages import MAX_BODY_BYTES, Message

Role = Literal["reader", "writer", "admin"]
ROLES: tuple[Role, ...] = ("reader", "writer", "admin")
"""Rising: each may what those before it may."""


@dataclass(frozen=True)
class Call:
    name: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    """Below `/v1` at the Gateway, and below `/internal/v1` at the door that answers it."""
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
    """The content type of a body that is no message but bytes: it is passed on as it comes, never held whole."""
    most_bytes: int = MAX_BODY_BYTES
    """How large a body may be."""
    seconds: float = 30.0
    """How long the answer may take before whoever waits for it gives up."""
    service: Literal["dispatcher", "delivery"] = "dispatcher"
    """Who answers it."""
