"""Helpers of tests are one library, `tests/support/`, and each of them is used."""

from __future__ import annotations

import re
import subprocess

from tests.support import ROOT

TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
BY_NAME = ("upgrade/make_home.py",)
"""Run by hand for a release."""
SCENARIOS = ("faults/test_fences_matter.py",)
"""Runs tests of other files, as what must fail without a fence."""
USERS = [path for folder in ("tests", "bench", "tools") for path in (ROOT / folder).rglob("*.py")]
TEXTS = {path: path.read_text(encoding="utf-8") for path in USERS}


def test_modules_that_are_no_tests_are_in_the_library() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "tests/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    elsewhere = [name for name in tracked if not name.startswith("tests/support/") and (ROOT / name).exists()]
    usual = re.compile(r".*/(test_\w+|conftest|__init__)\.py")
    assert [name for name in elsewhere if not usual.fullmatch(name)] == []


def test_test_files_import_nothing_from_one_another() -> None:
    """And nothing from a `conftest.py`, which only makes fixtures."""
    imports = re.compile(r"^(?:from|import) tests(?!\.support\b).*", re.MULTILINE)
    found = {
        str(path.relative_to(TESTS)): [line for line in imports.findall(text) if f".{path.stem} " not in line]
        for path, text in TEXTS.items()
        if TESTS in path.parents
    }
    assert [(path, lines) for path, lines in found.items() if lines and path not in SCENARIOS] == []


def test_every_helper_is_used() -> None:
    modules = [path for path in SUPPORT.rglob("*.py") if path.name != "__init__.py"]
    assert len(modules) > 40
    unused = [path for path in modules if not _is_used(str(path.relative_to(SUPPORT)))]
    assert [str(path.relative_to(SUPPORT)) for path in unused] == []


def _is_used(name: str) -> bool:
    if name in BY_NAME:
        return True
    module, own = name.removesuffix(".py").replace("/", "."), SUPPORT / name
    program = f'"{module.removeprefix("programs.")}"' if module.startswith("programs.") else None
    wanted = [f"tests.support.{module}", *([program] if program else [])]
    return any(word in text for path, text in TEXTS.items() if path != own for word in wanted)


def test_tests_wait_by_the_one_helper() -> None:
    """Ruff finds a loop that sleeps until something is so; only `waiting.py` may have one."""
    loops = "noqa: ASYNC" + "110"
    assert [
        str(path.relative_to(ROOT)) for path, text in TEXTS.items() if TESTS in path.parents and loops in text
    ] == []


def test_tests_call_a_listener_by_the_one_client() -> None:
    """`tls.py` says which authority it trusts. But for a program that times its calls and imports nothing of ours."""
    trusts = "create_default_context(ca" + "file="
    places = {
        str(path.relative_to(SUPPORT)) for path, text in TEXTS.items() if TESTS in path.parents and trusts in text
    }
    assert places == {"tls.py", "programs/gateway_callers.py"}
