"""`trace plan`: what a change of DAGs would rebuild."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli.options import Home, Json

Files = Annotated[
    list[str], typer.Argument(help="The YAML of each DAG that changes.", metavar="FILE", show_default=False)
]


def plan(files: Files, home: Home = None, json: Json = False) -> None:
    """Show what a change of DAGs would do to each dataset, and why. Nothing is changed.

    DAGs that read what changes are part of it. `trace deploy FILE... --plan HASH` carries out just this plan.
    """
    from tracelake.cli import printing, render
    from tracelake.cli.api import remote
    from tracelake.cli.dag_file import problems_shown
    from tracelake.cli.releases import print_plan, push_bundles, read_files
    from tracelake.wire.user.releases import Plan, PlanRequest

    sources = read_files(files, json=json)
    with remote(home) as gateway, problems_shown(", ".join(files), json=json):
        push_bundles(gateway, sources, quiet=json)
        with printing.waiting("comparing", quiet=json):
            found = gateway.call("plan", Plan, body=PlanRequest(dags=[source.text for source in sources]))
    if json:
        render.as_json(found)
    else:
        print_plan(found)
