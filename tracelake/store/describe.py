"""Writes the page about the data model, `docs/reference/data_model.md`, from migrated databases.

`make docs` writes it again, and a test compares.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from tracelake.store.migrate import refusals
from tracelake.store.queries import queries

Entry = Any
"""A row of the catalogue: a named tuple, whose fields are the columns of its statement."""

HEAD = """\
# Data model

<!-- Made from the code by `make docs`; a test compares. -->

Three databases on two servers. Only the Dispatcher reaches `state`; workers and the query service reach `data`; the
Lite queue is `queue`, reached through its functions. The rights of each role are in `tracelake/store/roles.py`.
The schemas are plain SQL in `tracelake/store/migrations`; the migrations of a database are recorded in its schema
`trace_migrations`, which is left out here.
"""
ABOUT = {
    "state": "What is deployed, what happened, what is to be done and what counts: the source of truth.",
    "data": "Rows of hot and buffered datasets. Workers make their tables in schema `hot` as datasets need them.",
    "queue": "Wake-ups and buffered batches on their way, in the Lite profile.",
}


def describe(state_dsn: str, data_dsn: str, queue_dsn: str) -> str:
    """A page about the three databases, the same for the same migrations."""
    dsns = {"state": state_dsn, "data": data_dsn, "queue": queue_dsn}
    lines = [HEAD.rstrip()]
    for database, dsn in dsns.items():
        lines += ["", f"## Database `{database}`", "", ABOUT[database], "", *_database(dsn, database)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tracelake.store.describe", description=__doc__)
    for name in ABOUT:
        parser.add_argument(f"{name}_dsn", help=f"a migrated {name} database")
    options = parser.parse_args(arguments)
    sys.stdout.write(describe(options.state_dsn, options.data_dsn, options.queue_dsn))


def _database(dsn: str, database: str) -> Iterator[str]:
    with refusals(dsn, database), psycopg.connect(dsn, row_factory=namedtuple_row) as connection:
        catalog: dict[str, list[Entry]] = {
            name: connection.execute(sql.encode()).fetchall() for name, sql in queries("describe").items()
        }
    names = [table.name for table in catalog["tables"]]
    details = {kind: _by_table(catalog[kind]) for kind in ("columns", "constraints", "indexes", "triggers")}
    yield from _diagram(names, catalog["foreign_keys"])
    for table in catalog["tables"]:
        yield from _table(table, {kind: rows[table.name] for kind, rows in details.items()})
    yield from _list("Types", ((row.name, row.contents, row.meaning) for row in catalog["types"]))
    yield from _list("Functions", ((row.name, row.result, row.meaning) for row in catalog["functions"]))


def _by_table(rows: Iterable[Entry]) -> dict[str, list[Entry]]:
    grouped = defaultdict(list)
    for row in rows:
        grouped[row.table_name].append(row)
    return grouped


def _diagram(names: Iterable[str], references: Iterable[Entry]) -> Iterator[str]:
    yield from ("```mermaid", "erDiagram")
    for name in names:
        yield f'    "{name}"'
    for row in references:
        parent = "|o" if row.nullable else "||"
        yield f'    "{row.parent}" {parent}--o{{ "{row.child}" : "{row.columns or "org_id"}"'
    yield "```"


def _table(table: Entry, parts: dict[str, list[Entry]]) -> Iterator[str]:
    yield from ("", f"### `{table.name}`", "", table.purpose or "", "")
    yield from ("| column | type | null | default | meaning |", "|---|---|---|---|---|")
    for column in parts["columns"]:
        null = "yes" if column.nullable else ""
        cells = (f"`{column.name}`", column.type, null, _code(column.value), column.meaning or "")
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    for kind in ("constraints", "indexes", "triggers"):
        rows = ((row.name, _short(row.definition), row.meaning) for row in parts[kind])
        yield from _list(kind.capitalize(), rows)
    if table.settings:
        yield from ("", "Storage: " + ", ".join(_code(setting) for setting in table.settings) + ".")


def _list(title: str, rows: Iterable[tuple[str, str | None, str | None]]) -> Iterator[str]:
    """Name, definition and meaning, if any; nothing if there are no rows."""
    lines = [f"- `{name}`: {_code(what)}" + (f". {meaning}" if meaning else "") for name, what, meaning in rows]
    if lines:
        yield from ("", f"{title}:", "", *lines)


def _short(definition: str) -> str:
    """The definition in one line, without what its place on the page shows."""
    line = " ".join(definition.split())
    line = re.sub(r"^CREATE (UNIQUE )?INDEX \S+ ON \S+ USING btree ", r"\1", line)
    return re.sub(r"^CREATE TRIGGER \S+ ", "", line)


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    main()
