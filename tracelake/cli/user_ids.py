"""A user as the command line names one: by subject, or by id."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from tracelake.errors import NotFound
from tracelake.wire.user.identity import UserList

if TYPE_CHECKING:
    from tracelake.cli.api import Remote


def user_id(gateway: Remote, subject_or_id: str) -> UUID:
    """A subject may be any text, also one with slashes: it is looked up, and paths hold the id."""
    found = gateway.call("list_users", UserList, query={"subject": subject_or_id}).users
    if found:
        return found[0].id
    try:
        return UUID(subject_or_id)
    except ValueError:
        raise NotFound(
            f"there is no user {subject_or_id!r}", where="SUBJECT", hint="`trace user list` lists the users"
        ) from None
