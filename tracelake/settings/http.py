"""Limits of a listener per caller."""

from __future__ import annotations

from tracelake.settings.base import Group, setting


class HttpSettings(Group):
    """Limits of a listener. The same for every listener, each by itself."""

    connections: int = setting(
        2000,
        "Connections that a listener keeps open; requests on any further one are refused with a 503.",
        unit="count",
        ge=1,
    )
    requests: int = setting(
        256, "Requests in progress at a listener; one more is refused with a 429.", unit="count", ge=1
    )
    header_bytes: int = setting(
        64 * 1024, "Size of a request's line and headers; larger ones are refused with a 431.", unit="bytes", ge=4096
    )
    header_seconds: float = setting(
        30.0, "How long a caller may take for its headers, and for the TLS handshake before them.", unit="s", gt=0
    )
    stall_seconds: float = setting(
        30.0,
        "How long a body may take beyond what its size explains (8 KiB a second), and how long a caller may leave an "
        "answer unread; then the connection is closed.",
        unit="s",
        gt=0,
    )
    idle_seconds: int = setting(
        75,
        "How long a connection is kept for the next request. Longer than callers keep it, so that they close first.",
        unit="s",
        ge=35,
    )
