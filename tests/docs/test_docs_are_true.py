"""Documentation that the code can contradict is checked against it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tools.write_docs import cli_page, settings_page
from tracelake.delivery.routes import delivery_api
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.domain.sql.functions import FUNCTIONS
from tracelake.gateway.process import public_api
from tracelake.operators.registry import specs
from tracelake.query.process import metrics_route, query_api
from tracelake.query.routes import openapi_route, task_route, user_route
from tracelake.runtime.process import PROCESSES
from tracelake.settings import IdentitySettings, TokenSettings, leaves
from tracelake.wire.client import DispatcherClient

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
NOTHING: Any = None  # the routes of a door are known before what stands behind it
HOLLOW = Control(NOTHING, NOTHING, NOTHING, TokenSettings(), NOTHING, NOTHING, "docs")

LISTENERS = {
    "Gateway": public_api(DispatcherClient(NOTHING), IdentitySettings()),
    "Dispatcher, task door": task_api(HOLLOW, NOTHING),
    "Dispatcher, internal door": internal_api(HOLLOW),
    "Delivery, internal door": delivery_api(NOTHING, NOTHING, IdentitySettings(), NOTHING),
    "Query, task door": query_api(NOTHING, task_route(NOTHING, NOTHING)),
    "Query, internal door": query_api(
        NOTHING,
        user_route(NOTHING, IdentitySettings()),
        openapi_route(IdentitySettings()),
        metrics_route(NOTHING, IdentitySettings()),
    ),
}


def routes_of(app: Any) -> Iterator[str]:
    for route in app.routes:
        for method in sorted(route.methods - {"HEAD"}):
            yield f"{method} {route.path}"


def documented(listener: str) -> set[str]:
    section = (DOCS / "listeners.md").read_text().partition(f"## {listener}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([A-Z]+ /\S*)`", section, re.MULTILINE))


@pytest.mark.parametrize("listener", LISTENERS)
def test_every_route_of_a_door_is_documented_and_every_documented_route_exists(listener: str) -> None:
    assert documented(listener) == set(routes_of(LISTENERS[listener]))


def test_the_settings_page_is_what_the_code_says() -> None:
    assert (DOCS / "settings.md").read_text() == settings_page(), "run `make docs`"


def test_the_command_line_page_is_what_the_code_says() -> None:
    assert (DOCS / "cli.md").read_text() == cli_page(), "run `make docs`"


def test_every_setting_has_a_reason_and_every_number_a_unit() -> None:
    for leaf in leaves():
        assert leaf.why.endswith("."), leaf.path
        if leaf.field.annotation in (int, float):
            assert leaf.unit, leaf.path


def test_every_process_has_a_row_in_the_security_page() -> None:
    page = (DOCS / "security.md").read_text()
    for name in PROCESSES:
        assert f"| `trace {name}` |" in page


def test_every_operator_and_each_of_its_settings_is_documented() -> None:
    page = (DOCS / "operators.md").read_text()
    for name, spec in specs().items():
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        config = import_module(f"tracelake.operators.{name}").Config
        assert spec.runtimes
        for field in config.model_fields:
            assert f"| `{field}` |" in section, f"{name}.{field}"


def test_every_function_of_sql_is_listed_and_none_that_is_not() -> None:
    listed = (DOCS / "sql.md").read_text().partition("\n## Functions\n")[2]
    assert set(re.findall(r"`(\w+)`", listed)) == set(FUNCTIONS)


def test_links_between_pages_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert {page.name for page, _ in links} >= {"README.md", "developing.md"}
    assert [(page, target) for page, target in links if not (page.parent / target).exists()] == []


def test_the_readme_names_both_commands_and_fits_a_screen_or_two() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert len(readme.splitlines()) <= 100
