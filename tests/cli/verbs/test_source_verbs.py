"""`trace source`: what a person sees of sources, and does with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dispatcher.control import PULL, WORKS
from tests.support.operators import registered
from tests.support.systems.command_line import Running, Trace
from tests.support.verbs import fire_schedules

pytestmark = pytest.mark.usefixtures("known_operators")

DAG = """\
name: desk
defaults: {runtime: ecs_platform}
jobs:
  - {name: load, operator: works, source: {kind: cron, schedule: "30 2 * * *", tz: Asia/Tokyo, jitter: 1h}}
  - {name: often, operator: works, source: {kind: cron, schedule: "rate(1 minute)"}}
  - {name: hook, operator: works, source: {kind: webhook, scheme: hmac, secret: SHOP}}
  - {name: forwards, operator: pull, source: {kind: webhook, scheme: hmac, secret: SHOP}, outputs: [left, right]}
"""


@pytest.fixture(autouse=True)
def working() -> Iterator[None]:
    with registered(works=WORKS, pull=PULL):
        yield


@pytest.fixture
def deployed(running: Running, trace: Trace, file: Path) -> Running:
    file.write_text(DAG)
    said = trace("dag", "deploy", str(file), "--activate")
    assert said.code == 0, said.err
    return running


async def a_minute_passes(running: Running) -> Any:
    await running.control.pool.execute(
        "UPDATE source_schedules SET decided_until = date_trunc('minute', now()) - interval '2 minutes', due_at = now()"
    )
    return await fire_schedules(running.control)


def test_a_deploy_says_where_the_secret_of_a_webhook_is_missing(running: Running, trace: Trace, file: Path) -> None:
    assert running.control.hook_secrets == {}
    file.write_text(DAG)
    output = trace("dag", "deploy", str(file), "--activate")
    assert output.code == 0, "it may be set later"
    assert f"{file}:6:" in output.err
    assert (
        "secret SHOP is not set: `trace secret set shop --kind webhook`, or TRACE_HOOK_SECRETS__SHOP of" in output.err
    )


def test_sources_are_listed_with_what_they_wait_for(deployed: Running, trace: Trace) -> None:
    deployed.do(a_minute_passes(deployed))
    out = trace("source", "list").out
    assert "desk.hook" in out
    assert "TRACE_HOOK_SECRETS__SHOP" in out
    rows = trace("source", "list", "--dag", "desk", "--json").json["sources"]
    assert [(row["job"], row["ready"], row["last_reason"]) for row in rows] == [
        ("forwards", False, None),
        ("hook", False, None),
        ("load", True, None),
        ("often", True, "overlap"),
    ]
    assert trace("source", "list", "--dag", "other").out.startswith("no sources")


def test_a_source_shows_its_next_five_fires_and_its_last_slots(deployed: Running, trace: Trace) -> None:
    deployed.do(a_minute_passes(deployed))
    out = trace("source", "show", "desk", "load").out
    assert out.count("02:30:00 JST") == 5
    assert out.count("17:30:00 UTC") == 5
    out = trace("source", "show", "desk", "often").out
    assert "overlap" in out
    assert "Queued" in out
    assert len(trace("source", "show", "desk", "often", "--json").json["next_fires"]) == 5
    assert "/v1/hooks/acme/desk/hook" in trace("source", "show", "desk", "hook").out
    assert trace("source", "show", "desk", "nothing").code == 1


@pytest.mark.usefixtures("deployed")
def test_a_source_is_fired_paused_and_resumed_and_a_delivery_is_replayed(trace: Trace, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"n": 1}))
    request = "00000000-0000-4000-8000-000000000001"
    assert "was fired: task" in trace("source", "fire", "desk", "load", "--request-id", request).out
    assert "made before" in trace("source", "fire", "desk", "load", "--request-id", request).out
    assert "is paused" in trace("source", "pause", "desk", "hook").out
    assert "held" in trace("source", "fire", "desk", "hook", "--body", str(body)).out
    (held,) = trace("source", "deliveries", "desk", "hook", "--json").json["deliveries"]
    assert (held["held"], held["task_id"]) == (True, None)
    assert "is resumed" in trace("source", "resume", "desk", "hook").out
    assert "Queued" in trace("source", "deliveries", "desk", "hook").out
    assert "once more: task" in trace("source", "replay", "desk", "hook", held["id"]).out
    fired = trace("source", "fire", "desk", "forwards", "--body", str(body))
    assert "desk.forwards was fired: 2 events for its readers" in fired.out
    (delivery,) = trace("source", "deliveries", "desk", "forwards", "--json").json["deliveries"]
    assert "once more: 2 events for its readers" in trace("source", "replay", "desk", "forwards", delivery["id"]).out
    sizes = {
        item["size_bytes"] for item in trace("source", "deliveries", "desk", "forwards", "--json").json["deliveries"]
    }
    assert sizes == {len(b'{"n":1}')}
    body.write_text("{")
    refused = trace("source", "fire", "desk", "hook", "--body", str(body))
    assert refused.code == 1
    assert "not JSON" in refused.err
