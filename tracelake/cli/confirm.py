"""Asks before something is done that cannot be undone."""

from __future__ import annotations

import sys

import typer

from tracelake.cli import printing
from tracelake.errors import BadInput


def confirm(what: str, *, yes: bool) -> None:
    """Returns if the user agrees. Without a terminal, `--yes` must be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{what} nothing was done", where="--yes", hint="add --yes to do it")
    printing.err.print(what, markup=False)
    if not typer.confirm("Continue?", err=True):
        raise typer.Abort
