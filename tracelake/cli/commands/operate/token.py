"""`trace token`: a user's token from Lite's own issuer; and personal access tokens, of any system."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of
from tracelake.domain.access.subjects import Role
from tracelake.domain.text.escape_controls import on_one_line
from tracelake.errors import ServiceUnavailable, SetupError, Unauthenticated

if TYPE_CHECKING:
    from tracelake.settings import Settings

Subject = Annotated[
    str | None,
    typer.Option("--subject", help="The user's external_id.", metavar="SUB", show_default="the first admin"),
]
Days = Annotated[int, typer.Option("--days", help="Days until it expires.", metavar="N", min=1, max=366)]


TokenName = Annotated[str, typer.Argument(help="Its name.", metavar="NAME", show_default=False)]
TokenRole = Annotated[Role, typer.Option("--role", help="The most that it allows.")]

app = typer.Typer()


@app.callback(invoke_without_command=True)
def token(
    context: typer.Context, subject: Subject = None, days: Days = 30, home: Home = None, json: Json = False
) -> None:
    """Print a token of this machine's own issuer, for `Authorization: Bearer`. The user's role decides what it allows.

    It needs read access to the home folder. Treat it as a password. If the system runs, a subject that is no user is
    refused; otherwise a note on standard error says that this was not checked.
    """
    if context.invoked_subcommand is not None:
        return
    _print_local(subject, days, home, in_json=json)


@app.command("create", short_help="Create a personal access token.")
def create(name: TokenName, role: TokenRole = "reader", days: Days = 30, home: Home = None, json: Json = False) -> None:
    """Create a personal access token, for a program that acts for you. It is shown once.

    It allows at most its role, and never more than you may do yourself at the time of a call.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import TokenMade, TokenRequest

    with remote(home) as gateway:
        made = gateway.call("create_token", TokenMade, body=TokenRequest(name=name, role=role, days=days))
    if json:
        render.as_json(made)
        return
    printing.err.print(f"it is not shown again, and holds until {render.when(made.expires_at)}", markup=False)
    sys.stdout.write(on_one_line(made.token) + "\n")


@app.command("list", short_help="List your personal access tokens.")
def list_(home: Home = None, json: Json = False) -> None:
    """List your personal access tokens, without the tokens themselves."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import TokenList

    with remote(home) as gateway:
        found = gateway.call("list_tokens", TokenList)
    if render.json_or_empty(found, found.tokens, "you have none; `trace token create` makes one", in_json=json):
        return
    render.table(
        ("name", "role", "created", "expires", "last used"),
        [
            (row.name, row.role, row.created_at, "has expired" if row.expired else row.expires_at, row.last_used_at)
            for row in found.tokens
        ],
    )


@app.command("revoke", short_help="Revoke a personal access token.")
def revoke(name: TokenName, home: Home = None, json: Json = False) -> None:
    """Revoke a personal access token of yours: the next call with it is refused."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import TokenRevoked

    with remote(home) as gateway:
        done = gateway.call("revoke_token", TokenRevoked, token=name)
    render.answer(done, f"token {done.name} is revoked", in_json=json)


def _print_local(subject: str | None, days: int, home: Path | None, *, in_json: bool) -> None:
    from tracelake.lite.home import Home as HomeFolder
    from tracelake.lite.home import ensure_issuer_key
    from tracelake.lite.user_token import DAY, mint_user_token
    from tracelake.store.first_start import FIRST_ADMIN

    settings = settings_of(home)
    folder = HomeFolder(settings.home)
    if not (folder.keys / "issuer.pem").exists():
        raise SetupError(
            f"{settings.home} has no issuer yet", where=str(folder.keys), hint="the first `trace up` creates it"
        )
    who = subject or FIRST_ADMIN
    token = mint_user_token(ensure_issuer_key(folder), settings.identity, who, days * DAY)
    checked = _check_user(token, who, settings)
    if not checked:
        printing.err.print(
            f"not checked: no Trace runs in {settings.home} to say whether {who} is a user", markup=False
        )
    if in_json:
        expires = int(time.time()) + days * DAY
        printing.as_json({"token": token, "subject": who, "expires_at": expires, "checked": checked})
    else:
        sys.stdout.write(token + "\n")


def _check_user(token: str, subject: str, settings: Settings) -> bool:
    """Raises if the running system does not know the user; False if none runs."""
    from tracelake.cli.api import remote_at_home
    from tracelake.wire.user.dags import DagList

    try:
        with remote_at_home(settings, token) as gateway:
            gateway.call("list_dags", DagList)
    except (SetupError, ServiceUnavailable):
        return False
    except Unauthenticated as refusal:
        raise Unauthenticated(
            f"a token for {subject!r} would be refused: {refusal.message}",
            where="--subject",
            hint="`trace user add` adds a user; without --subject it is the first admin's token",
        ) from None
    return True
