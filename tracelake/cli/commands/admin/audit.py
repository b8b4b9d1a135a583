"""`trace audit`: who did what in the organisation, and whether the record of it is intact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json

if TYPE_CHECKING:
    from tracelake.wire.user.audit import AuditEntry

app = typer.Typer(help="The audit of the organisation, for admins: list, export, verify.", no_args_is_help=True)

PAGE = 500


@app.command("list", short_help="List who did what, the newest first.")
def list_(
    *,
    limit: Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=PAGE)] = 50,
    before: Annotated[int | None, typer.Option("--before", help="Only entries before this one.", metavar="N")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """List who did what, the newest first. An entry appears some seconds after the call. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.audit import AuditList

    with remote(home) as gateway:
        found = gateway.call("list_audit", AuditList, query={"limit": limit, "before": before})
    if render.json_or_empty(found, found.entries, "there are none", in_json=json):
        return
    render.table(
        ("entry", "when", "who", "what", "object", "from", "outcome"),
        [
            (row.seq, row.happened_at, row.actor, row.action, row.object, row.origin, row.code or row.outcome)
            for row in found.entries
        ],
    )
    if found.next is not None:
        render.note(f"there are more: --before {found.next}")


@app.command("export", short_help="Write all entries as lines of JSON.")
def export(
    file: Annotated[Path | None, typer.Argument(help="Where to; none: standard output.", metavar="[FILE]")] = None,
    *,
    after: Annotated[int, typer.Option("--after", help="Only entries after this one.", metavar="N", min=0)] = 0,
    home: Home = None,
) -> None:
    """Write all entries as lines of JSON, the oldest first, with their hashes. For admins."""
    import msgspec

    if file is None:
        for entry in _entries(home, after):
            printing.as_json_line(msgspec.to_builtins(entry))
        return
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as out:
        out.writelines(msgspec.json.encode(entry) + b"\n" for entry in _entries(home, after))
    part.replace(file)  # a file that is there is whole


def _entries(home: Path | None, after: int | None) -> Iterator[AuditEntry]:
    from tracelake.cli.api import remote
    from tracelake.wire.user.audit import AuditList

    with remote(home) as gateway:
        while after is not None:
            page = gateway.call("list_audit", AuditList, query={"after": after, "limit": PAGE})
            yield from page.entries
            after = page.next if page.next is not None and page.next > after else None


@app.command("verify", short_help="Verify that no entry was changed.")
def verify(home: Home = None, json: Json = False) -> None:
    """Verify the chain of hashes: no entry was changed, removed, moved or inserted. For admins.

    Exits with 1 if one was.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.audit import AuditVerified

    with remote(home) as gateway:
        found = gateway.call("verify_audit", AuditVerified)
    if json:
        render.as_json(found)
    elif found.problem is not None:
        render.note(f"the audit was changed: {found.problem.what}")
    else:
        render.pairs(
            [
                ("entries", f"{found.entries}, all as they were linked"),
                ("from, to", f"{found.first}, {found.last}"),
                ("last hash", found.last_hash),
                ("not linked yet", found.unlinked),
            ]
        )
    raise typer.Exit(1 if found.problem is not None else 0)
