"""Options that several verbs share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trace_platform.settings import Settings, load_settings

Home = Annotated[
    Path | None,
    typer.Option("--home", help="The folder that holds everything.", show_default="~/.trace", metavar="DIR"),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]


def settings_of(home: Path | None) -> Settings:
    return load_settings(os.environ, home=home)
