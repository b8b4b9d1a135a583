"""`trace role`: the roles of your organisation, by which datasets are shared."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli.options import Home, Json

app = typer.Typer(help="Roles by which datasets are shared: create, grant, revoke.", no_args_is_help=True)

RoleName = Annotated[str, typer.Argument(help="Its name in DAGs.", metavar="ROLE", show_default=False)]
Subject = Annotated[str, typer.Argument(help="The user's subject.", metavar="USER", show_default=False)]


@app.command("list", short_help="List the roles and what is shared with each.")
def list_(home: Home = None, json: Json = False) -> None:
    """List the roles, how many have each, and the datasets that are shared with it. For writers."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import RoleList

    with remote(home) as gateway:
        found = gateway.call("list_roles", RoleList)
    if render.json_or_empty(found, found.roles, "no roles yet; `trace role create` adds one", in_json=json):
        return
    render.table(
        ("role", "name", "members", "datasets"),
        [(role.role, role.name, role.members, role.datasets or None) for role in found.roles],
    )


@app.command("create")
def create(
    role: RoleName,
    name: Annotated[str | None, typer.Option("--name", help="How it is shown.", metavar="TEXT")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Create a role. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import RoleRequest, RoleRow

    with remote(home) as gateway:
        done = gateway.call("create_role", RoleRow, body=RoleRequest(role=role, name=name))
    render.answer(done, f"role {done.role} is created; `trace role grant {done.role} USER` adds members", in_json=json)


@app.command("delete")
def delete(
    role: RoleName,
    force: Annotated[bool, typer.Option("--force", help="Also if datasets are shared with it.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Delete a role with which no dataset is shared. For admins.

    With `--force` its members lose the access to what was shared with it; a dataset that was shared with no other role
    is left to admins.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import RoleDeleted

    with remote(home) as gateway:
        done = gateway.call("delete_role", RoleDeleted, query={"force": "true" if force else None}, role=role)
    lost = f"; no longer shared with it: {', '.join(done.datasets)}" if done.datasets else ""
    render.answer(done, f"role {done.role} is deleted; {done.members} users had it{lost}", in_json=json)


@app.command("members")
def members(role: RoleName, home: Home = None, json: Json = False) -> None:
    """List the users who have a role. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import MemberList

    with remote(home) as gateway:
        found = gateway.call("list_role_members", MemberList, role=role)
    if not render.json_or_empty(found, found.members, f"no user has role {role}", in_json=json):
        render.table(("subject", "e-mail", "since"), [(user.subject, user.email, user.since) for user in found.members])


@app.command("grant")
def grant(role: RoleName, user: Subject, home: Home = None, json: Json = False) -> None:
    """Give a user a role, from the user's next call on. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.user_ids import user_id
    from tracelake.wire.user.identity import MembershipAnswer

    with remote(home) as gateway:
        done = gateway.call("grant_role", MembershipAnswer, role=role, user=user_id(gateway, user))
    render.answer(done, f"{user} {'has' if done.changed else 'had'} role {role}", in_json=json)


@app.command("revoke")
def revoke(role: RoleName, user: Subject, home: Home = None, json: Json = False) -> None:
    """Take a role from a user, from the user's next call on. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.user_ids import user_id
    from tracelake.wire.user.identity import MembershipAnswer

    with remote(home) as gateway:
        done = gateway.call("revoke_role", MembershipAnswer, role=role, user=user_id(gateway, user))
    render.answer(done, f"{user} {'no longer has' if done.changed else 'did not have'} role {role}", in_json=json)
