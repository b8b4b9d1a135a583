"""`trace org`: the organisations of a system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import Home, Json

if TYPE_CHECKING:
    from tracelake.wire.user.identity import OrgRow
    from tracelake.wire.user.limits import OrgLimits, OrgUsage

app = typer.Typer(help="Organisations: list, create, show, limits, usage.", no_args_is_help=True)

Org = Annotated[str, typer.Argument(help="Its name in paths.", metavar="ORG", show_default=False)]


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List the organisations. For platform admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import OrgList

    with remote(home) as gateway:
        found = gateway.call("list_orgs", OrgList)
    if json:
        render.as_json(found)
        return
    render.table(
        ("organisation", "name", "users", "admins"), [(org.org, org.name, org.users, org.admins) for org in found.orgs]
    )


@app.command("create")
def create(
    org: Org,
    admin: Annotated[str, typer.Option("--admin", help="The subject of its first admin.", metavar="SUBJECT")],
    *,
    name: Annotated[str | None, typer.Option("--name", help="How it is shown.", metavar="TEXT")] = None,
    email: Annotated[str | None, typer.Option("--email", help="Of its first admin.", metavar="ADDRESS")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Create an organisation with its first admin. For platform admins."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import OrgRequest, OrgRow

    body = OrgRequest(org=org, admin=admin, name=name, email=email)
    with remote(home) as gateway:
        _show(gateway.call("create_org", OrgRow, body=body), in_json=json)


@app.command("show")
def show(org: Org, home: Home = None, json: Json = False) -> None:
    """Show an organisation and its admins. For platform admins."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import OrgRow

    with remote(home) as gateway:
        _show(gateway.call("show_org", OrgRow, org=org), in_json=json)


@app.command("limits")
def limits(
    org: Org,
    *,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set limits: tasks=20,queries=none,functions=default. Can be repeated.",
            metavar="NAME=NUMBER,...",
        ),
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Show what an organisation may use, and with --set, change it. For platform admins."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.limits import OrgLimits, OrgLimitsChange

    asked = _changes(change or [])
    with remote(home) as gateway:
        if asked:
            shown = gateway.call("set_org_limits", OrgLimits, body=OrgLimitsChange(limits=asked), org=org)
        else:
            shown = gateway.call("show_org_limits", OrgLimits, org=org)
    _show_limits(shown, in_json=json)


@app.command("usage")
def usage(
    org: Annotated[
        str | None, typer.Argument(help="Its name in paths; your own if left out.", metavar="[ORG]", show_default=False)
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Show what your organisation uses, beside its limits.

    A platform admin may name another.
    """
    from tracelake.cli.api import remote
    from tracelake.wire.user.fields import OWN_ORG
    from tracelake.wire.user.limits import OrgUsage

    with remote(home) as gateway:
        _show_usage(gateway.call("show_org_usage", OrgUsage, org=org or OWN_ORG), in_json=json)


def _changes(given: list[str]) -> dict[str, int | str]:
    from tracelake.errors import InvalidRequest

    changes: dict[str, int | str] = {}
    for item in ",".join(given).split(",") if given else ():
        name, sign, value = item.partition("=")
        if not sign or not value.strip():
            raise InvalidRequest(
                f"{item[:80]!r} is no limit", where="--set", hint="write NAME=NUMBER, such as tasks=20"
            )
        if name.strip() in changes:
            raise InvalidRequest(f"{name.strip()[:80]!r} is set twice", where="--set")
        plain = value.strip().replace("_", "")
        changes[name.strip()] = int(plain) if plain.lstrip("-").isdecimal() and plain.isascii() else value.strip()
    return changes


def _show_limits(found: OrgLimits, *, in_json: bool) -> None:
    from tracelake.cli import render

    if in_json:
        render.as_json(found)
        return
    rows = [
        (
            row.limit,
            "none" if row.most is None else f"{row.most:,}",
            row.unit,
            row.set_by if row.own else "default",
            row.about,
        )
        for row in found.limits
    ]
    render.table(("limit", "most", "unit", "set by", "of"), rows, whole=("limit", "most"))


def _show_usage(found: OrgUsage, *, in_json: bool) -> None:
    from tracelake.cli import printing, render

    if in_json:
        render.as_json(found)
        return
    rows = [
        (row.limit, f"{row.used:,}", "none" if row.most is None else f"{row.most:,}", row.waiting)
        for row in found.limits
        if row.used is not None
    ]
    render.table(("limit", "used", "most", "tasks that wait"), rows, whole=("limit",))
    stored = [
        (row.dataset or f"{row.dag}.{row.job}", row.current_bytes, row.replaced_bytes, row.rows)
        for row in found.datasets
    ]
    if stored:
        render.table(("dataset", "bytes", "replaced bytes", "rows"), stored, whole=("dataset",))
    printing.out.print(f"{found.queries:,} queries within a day, {found.query_seconds:,.1f} s together", markup=False)


def _show(org_row: OrgRow, *, in_json: bool) -> None:
    from tracelake.cli import render

    if in_json:
        render.as_json(org_row)
        return
    render.pairs(
        [
            ("organisation", org_row.org),
            ("name", org_row.name),
            ("users", org_row.users),
            ("admins", org_row.admins),
            ("since", org_row.created_at),
        ]
    )
