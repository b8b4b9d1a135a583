"""What an alert's event must be, and what the address of a webhook may look like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import inet_aton
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tracelake.domain.buffered import Declaration

MOST_DEFINITIONS: Final = 1_000
"""Per organisation: a task that routes alerts gets all of them."""

KEY: Final = ("alert_definition_id", "dedupe_key")
"""One event for each of these, within an organisation."""
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "alert_definition_id": ("text",),
    "dedupe_key": ("text",),
    "event_time": ("timestamp",),
    "chain_id": ("bigint", "integer"),
    "block_number": ("bigint",),
    "block_hash": ("bytes", "text"),
    "tx_hash": ("bytes", "text"),
    "severity": ("text",),
    "payload": ("json",),
}
"""The columns that a dataset of alert events has, each with the types it may be of; the first is the standard one."""
NEEDED: Final = frozenset({"event_time", "severity"})
"""Besides the key, these are never empty."""

METADATA: Final = frozenset({"fd00:ec2::254"})
"""Where a cloud's machine finds its keys, and which is not link-local."""
HOST: Final = re.compile(r"[A-Za-z0-9_.:-]+")


def missing_fields(declared: Declaration) -> Sequence[str]:
    """Why a declaration is not one of alert events; empty if it is."""
    found = {column.name: column for column in declared.columns}
    problems = [f"column {name!r} ({kinds[0]}) is missing" for name, kinds in COLUMNS.items() if name not in found]
    for name, kinds in COLUMNS.items():
        if name in found and found[name].type not in kinds:
            problems.append(f"column {name!r} is {found[name].type}, not {' or '.join(kinds)}")
        elif name in found and name in NEEDED and found[name].nullable:
            problems.append(f"column {name!r} needs nullable: false")
    if declared.unique_key != KEY:
        problems.append(f"unique_key is not [{', '.join(KEY)}]")
    return problems


def why_no_url(url: str) -> str | None:
    """Why this cannot be a webhook's address; None: it can. Where it leads is for the delivery process to judge."""
    if not url.isascii() or any(item.isspace() or not item.isprintable() for item in url) or "\\" in url:
        return "it holds blanks, backslashes or characters that are not ASCII (write those as %XX, or a host as xn--)"
    try:
        return _why_no_parts(urlsplit(url))
    except ValueError as error:
        return str(error)


def _is_link_local(host: str) -> bool:
    """In every spelling that a resolver takes for an address: in four parts, in fewer, octal, hexadecimal, mapped.

    Names that lead there are found out when something is to be sent.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        try:
            address = IPv4Address(inet_aton(host))
        except OSError:
            return False
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (inner or address).is_link_local or str(address) in METADATA


def _why_no_parts(parts: SplitResult) -> str | None:
    if parts.scheme not in {"http", "https"}:
        return "it does not begin with https:// or http://"
    if "@" in parts.netloc:
        return "it carries a user or password; deliveries are signed with the channel's secret instead"
    if not parts.hostname or not HOST.fullmatch(parts.hostname):
        return "it names no host"
    if parts.port == 0:
        return "there is no port 0"
    if _is_link_local(parts.hostname):
        return "it is a link-local address, where a machine finds its own keys, never a receiver of alerts"
    return "it has a fragment, which no server is sent" if parts.fragment else None
