"""`trace db`: schemas of databases that you run yourself. `trace up` does this for its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer
from pydantic import SecretStr

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of

if TYPE_CHECKING:
    from tracelake.store.migrate import Database

app = typer.Typer(help="Schemas of databases that you run yourself.", no_args_is_help=True)


@app.command("migrate")
def migrate(home: Home = None, json: Json = False) -> None:
    """Migrate every database that has a DSN in the settings."""
    from tracelake.store.migrate import migrate as apply

    done = {database: apply(dsn, database) for database, dsn in _dsns(home).items()}
    _print_result(done, "applied", json=json)


@app.command("check")
def check(home: Home = None, json: Json = False) -> None:
    """Show what `trace db migrate` would apply. Exit code 1 if there is anything."""
    from tracelake.store.migrate import pending

    waiting = {database: pending(dsn, database) for database, dsn in _dsns(home).items()}
    _print_result(waiting, "waiting", json=json)
    sys.exit(1 if any(waiting.values()) else 0)


def _dsns(home: Home) -> dict[Database, str]:
    from tracelake.errors import SettingsError

    settings = settings_of(home)
    dsns: dict[Database, SecretStr | None] = {
        "state": settings.state.dsn,
        "data": settings.data.dsn,
        "queue": settings.queue.dsn,
    }
    given = {database: dsn.get_secret_value() for database, dsn in dsns.items() if dsn is not None}
    if not given:
        raise SettingsError(
            "the settings name no database",
            where="state.dsn, data.dsn, queue.dsn",
            hint="set TRACE_STATE__DSN and the others; `trace up` migrates the embedded databases",
        )
    return given


def _print_result(by_database: Mapping[Database, list[str]], word: str, *, json: bool) -> None:
    if json:
        printing.as_json(by_database)
        return
    for database, names in by_database.items():
        printing.out.print(f"{database}: {len(names)} {word}" + "".join(f"\n  {name}" for name in names), markup=False)
