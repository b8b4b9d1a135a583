"""`trace config`: every setting, its value and its purpose."""

from __future__ import annotations

import os

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of

app = typer.Typer(help="Settings: what they are and where they come from.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Settings: what they are and where they come from."""


@app.command("show", short_help="Show every setting, its value and where it came from.")
def show(home: Home = None, json: Json = False) -> None:
    """Show every setting with its value (secrets masked), where it came from, its unit and its reason."""
    from tracelake.settings import leaves_of, origin, shown

    settings = settings_of(home)
    rows = [
        {
            "setting": leaf.path,
            "value": shown(settings, leaf),
            "from": origin(leaf, os.environ, settings),
            "unit": leaf.unit or "",
            "variable": leaf.variable,
            "why": leaf.why,
        }
        for leaf in leaves_of(settings)
    ]
    if json:
        printing.as_json(rows)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("setting", "value", "unit", "from", "why"):
        table.add_column(column, no_wrap=column in {"setting", "from"}, overflow="fold")
    for row in rows:
        table.add_row(*(str(row[column]).replace("[", "\\[") for column in ("setting", "value", "unit", "from", "why")))
    printing.out.print(table, soft_wrap=False)
