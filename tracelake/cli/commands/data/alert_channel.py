"""`trace alert channel`: the webhooks that alerts are sent to. A secret is shown once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.wire.user.alerts import ChannelRow

app = typer.Typer(help="Where alerts are sent.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The channel's name.", metavar="NAME", show_default=False)]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        help="A file with the secret that signs deliveries, 16 characters or more; `-` reads standard input.",
        metavar="FILE",
    ),
]


@app.command("create")
def create(
    name: Name,
    url: Annotated[str, typer.Option("--url", help="The webhook's address.", metavar="URL", show_default=False)],
    secret_file: SecretFile = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Add a webhook. Without a secret, one is generated and shown once."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import ChannelMade, ChannelRequest

    body = ChannelRequest(name=name, url=url, secret=_secret(secret_file))
    with remote(home) as gateway:
        channel = gateway.call("create_channel", ChannelMade, body=body)
    if json:
        render.as_json(channel)
        return
    _show(channel, in_json=False)
    if channel.secret is not None:
        render.note(f"its secret, which is not shown again: {channel.secret}")


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List the channels."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import ChannelList

    with remote(home) as gateway:
        found = gateway.call("list_channels", ChannelList)
    if json:
        render.as_json(found)
    elif not found.channels:
        render.note("there is no channel; `trace alert channel create` adds one")
    else:
        render.table(
            ("name", "kind", "url", "used by"),
            [(channel.name, channel.kind, channel.url, channel.used_by) for channel in found.channels],
        )


@app.command("show")
def show(name: Name, home: Home = None, json: Json = False) -> None:
    """Show a channel, without its secret."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import ChannelRow

    with remote(home) as gateway:
        _show(gateway.call("show_channel", ChannelRow, channel=name), in_json=json)


@app.command("update")
def update(
    name: Name,
    url: Annotated[str | None, typer.Option("--url", help="Its new address.", metavar="URL")] = None,
    secret_file: SecretFile = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Change a channel's address or secret."""
    from msgspec import UNSET

    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import ChannelChange, ChannelRow

    secret = _secret(secret_file)
    body = ChannelChange(url=UNSET if url is None else url, secret=UNSET if secret is None else secret)
    with remote(home) as gateway:
        _show(gateway.call("update_channel", ChannelRow, body=body, channel=name), in_json=json)


@app.command("delete")
def delete(name: Name, home: Home = None, json: Json = False) -> None:
    """Remove a channel that no alert uses."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import Removed

    with remote(home) as gateway:
        done = gateway.call("delete_channel", Removed, channel=name)
    render.answer(done, f"channel {done.name} is removed", in_json=json)


def _secret(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the secret cannot be read: {error}", where="--secret-file") from None
    return text.strip()


def _show(channel_row: ChannelRow, *, in_json: bool) -> None:
    from tracelake.cli import render

    if in_json:
        render.as_json(channel_row)
        return
    render.pairs(
        [
            ("name", channel_row.name),
            ("kind", channel_row.kind),
            ("url", channel_row.url),
            ("used by", channel_row.used_by),
            ("created by", channel_row.created_by),
            ("created", channel_row.created_at),
            ("updated", channel_row.updated_at),
        ]
    )
