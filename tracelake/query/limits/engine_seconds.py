"""Limits for how long the queries of an organisation may run in a minute, on all engines together.

Each organisation has an account that fills by `query.engine_seconds` a minute, up to that much. A query costs the time
from when it gets a slot until nothing works for it. As long as the account is empty, the organisation's next queries
are refused; a query that has begun is not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tracelake.errors import Busy

MINUTE: Final = 60.0


@dataclass
class _Account:
    balance: float
    since: float
    per_minute: float


class EngineSeconds:
    """`per_minute`: of an organisation without a limit of its own; 0: no limit. Belongs to one event loop."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._accounts: dict[UUID, _Account] = {}

    def check(self, org_id: UUID, own: float | None = None) -> None:
        """Raise if the organisation has used up its time. `own`: its own limit."""
        account = self._accounts.get(org_id)
        if account is None:
            return
        if not (own or self._per_minute):  # the limit was taken away
            del self._accounts[org_id]
            return
        self._fill(account, own)
        if account.balance >= account.per_minute:
            del self._accounts[org_id]  # as if it had never been used
        elif account.balance <= 0:
            raise self._used_up(account)

    def charge(self, org_id: UUID, seconds: float, own: float | None = None) -> None:
        per_minute = own or self._per_minute
        if per_minute:
            account = self._accounts.setdefault(org_id, _Account(per_minute, self._clock(), per_minute))
            self._fill(account, own)
            account.balance -= seconds

    def _fill(self, account: _Account, own: float | None) -> None:
        """As much was used as before, whatever the limit is now."""
        now, per_minute = self._clock(), own or self._per_minute
        account.balance += (now - account.since) * account.per_minute / MINUTE + per_minute - account.per_minute
        account.balance, account.since = min(account.balance, per_minute), now
        account.per_minute = per_minute

    def _used_up(self, account: _Account) -> Busy:
        error = Busy(
            f"the organisation's queries ran for more than {account.per_minute:g} s in a minute",
            hint="retry later, read less, or raise its limit (query_seconds; for all, query.engine_seconds)",
        )
        error.retry_after = max(1, math.ceil(-account.balance * MINUTE / account.per_minute))
        return error
