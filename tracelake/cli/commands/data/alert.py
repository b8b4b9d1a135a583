"""`trace alert`: definitions, channels and deliveries of alerts."""

from __future__ import annotations

import json as stdlib_json
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from uuid import UUID

import typer

from tracelake.cli.commands.data import alert_channel
from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.wire.user.alerts import AlertRow

app = typer.Typer(help="Alerts: definitions, channels, deliveries.", no_args_is_help=True)
app.add_typer(alert_channel.app, name="channel")

Name = Annotated[str, typer.Argument(help="The alert's name.", metavar="NAME", show_default=False)]
Severity = Literal["info", "warning", "critical"]
Params = Annotated[
    str | None,
    typer.Option(
        "--params", help="A JSON object for the function that evaluates it.", metavar="JSON", show_default=False
    ),
]
Channel = Annotated[
    list[str] | None, typer.Option("--channel", help="Send it to this channel; repeatable.", metavar="NAME")
]
MaxAge = Annotated[
    int | None,
    typer.Option("--max-age", help="Do not send it for older events.", metavar="SECONDS", min=1, show_default=False),
]
Description = Annotated[str | None, typer.Option("--description", help="What it is for.", metavar="TEXT")]
Status = Annotated[
    Literal["Pending", "Sent", "Failed", "Stale"] | None, typer.Option("--status", help="Only those of this status.")
]
OfAlert = Annotated[str | None, typer.Option("--alert", help="Only of this alert.", metavar="NAME")]
OfChannel = Annotated[str | None, typer.Option("--channel", help="Only to this channel.", metavar="NAME")]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=500)]
Before = Annotated[
    UUID | None, typer.Option("--before", help="Continue after this delivery of the last page.", metavar="ID")
]
Delivery = Annotated[
    UUID, typer.Argument(help="The delivery, as `trace alert deliveries` shows it.", metavar="ID", show_default=False)
]


@app.command("create")
def create(  # noqa: PLR0917 - options
    name: Name,
    severity: Annotated[Severity, typer.Option("--severity", help="Its severity.")] = "warning",
    description: Description = None,
    params: Params = None,
    channel: Channel = None,
    max_age: MaxAge = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Define it without enabling it.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Define an alert."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import AlertRequest, AlertRow

    body = AlertRequest(
        name=name,
        severity=severity,
        description=description or "",
        enabled=not disabled,
        params=_object(params) if params is not None else {},
        channels=channel or [],
        max_age_seconds=max_age,
    )
    with remote(home) as gateway:
        _show(gateway.call("create_alert", AlertRow, body=body), in_json=json)


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List the defined alerts."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import AlertList

    with remote(home) as gateway:
        found = gateway.call("list_alerts", AlertList)
    if render.json_or_empty(
        found, found.definitions, "no alert is defined; `trace alert create` defines one", in_json=json
    ):
        return
    render.table(
        ("name", "severity", "enabled", "channels", "max age", "description"),
        [
            (
                definition.name,
                definition.severity,
                _yes(value=definition.enabled),
                definition.channels,
                _age(definition.max_age_seconds),
                definition.description,
            )
            for definition in found.definitions
        ],
    )


@app.command("show")
def show(name: Name, home: Home = None, json: Json = False) -> None:
    """Show an alert's definition."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import AlertRow

    with remote(home) as gateway:
        _show(gateway.call("show_alert", AlertRow, alert=name), in_json=json)


@app.command("update")
def update(  # noqa: PLR0917 - options
    name: Name,
    severity: Annotated[Severity | None, typer.Option("--severity", help="Its severity.")] = None,
    description: Description = None,
    params: Params = None,
    channel: Channel = None,
    no_channels: Annotated[bool, typer.Option("--no-channels", help="Remove all channels.")] = False,
    max_age: MaxAge = None,
    any_age: Annotated[bool, typer.Option("--any-age", help="Send it for events of any age.")] = False,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Enable or disable it.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Change an alert's definition. Options that are not given stay as they are; `--channel` replaces all channels."""
    from msgspec import UNSET

    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import AlertChange, AlertRow

    channels = [] if no_channels else channel
    given: dict[str, Any] = {
        "severity": severity,
        "description": description,
        "params": _object(params) if params is not None else None,
        "channels": channels,
        "max_age_seconds": max_age,
        "enabled": enabled,
    }
    change: dict[str, Any] = {field: UNSET if value is None else value for field, value in given.items()}
    body = AlertChange(**{**change, **({"max_age_seconds": None} if any_age else {})})
    with remote(home) as gateway:
        _show(gateway.call("update_alert", AlertRow, body=body, alert=name), in_json=json)


@app.command("delete", short_help="Remove an alert's definition.")
def delete(name: Name, home: Home = None, json: Json = False) -> None:
    """Remove an alert's definition and cancel its pending deliveries."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import Removed

    with remote(home) as gateway:
        done = gateway.call("delete_alert", Removed, alert=name)
    render.answer(done, f"alert {done.name} is removed", in_json=json)


@app.command("deliveries")
def deliveries(  # noqa: PLR0917 - options
    status: Status = None,
    alert: OfAlert = None,
    channel: OfChannel = None,
    limit: Limit = 50,
    before: Before = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """List deliveries of alerts, the newest first."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import DeliveryList

    filters = {"status": status, "alert": alert, "channel": channel, "limit": limit, "before": before}
    with remote(home) as gateway:
        found = gateway.call("list_deliveries", DeliveryList, query=filters)
    if render.json_or_empty(found, found.deliveries, "no deliveries", in_json=json):
        return
    render.table(
        ("id", "alert", "key", "channel", "status", "attempts", "event", "last error"),
        [
            (
                delivery.id,
                delivery.alert,
                delivery.dedupe_key,
                delivery.channel,
                delivery.status,
                delivery.attempts,
                delivery.event_time,
                delivery.last_error,
            )
            for delivery in found.deliveries
        ],
    )
    if found.next:
        render.note(f"there are more: --before {found.next}")


@app.command("retry")
def retry(delivery: Delivery, home: Home = None, json: Json = False) -> None:
    """Send a delivery again that failed or was too old."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.alerts import DeliveryRetried

    with remote(home) as gateway:
        done = gateway.call("retry_delivery", DeliveryRetried, delivery=delivery)
    render.answer(done, f"{done.id} will be sent again", in_json=json)


def _object(text: str) -> dict[str, Any]:
    try:
        value = stdlib_json.loads(text)
    except ValueError as error:
        raise BadInput(f"this is not JSON: {error}", where="--params") from None
    if not isinstance(value, dict):
        raise BadInput("an object is needed, such as '{\"least\": 100}'", where="--params")
    return cast("dict[str, Any]", value)


def _show(alert_row: AlertRow, *, in_json: bool) -> None:
    from tracelake.cli import render

    if in_json:
        render.as_json(alert_row)
        return
    render.pairs(
        [
            ("name", alert_row.name),
            ("id", alert_row.alert_definition_id),
            ("severity", alert_row.severity),
            ("enabled", _yes(value=alert_row.enabled)),
            ("description", alert_row.description),
            ("params", stdlib_json.dumps(dict(alert_row.params))),
            ("channels", alert_row.channels),
            ("max age", _age(alert_row.max_age_seconds)),
            ("created by", alert_row.created_by),
            ("created", alert_row.created_at),
            ("updated", alert_row.updated_at),
        ]
    )


def _yes(*, value: bool) -> str:
    return "yes" if value else "no"


def _age(seconds: int | None) -> str:
    return "any" if seconds is None else f"{seconds} s"
