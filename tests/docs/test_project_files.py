"""CONTRIBUTING, CHANGELOG and the pre-commit hooks say what the project has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict

from ruamel.yaml import YAML

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def named_targets(page: str) -> set[str]:
    """Those in code, where a reader copies them from."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return set(re.findall(r"(?:^|`)make ([a-z-]+)\b", text, re.MULTILINE))


def test_contributing_explains_every_make_target_and_no_other() -> None:
    assert named_targets("CONTRIBUTING.md") == targets() - {"help"}


def test_every_make_target_that_the_readme_names_exists() -> None:
    assert named_targets("README.md") >= {"demo", "test"}
    assert named_targets("README.md") <= targets()


def test_the_long_run_takes_every_test_and_sets_every_option_that_says_how_long_or_how_many() -> None:
    defined = re.findall(r'addoption\("(--[a-z-]+)"', (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    given = re.findall(r"--[a-z-]+", makefile.split("LONG :=")[1].split("\n\n")[0])
    assert "--long" in given
    assert set(given) - {"--timeout", "--long"} == {option for option in defined if not option.endswith("-seed")}


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tests|tools|docs|deploy|\.ci)/[\w./]*|mkdocs\.yml)`", text))
    assert "tests/support/" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_changelog_is_about_this_version_or_an_unreleased_one() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    assert versions[0] in {"Unreleased", PROJECT["version"]}
    assert PROJECT["version"] in versions or f"Becomes {PROJECT['version']}." in text
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limitations"}


def test_hooks_are_local_and_run_tools_of_the_lock_file() -> None:
    hooks = YAML(typ="safe").load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    pins = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for hook in hooks[0]["hooks"]:
        tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert re.search(rf"^{tool}==", pins, re.MULTILINE), hook["id"]


def test_the_metadata_names_no_file_and_no_address_that_is_not_there() -> None:
    assert (ROOT / PROJECT["readme"]).exists()
    assert not {"license", "license-files", "urls"} & set(PROJECT)
    assert all(f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"] for minor in (11, 12, 13))


def test_no_file_of_the_product_or_its_tests_has_more_than_400_lines() -> None:
    packages = ("tracelake", "tracelake_demo", "tracelake_devchain", "trace_udf", "deploy", "tests", "bench")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    assert len(files) > 500
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {file: lines for file, lines in lengths.items() if lines > 400} == {}


def test_no_folder_of_the_product_or_its_tests_has_more_than_20_modules() -> None:
    files = [file for folder in ("tracelake", "tests") for file in (ROOT / folder).rglob("*.py")]
    modules = [file for file in files if file.name != "__init__.py"]
    counts = Counter(str(file.parent.relative_to(ROOT)) for file in modules)
    assert {folder: count for folder, count in counts.items() if count > 20} == {}


def test_a_class_has_a_name_of_its_own() -> None:
    """But for what authors of operators and of `python` functions write."""
    places = defaultdict[str, list[str]](list)
    for file in sorted((ROOT / "tracelake").rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(ROOT / "tracelake")))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert set(twice.pop("Config")) == {file for file in places["Config"] if file.startswith("operators/")}
    assert "operators/python.py" in twice.pop("Call")
    assert twice == {}
