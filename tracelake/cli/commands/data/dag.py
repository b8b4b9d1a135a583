"""`trace dag`: check, deploy, list, show and activate DAGs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tracelake.cli import printing
from tracelake.cli.dag_file import Checked, DagFile, check_dag_file, problems_shown, read_dag_file, show_warnings
from tracelake.cli.options import Home, Json, Yes
from tracelake.domain.text.count_of import count_of
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.cli.api import Remote
    from tracelake.wire.user.dags import DeleteDagAnswer

app = typer.Typer(help="DAGs: validate, deploy, list, show, activate, deactivate, delete.", no_args_is_help=True)

File = Annotated[
    str, typer.Argument(help="The DAG's YAML; `-` reads standard input.", metavar="FILE", show_default=False)
]
DagName = Annotated[str, typer.Argument(help="The DAG's name.", metavar="DAG", show_default=False)]
VersionId = Annotated[
    UUID, typer.Argument(help="A deployed version: `trace dag show DAG` lists them.", show_default=False)
]
Activate = Annotated[bool, typer.Option("--activate", help="Also make it the active version, when it is built.")]
Now = Annotated[bool, typer.Option("--now", help="Also make it the active version, at once.")]
Yaml = Annotated[bool, typer.Option("--yaml", help="Print only the YAML, as it was deployed.")]


@app.command("validate")
def validate(file: File, json: Json = False) -> None:
    """Check a DAG without a running system. Each problem is one line: file:line:column: field: reason (suggestion).

    Operators, runtimes and wiring are checked. Whether datasets of other DAGs exist, only a running system knows.
    """
    with problems_shown(file, json=json):
        found = check_dag_file(read_dag_file(file))
    _print_valid(file, found, json=json)


@app.command("deploy")
def deploy(file: File, activate: Activate = False, now: Now = False, home: Home = None, json: Json = False) -> None:
    """Deploy a version of a DAG. Deploying an equal DAG again changes nothing.

    With `--activate`, a version that rebuilds datasets is built beside the active one first, with all DAGs that read
    them, and becomes active when it is complete (`trace deploy FILE --when-ready --wait`). With `--now` it becomes
    active at once, and what it rebuilds is empty until its jobs have caught up.

    Code named by its folder (`udf: {folder: detector}`) is built and pushed first, as by `trace udf push`.
    """
    from tracelake.cli.api import remote
    from tracelake.cli.releases import push_bundles
    from tracelake.wire.user.releases import Plan, PlanRequest

    with problems_shown(file, json=json):
        source = read_dag_file(file)
        if source.problems:
            check_dag_file(source)  # raises with these and all other problems
        with remote(home) as gateway:
            push_bundles(gateway, [source], quiet=json)
            if activate or now:
                with printing.waiting("comparing", quiet=json):
                    plan = gateway.call("plan", Plan, body=PlanRequest(dags=[source.text]))
                rebuilt = [row.dataset for row in plan.datasets if row.former and row.action in {"build", "reuse"}]
                if rebuilt and not now:
                    _release(gateway, source, json=json)
                    return
                _deploy(gateway, file, source, rebuilt=rebuilt, activate=True, json=json)
            else:
                _deploy(gateway, file, source, rebuilt=[], activate=False, json=json)


def _release(gateway: Remote, source: DagFile, *, json: bool) -> None:
    from tracelake.cli import render
    from tracelake.cli.releases import follow, next_step, print_release
    from tracelake.wire.user.releases import ReleaseAnswer, ReleaseRequest

    started = gateway.call("start_release", ReleaseAnswer, body=ReleaseRequest(dags=[source.text], when_ready=True))
    if started.release is None:  # another user's activation came between
        render.note("it already was the active version")
        return
    found = follow(gateway, started.release, quiet=json, until_serving=True)
    print_release(found, json=json)
    if not json and (step := next_step(found)):
        render.note(step)
    if found.release.state != "Serving":
        sys.exit(1)


def _deploy(gateway: Remote, file: str, source: DagFile, *, rebuilt: Sequence[str], activate: bool, json: bool) -> None:
    from tracelake.cli import render
    from tracelake.wire.user.dags import ActivateAnswer, ActivateRequest, DeployAnswer, DeployRequest

    name, active = _name_in(source), None
    # Deploying and activating are idempotent.
    with printing.waiting(f"deploying {name}", quiet=json):
        done = gateway.call("deploy", DeployAnswer, body=DeployRequest(yaml=source.text), repeatable=True, dag=name)
    if activate:
        request = ActivateRequest(dag_version_id=done.dag_version_id)
        with printing.waiting(f"activating {len(done.jobs)} jobs", quiet=json):
            active = gateway.call("activate", ActivateAnswer, body=request, repeatable=True, dag=done.dag_name)
    if json:
        import msgspec

        printing.as_json({"deployed": msgspec.to_builtins(done), "activated": msgspec.to_builtins(active)})
        return
    how = "deployed" if done.created else "already deployed, nothing changed"
    render.note(f"DAG {done.dag_name}, version {done.dag_version_id}: {how} ({count_of(len(done.jobs), 'job')})")
    show_warnings(file, done.warnings)
    if active is None:
        render.note(f"  next: trace dag activate {done.dag_name} {done.dag_version_id}")
        return
    render.note("it is the active version" if active.changed else "it already was the active version")
    if rebuilt:
        render.note(f"empty until the jobs have caught up (`trace gaps {done.dag_name}`): {', '.join(rebuilt)}")


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List every DAG with its active version."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.dags import DagList

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
    from tracelake.wire.user.dags import DagDetail

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
        ("job", "starts", "operator", "runtime", "reads", "writes", "state", "queued", "in flight", "paused"),
        [
            (
                job.name,
                " ".join(filter(None, (job.source, job.source_state))) or "on events",
                job.operator,
                job.runtime,
                job.inputs,
                job.outputs,
                job.state or "",
                job.queued,
                job.in_flight,
                _paused(job.paused, job.held),
            )
            for job in found.jobs
        ],
        whole=("job",),
    )


def _paused(paused: bool, held: int) -> str:
    waiting = f"{held:,} events wait" if held else ""
    return ", ".join(filter(None, ("paused" if paused else "", waiting)))


@app.command("activate", short_help="Make a deployed version the active one.")
def activate(dag: DagName, version: VersionId, home: Home = None, json: Json = False) -> None:
    """Make a deployed version the active one, atomically: it serves reads and gets tasks."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.dags import ActivateAnswer, ActivateRequest

    with remote(home) as gateway:
        done = gateway.call("activate", ActivateAnswer, body=ActivateRequest(dag_version_id=version), dag=dag)
    if json:
        render.as_json(done)
    elif done.changed:
        render.note(f"version {version} of {dag} is active; {done.canceled_tasks} tasks of the former were canceled")
    else:
        render.note(f"version {version} of {dag} was active already")


@app.command("deactivate", short_help="Stop a DAG: no tasks, no sources, no names.")
def deactivate(dag: DagName, yes: Yes = False, home: Home = None, json: Json = False) -> None:
    """Stop a DAG: no version serves, its tasks end, its sources drain, and its names are released.

    Versions stay, and rows and files do for `retention.left_generations_days`; `trace dag activate` starts it again.
    Refused while other DAGs read its datasets.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.confirm import confirm
    from tracelake.wire.user.dags import DeactivateAnswer

    confirm(f"This stops DAG {dag}: its unfinished tasks are canceled, and its datasets cannot be queried.", yes=yes)
    with remote(home) as gateway:
        done = gateway.call("deactivate", DeactivateAnswer, repeatable=True, dag=dag)
    stopped = f"deactivated; {done.canceled_tasks} tasks were canceled"
    again = f"; to start it again: trace dag activate {dag} {done.former}"
    render.answer(done, stopped + again if done.changed else "no version of it is active", in_json=json)


@app.command("delete", short_help="Delete a DAG that is not active, with its files.")
def delete(dag: DagName, yes: Yes = False, home: Home = None, json: Json = False) -> None:
    """Delete a DAG that is not active: its versions, and the files of its datasets. For admins.

    Its commits stay in the ledger, and the audit of queries stays; tasks are deleted by retention, and tables in
    Postgres stay. Refused while the DAG is active, a release builds it, or other DAGs read its datasets.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.confirm import confirm
    from tracelake.wire.user.dags import DeleteDagAnswer

    with remote(home) as gateway:
        found = gateway.call("delete_dag", DeleteDagAnswer, query={"dry_run": "true"}, dag=dag)
        if found.versions:
            confirm(f"This deletes DAG {dag}: {_removed(found)}.", yes=yes)
        done = gateway.call("delete_dag", DeleteDagAnswer, repeatable=True, dag=dag)
    stay = f"; these tables stay: {', '.join(done.tables)}" if done.tables else ""
    text = f"deleted {_removed(done)}{stay}; files are removed within some minutes"
    render.answer(done, text if done.changed else "it was deleted before", in_json=json)


def _removed(found: DeleteDagAnswer) -> str:
    return (
        f"{found.versions} versions, {found.generations} generations of its datasets with {found.partitions} partitions"
        f" and {found.bytes} bytes"
    )


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
    show_warnings(file, found.warnings)
    if (dag := found.dag) is not None:
        rows = f"{len(dag.jobs)} jobs, {len(dag.publish) + len(dag.buffered)} published datasets"
        printing.out.print(f"DAG {dag.name} is valid: {rows}", markup=False)
        return
    printing.out.print("valid, as far as can be checked without a running system", markup=False)
    for problem in found.unchecked:
        printing.out.print(f"  not checked, line {problem.line}: {problem.reason}", markup=False)
