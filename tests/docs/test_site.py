"""The pages of `docs/` are one site: each is in its navigation, links lead to pages, nothing is loaded remotely."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SECTIONS = {"tutorial", "how-to", "concepts", "reference", "adr"}
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
GENERATED = {
    DOCS / "reference" / name
    for name in ("cli.md", "settings.md", "data_model.md", "crash_points.md", "permissions.md", "services.md")
}
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
METAPHORS = re.compile(
    r"\b(doors?|bells?|told|askers?|janitors?|reapers?|twins?|promises|in force|code of users|for good|rooms?)\b",
    re.IGNORECASE,
)


def navigation(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for below in entry.values() if isinstance(entry, dict) else entry:
        yield from navigation(below)


def without_code(page: Path) -> str:
    return CODE.sub("", page.read_text(encoding="utf-8"))


def test_every_page_is_in_the_navigation_once() -> None:
    site = YAML(typ="safe").load(ROOT / "mkdocs.yml")
    assert sorted(navigation(site["nav"])) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_every_page_is_in_one_of_the_sections() -> None:
    assert {page.relative_to(DOCS).parts[0] for page in PAGES} == SECTIONS | {"index.md"}


@pytest.mark.parametrize("page", [*FRONT, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_pages_that_the_code_names_exist() -> None:
    files = [path for folder in ("tracelake", "tests", "tools", "dags") for path in (ROOT / folder).rglob("*.*")]
    sources = [path for path in files if path.suffix in {".py", ".sql", ".yaml", ".java"}]
    named = {name for path in sources for name in re.findall(r"docs/[\w./-]+\.md", path.read_text(encoding="utf-8"))}
    assert "docs/reference/dag_yaml.md" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("section", ["how-to", "concepts"])
def test_the_title_of_a_page_is_the_question_that_it_answers(section: str) -> None:
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in sorted((DOCS / section).glob("*.md"))]
    assert [title for title in titles if not (title.startswith("# ") and title.endswith("?"))] == []


def test_pages_use_ordinary_technical_words() -> None:
    written = [page for page in [*FRONT, *PAGES] if page not in GENERATED]
    found = {str(page.relative_to(ROOT)): METAPHORS.findall(without_code(page)) for page in written}
    assert {page: words for page, words in found.items() if words} == {}


def test_the_path_of_one_event_names_few_files_and_they_exist() -> None:
    text = (DOCS / "concepts" / "one_event.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/<>]+\.py)`", text))
    assert 8 <= len(named) <= 15


def test_the_first_test_to_read_has_the_steps_of_the_path_of_one_event() -> None:
    page = (DOCS / "concepts" / "one_event.md").read_text(encoding="utf-8")
    test = (ROOT / "tests" / "walk" / "test_one_event.py").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d+\. )\*\*(.+?\.)\*\*", page, re.MULTILINE)
    assert len(steps) == 9
    assert [number + step for number, step in steps] == re.findall(r"# (\d+\. .+?\.)", test)


SOURCE = re.compile(r"`((?:\.\./)?[\w./]+/[\w.]+\.(?:py|sql|java))`")
BASES = [ROOT / base for base in ("", "tracelake", "tests/support")]


def test_source_files_that_a_page_names_exist() -> None:
    named = {(page, name) for page in [*FRONT, *PAGES] for name in SOURCE.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 40
    assert [(page.name, name) for page, name in named if not any((base / name).exists() for base in BASES)] == []


def test_the_site_builds_strictly_and_loads_nothing_from_another_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    html = [page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")]
    assert len(html) >= len(PAGES)
    loaded = [tag for text in html for tag in re.findall(r"<(?:script|link|img|iframe)[^>]*>", text)]
    assert loaded
    assert [tag for tag in loaded if re.search(r"(?:src|href)=[\"']?(?:https?:)?//", tag)] == []
