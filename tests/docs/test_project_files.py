"""CONTRIBUTING, CHANGELOG and the pre-commit hooks say what the project has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator

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


def test_the_readme_fits_on_a_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 50


def test_what_former_tests_have_become_is_there() -> None:
    """The decision record names the tests that were merged, and what they are now."""
    page = (ROOT / "docs" / "adr" / "0038-one-implementation-of-each-idea.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|(.+)\|(.+)\|$", page.partition("## Former tests")[2], re.MULTILINE)[2:]
    named = {name for _, now in rows for name in re.findall(r"`([a-z0-9_]+)`", now)}
    files = (ROOT / "tests").rglob("test_*.py")
    defined = {name for file in files for name in re.findall(r"def test_(\w+)\(", file.read_text(encoding="utf-8"))}
    assert len(rows) == 11
    assert sorted(named - defined) == []


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


def test_a_name_that_other_modules_import_stands_for_one_type() -> None:
    """A class, or a name that is given to a type. But for options of the command line, in whose modules they are."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tracelake").rglob("*.py")}
    imported = {
        (node.module, name.name)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    places = defaultdict[str, list[str]](list)
    for path, tree in sorted(trees.items()):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in types_of(tree):
            if (module, name) in imported:
                places[name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert twice == {}


def types_of(module: ast.Module) -> set[str]:
    classes = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    assigned = [node for node in module.body if isinstance(node, ast.Assign) and "TypeVar(" not in ast.unparse(node)]
    assigned = [node for node in assigned if "typer." not in ast.unparse(node)]
    names = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    return classes | {name for name in names if name[0].isupper() and not name.isupper()}


BY_NAME = re.compile(r"""\b(?:row|record)s?(?:\[-?\d+\])?\[["']""")
OF_THE_STORE = ("adapters", "capability", "delivery", "dispatcher", "gateway", "scheduler", "sink", "store", "worker")


def test_no_column_of_the_store_is_read_by_name() -> None:
    """A row is a type, whose fields are compared with the columns of its statement."""
    files = [path for folder in OF_THE_STORE for path in (ROOT / "tracelake" / folder).rglob("*.py")]
    assert len(files) > 200
    found = {path: BY_NAME.findall(path.read_text(encoding="utf-8")) for path in files}
    assert [str(path.relative_to(ROOT)) for path, names in found.items() if names] == []


def test_only_routes_and_the_process_hold_all_that_a_dispatcher_is_built_of() -> None:
    """A verb takes a connection and what it needs."""
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tracelake").rglob("*.py")}
    holders = {str(path.relative_to(ROOT)) for path, text in files.items() if "dispatcher.control import" in text}
    others = {name for name in holders if not name.startswith("tracelake/dispatcher/http/")}
    assert others == {"tracelake/dispatcher/process.py"}


UNCALLED = {
    "tracelake.domain.task.TRANSITIONS": "the table with which tests compare every statement that changes a state",
    "tracelake.store.signing_keys.revoke": "a verb for a leaked key",
    "tracelake.udf.lambda_function.handler": "called by Lambda",
    "tracelake.wiring.run_job_from": "called by deploy/job_run.py, with which a job run of EMR Serverless begins",
}
"""Top-level names that no other code of the product uses, and why they are there."""


def test_every_function_class_and_constant_is_used_by_the_product() -> None:
    packages = ("tracelake", "tracelake_demo", "tracelake_devchain", "trace_udf")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    trees = {".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text()) for path in files}
    imported = {found for tree in trees.values() for found in imports_of(tree)}
    unused = set[str]()
    for module, tree in trees.items():
        names = [(name, node) for name, node in named(tree) if (module, name) not in imported]
        loads = [(node, loaded(node)) for node in tree.body] if names else []
        for name, node in names:
            used = any(name in loaded for other, loaded in loads if other is not node)
            if not used and not is_found_by_name(module, name, node):
                unused.add(f"{module}.{name}")
    assert unused == set(UNCALLED)


def is_found_by_name(module: str, name: str, node: ast.stmt) -> bool:
    """Commands of the command line, operators, and processes are."""
    if module.startswith("tracelake.operators."):
        return name in {"SPEC", "run"}
    if module.endswith(".process"):
        return name == "main"
    return name.startswith("__") or bool(getattr(node, "decorator_list", []))


def named(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in module.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Assign():
                yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node


def loaded(node: ast.stmt) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load)}


def imports_of(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that are imported, and attributes of modules that are."""
    modules: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, name.name) for name in node.names)
            modules.update({name.asname or name.name: f"{node.module}.{name.name}" for name in node.names})
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr
