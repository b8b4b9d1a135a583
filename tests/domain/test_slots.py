"""The slots of schedules around every change of clocks of twenty zones, 2020 to 2035, against a walk minute by minute.

The oracle asks `zoneinfo` what each clock shows at every minute, and knows only which times a schedule names.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from tracelake.domain.sources.schedule import Dst, Schedule

MINUTE = timedelta(minutes=1)
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
ZONES = (
    "Antarctica/Troll",  # by two hours
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",  # winter time is the exception there
    "Africa/Juba",  # another offset since 2021
    "Europe/Lisbon",
    "America/New_York",
    "America/Asuncion",  # at midnight
    "America/St_Johns",  # half an hour beside its neighbours
    "America/Santiago",  # at midnight
    "America/Havana",  # at midnight
    "America/Scoresbysund",  # changed its zone
    "Asia/Tehran",  # at midnight, until 2022
    "Asia/Beirut",  # at midnight
    "Asia/Gaza",  # by dates of its own
    "America/Nuuk",  # an hour before midnight, with another offset since 2023
    "Africa/Casablanca",  # twice a year, by Ramadan
    "Africa/Cairo",  # at midnight, since 2023
    "Australia/Lord_Howe",  # by half an hour
    "Pacific/Apia",
)
TIMES = ("30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "*/20 * * * *", "5 * * * *", "59 23 * * *", "30 23-23 * * *")


@cache
def transitions(zone: str) -> tuple[datetime, ...]:
    """To the minute, by halving the day in which the offset changes."""
    clock, found = ZoneInfo(zone), []
    days = int((LAST - FIRST).days)
    offsets = [(FIRST + timedelta(days=day)).astimezone(clock).utcoffset() for day in range(days + 1)]
    for day in range(days):
        if offsets[day] != offsets[day + 1]:
            low, high = 0, 24 * 60
            while high - low > 1:
                middle = (low + high) // 2
                at = FIRST + timedelta(days=day, minutes=middle)
                low, high = (middle, high) if at.astimezone(clock).utcoffset() == offsets[day] else (low, middle)
            found.append(FIRST + timedelta(days=day, minutes=high))
    return tuple(found)


@dataclass(frozen=True)
class Shown:
    """What a clock shows at a minute."""

    at: datetime
    time: tuple[int, int]
    again: bool
    """It showed this time before."""
    skipped: tuple[tuple[int, int], ...]
    """Times that it has just passed over."""


@cache
def walk(zone: str, change: datetime) -> tuple[Shown, ...]:
    """Every minute from six hours before the change to five hours after it."""
    clock, seen, found = ZoneInfo(zone), set[datetime](), []
    before = (change - timedelta(hours=6)).astimezone(clock).replace(tzinfo=None)
    for number in range(11 * 60 + 1):
        at = change + timedelta(hours=-6, minutes=number)
        local = at.astimezone(clock).replace(tzinfo=None)
        skipped = [before + step * MINUTE for step in range(1, int((local - before) / MINUTE))]
        times = tuple((time.hour, time.minute) for time in skipped)
        found.append(Shown(at, (local.hour, local.minute), local in seen, times))
        seen.add(local)
        before = local
    return tuple(found)


def oracle(times: str, zone: str, rule: Dst, change: datetime) -> list[datetime]:
    """The slots of the nine hours around a change."""
    minutes, hours = (expand(field, most) for field, most in zip(times.split()[:2], (60, 24), strict=True))
    wanted = {(hour, minute) for hour in hours for minute in minutes}
    literal = rule is Dst.SKIP or times.split()[1].startswith("*")
    return [
        shown.at
        for shown in walk(zone, change)
        if shown.at > change - timedelta(hours=4)
        and (
            (shown.time in wanted and (literal or not shown.again))
            or (not literal and rule is Dst.RUN_AFTER and bool(wanted & set(shown.skipped)))
        )
    ]


def expand(field: str, most: int) -> set[int]:
    span, _, step = field.partition("/")
    if span == "*":
        return set(range(0, most, int(step or 1)))
    found: set[int] = set()
    for part in span.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("rule", list(Dst))
@pytest.mark.parametrize("zone", ZONES)
def test_slots_around_every_change_of_a_clock_are_those_of_a_walk_over_the_minutes(zone: str, rule: Dst) -> None:
    assert transitions(zone), "a zone whose clock never changes shows nothing"
    for number, change in enumerate(transitions(zone)):
        times = TIMES[number % len(TIMES)] if number else TIMES[0]
        for wanted in {times, *TIMES[:3]}:  # those that a change of clocks skips or repeats, also at midnight
            first, last = change - timedelta(hours=4), change + timedelta(hours=5)
            found = Schedule(wanted, zone, rule).slots_after(first)
            slots = list(takewhile(lambda slot: slot <= last, found))  # noqa: B023 - used at once
            assert slots == oracle(wanted, zone, rule, change), (zone, wanted, change)


@pytest.mark.parametrize("zone", ZONES)
def test_a_slot_is_the_same_whenever_it_is_asked_for(zone: str) -> None:
    for change in transitions(zone)[:4]:
        schedule, start = Schedule("15,45 1-3 * * *", zone), change - timedelta(hours=30)
        slots = list(islice(schedule.slots_after(start), 20))
        for before, slot in pairwise(slots):
            assert next(schedule.slots_after(before)) == slot
            assert next(schedule.slots_after(slot - MINUTE)) == slot


def test_a_daily_time_fires_once_a_day_by_the_default_rule() -> None:
    for zone in ("Europe/Berlin", "America/Santiago", "Australia/Lord_Howe"):
        clock, schedule = ZoneInfo(zone), Schedule("30 2 * * *", zone)
        slots = list(islice(schedule.slots_after(FIRST), 800))
        days = [slot.astimezone(clock).date() for slot in slots]
        assert len(set(days)) == len(days)
        assert (days[-1] - days[0]).days == len(days) - 1, zone


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cron(0 12 L * ? *)", ["2028-01-31", "2028-02-29", "2028-03-31"]),
        ("cron(0 12 15W * ? *)", ["2028-01-14", "2028-02-15", "2028-03-15"]),  # the 15th of January is a Saturday
        ("cron(0 12 1W * ? *)", ["2028-01-03", "2028-02-01", "2028-03-01"]),
        ("cron(0 12 LW * ? *)", ["2028-01-31", "2028-02-29", "2028-03-31"]),
        ("cron(0 12 ? * 6#3 *)", ["2028-01-21", "2028-02-18", "2028-03-17"]),
        ("cron(0 12 ? * FRI#3 *)", ["2028-01-21", "2028-02-18", "2028-03-17"]),
        ("cron(0 12 ? * 6L *)", ["2028-01-28", "2028-02-25", "2028-03-31"]),
        ("cron(0 12 ? * 1 *)", ["2028-01-02", "2028-01-09", "2028-01-16"]),  # 1 is Sunday
        ("cron(0 12 ? 2 MON-FRI 2029)", ["2029-02-01", "2029-02-02", "2029-02-05"]),
        ("0 12 * * 0", ["2028-01-02", "2028-01-09", "2028-01-16"]),
        ("0 12 13 * 5", ["2028-01-07", "2028-01-13", "2028-01-14"]),  # as in crontab: either day
        ("0 12 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("rate(2 days)", ["2028-01-03", "2028-01-05", "2028-01-07"]),
    ],
)
def test_days_are_those_that_crontab_and_eventbridge_mean(text: str, expected: list[str]) -> None:
    slots = islice(Schedule(text).slots_after(datetime(2028, 1, 1, tzinfo=UTC)), 3)
    assert [f"{slot:%Y-%m-%d}" for slot in slots] == expected
