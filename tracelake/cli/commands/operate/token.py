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
Days = Annotated[int, typer.Option("--days", help="Days until it expires.", metavar="N", min=1, max=366)]


def token(subject: Subject = None, days: Days = 30, home: Home = None, json: Json = False) -> None:
    """Print a token of this machine's own issuer, for `Authorization: Bearer`. The user's role decides what it allows.

    It needs read access to the home folder. Treat it as a password. If the system runs, a subject that is no user is
    refused; otherwise a note on standard error says that this was not checked.
    """
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
    if json:
        expires = int(time.time()) + days * DAY
        printing.as_json({"token": token, "subject": who, "expires_at": expires, "checked": checked})
    else:
        sys.stdout.write(token + "\n")


def _check_user(token: str, subject: str, settings: Settings) -> bool:
    """Raises if the running system does not know the user; False if none runs."""
    from tracelake.cli.api import remote_at_home
    from tracelake.wire.user_dags import DagList

    try:
        with remote_at_home(settings, token) as gateway:
            gateway.call("list_dags", DagList)
    except (SetupError, ServiceUnavailable):
        return False
    except Unauthenticated as refusal:
        raise Unauthenticated(
            f"a token for {subject!r} would be refused: {refusal.message}",
            where="--subject",
            hint="give a user's external_id; without --subject it is the first admin's",
        ) from None
    return True
