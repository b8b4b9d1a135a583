"""Alerts and channels through the user API: who may what, what is refused and why, and that no secret is ever shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.systems.gateway import System, system

pytestmark = pytest.mark.anyio

READER, WRITER, RIVAL = "acme|reader", "acme|writer", "rival|admin"
SECRET = "a secret of sixteen characters and more"
ALERTS, CHANNELS = "/v1/alerts/definitions", "/v1/alerts/channels"
WHALES = {"name": "whales", "severity": "critical", "params": {"least": "1000"}, "channels": ["ops"]}


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


async def a_channel(trace: System, name: str = "ops", **more: Any) -> Any:
    body = {"name": name, "url": "https://example.org/hook", "secret": SECRET, **more}
    return await trace.got(WRITER, "POST", CHANNELS, json=body)


async def refusal(trace: System, method: str, path: str, body: Any) -> tuple[int, str, str | None]:
    answer = await trace.ask(WRITER, method, path, json=body)
    said = answer.json()["error"]
    return answer.status_code, said["where"], said["hint"]


async def test_an_alert_is_defined_shown_changed_and_removed(trace: System) -> None:
    await a_channel(trace)
    made = await trace.got(WRITER, "POST", ALERTS, json=WHALES)
    assert made["channels"] == ["ops"]
    assert (made["enabled"], made["max_age_seconds"], made["created_by"]) == (True, None, WRITER)
    assert await trace.got(READER, "GET", f"{ALERTS}/whales") == made
    assert (await trace.got(READER, "GET", ALERTS))["definitions"] == [made]

    changed = await trace.got(WRITER, "PATCH", f"{ALERTS}/whales", json={"enabled": False, "max_age_seconds": 60})
    assert changed == made | {"enabled": False, "max_age_seconds": 60, "updated_at": changed["updated_at"]}
    back = await trace.got(WRITER, "PATCH", f"{ALERTS}/whales", json={"max_age_seconds": None, "channels": []})
    assert (back["max_age_seconds"], back["channels"], back["enabled"]) == (None, [], False)

    assert await trace.got(WRITER, "DELETE", f"{ALERTS}/whales") == {"name": "whales"}
    assert await trace.refused(READER, "GET", f"{ALERTS}/whales") == (404, "not_found")


async def test_a_secret_is_never_shown_again(trace: System) -> None:
    await a_channel(trace)
    made = await trace.got(WRITER, "POST", CHANNELS, json={"name": "page", "url": "https://example.org/"})
    assert len(made["secret"]) >= 32, "one was made, and is said once"
    shown = await trace.got(WRITER, "PATCH", f"{CHANNELS}/page", json={"secret": SECRET})
    answers = [
        shown,
        await trace.got(READER, "GET", CHANNELS),
        await trace.got(READER, "GET", f"{CHANNELS}/ops"),
        await trace.got(READER, "GET", f"{CHANNELS}/page"),
    ]
    for answer in answers:
        assert "secret" not in str(answer)
        assert SECRET not in str(answer)
        assert made["secret"] not in str(answer)


async def test_a_channel_that_an_alert_uses_cannot_be_removed(trace: System) -> None:
    await a_channel(trace)
    await trace.got(WRITER, "POST", ALERTS, json=WHALES)
    answer = await trace.ask(WRITER, "DELETE", f"{CHANNELS}/ops")
    assert answer.status_code == 409
    assert "whales" in answer.json()["error"]["message"]
    await trace.got(WRITER, "PATCH", f"{ALERTS}/whales", json={"channels": []})
    await trace.got(WRITER, "DELETE", f"{CHANNELS}/ops")
    assert (await trace.got(READER, "GET", CHANNELS))["channels"] == []


async def test_what_is_wrong_is_refused_at_its_place(trace: System) -> None:
    await a_channel(trace)
    assert await refusal(trace, "POST", ALERTS, WHALES | {"channels": ["opps"]}) == (
        400,
        "/channels/0",
        "did you mean ops?",
    )
    assert (await trace.got(READER, "GET", ALERTS))["definitions"] == [], "all of it or nothing"
    await trace.got(WRITER, "POST", ALERTS, json=WHALES)
    for body, where in (
        (WHALES, "/name"),
        (WHALES | {"name": "Whales"}, "/name"),
        (WHALES | {"name": "other", "severity": "high"}, "/severity"),
        (WHALES | {"name": "other", "max_age_seconds": 0}, "/max_age_seconds"),
        (WHALES | {"name": "other", "params": [1]}, "/params"),
        (WHALES | {"name": "other", "org_id": "x"}, "/org_id"),
    ):
        status, at, _ = await refusal(trace, "POST", ALERTS, body)
        assert (status in {400, 409}, at) == (True, where), body
    assert (await refusal(trace, "PATCH", f"{ALERTS}/whale", {}))[2] == "did you mean whales?"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org",
        "https://user:password@example.org/",
        "https://@example.org/",
        "https:///path",
        "https://exa mple.org/",
        "https://example.org\\@evil.org/",
        "https://example.org/\r\nHost: x",
        "https://example.org:0/",
        "https://example.org:99999/",
        "https://example.org/#part",
        "https://[::1/",
        "//example.org",
        "example.org",
        "https://ex\u00e4mple.org/",
        "http://169.254.169.254/latest/meta-data/",
        "https://169.254.0.1:8443/",
        "https://2852039166/",
        "https://0xa9.0xfe.0xa9.0xfe/",
        "https://0251.0376.43518/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[::ffff:169.254.169.254]/",
        "https://[fd00:ec2::254]/",
    ],
)
async def test_an_invalid_address_is_refused(trace: System, url: str) -> None:
    status, where, _ = await refusal(trace, "POST", CHANNELS, {"name": "ops", "url": url, "secret": SECRET})
    assert (status, where) == (400, "/url")
    await a_channel(trace, "fine")
    assert (await refusal(trace, "PATCH", f"{CHANNELS}/fine", {"url": url}))[:2] == (400, "/url")


async def test_alerts_of_another_organisation_are_not_found(trace: System) -> None:
    await a_channel(trace)
    await trace.got(WRITER, "POST", ALERTS, json=WHALES)
    assert (await trace.got(RIVAL, "GET", ALERTS))["definitions"] == []
    assert (await trace.got(RIVAL, "GET", CHANNELS))["channels"] == []
    for method, path, body in (
        ("GET", f"{ALERTS}/whales", None),
        ("PATCH", f"{ALERTS}/whales", {"enabled": False}),
        ("DELETE", f"{ALERTS}/whales", None),
        ("GET", f"{CHANNELS}/ops", None),
        ("PATCH", f"{CHANNELS}/ops", {"url": "https://rival.org/"}),
        ("DELETE", f"{CHANNELS}/ops", None),
    ):
        assert await trace.refused(RIVAL, method, path, json=body or {}) == (404, "not_found"), (method, path)
    assert (await trace.ask(RIVAL, "POST", ALERTS, json=WHALES)).status_code == 400, "the channel is not theirs"
    await trace.got(RIVAL, "POST", ALERTS, json=WHALES | {"channels": []})  # a name is an organisation's own
    assert (await trace.got(READER, "GET", f"{ALERTS}/whales"))["enabled"]


async def test_a_reader_reads_and_a_writer_edits(trace: System) -> None:
    await a_channel(trace)
    await trace.got(WRITER, "POST", ALERTS, json=WHALES)
    for method, path in (
        ("POST", ALERTS),
        ("PATCH", f"{ALERTS}/whales"),
        ("DELETE", f"{ALERTS}/whales"),
        ("POST", CHANNELS),
        ("PATCH", f"{CHANNELS}/ops"),
        ("DELETE", f"{CHANNELS}/ops"),
    ):
        assert await trace.refused(READER, method, path, json={}) == (403, "forbidden")
