"""`trace db`: schemas of databases that you run yourself (`trace up` does this for its own), and their sizes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import SecretStr

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of

if TYPE_CHECKING:
    from tracelake.store.migrate import Database
    from tracelake.wire.user.usage import Usage

Days = Annotated[int, typer.Option("--days", help="The age to count from.", metavar="N", min=0, max=36500)]
THOUSAND = 1000

app = typer.Typer(help="Schemas and sizes of databases.", no_args_is_help=True)


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


@app.command("usage", short_help="Show the sizes of tables and datasets.")
def usage(days: Days = 30, home: Home = None, json: Json = False) -> None:
    """Show the size of tables and datasets, their growth, and what keeping rows for --days would delete. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.usage import Usage

    with remote(home) as gateway:
        found = gateway.call("show_usage", Usage, query={"days": days})
    if json:
        render.as_json(found)
    else:
        _show_usage(found)


def _show_usage(found: Usage) -> None:
    from tracelake.cli import render

    render.title("tables of the state database")
    render.table(
        ("table", "size", "rows"), [(item.table, _size(item.bytes), f"{item.rows:,}") for item in found.tables]
    )
    render.title("files of datasets, by generation")
    render.table(
        ("dataset", "generation", "state", "current", "replaced", "rows", "partitions", "in 7 days"),
        [
            (
                item.dataset or f"{item.dag}.{item.job}",
                item.dataset_version,
                "active" if item.current else "",
                _size(item.current_bytes),
                _size(item.replaced_bytes),
                f"{item.current_rows:,}",
                item.partitions,
                f"{_size(item.week_bytes)} in {item.week_commits} commits",
            )
            for item in found.generations
        ],
        whole=("generation",),
    )
    render.title(f"older than {found.days} days, of which what is still needed stays")
    render.table(
        ("kind", "rows", "size"),
        [(item.kind, f"{item.rows:,}", _size(item.bytes) if item.bytes else None) for item in found.older],
    )


def _size(number: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < THOUSAND:
            return f"{number:,.0f} {unit}"
        number = round(number / THOUSAND)
    return f"{number:,} TB"


def _dsns(home: Home) -> dict[Database, str]:
    from tracelake.errors import SettingsError
    from tracelake.wiring import with_secrets

    settings = with_secrets(settings_of(home), "state", "data", "queue")
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
