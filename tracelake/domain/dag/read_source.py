"""Reads what starts a source: `source` of a job."""

from __future__ import annotations

import re
from typing import Final
from zoneinfo import available_timezones

from tracelake.domain.dag.form import ANY_TEXT, DAY, Form, TextPattern
from tracelake.domain.dag.model import Source, SourceKind
from tracelake.domain.dag.schedules import why_no_schedule, why_skipped
from tracelake.domain.dag.yaml_nodes import Scalar
from tracelake.domain.sources.decide_slots import Overlap
from tracelake.domain.sources.schedule import RATE, Dst, Schedule
from tracelake.domain.sources.signatures import SIGNS_TIME, HookScheme
from tracelake.domain.text.suggest import nearest

SECRET = TextPattern(
    re.compile(r"(?=.{1,64}\Z)[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*"),
    "the name of a secret: letters and digits, words joined by one underscore, at most 64 characters",
    code="bad_name",
)
FIELDS_OF: Final = {
    SourceKind.CRON: frozenset({"schedule", "tz", "dst", "overlap", "catch_up", "jitter", "pause_on_failure"}),
    SourceKind.WEBHOOK: frozenset({"scheme", "secret", "tolerance", "max_bytes"}),
}
CATCH_UP_SECONDS: Final = 3_600
TOLERANCE_SECONDS: Final = 300
MAX_BYTES: Final = 256 * 1024
MOST_BYTES: Final = 1024 * 1024
"""What the Gateway reads of any call."""
SCHEDULES: Final = 'such as "0 0 * * *" or "rate(5 minutes)"'


def read_source(form: Form) -> Source | None:
    inner = form.form("source")
    if inner is None:
        return None
    inner.require("kind", f"one of: {', '.join(SourceKind)}")
    kind = inner.choice("kind", SourceKind, SourceKind.MANUAL)
    cron, hook = _cron(inner), _hook(inner)
    if not isinstance(given := inner.node("kind"), Scalar) or given.value != kind:
        return Source(kind)
    _refuse_other_fields(kind, inner)
    if kind is SourceKind.CRON:
        _check_schedule(cron, inner)
        return cron
    if kind is SourceKind.WEBHOOK:
        _check_hook(hook, inner)
        return hook
    return Source(kind)


def _cron(form: Form) -> Source:
    node = form.node("catch_up")
    never = isinstance(node, Scalar) and node.value == "none"
    return Source(
        SourceKind.CRON,
        schedule=form.text("schedule", ANY_TEXT, None),
        tz=form.text("tz", ANY_TEXT, "UTC"),
        dst=form.choice("dst", Dst, Dst.RUN_AFTER),
        overlap=form.choice("overlap", Overlap, Overlap.SKIP),
        catch_up_seconds=None if never else form.seconds("catch_up", CATCH_UP_SECONDS, most=366 * DAY),
        jitter_seconds=form.seconds("jitter", 0, least=0, most=DAY),
        pause_on_failure=form.flag("pause_on_failure", default=False),
    )


def _hook(form: Form) -> Source:
    scheme = form.choice("scheme", HookScheme, HookScheme.STANDARD)
    tolerance = form.seconds("tolerance", TOLERANCE_SECONDS, most=DAY)
    return Source(
        SourceKind.WEBHOOK,
        scheme=scheme,
        secret=form.text("secret", SECRET, None),
        tolerance_seconds=tolerance if scheme in SIGNS_TIME else None,
        max_bytes=form.whole("max_bytes", MAX_BYTES, least=1, most=MOST_BYTES),
    )


def _refuse_other_fields(kind: SourceKind, form: Form) -> None:
    for name in sorted(form.given - {"kind"} - FIELDS_OF.get(kind, frozenset())):
        _not_for(form, name, f"a {kind} source")


def _check_schedule(source: Source, form: Form) -> None:
    form.require("schedule", SCHEDULES)
    zone = source.tz or "UTC"
    if zone not in available_timezones():
        near = nearest(zone, sorted(available_timezones()))
        form.problems.add(
            (*form.path, "tz"), "unknown_zone", f"there is no time zone {zone[:80]!r}", near or "such as Europe/Berlin"
        )
    if source.schedule is None:
        return
    wrong = why_no_schedule(source.schedule)
    if wrong is not None:
        form.problems.add((*form.path, "schedule"), "bad_schedule", wrong, SCHEDULES)
    elif RATE.fullmatch(source.schedule):
        for name in sorted({"tz", "dst"} & form.given):
            _not_for(form, name, "a rate, which counts in UTC")
    elif zone in available_timezones():
        _check_clock(Schedule(source.schedule, zone, source.dst or Dst.RUN_AFTER), form)


def _check_clock(schedule: Schedule, form: Form) -> None:
    skipped = why_skipped(schedule)
    if skipped is not None:
        hint = f"with `dst: {Dst.RUN_AFTER}` it runs when the clock has been set"
        form.problems.add((*form.path, "schedule"), "bad_schedule", skipped, hint)


def _check_hook(source: Source, form: Form) -> None:
    form.require("secret", "the name of the secret that signs the calls")
    form.require("scheme", f"who signs, and how: {', '.join(HookScheme)}")
    if "tolerance" in form.given and source.scheme not in SIGNS_TIME:
        _not_for(form, "tolerance", f"scheme {source.scheme}, which signs no time")


def _not_for(form: Form, name: str, what: str) -> None:
    reason = f"`{name}` means nothing for {what}"
    form.problems.add((*form.path, name), "not_for_this", reason, "remove it", on_key=True)
