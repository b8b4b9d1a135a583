"""`trace secret`: the secrets of an organisation's jobs and webhook sources. No command shows a value."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

app = typer.Typer(help="Secrets of the organisation, for admins: set, list, remove.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Its name, in any case.", metavar="NAME", show_default=False)]
Kind = Annotated[
    Literal["job", "webhook"], typer.Option("--kind", help="What it is for.", metavar="job|webhook", show_default=True)
]
FromFile = Annotated[
    Path | None, typer.Option("--from-file", help="A file with the value.", metavar="FILE", show_default=False)
]


@app.command("set", short_help="Set a secret.")
def set_(name: Name, kind: Kind = "job", from_file: FromFile = None, home: Home = None, json: Json = False) -> None:
    """Set a secret, or replace its value: from a prompt, standard input or a file. For admins.

    The next task or call of the organisation uses it. One newline at the end of the value is left out.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.secrets import SecretRequest, SecretSet

    secret = _checked(name)
    body = SecretRequest(value=_value(from_file))
    with remote(home) as gateway:
        done = gateway.call("set_secret", SecretSet, body=body, kind=kind, secret=secret)
    change = "is set" if done.created else "has a new value"
    render.answer(done, f"secret {done.name} of kind {done.kind} {change}", in_json=json)


@app.command("list", short_help="List secrets.")
def list_(home: Home = None, json: Json = False) -> None:
    """List the secrets of the organisation, without their values. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.secrets import SecretList

    with remote(home) as gateway:
        found = gateway.call("list_secrets", SecretList)
    if render.json_or_empty(found, found.secrets, "there are none", in_json=json):
        return
    render.table(
        ("name", "kind", "set by", "set", "used by", "state"),
        [
            (
                row.name,
                row.kind,
                row.set_by,
                row.set_at,
                ", ".join(row.used_by),
                "set" if row.readable else "its key is missing",
            )
            for row in found.secrets
        ],
    )


@app.command("remove", short_help="Remove a secret.")
def remove(
    name: Name,
    kind: Kind = "job",
    *,
    force: Annotated[bool, typer.Option("--force", help="Also if jobs of active versions name it.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Remove a secret that no job of an active version names; `--force`: any. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.secrets import SecretRemoved

    query = {"force": "true" if force else None}
    with remote(home) as gateway:
        done = gateway.call("remove_secret", SecretRemoved, query=query, kind=kind, secret=name.lower())
    render.answer(done, f"secret {done.name} of kind {done.kind} is removed", in_json=json)


def _checked(name: str) -> str:
    from tracelake.wire.calls.user_calls import PARTS

    if not any(pattern.fullmatch(name.lower()) for pattern in PARTS["secret"]):
        hint = "as in the DAG: words of letters and digits with `_` between them, 64 characters at most"
        raise BadInput(f"{name!r} is no name of a secret", where="NAME", hint=hint)
    return name.lower()


def _value(file: Path | None) -> str:
    value = _given(file)
    if not value:
        raise BadInput("the value is empty", where="--from-file" if file else "standard input")
    return value


def _given(file: Path | None) -> str:
    try:
        if file is not None:
            return file.read_text(encoding="utf-8").removesuffix("\n")
        if sys.stdin.isatty():
            return getpass("Value: ", stream=sys.stderr)  # it shows the prompt when nothing is echoed any more
        return typer.get_text_stream("stdin").read().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(f"the value cannot be read: {reason}", where="--from-file") from None
