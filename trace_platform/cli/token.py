"""`trace token`: a user's token from Lite's own issuer."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from trace_platform.cli import say
from trace_platform.cli.options import Home, Json, settings_of
from trace_platform.errors import SetupError

Subject = Annotated[
    str | None,
    typer.Option("--subject", help="The user's external_id.", metavar="SUB", show_default="the first admin"),
]
Days = Annotated[int, typer.Option("--days", help="How long it holds.", metavar="N", min=1, max=366)]


def token(subject: Subject = None, days: Days = 30, home: Home = None, json: Json = False) -> None:
    """Print a token of this machine's own issuer, for `Authorization: Bearer`. What it may is the user's role.

    Only who can read the home folder can make one. Treat it as a password.
    """
    from trace_platform.lite.home import Home as HomeFolder
    from trace_platform.lite.home import ensure_issuer_key
    from trace_platform.lite.user_token import DAY, mint_user_token
    from trace_platform.store.first_start import FIRST_ADMIN

    settings = settings_of(home)
    folder = HomeFolder(settings.home)
    if not (folder.keys / "issuer.pem").exists():
        raise SetupError(
            f"{settings.home} has no issuer yet", where=str(folder.keys), hint="`trace up` makes it at its first start"
        )
    who = subject or FIRST_ADMIN
    made = mint_user_token(ensure_issuer_key(folder), settings.identity, who, days * DAY)
    if json:
        say.as_json({"token": made, "subject": who, "expires_at": int(time.time()) + days * DAY})
    else:
        sys.stdout.write(made + "\n")
