"""`trace service-token`: the tokens by which the processes of a system are known to each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json
from tracelake.domain.text.escape_controls import on_one_line
from tracelake.errors import InvalidRequest
from tracelake.wire.calls.call import Service

app = typer.Typer(help="Tokens of services, for platform admins: list, create, revoke.", no_args_is_help=True)

Which = Annotated[Service, typer.Argument(help="The service.", metavar="SERVICE", show_default=False)]
Runtimes = Annotated[
    list[str] | None,
    typer.Option("--runtime", help="A runtime whose tasks it may claim; for a worker or a runner.", metavar="NAME"),
]
Days = Annotated[
    int | None,
    typer.Option("--days", help="Days until it expires.", metavar="N", min=1, max=3660, show_default="never"),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Write it to this file, for its owner alone, instead of printing it.", metavar="FILE"),
]


@app.command("create", short_help="Create a token of a service.")
def create(
    service: Which,
    name: Annotated[str, typer.Option("--name", help="Its name.", metavar="NAME", show_default=False)],
    *,
    runtime: Runtimes = None,
    days: Days = None,
    out: Out = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Create a token of a service. It is shown once. For platform admins.

    The service's other tokens stay valid: a process whose `identity.service_token_file` is replaced by `--out` uses the
    new one within a second, and then the old one can be revoked.
    """
    import msgspec

    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.lite.home import write_private
    from tracelake.wire.user.identity import ServiceTokenMade, ServiceTokenRequest

    if out is not None and not out.parent.is_dir():
        raise InvalidRequest(f"there is no folder {out.parent}", where="--out")
    body = ServiceTokenRequest(service=service, name=name, runtimes=runtime or [], days=days)
    with remote(home) as gateway:
        made = gateway.call("create_service_token", ServiceTokenMade, body=body)
    if out is not None:
        write_private(out, made.token + "\n")
    if json:
        render.as_json(made if out is None else msgspec.structs.replace(made, token=""))
        return
    until = f"holds until {render.when(made.expires_at)}" if made.expires_at else "holds until it is revoked"
    printing.err.print(f"token {made.id} of the service {service} is not shown again, and {until}", markup=False)
    sys.stdout.write(f"{out}\n" if out is not None else on_one_line(made.token) + "\n")


@app.command("list", short_help="List the tokens of services.")
def list_(home: Home = None, json: Json = False) -> None:
    """List the tokens of services, without the tokens themselves. For platform admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import ServiceTokenList

    with remote(home) as gateway:
        found = gateway.call("list_service_tokens", ServiceTokenList)
    if render.json_or_empty(found, found.tokens, "there are none", in_json=json):
        return
    render.table(
        ("service", "name", "id", "runtimes", "expires", "last used"),
        [
            (
                row.service,
                row.name,
                row.id,
                ", ".join(row.runtimes),
                "has expired" if row.expired else row.expires_at or "never",
                row.last_used_at or "never",
            )
            for row in found.tokens
        ],
    )


@app.command("revoke", short_help="Revoke a token of a service.")
def revoke(
    token: Annotated[UUID, typer.Argument(help="Its id.", metavar="ID", show_default=False)],
    home: Home = None,
    json: Json = False,
) -> None:
    """Revoke a token of a service: within seconds every process refuses it. For platform admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import ServiceTokenRevoked

    with remote(home) as gateway:
        done = gateway.call("revoke_service_token", ServiceTokenRevoked, service_token=str(token))
    render.answer(done, f"token {done.name} of the service {done.service} is revoked", in_json=json)
