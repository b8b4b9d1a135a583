"""`trace token`: a user's token from Lite's own issuer."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of
from tracelake.errors import ServiceUnavailable, SetupError, Unauthenticated

if TYPE_CHECKING:
    from tracelake.settings import Settings

Subject = Annotated[
    str | None,
    typer.Option("--subject", help="The user's external_id.", metavar="SUB", show_default="the first admin"),
]
Days = Annotated[int, typer.Option("--days", help="How long it holds.", metavar="N", min=1, max=366)]


def token(subject: Subject = None, days: Days = 30, home: Home = None, json: Json = False) -> None:
    """Print a token of this machine's own issuer, for `Authorization: Bearer`. The user's role decides what it may do.

    Only who can read the home folder can make one. Treat it as a password. Refused for a subject that is no user, if
    the system runs; else a note on standard error says that this was not checked.
    """
    from tracelake.lite.home import Home as HomeFolder
    from tracelake.lite.home import ensure_issuer_key
    from tracelake.lite.user_token import DAY, mint_user_token
    from tracelake.store.first_start import FIRST_ADMIN

    settings = settings_of(home)
    folder = HomeFolder(settings.home)
    if not (folder.keys / "issuer.pem").exists():
        raise SetupError(
            f"{settings.home} has no issuer yet", where=str(folder.keys), hint="`trace up` makes it at its first start"
        )
    who = subject or FIRST_ADMIN
    made = mint_user_token(ensure_issuer_key(folder), settings.identity, who, days * DAY)
    checked = _is_a_users(made, who, settings)
    if not checked:
        printing.err.print(
            f"not checked: no Trace runs in {settings.home} to say whether {who} is a user", markup=False
        )
    if json:
        expires = int(time.time()) + days * DAY
        printing.as_json({"token": made, "subject": who, "expires_at": expires, "checked": checked})
    else:
        sys.stdout.write(made + "\n")


def _is_a_users(token: str, subject: str, settings: Settings) -> bool:
    """Refused as the system that runs there refuses it, if it knows no such user; False: none runs there."""
    from tracelake.cli.api import at_home
    from tracelake.wire.user_dags import DagList

    try:
        with at_home(settings, token) as gateway:
            gateway.ask("list_dags", DagList)
    except (SetupError, ServiceUnavailable):
        return False
    except Unauthenticated as refusal:
        raise Unauthenticated(
            f"a token for {subject!r} would open nothing here: {refusal.message}",
            where="--subject",
            hint="give a user's external_id; without --subject it is the first admin's",
        ) from None
    return True
