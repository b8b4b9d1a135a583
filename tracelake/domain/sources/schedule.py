"""The slots of a schedule, as instants in UTC. No clock: the caller says after which instant.

A schedule is five fields as in crontab (`cronsim` finds the matching times), or `rate(...)` or `cron(...)` as in
EventBridge. The fields are matched against the wall clock of a time zone; `Dst` decides what happens to a time of that
clock that does not exist or that occurs twice. A schedule whose hour begins with `*` follows the wall clock as it is,
because it means an interval: every instant whose time matches is a slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tracelake.domain.sources.eventbridge import wall_times

RATE: Final = re.compile(r"rate\(([1-9][0-9]{0,5}) (minute|hour|day)(s?)\)")
EVENTBRIDGE: Final = re.compile(r"cron\((.*)\)")
_SECONDS: Final = {"minute": 60, "hour": 3_600, "day": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_SHIFT: Final = timedelta(hours=4)
"""No zone has set its clock back by as much since 1970: a time that is shown again was shown within it."""
_LAST: Final = datetime(2199, 12, 31, tzinfo=UTC)
"""Slots after it are not looked for."""


class Dst(StrEnum):
    SKIP = "skip"
    """A time that does not exist is no slot; one that occurs twice is two."""
    ONCE = "once"
    """A time that does not exist is no slot; one that occurs twice is a slot the first time."""
    RUN_AFTER = "run_after"
    """As `once`, and a time that does not exist is a slot when the clock has been set forward."""


@dataclass(frozen=True, slots=True)
class Schedule:
    text: str
    tz: str = "UTC"
    dst: Dst = Dst.RUN_AFTER

    def slots_after(self, after: datetime) -> Iterator[datetime]:
        """The slots later than `after`, each once, in their order."""
        rate = RATE.fullmatch(self.text)
        if rate is not None:
            return _multiples(timedelta(seconds=int(rate[1]) * _SECONDS[rate[2]]), after)
        return _rising(self._instants(after), after)

    def _instants(self, after: datetime) -> Iterator[datetime]:
        zone = ZoneInfo(self.tz)
        start = (after - _LONGEST_SHIFT).astimezone(zone).replace(tzinfo=None)
        rule = Dst.SKIP if self._is_interval else self.dst
        waiting: list[datetime] = []
        for time in self._wall_times(start):
            earliest, instants = _instants_of(time, zone, rule)
            for instant in instants:
                heappush(waiting, instant)
            while waiting and waiting[0] <= earliest:
                yield heappop(waiting)
        yield from sorted(waiting)

    @property
    def _is_interval(self) -> bool:
        cloud = EVENTBRIDGE.fullmatch(self.text)
        return (cloud[1] if cloud else self.text).split()[1].startswith("*")

    def _wall_times(self, start: datetime) -> Iterator[datetime]:
        """The times of the wall clock that match, later than `start`."""
        cloud = EVENTBRIDGE.fullmatch(self.text)
        if cloud is not None:
            return wall_times(cloud[1].split(), start)
        try:
            return iter(CronSim(self.text, start))
        except CronSimError:
            return iter(())


def _multiples(every: timedelta, after: datetime) -> Iterator[datetime]:
    """Counted from 1970: the same slots whenever the schedule was deployed."""
    slot = _EPOCH + ((after - _EPOCH) // every) * every
    while slot < _LAST:
        slot += every
        yield slot


def _instants_of(time: datetime, zone: ZoneInfo, rule: Dst) -> tuple[datetime, tuple[datetime, ...]]:
    """When the wall clock shows that time, by the rule; and an instant before which no later time is shown."""
    first, second = (time.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first == second:
        return first, (first,)
    if first < second:
        return first, (first, second) if rule is Dst.SKIP else (first,)
    jump = _jump_between(second, first, zone)
    return jump, (jump,) if rule is Dst.RUN_AFTER else ()


def _jump_between(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The instant at which the clock is set forward, to the second."""
    old = before.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        same = (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == old
        low, high = (middle, high) if same else (low, middle)
    return before + timedelta(seconds=high)


def _rising(instants: Iterator[datetime], after: datetime) -> Iterator[datetime]:
    """Those later than `after`. Times that fall on one instant are one slot."""
    last = after
    for instant in instants:
        if instant > last:
            last = instant
            yield instant
