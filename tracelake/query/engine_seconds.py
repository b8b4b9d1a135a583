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


class EngineSeconds:
    """`per_minute` of 0: no limit. Belongs to one event loop."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._accounts: dict[UUID, _Account] = {}

    def check(self, org_id: UUID) -> None:
        """Raise if the organisation has used up its time."""
        account = self._accounts.get(org_id)
        if account is None:
            return
        self._fill(account)
        if account.balance >= self._per_minute:
            del self._accounts[org_id]  # as if it had never been used
        elif account.balance <= 0:
            raise self._used_up(account)

    def charge(self, org_id: UUID, seconds: float) -> None:
        if self._per_minute:
            account = self._accounts.setdefault(org_id, _Account(self._per_minute, self._clock()))
            self._fill(account)
            account.balance -= seconds

    def _fill(self, account: _Account) -> None:
        now = self._clock()
        account.balance += (now - account.since) * self._per_minute / MINUTE
        account.balance, account.since = min(account.balance, self._per_minute), now

    def _used_up(self, account: _Account) -> Busy:
        error = Busy(
            f"the organisation's queries ran for more than {self._per_minute:g} s in a minute",
            hint="retry later, read less, or raise query.engine_seconds",
        )
        error.retry_after = max(1, math.ceil(-account.balance * MINUTE / self._per_minute))
        return error
