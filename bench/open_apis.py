"""Starts a Gateway or a Dispatcher that authorises nobody: what `bench.gateway` compares the real ones with.

Everything else is theirs: `python -m bench.open_apis gateway --settings -`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tracelake.dispatcher.http import user_routes
from tracelake.gateway.users import UserGate
from tracelake.store.first_start import FIRST_ADMIN
from tracelake.store.identity import User, find_user
from tracelake.wire.service import gate
from tracelake.wiring import run_from_stdin

_users: dict[str, User] = {}


def main() -> None:
    for where, name, other in (
        (UserGate, "subject", _subject),
        (gate, "_guard", _open),
        (user_routes, "calling_user", _same_user),
    ):
        assert hasattr(where, name)
        setattr(where, name, other)
    run_from_stdin(sys.argv[1])


async def _subject(gate: UserGate, request: Request) -> str:  # noqa: ARG001 - in place of a method
    return FIRST_ADMIN


def _open(endpoint: gate.Endpoint, *_: Any) -> Callable[[Request], Awaitable[Response]]:
    return endpoint


async def _same_user(pool: Any, *_: Any) -> User:
    """Found once: a call costs no look at users."""
    if FIRST_ADMIN not in _users:
        found = await find_user(pool, FIRST_ADMIN)
        assert found is not None
        _users[FIRST_ADMIN] = found
    return _users[FIRST_ADMIN]


if __name__ == "__main__":
    main()
