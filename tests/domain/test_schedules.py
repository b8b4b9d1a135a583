"""Schedules and durations: what is one and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.domain.dag.form import format_duration, parse_duration
from tracelake.domain.dag.schedules import why_no_schedule


@pytest.mark.parametrize(
    "text",
    [
        "0 0 * * *",
        "*/5 * * * *",
        "0,30 8-18/2 1-15 jan,JUN mon-FRI",
        "0 0 29 2 *",
        "0 0 31 * *",
        "0 0 30 2 1",
        "0 0 * * 7",
        "rate(1 minute)",
        "rate(5 minutes)",
        "rate(12 hours)",
        "rate(2 days)",
        "cron(0 12 * * ? *)",
        "cron(0/15 8-17 ? * MON-FRI *)",
        "cron(0 0 L * ? 2025-2030)",
        "cron(0 0 ? * 6#3 *)",
        "cron(0 0 15W * ? *)",
    ],
)
def test_a_schedule(text: str) -> None:
    assert why_no_schedule(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "five fields"),
        ("* * * *", "not 4"),
        ("* * * * * *", "not 6"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of week"),
        ("5-1 * * * *", "minute"),
        ("1- * * * *", "minute"),
        ("*/0 * * * *", "step"),
        ("*/x * * * *", "step"),
        ("*/99999999 * * * *", "step"),
        ("1,,2 * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("0 0 30 2 *", "never run"),
        ("0 0 31 4,jun *", "never run"),
        ("@daily", "five fields"),
        ("rate(0 minutes)", "rate("),
        ("rate(5 minute)", "rate(5 minutes)"),
        ("rate(1 hours)", "rate(1 hour)"),
        ("rate(5 weeks)", "rate("),
        ("cron(0 12 * * *)", "six fields"),
        ("cron(0 12 * * * *)", "exactly one"),
        ("cron(0 12 ? * ? *)", "exactly one"),
        ("cron(0 12 * * ? 1969)", "year"),
    ],
)
def test_not_a_schedule_and_why(text: str, reason: str) -> None:
    assert reason in (why_no_schedule(text) or "")


@given(st.text(max_size=30) | st.text("0123456789*/,-? ()cronrate", max_size=30))
def test_any_text_gets_an_answer(text: str) -> None:
    why_no_schedule(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("1d1h1m1s", 90061), ("0s", 0)],
)
def test_a_duration(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", " 5m", "5 m", "5M", "-5m", "1.5h", "5ms", "5m1h", "5m5m", "1e3", "٣s", "9999999999s"]
)
def test_not_a_duration(text: str) -> None:
    assert parse_duration(text) is None


@given(st.integers(0, 10**9))
def test_a_duration_is_read_back(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds
