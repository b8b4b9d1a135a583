"""Documentation that the code can contradict is checked against it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import SecretStr

from tests.support.dispatcher.control import HOLLOW, NOTHING
from tools.write_docs import cli_page, permissions_page, services_page, settings_page, verbs
from tracelake.cli.app import app
from tracelake.delivery.routes import delivery_api
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.domain.sql.functions import FUNCTIONS
from tracelake.gateway.process import public_api
from tracelake.operators.registry import specs
from tracelake.query.process import metrics_route, query_api
from tracelake.query.routes import diff_route, openapi_route, task_route, user_route, verify_route
from tracelake.runtime.process import PROCESSES
from tracelake.settings import IdentitySettings, leaves
from tracelake.wire.client import DispatcherClient

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
API_PAGES = ("user_api.md", "task_api.md", "internal_api.md")

APIS = {
    "Gateway": public_api(DispatcherClient(NOTHING), IdentitySettings(service_token=SecretStr("x"))),
    "Dispatcher, task API": task_api(HOLLOW, NOTHING),
    "Dispatcher, internal API": internal_api(HOLLOW),
    "Delivery, internal API": delivery_api(NOTHING, DispatcherClient(NOTHING), NOTHING),
    "Query, task API": query_api(NOTHING, task_route(NOTHING, NOTHING, NOTHING)),
    "Query, internal API": query_api(
        NOTHING,
        user_route(NOTHING, NOTHING),
        verify_route(NOTHING, NOTHING, 2.0),
        diff_route(NOTHING, NOTHING, 2.0),
        openapi_route(),
        metrics_route(NOTHING),
    ),
}


def routes_of(app: Any) -> Iterator[str]:
    for route in app.routes:
        for method in sorted(route.methods - {"HEAD"}):
            yield f"{method} {route.path}"


def documented(api: str) -> set[str]:
    text = "\n".join((REFERENCE / page).read_text() for page in API_PAGES)
    section = text.partition(f"\n## {api}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([A-Z]+ /\S*)`", section, re.MULTILINE))


@pytest.mark.parametrize("api", APIS)
def test_every_route_of_an_api_is_documented_and_every_documented_route_exists(api: str) -> None:
    assert documented(api) == set(routes_of(APIS[api]))


def test_the_settings_page_is_what_the_code_says() -> None:
    assert (REFERENCE / "settings.md").read_text() == settings_page(), "run `make docs`"


def test_the_command_line_page_is_what_the_code_says() -> None:
    assert (REFERENCE / "cli.md").read_text() == cli_page(), "run `make docs`"


def test_the_page_of_services_is_what_their_listeners_decide_by() -> None:
    assert (REFERENCE / "services.md").read_text() == services_page(), "run `make docs`"


def test_the_permissions_page_is_what_the_code_says() -> None:
    assert (REFERENCE / "permissions.md").read_text() == permissions_page(), "run `make docs`"


def test_every_command_that_a_page_shows_exists() -> None:
    trace: Any = typer.main.get_command(app)
    commands = {path for name in trace.commands for path, _ in verbs(trace.commands[name], name)}
    groups = {" ".join(path.split()[:words]) for path in commands for words in (1, 2)}
    shown = [found for page in (ROOT / "README.md", *DOCS.rglob("*.md")) for found in shown_commands(page.read_text())]
    assert len(shown) > 50
    assert [words for words in shown if words[0] not in commands and " ".join(words) not in groups] == []


def shown_commands(text: str) -> list[tuple[str, ...]]:
    """The first two words of commands in code: in a span, or at the beginning of a line."""
    found = re.findall(
        r"(?:`|^|until |; |[|] )(?:\.venv/bin/)?trace ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?\b", text, re.MULTILINE
    )
    return [tuple(filter(None, words)) for words in found]


def test_every_setting_has_a_reason_and_every_number_a_unit() -> None:
    for leaf in leaves():
        assert leaf.why.endswith("."), leaf.path
        if leaf.field.annotation in (int, float):
            assert leaf.unit, leaf.path


def test_every_process_has_a_row_in_the_security_page() -> None:
    page = (DOCS / "concepts" / "security.md").read_text()
    for name in PROCESSES:
        assert f"| `trace {name}` |" in page


def test_every_operator_and_each_of_its_settings_is_documented() -> None:
    pages = {page.stem: page.read_text() for page in (REFERENCE / "operators").glob("*.md")}
    assert set(pages) == {"index", *specs()}
    for name, spec in specs().items():
        assert pages[name].startswith(f"# {name}\n")
        assert f"| [{name}]({name}.md) |" in pages["index"], name
        config = import_module(f"tracelake.operators.{name}").Config
        assert spec.runtimes
        for field in config.model_fields:
            assert f"| `{field}` |" in pages[name], f"{name}.{field}"


def test_every_rule_of_why_is_explained_and_no_other() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", (DOCS / "how-to" / "find_out_why.md").read_text(), re.MULTILINE)
    code = "".join(path.read_text() for path in (ROOT / "tracelake" / "dispatcher" / "why").glob("*.py"))
    assert set(explained) == {"queued", *re.findall(r'rule="(\w+)"', code)}


def test_every_function_of_sql_is_listed_and_none_that_is_not() -> None:
    listed = (REFERENCE / "sql_functions.md").read_text().partition("\n## Functions\n")[2]
    assert set(re.findall(r"`(\w+)`", listed)) == set(FUNCTIONS)


def test_the_readme_names_both_commands_and_fits_a_screen() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert len(readme.splitlines()) <= 50
