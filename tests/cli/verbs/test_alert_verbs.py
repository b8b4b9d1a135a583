"""`trace alert` as a user types it, against a running Dispatcher and Gateway."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import ROOT
from tests.support.systems.command_line import Trace

pytestmark = pytest.mark.usefixtures("known_operators")


@pytest.mark.usefixtures("running")
def test_alerts_and_channels_are_made_shown_changed_and_removed(trace: Trace, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of mine, long enough\n")
    made = trace("alert", "channel", "create", "ops", "--url", "https://example.org/")
    assert "not shown again" in made.out
    given = trace("alert", "channel", "create", "page", "--url", "https://example.org/", "--secret-file", str(secret))
    assert (given.code, "secret" in given.out) == (0, False)

    params = ("--params", '{"least": "5"}', "--max-age", "60")
    assert trace("alert", "create", "whales", "--severity", "critical", "--channel", "ops", *params).code == 0
    shown = trace("alert", "show", "whales", "--json").json
    assert (shown["params"], shown["channels"], shown["max_age_seconds"]) == ({"least": "5"}, ["ops"], 60)
    changed = trace("alert", "update", "whales", "--disable", "--any-age", "--channel", "page", "--json").json
    assert (changed["enabled"], changed["max_age_seconds"], changed["channels"]) == (False, None, ["page"])
    assert changed["severity"] == "critical"
    assert "whales" in trace("alert", "list").out
    assert "whales" in trace("alert", "channel", "list").out

    refused = trace("alert", "channel", "delete", "page")
    assert (refused.code, "whales" in refused.err) == (1, True)
    assert trace("alert", "update", "whales", "--no-channels").code == 0
    assert trace("alert", "channel", "delete", "page").code == 0
    assert trace("alert", "delete", "whales").code == 0
    assert trace("alert", "list", "--json").json == {"definitions": []}


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("show", "whale"), "there is no alert"),
        (("create", "x", "--params", "[1]"), "--params"),
        (("create", "x", "--params", "{"), "--params"),
        (("create", "x", "--channel", "nowhere"), "/channels/0"),
        (("channel", "create", "x", "--url", "https://a:b@example.org/"), "/url"),
        (("channel", "create", "x", "--url", "https://example.org/", "--secret-file", "/nowhere"), "--secret-file"),
        (("retry", str(uuid4())), "without a delivery process"),
        (("deliveries",), "without a delivery process"),
    ],
)
def test_what_is_refused_is_said_with_its_place(trace: Trace, words: tuple[str, ...], says: str) -> None:
    output = trace("alert", *words)
    assert (output.code, output.out) == (1, "")
    assert says in output.err


def test_a_dag_that_names_alerts_is_left_to_the_running_system(trace: Trace, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "raise_alerts.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    file = tmp_path / "alerts.yaml"
    trigger_job = "jobs:\n  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}\n"
    for was, becomes in (
        ("BUNDLE_SHA256", "0" * 64),
        ("runtime: lambda", "runtime: ecs_udf"),
        ("jobs:\n", trigger_job),
        ("{dataset: transfers}", "{job: ask}"),
    ):
        text = text.replace(was, becomes)
    file.write_text(text)
    output = trace("dag", "validate", str(file), at_home=False)
    assert (output.code, output.err) == (0, "")
    assert "there is no alert 'whales'" in output.out
