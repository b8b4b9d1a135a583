"""`trace dag`: check, deploy, list, show and activate DAGs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tracelake.cli import printing
from tracelake.cli.dag_file import Checked, DagFile, check_dag_file, read_dag_file
from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput, InvalidDag, Problem

if TYPE_CHECKING:
    from tracelake.wire.user_dags import DagWarning

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
    """Check a DAG without a running system. Each problem is one line: file:line:column: field: reason (suggestion).

    Operators, runtimes and wiring are checked. Whether datasets of other DAGs exist, only a running system knows.
    """
    with _problems_shown(file, json=json):
        found = check_dag_file(read_dag_file(file))
    _print_valid(file, found, json=json)


@app.command("deploy")
def deploy(file: File, activate: Activate = False, home: Home = None, json: Json = False) -> None:
    """Deploy a version of a DAG. Deploying an equal DAG again changes nothing.

    Code named by its folder (`udf: {folder: detector}`) is built and pushed first, as by `trace udf push`.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.commands.data.udf import push_bundle
    from tracelake.wire.user_dags import ActivateAnswer, ActivateRequest, DeployAnswer, DeployRequest

    with _problems_shown(file, json=json):
        source = read_dag_file(file)
        if source.problems:
            check_dag_file(source)  # raises with these and all other problems
        with remote(home) as gateway:
            for bundle in source.bundles:
                push_bundle(gateway, bundle.name, bundle.packed, quiet=json)
            name, active = _name_in(source), None
            # Deploying and activating are idempotent.
            with printing.waiting(f"deploying {name}", quiet=json):
                done = gateway.call(
                    "deploy", DeployAnswer, body=DeployRequest(yaml=source.text), repeatable=True, dag=name
                )
            if activate:
                request = ActivateRequest(dag_version_id=done.dag_version_id)
                with printing.waiting(f"activating {len(done.jobs)} jobs", quiet=json):
                    active = gateway.call("activate", ActivateAnswer, body=request, repeatable=True, dag=done.dag_name)
    if json:
        import msgspec

        printing.as_json({"deployed": msgspec.to_builtins(done), "activated": msgspec.to_builtins(active)})
        return
    how = "deployed" if done.created else "already deployed, nothing changed"
    render.note(f"DAG {done.dag_name}, version {done.dag_version_id}: {how} ({len(done.jobs)} jobs)")
    _show_warnings(file, done.warnings)
    if active is None:
        render.note(f"  next: trace dag activate {done.dag_name} {done.dag_version_id}")
    else:
        render.note("it is the active version" if active.changed else "it already was the active version")


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List every DAG with its active version."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_dags import DagList

    with remote(home) as gateway:
        found = gateway.call("list_dags", DagList)
    if json:
        render.as_json(found)
    elif not found.dags:
        render.note("no DAG is deployed yet; `trace dag deploy FILE --activate` deploys one")
    else:
        render.table(
            ("dag", "active version", "jobs", "versions", "changed"),
            [(item.name, item.active_version, item.jobs, item.versions, item.updated_at) for item in found.dags],
            whole=("dag", "active version"),
        )


@app.command("show", short_help="Show a DAG: its versions, its jobs, its YAML.")
def show(dag: DagName, yaml: Yaml = False, home: Home = None, json: Json = False) -> None:
    """Show a DAG: its versions, the jobs of the active one, and its YAML with --yaml."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_dags import DagDetail

    with remote(home) as gateway:
        found = gateway.call("show_dag", DagDetail, dag=dag)
    if json:
        render.as_json(found)
        return
    if yaml:
        printing.document(found.yaml.encode())
        return
    render.pairs([("dag", found.name), ("active version", found.active_version or "none: nothing runs")])
    render.title("versions")
    render.table(
        ("id", "state", "deployed", "by"),
        [
            (version.dag_version_id, "active" if version.active else "", version.created_at, version.deployed_by)
            for version in found.versions
        ],
    )
    render.title("jobs")
    render.table(
        ("job", "starts", "operator", "runtime", "reads", "writes", "queued", "in flight"),
        [
            (
                job.name,
                " ".join(filter(None, (job.source, job.source_state))) or "on events",
                job.operator,
                job.runtime,
                job.inputs,
                job.outputs,
                job.queued,
                job.in_flight,
            )
            for job in found.jobs
        ],
        whole=("job",),
    )


@app.command("activate", short_help="Make a deployed version the active one.")
def activate(dag: DagName, version: VersionId, home: Home = None, json: Json = False) -> None:
    """Make a deployed version the active one, atomically: it serves reads and gets tasks."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_dags import ActivateAnswer, ActivateRequest

    with remote(home) as gateway:
        done = gateway.call("activate", ActivateAnswer, body=ActivateRequest(dag_version_id=version), dag=dag)
    if json:
        render.as_json(done)
    elif done.changed:
        render.note(f"version {version} of {dag} is active; {done.canceled_tasks} tasks of the former were canceled")
    else:
        render.note(f"version {version} of {dag} was active already")


@contextmanager
def _problems_shown(file: str, *, json: bool) -> Iterator[None]:
    """Prints problems as compilers do, so that editors can jump to them. In JSON they are part of the error."""
    try:
        yield
    except InvalidDag as error:
        if json:
            raise
        for problem in error.problems:
            printing.err.print(problem_line(file, problem), markup=False)
        _show_warnings(file, error.warnings)
        sys.exit(1)


def problem_line(file: str, problem: Problem | DagWarning, kind: str = "") -> str:
    suggestion = f" ({problem.suggestion})" if problem.suggestion else ""
    return f"{file}:{problem.line}:{problem.column}: {kind}{problem.field or 'file'}: {problem.reason}{suggestion}"


def _show_warnings(file: str, warnings: Sequence[Problem | DagWarning]) -> None:
    for warning in warnings:
        printing.err.print(problem_line(file, warning, "warning: "), markup=False)


def _name_in(source: DagFile) -> str:
    """The DAG's name, for the path of the call. Without one, checking the file raises with all problems."""
    from tracelake.domain.dag.yaml_nodes import name_in

    if found := name_in(source.text):
        return found
    dag = check_dag_file(source).dag
    if dag is None:
        raise BadInput("the file does not name its DAG")
    return dag.name


def _print_valid(file: str, found: Checked, *, json: bool) -> None:
    if json:
        warnings = [asdict(warning) for warning in found.warnings]
        printing.as_json(
            {"valid": True, "unchecked": [problem.reason for problem in found.unchecked], "warnings": warnings}
        )
        return
    _show_warnings(file, found.warnings)
    if (dag := found.dag) is not None:
        rows = f"{len(dag.jobs)} jobs, {len(dag.publish) + len(dag.buffered)} published datasets"
        printing.out.print(f"DAG {dag.name} is valid: {rows}", markup=False)
        return
    printing.out.print("valid, as far as can be checked without a running system", markup=False)
    for problem in found.unchecked:
        printing.out.print(f"  not checked, line {problem.line}: {problem.reason}", markup=False)
