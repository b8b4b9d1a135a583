"""Whether a cron schedule can be one: five fields as in crontab, or `rate(...)` / `cron(...)` as in EventBridge.

The check at deploy time, with reasons that name the field; `domain/sources/schedule.py` finds the slots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from tracelake.domain.sources.eventbridge import DAYS, MONTHS
from tracelake.domain.sources.schedule import EVENTBRIDGE, RATE, Schedule

_BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
"""Trace is younger: a schedule without a slot after it has none."""
_SPECIAL_DAY = re.compile(r"L|LW|[0-9]{1,2}W")
_SPECIAL_WEEKDAY = re.compile(r"L|([1-7]|SUN|MON|TUE|WED|THU|FRI|SAT)(L|#[1-5])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    """Names for `least`, `least` + 1, ..."""


_MINUTE, _HOUR, _DAY = _Field("minute", 0, 59), _Field("hour", 0, 23), _Field("day of month", 1, 31)
_MONTH = _Field("month", 1, 12, MONTHS)
_CRONTAB = (_MINUTE, _HOUR, _DAY, _MONTH, _Field("day of week", 0, 7, DAYS))
_CLOUD = (_MINUTE, _HOUR, _DAY, _MONTH, _Field("day of week", 1, 7, DAYS), _Field("year", 1970, 2199))


def why_no_schedule(text: str) -> str | None:
    """What is wrong with it; None if it is a schedule."""
    if text.startswith("rate("):
        return _why_no_rate(text)
    cloud = EVENTBRIDGE.fullmatch(text)
    reason = _why_no_cloud_cron(cloud[1].split()) if cloud else _why_no_crontab(text.split())
    return reason or _why_never(text)


def why_skipped(schedule: Schedule) -> str | None:
    """Why a schedule that names days has no slot in its zone; None if it has one."""
    if next(schedule.slots_after(_BEGIN), None) is None:
        rule = f"with `dst: {schedule.dst}` it would never run"
        return f"clocks in {schedule.tz} are set forward over every such time: {rule}"
    return None


def why_over(schedule: Schedule, now: datetime) -> str | None:
    """Why a schedule that names years has no slot any more; None if it has one."""
    cloud = EVENTBRIDGE.fullmatch(schedule.text)
    if cloud is None or cloud[1].split()[-1] == "*" or next(schedule.slots_after(now), None) is not None:
        return None
    return f"its last time was before {now:%Y-%m-%d %H:%M} UTC: it would never run"


def _why_no_rate(text: str) -> str | None:
    match = RATE.fullmatch(text)
    if match is None:
        return "a rate is written rate(5 minutes), rate(1 hour) or rate(2 days)"
    if (match[1] == "1") == (match[3] == "s"):
        return f"write rate({match[1]} {match[2]}{'' if match[1] == '1' else 's'})"
    return None


def _why_no_cloud_cron(fields: list[str]) -> str | None:
    if len(fields) != len(_CLOUD):
        return f"cron(...) has six fields (minute hour day month weekday year), not {len(fields)}"
    day, weekday = fields[2], fields[4]
    if (day == "?") == (weekday == "?"):
        return "in cron(...) exactly one of day of month and day of week is '?'"
    special = {2: day == "?" or bool(_SPECIAL_DAY.fullmatch(day))}
    special[4] = weekday == "?" or bool(_SPECIAL_WEEKDAY.fullmatch(weekday))
    plain = [
        (text, field) for index, (text, field) in enumerate(zip(fields, _CLOUD, strict=True)) if not special.get(index)
    ]
    return next(filter(None, (_why_no_field(text, field) for text, field in plain)), None)


def _why_no_crontab(fields: list[str]) -> str | None:
    if len(fields) != len(_CRONTAB):
        return f"a schedule has five fields (minute hour day month weekday), not {len(fields)}"
    reasons = (_why_no_field(text, field) for text, field in zip(fields, _CRONTAB, strict=True))
    return next(filter(None, reasons), None)


def _why_no_field(text: str, field: _Field) -> str | None:
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isascii() and step.isdigit() and 0 < int(step[:4]) <= field.most):
            return f"{field.name}: the step {step[:20]!r} is not a number from 1 to {field.most}"
        if span == "*":
            continue
        first, _, last = span.partition("-")
        ends = [_number(end, field) for end in ([first, last] if "-" in span else [first])]
        if None in ends or ends != sorted(ends, key=lambda end: end or 0):
            return f"{field.name}: {part[:20]!r} is not {field.least} to {field.most}, a range of them, or '*'"
    return None


def _number(text: str, field: _Field) -> int | None:
    if text.lower() in field.names:
        return field.names.index(text.lower()) + field.least
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(field.most))):
        return None
    return int(text) if field.least <= int(text) <= field.most else None


def _why_never(text: str) -> str | None:
    """A day that none of the months has, such as 30 February, or a year that is over."""
    if next(Schedule(text).slots_after(_BEGIN), None) is None:
        return "no day is like that: it would never run"
    return None
