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
    """Bring every database that has a DSN in the settings up to date."""
    from tracelake.store.migrate import migrate as apply

    done = {database: apply(dsn, database) for database, dsn in _given(home).items()}
    _say(done, "applied", json=json)


@app.command("check")
def check(home: Home = None, json: Json = False) -> None:
    """Say what `trace db migrate` would apply. Exit code 1 if there is something."""
    from tracelake.store.migrate import pending

    waiting = {database: pending(dsn, database) for database, dsn in _given(home).items()}
    _say(waiting, "waiting", json=json)
    sys.exit(1 if any(waiting.values()) else 0)


def _given(home: Home) -> dict[Database, str]:
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
            "no database of yours is named in the settings",
            where="state.dsn, data.dsn, queue.dsn",
            hint="set TRACE_STATE__DSN and the others; the embedded databases are brought up to date by `trace up`",
        )
    return given


def _say(by_database: Mapping[Database, list[str]], word: str, *, json: bool) -> None:
    if json:
        printing.as_json(by_database)
        return
    for database, names in by_database.items():
        printing.out.print(f"{database}: {len(names)} {word}" + "".join(f"\n  {name}" for name in names), markup=False)
