"""`trace org`: the organisations of a system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import Home, Json

if TYPE_CHECKING:
    from tracelake.wire.user.identity import OrgRow

app = typer.Typer(help="Organisations, for platform admins: list, create, show.", no_args_is_help=True)

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
