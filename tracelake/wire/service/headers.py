"""How services name themselves and the user of a call to each other: the headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tracelake.wire.calls.user_calls import USER

SERVICE_TOKEN: Final = "x-trace-worker-token"  # noqa: S105 - a header's name
"""The header in which every service sends its token; the specification names it after the first of them."""
CLIENT: Final = "x-trace-client"
"""The header in which the Gateway says from which address a user calls, for the audit."""
PROOF: Final = "x-trace-user-proof"
"""The header by which a service shows that a Gateway asked it to act for the user."""


@dataclass(frozen=True)
class ServiceUser:
    subject: str
    proof: str = ""
    """What the Gateway wrote for the service that acts for the user; the Gateway itself needs none."""

    @property
    def headers(self) -> Mapping[str, str]:
        named = {USER: quote(self.subject, safe="")}
        return named | ({PROOF: self.proof} if self.proof else {})
