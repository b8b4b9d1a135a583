"""`trace user`, `role`, `org`, `token` and `datasets access` as a user types them; and the tutorial about them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.systems.command_line import Running, Said, Trace
from tracelake.dispatcher.audit.link import LinkAudit
from tracelake.store.first_start import FIRST_ADMIN

pytestmark = pytest.mark.usefixtures("known_operators")
PAGE = ROOT / "docs" / "tutorial" / "second_user.md"
COMMAND = re.compile(
    r"(?:(?P<kept>[A-Z]+)=\$\()?(?:TRACE_CLIENT__TOKEN=\$(?P<token>\w+) )?\.venv/bin/trace (?P<words>[^#)]*)"
)


@pytest.mark.usefixtures("running")
def test_the_tutorial_of_a_second_user_does_what_it_says(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    file, kept = tmp_path / "orders.yaml", dict[str, str]()
    file.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    commands = [line for line in text.splitlines() if ".venv/bin/trace" in line]
    assert len(commands) > 15
    for line in commands[1:]:  # the system runs already
        found = COMMAND.match(line)
        assert found is not None, line
        monkeypatch.delenv("TRACE_CLIENT__TOKEN", raising=False)
        if found["token"]:
            monkeypatch.setenv("TRACE_CLIENT__TOKEN", kept[found["token"]])
        words = [str(file) if word == file.name else word for word in shlex.split(found["words"])]
        output = trace(*words)
        assert (output.code != 0) is ("# refused" in line), (line, output)
        if found["kept"]:
            kept[found["kept"]] = output.out.strip()
    assert set(kept) == {"ANA", "NIGHTLY"}


def test_users_roles_organisations_and_access_are_managed(trace: Trace, running: Running, file: Path) -> None:
    def good(*words: str) -> Said:
        output = trace(*words)
        assert output.code == 0, output.err
        return output

    added = good("user", "add", "oidc|a/b c", "--email", "ana@example.org", "--role", "writer", "--json").json
    assert good("user", "show", "oidc|a/b c", "--json").json == added
    assert good("user", "show", added["id"], "--json").json == added
    assert "role" in good("user", "show", "oidc|a/b c").out
    assert good("user", "set-role", "oidc|a/b c", "admin", "--json").json["role"] == "admin"
    assert "oidc|a/b c" in good("user", "list").out
    invited = good("user", "add", "oidc|guest", "--days", "7", "--json").json
    assert invited["invited_until"][:10] in good("user", "list").out
    assert "invited until" in good("user", "show", "oidc|guest").out
    assert "finance is created" in good("role", "create", "finance", "--name", "Finance").out
    assert "has role" in good("role", "grant", "finance", "oidc|a/b c").out
    assert "ana@example.org" in good("role", "members", "finance").out

    good("dag", "deploy", str(file), "--activate")
    assert "every user" in good("datasets", "access", "shop_clean").out
    assert "finance, and admins" in good("datasets", "access", "shop_clean", "--set", "finance").out
    assert "only admins" in good("dataset", "access", "shop_clean", "--remove", "finance").out
    assert "finance" in good("datasets", "access", "shop_clean", "--add", "role:finance").out
    assert "shop_clean" in good("role", "list").out
    refused = trace("role", "delete", "finance")
    assert (refused.code, "shop_clean" in refused.err) == (1, True)
    assert "no longer shared with it: shop_clean" in good("role", "delete", "finance", "--force").out
    assert "is removed" in good("user", "remove", "oidc|a/b c", "--yes").out

    assert "only a platform admin" in trace("org", "list").err
    an_admin_of_the_platform(running)
    assert "bakery|ana" in good("org", "create", "bakery", "--admin", "bakery|ana").out
    assert "bakery" in good("org", "list").out
    running.do(LinkAudit(running.control.pool).once())
    assert "create_role" in good("audit", "list").out
    lines = [json.loads(line) for line in good("audit", "export").out.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    good("audit", "export", str(file.parent / "audit.jsonl"), "--after", "1")
    assert len((file.parent / "audit.jsonl").read_text().splitlines()) == len(lines) - 1
    verified = good("audit", "verify", "--json").json
    assert (verified["problem"], verified["last_hash"]) == (None, lines[-1]["hash"])
    made = good("service-token", "create", "worker", "--name", "spot", "--runtime", "ecs_platform", "--json").json
    assert made["token"].startswith("trace_svc_")
    assert "trace_svc_" not in good("service-token", "list").out
    assert "spot" in good("service-token", "list").out
    assert "is revoked" in good("service-token", "revoke", made["id"]).out
    assert "spot" not in good("service-token", "list").out
    assert "claims no tasks" in trace("service-token", "create", "sink", "--name", "a", "--runtime", "lambda").err
    assert good("org", "show", "bakery", "--json").json["users"] == 1


def an_admin_of_the_platform(running: Running) -> None:
    running.do(
        running.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", FIRST_ADMIN)
    )


def test_limits_of_an_organisation_are_set_and_its_usage_is_shown(trace: Trace, running: Running) -> None:
    an_admin_of_the_platform(running)

    def limits(*words: str) -> dict[str, tuple[int | None, bool]]:
        output = trace("org", "limits", "acme", *words, "--json")
        assert output.code == 0, output.err
        return {row["limit"]: (row["most"], row["own"]) for row in output.json["limits"]}

    assert set(limits().values()) == {(None, False)}
    found = limits("--set", "tasks=20,object_bytes=50_000_000", "--set", "queries=none")
    assert (found["tasks"], found["object_bytes"], found["queries"]) == ((20, True), (50_000_000, True), (None, True))
    shown = trace("org", "limits", "acme").out
    assert "50,000,000" in shown
    assert FIRST_ADMIN in shown
    usage = trace("org", "usage").out
    assert "object_bytes" in usage
    assert "queries within a day" in usage
    assert trace("org", "usage", "acme", "--json").json == trace("org", "usage", "--json").json
    assert limits("--set", "tasks=default,object_bytes=default,queries=default") == limits()
    assert set(limits().values()) == {(None, False)}


@pytest.mark.usefixtures("running")
def test_what_is_refused_is_said_with_its_place(trace: Trace) -> None:
    for words, says in (
        (("user", "show", "acme|raeder"), "trace user list"),
        (("user", "add", "x\u200by"), "/subject"),
        (("user", "add", "x", "--email", "y"), "/email"),
        (("user", "remove", FIRST_ADMIN, "--yes"), "last admin"),
        (("user", "set-role", FIRST_ADMIN, "reader"), "last admin"),
        (("role", "grant", "finance", FIRST_ADMIN), "there is no role"),
        (("role", "create", "Finance"), "/role"),
        (("role", "delete", "finance"), "there is no role"),
        (("datasets", "access", "nothing", "--everyone"), "nothing"),
        (("token", "create", "Robot"), "/name"),
        (("token", "revoke", "robot"), "you have no token"),
        (("token", "--subject", "no|user"), "no user of this system"),
    ):
        output = trace(*words)
        assert (output.code, output.out) == (1, ""), words
        assert says in output.err, (words, output.err)


def test_a_limit_that_makes_no_sense_is_refused_with_its_place(trace: Trace, running: Running) -> None:
    an_admin_of_the_platform(running)
    for words, says in (
        (("acme", "--set", "tasks=0"), "/limits/tasks"),
        (("acme", "--set", "tasks=-5"), "/limits/tasks"),
        (("acme", "--set", "tasks=many"), "neither a number"),
        (("acme", "--set", "taks=5"), "did you mean tasks?"),
        (("acme", "--set", "tasks"), "NAME=NUMBER"),
        (("acme", "--set", "tasks=1,tasks=2"), "twice"),
        (("nobody",), "there is no organisation"),
    ):
        output = trace("org", "limits", *words)
        assert (output.code, output.out) == (1, ""), words
        assert says in output.err, (words, output.err)
    assert "there is no organisation" in trace("org", "usage", "nobody").err
