"""The calls of the user API about alerts."""

from __future__ import annotations

from typing import Final

from tracelake.wire.calls.call import Call
from tracelake.wire.user.alerts import (
    AlertChange,
    AlertList,
    AlertRequest,
    AlertRow,
    ChannelChange,
    ChannelList,
    ChannelMade,
    ChannelRequest,
    ChannelRow,
    DeliveryList,
    DeliveryQuery,
    DeliveryRetried,
    Removed,
)

ALERTS: Final = "/alerts/definitions"
ALERT: Final = "/alerts/definitions/{alert}"
CHANNELS: Final = "/alerts/channels"
CHANNEL: Final = "/alerts/channels/{channel}"

ALERT_CALLS: Final = (
    Call("list_alerts", "GET", ALERTS, "reader", "Every alert's definition", AlertList),
    Call("create_alert", "POST", ALERTS, "writer", "Define an alert", AlertRow, body=AlertRequest),
    Call("show_alert", "GET", ALERT, "reader", "An alert's definition", AlertRow),
    Call("update_alert", "PATCH", ALERT, "writer", "Change an alert's definition", AlertRow, body=AlertChange),
    Call("delete_alert", "DELETE", ALERT, "writer", "Remove an alert's definition", Removed),
    Call("list_channels", "GET", CHANNELS, "reader", "Where alerts can be sent", ChannelList),
    Call("create_channel", "POST", CHANNELS, "writer", "Add a channel", ChannelMade, body=ChannelRequest),
    Call("show_channel", "GET", CHANNEL, "reader", "A channel, without its secret", ChannelRow),
    Call(
        "update_channel",
        "PATCH",
        CHANNEL,
        "writer",
        "Change a channel's address or secret",
        ChannelRow,
        body=ChannelChange,
    ),
    Call("delete_channel", "DELETE", CHANNEL, "writer", "Remove a channel that no alert uses", Removed),
    Call(
        "list_deliveries",
        "GET",
        "/alerts/deliveries",
        "reader",
        "Alerts on their way and sent, the newest first",
        DeliveryList,
        query=DeliveryQuery,
        service="delivery",
    ),
    Call(
        "retry_delivery",
        "POST",
        "/alerts/deliveries/{delivery}/retry",
        "writer",
        "Send an alert again that failed or was too old",
        DeliveryRetried,
        service="delivery",
    ),
)
