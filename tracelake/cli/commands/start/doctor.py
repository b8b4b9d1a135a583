"""`trace doctor`: checks whether this machine can run Trace."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of

Process = Annotated[
    str | None,
    typer.Option("--process", help="Check the rights at AWS of this process alone.", show_default="all of them"),
]
Role = Annotated[
    str | None,
    typer.Option("--role", help="Whose rights at AWS are checked.", metavar="ARN", show_default="your own"),
]


def doctor(home: Home = None, process: Process = None, role: Role = None, json: Json = False) -> None:
    """Check this machine, the services of AWS that settings name, rights at them, and login rules.

    Shows a fix for each problem, and ends with code 1 if there is one.
    """
    from tracelake.lite.doctor.figures import examine_figures
    from tracelake.lite.doctor.functions import examine_functions, examine_job_runs
    from tracelake.lite.doctor.login import examine_login_rules
    from tracelake.lite.doctor.queue import examine_queue
    from tracelake.lite.doctor.quotas import examine_quotas
    from tracelake.lite.doctor.rights import examine_rights
    from tracelake.lite.doctor.run import examine
    from tracelake.lite.doctor.secrets import examine_secrets
    from tracelake.lite.doctor.stores import examine_stores
    from tracelake.lite.home import Home as HomeFolder
    from tracelake.lite.home import holder
    from tracelake.lite.network_ports import wanted_ports

    settings = settings_of(home)
    held = holder(HomeFolder(settings.home)) is not None
    ports = wanted_ports(settings.up.port_base, store=settings.objects.backend == "seaweedfs")
    services = examine_queue, examine_stores, examine_functions, examine_job_runs, examine_secrets, examine_figures
    findings = [
        *examine(settings.home, [] if held else ports, os.environ),
        *(finding for examine_service in services for finding in examine_service(settings)),
        *examine_quotas(settings),
        *examine_rights(settings, process, role),
        *examine_login_rules(settings),
    ]
    if json:
        printing.as_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            mark = {True: "[green]ok  [/]", False: "[red]bad [/]", None: "[yellow]warn[/]"}[finding.ok]
            printing.out.print(f"{mark} {finding.name:<16} {finding.found}".replace("\n", " "))
            if finding.fix and finding.ok is not True:
                printing.out.print(f"     {'':<16} fix: {finding.fix}", markup=False)
    sys.exit(1 if any(finding.ok is False for finding in findings) else 0)
