"""`trace user`: the users of your organisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import Home, Json, Yes
from tracelake.domain.access.subjects import Role

if TYPE_CHECKING:
    from tracelake.wire.user.identity import UserRow

app = typer.Typer(help="Users of your organisation: list, show, add, set-role, remove.", no_args_is_help=True)

Subject = Annotated[
    str, typer.Argument(help="The subject (`sub`) of the user's tokens.", metavar="SUBJECT", show_default=False)
]
PlatformRole = Annotated[Role, typer.Option("--role", help="What the user may do.")]
NewRole = Annotated[Role, typer.Argument(help="What the user may do from now on.", show_default=False)]
Days = Annotated[
    int | None,
    typer.Option("--days", min=1, max=365, help="Expires unless the user calls within so many days.", metavar="N"),
]
Email = Annotated[str | None, typer.Option("--email", help="How the user is shown as an author.", metavar="ADDRESS")]


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List the users of your organisation. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import UserList

    with remote(home) as gateway:
        found = gateway.call("list_users", UserList)
    if json:
        render.as_json(found)
        return
    render.table(
        ("subject", "e-mail", "role", "organisation roles", "since", "invited until"),
        [
            (user.subject, user.email, user.role, user.org_roles or None, user.created_at, user.invited_until)
            for user in found.users
        ],
    )


@app.command("show")
def show(subject: Subject, home: Home = None, json: Json = False) -> None:
    """Show a user: role, organisation roles, id. For admins."""
    from tracelake.cli.api import remote
    from tracelake.cli.user_ids import user_id
    from tracelake.wire.user.identity import UserRow

    with remote(home) as gateway:
        _show(gateway.call("show_user", UserRow, user=user_id(gateway, subject)), in_json=json)


@app.command("add", short_help="Add a user by the subject of the identity provider.")
def add(
    subject: Subject,
    email: Email = None,
    role: PlatformRole = "reader",
    *,
    days: Days = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Add a user by the subject that the identity provider puts into the user's tokens. For admins.

    Nothing is sent to the user. With Lite's own issuer, `trace token --subject SUBJECT` prints a token to pass on.
    """
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import UserRequest, UserRow

    body = UserRequest(subject=subject, email=email, role=role, days=days)
    with remote(home) as gateway:
        _show(gateway.call("add_user", UserRow, body=body), in_json=json)


@app.command("set-role", short_help="Change what a user may do.")
def set_role(subject: Subject, role: NewRole, home: Home = None, json: Json = False) -> None:
    """Change what a user may do, from the user's next call on. For admins; the last one stays one."""
    from tracelake.cli.api import remote
    from tracelake.cli.user_ids import user_id
    from tracelake.wire.user.identity import UserRoleRequest, UserRow

    with remote(home) as gateway:
        user = user_id(gateway, subject)
        _show(gateway.call("set_user_role", UserRow, body=UserRoleRequest(role=role), user=user), in_json=json)


@app.command("remove")
def remove(subject: Subject, yes: Yes = False, home: Home = None, json: Json = False) -> None:
    """Remove a user, from the user's next call on. For admins; the last one stays.

    What the user has deployed stays, with the user as its author.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.confirm import confirm
    from tracelake.cli.user_ids import user_id
    from tracelake.wire.user.identity import UserRemoved

    confirm(f"This takes all rights of user {subject}.", yes=yes)
    with remote(home) as gateway:
        done = gateway.call("remove_user", UserRemoved, user=user_id(gateway, subject))
    render.answer(done, f"user {done.subject} is removed", in_json=json)


def _show(user: UserRow, *, in_json: bool) -> None:
    from tracelake.cli import render

    if in_json:
        render.as_json(user)
        return
    render.pairs(
        [
            ("subject", user.subject),
            ("e-mail", user.email),
            ("role", f"{user.role}, and platform admin" if user.platform_admin else user.role),
            ("organisation roles", user.org_roles),
            ("since", user.created_at),
            ("invited until", user.invited_until),
            ("id", user.id),
        ]
    )
