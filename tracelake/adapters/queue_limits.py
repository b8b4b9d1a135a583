"""What every queue refuses before it is asked: names, counts and durations that no adapter can carry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from tracelake.errors import InvalidRequest
from tracelake.ports import QUEUE_NAME, VISIBILITY_LIMIT

LIST_LIMIT: Final = 10_000
"""The most messages or dead letters that one call returns."""
SHORTEST: Final = timedelta(milliseconds=1)


def check_receive(queues: Mapping[str, int], max_messages: int, visibility: timedelta, wait: timedelta) -> None:
    check_count(max_messages, "/max_messages")
    for name, most in queues.items():
        check_queue(name)
        check_count(most, "/queue")
    check_duration(visibility, "/visibility", at_least=SHORTEST)
    check_duration(wait, "/wait")


def check_queue(name: str) -> None:
    if not re.fullmatch(QUEUE_NAME, name):
        raise InvalidRequest(f"{name!r} cannot be the name of a queue", where="/queue", hint=f"use {QUEUE_NAME}")


def check_count(count: int, where: str) -> None:
    if not 1 <= count <= LIST_LIMIT:
        raise InvalidRequest(f"{count} is not between 1 and {LIST_LIMIT}", where=where)


def check_duration(duration: timedelta, where: str, *, at_least: timedelta = timedelta()) -> None:
    if not at_least <= duration <= VISIBILITY_LIMIT:
        raise InvalidRequest(f"{duration} is not between {at_least} and {VISIBILITY_LIMIT}", where=where)
