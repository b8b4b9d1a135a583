"""Connections to AWS that stay open during a long answer: NAT gateways and endpoints of a VPC drop silent ones."""

from __future__ import annotations

import socket
from typing import Any, Final

from aiobotocore.httpsession import AIOHTTPSession

PROBE_SECONDS: Final = 60
"""The first probe of a silent connection, and the time between probes. AWS drops it after 350 s."""


class KeepAliveSession(AIOHTTPSession):  # type: ignore[misc] # the library has no types
    """aiobotocore's, with keep-alive of TCP, which its setting `tcp_keepalive` does not turn on."""

    def __init__(self, *args: Any, connector_args: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__(*args, connector_args={**(connector_args or {}), "socket_factory": _socket}, **more)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):  # each system has its own
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), PROBE_SECONDS)
    return made
