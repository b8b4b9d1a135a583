"""`trace dag`: check, deploy, list, show and activate DAGs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from trace_platform.cli import say
from trace_platform.cli.options import Home, Json
from trace_platform.errors import BadInput, InvalidDag, Problem

if TYPE_CHECKING:
    from trace_platform.cli.udf_folders import FromFolder
    from trace_platform.domain.catalog import Catalog

ELSEWHERE = frozenset({"unknown_dataset", "unknown_alert"})
"""What only a running system can say: whether there is one of this name."""

app = typer.Typer(help="DAGs: validate, deploy, list, show, activate.", no_args_is_help=True)

File = Annotated[
    str, typer.Argument(help="The DAG's YAML; `-` reads standard input.", metavar="FILE", show_default=False)
]
DagName = Annotated[str, typer.Argument(help="The DAG's name.", metavar="DAG", show_default=False)]
VersionId = Annotated[
    UUID, typer.Argument(help="A deployed version: `trace dag show DAG` lists them.", show_default=False)
]
Activate = Annotated[bool, typer.Option("--activate", help="Also make it the active version.")]
Yaml = Annotated[bool, typer.Option("--yaml", help="Print only the YAML, as it was deployed.")]


@app.command("validate")
def validate(file: File, json: Json = False) -> None:
    """Check a DAG without a running system. Every problem is one line: file:line:column: field: reason (suggestion).

    Operators, runtimes and wiring are checked; whether datasets of other DAGs exist is only known to a running system.
    """
    from trace_platform.domain.dag import parse_dag

    with _problems_shown(file, json=json):
        (text, _), unchecked = _read(file), list[Problem]()
        try:
            dag = parse_dag(text, _built_in())
        except InvalidDag as wrong:
            unchecked = [one for one in wrong.problems if one.code in ELSEWHERE]
            if len(unchecked) < len(wrong.problems):
                left = [one for one in wrong.problems if one.code not in ELSEWHERE]
                raise InvalidDag(left) from None
            _say_valid(None, unchecked, json=json)
            return
    _say_valid(f"DAG {dag.name} is valid: {len(dag.jobs)} jobs, {len(dag.publish)} published datasets", [], json=json)


@app.command("deploy")
def deploy(file: File, activate: Activate = False, home: Home = None, json: Json = False) -> None:
    """Deploy a version of a DAG. The same meaning again is the same version, and nothing happens.

    Code that it names by its folder (`udf: {folder: detector}`) is built and pushed first, as by `trace udf push`.
    """
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.cli.udf import push_bundle
    from trace_platform.user_contracts import ActivateAnswer, ActivateRequest, DeployAnswer, DeployRequest

    with _problems_shown(file, json=json):
        text, bundles = _read(file)
        with remote(home) as gateway:
            for one in bundles:
                push_bundle(gateway, one.name, one.packed, quiet=json)
            done = gateway.ask("deploy", DeployAnswer, body=DeployRequest(yaml=text), dag=_name_in(text))
            active = None
            if activate:
                wish = ActivateRequest(dag_version_id=done.dag_version_id)
                active = gateway.ask("activate", ActivateAnswer, body=wish, dag=done.dag_name)
    if json:
        import msgspec

        say.as_json({"deployed": msgspec.to_builtins(done), "activated": msgspec.to_builtins(active)})
        return
    how = "deployed" if done.created else "was deployed before, nothing changed"
    rows.note(f"DAG {done.dag_name}, version {done.dag_version_id}: {how} ({len(done.jobs)} jobs)")
    if active is None:
        rows.note(f"  next: trace dag activate {done.dag_name} {done.dag_version_id}")
    else:
        rows.note("it is the active version" if active.changed else "it was the active version already")


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List every DAG with its active version."""
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.user_contracts import DagList

    with remote(home) as gateway:
        found = gateway.ask("list_dags", DagList)
    if json:
        rows.as_json(found)
    elif not found.dags:
        rows.note("no DAG is deployed yet; `trace dag deploy FILE --activate` deploys one")
    else:
        rows.table(
            ("dag", "active version", "jobs", "versions", "changed"),
            [(one.name, one.active_version, one.jobs, one.versions, one.updated_at) for one in found.dags],
            whole=("dag", "active version"),
        )


@app.command("show", short_help="Show a DAG: its versions, its jobs, its YAML.")
def show(dag: DagName, yaml: Yaml = False, home: Home = None, json: Json = False) -> None:
    """Show a DAG: its versions, the jobs of the active one, and its YAML with --yaml."""
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.user_contracts import DagDetail

    with remote(home) as gateway:
        found = gateway.ask("show_dag", DagDetail, dag=dag)
    if json:
        rows.as_json(found)
        return
    if yaml:
        sys.stdout.write(found.yaml)
        return
    rows.pairs([("dag", found.name), ("active version", found.active_version or "none: nothing runs")])
    rows.title("versions")
    rows.table(
        ("id", "state", "deployed", "by"),
        [
            (one.dag_version_id, "active" if one.active else "", one.created_at, one.deployed_by)
            for one in found.versions
        ],
    )
    rows.title("jobs")
    rows.table(
        ("job", "starts", "operator", "runtime", "reads", "writes", "queued", "in flight"),
        [
            (
                one.name,
                " ".join(filter(None, (one.source, one.source_state))) or "on events",
                one.operator,
                one.runtime,
                one.inputs,
                one.outputs,
                one.queued,
                one.in_flight,
            )
            for one in found.jobs
        ],
        whole=("job",),
    )


@app.command("activate", short_help="Make a deployed version the active one.")
def activate(dag: DagName, version: VersionId, home: Home = None, json: Json = False) -> None:
    """Make a deployed version the active one, at once and whole: it serves reads and gets tasks."""
    from trace_platform.cli import rows
    from trace_platform.cli.remote import remote
    from trace_platform.user_contracts import ActivateAnswer, ActivateRequest

    with remote(home) as gateway:
        done = gateway.ask("activate", ActivateAnswer, body=ActivateRequest(dag_version_id=version), dag=dag)
    if json:
        rows.as_json(done)
    elif done.changed:
        rows.note(f"version {version} of {dag} is active; {done.canceled_tasks} tasks of the former were canceled")
    else:
        rows.note(f"version {version} of {dag} was active already")


@contextmanager
def _problems_shown(file: str, *, json: bool) -> Iterator[None]:
    """As compilers do it, so that editors can jump to each. In JSON they are part of the refusal."""
    try:
        yield
    except InvalidDag as wrong:
        if json:
            raise
        for one in wrong.problems:
            sys.stderr.write(problem_line(file, one) + "\n")
        sys.exit(1)


def problem_line(file: str, one: Problem) -> str:
    suggestion = f" ({one.suggestion})" if one.suggestion else ""
    return f"{file}:{one.line}:{one.column}: {one.field or 'file'}: {one.reason}{suggestion}"


def _read(file: str) -> tuple[str, list[FromFolder]]:
    """With the ABIs and the code that it names, which lie beside it; and that code."""
    from trace_platform.cli.abi_files import with_abi_files
    from trace_platform.cli.udf_folders import with_udf_folders

    beside = Path() if file == "-" else Path(file).parent
    return with_udf_folders(with_abi_files(_text_of(file), beside), beside)


def _text_of(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_bytes().decode()
    except OSError as wrong:
        raise BadInput(f"the file cannot be read: {wrong.strerror}", where=file) from None
    except UnicodeDecodeError as wrong:
        raise BadInput(f"the file is not UTF-8: byte {wrong.start}", where=file) from None


def _name_in(text: str) -> str:
    """The name that the call's path needs. Where there is none, checking the file says so, and what else is wrong."""
    from trace_platform.domain.dag_yaml import name_in

    if found := name_in(text):
        return found
    from trace_platform.domain.dag import parse_dag

    return parse_dag(text, _built_in()).name


def _built_in() -> Catalog:
    from trace_platform.dispatcher.catalog import operators
    from trace_platform.dispatcher.runtimes import runtime_specs
    from trace_platform.domain.catalog import Catalog
    from trace_platform.settings import RUNTIMES

    return Catalog(operators(), runtime_specs(RUNTIMES))


def _say_valid(sentence: str | None, unchecked: list[Problem], *, json: bool) -> None:
    if json:
        say.as_json({"valid": True, "unchecked": [one.reason for one in unchecked]})
        return
    say.out.print(sentence or "nothing is wrong with it, as far as can be known without a running system", markup=False)
    for one in unchecked:
        say.out.print(f"  not checked, line {one.line}: {one.reason}", markup=False)
