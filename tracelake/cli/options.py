"""Options that several verbs share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from tracelake.cli import printing
from tracelake.settings import Settings, load_settings, stray_variables

Home = Annotated[
    Path | None,
    typer.Option("--home", help="The home folder of Trace.", show_default="~/.trace", metavar="DIR"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RequestId = Annotated[
    UUID | None,
    typer.Option(
        "--request-id",
        help="A request with an id that was used before does nothing.",
        metavar="UUID",
        show_default="a new one",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def settings_of(home: Path | None, env: Mapping[str, str] = os.environ) -> Settings:
    for name in stray_variables(env):
        warning = f"{name} is not a setting of Trace: ignored (`trace config show` lists all settings)"
        printing.err.print(warning, markup=False)
    return load_settings(env, home=home)
