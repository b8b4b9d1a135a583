"""`cron(minute hour day month weekday year)` as EventBridge writes it: the times of a wall clock that match.

Beyond crontab it has a year, `L` (the last day), `15W` (the weekday nearest to the 15th), `6#3` (the third Friday), and
weekdays that count from 1, which is Sunday.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Final

MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 2199
_SATURDAY: Final = 7
_WEEKEND: Final = (5, 6)
_WEEK: Final = 7

DayTest = Callable[[date], bool]


def wall_times(fields: Sequence[str], start: datetime) -> Iterator[datetime]:
    """Times later than `start`, in their order. The fields have been checked."""
    minutes = _numbers(fields[0], 0, 59)
    hours = _numbers(fields[1], 0, 23)
    for day in _days(fields, start.date()):
        for hour in hours:
            for minute in minutes:
                time = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - of a wall clock
                if time > start:
                    yield time


def _days(fields: Sequence[str], first: date) -> Iterator[date]:
    months = set(_numbers(fields[3], 1, 12, MONTHS))
    years = set(_numbers(fields[5], FIRST_YEAR, LAST_YEAR))
    matches = _day_of_week(fields[4]) if fields[2] == "?" else _day_of_month(fields[2])
    for year in range(max(first.year, FIRST_YEAR), LAST_YEAR + 1):
        for month in sorted(months) if year in years else ():
            for number in range(1, calendar.monthrange(year, month)[1] + 1):
                day = date(year, month, number)
                if day >= first and matches(day):
                    yield day


def _day_of_month(text: str) -> DayTest:
    if text == "L":
        return lambda day: day.day == _last_of(day)
    if text == "LW":
        return lambda day: day == _nearest_weekday(day.replace(day=_last_of(day)))
    if text.endswith("W"):
        wanted = int(text[:-1])
        return lambda day: 1 <= wanted <= _last_of(day) and day == _nearest_weekday(day.replace(day=wanted))
    numbers = set(_numbers(text, 1, 31))
    return lambda day: day.day in numbers


def _day_of_week(text: str) -> DayTest:
    if text == "L":
        return lambda day: _weekday(day) == _SATURDAY
    if text.endswith(("L", "l")):
        wanted = _numbers(text[:-1], 1, 7, DAYS)[0]
        return lambda day: _weekday(day) == wanted and day.day + _WEEK > _last_of(day)
    if "#" in text:
        name, _, nth = text.partition("#")
        wanted = _numbers(name, 1, 7, DAYS)[0]
        return lambda day: _weekday(day) == wanted and (day.day + 6) // _WEEK == int(nth)
    numbers = set(_numbers(text, 1, 7, DAYS))
    return lambda day: _weekday(day) in numbers


def _numbers(text: str, least: int, most: int, names: Sequence[str] = ()) -> list[int]:
    """`1,5-9,20/5`: a step after a single number goes on to the end."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        start = least if span == "*" else _number(first, least, names)
        end = _number(last, least, names) if dash else most if span == "*" or slash else start
        found.update(range(start, end + 1, int(step or 1)))
    return sorted(found)


def _number(text: str, least: int, names: Sequence[str]) -> int:
    return names.index(text.lower()) + least if text.lower() in names else int(text)


def _weekday(day: date) -> int:
    """From 1, which is Sunday."""
    return day.isoweekday() % _WEEK + 1


def _last_of(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def _nearest_weekday(day: date) -> date:
    """Within the same month."""
    if day.weekday() not in _WEEKEND:
        return day
    saturday = day.weekday() == _WEEKEND[0]
    before, after = day - timedelta(days=1 if saturday else 2), day + timedelta(days=2 if saturday else 1)
    near, far = (before, after) if saturday else (after, before)
    return near if near.month == day.month else far
