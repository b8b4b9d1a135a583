"""Where an alert may be sent: a name is resolved once, all its addresses must be public, and one of them is called.

Users choose the addresses, and this process runs in a network that is not theirs: so no name is trusted, and the
addresses that were checked are those that are connected to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tracelake.domain.alerts import why_no_url
from tracelake.errors import DestinationRefused, Unavailable
from tracelake.settings import DeliverySettings

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

MOST_ADDRESSES: Final = 16
CLOSED: Final[tuple[IPv4Network | IPv6Network, ...]] = tuple(
    ip_network(item)
    for item in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' own, and one cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's host, at a public number
        "169.254.0.0/16",  # link-local: metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "::/16",  # unspecified, loopback, IPv4-mapped
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",  # Teredo and other assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
"""Listed in full: what a library calls private changes with its version."""


@dataclass(frozen=True)
class Destination:
    """A checked destination: these addresses are connected to, no name."""

    addresses: tuple[Address, ...]
    port: int
    host: str
    """For the certificate and the Host header."""
    tls: bool
    path: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


async def find_destination(url: str, rules: DeliverySettings, resolve: Resolve | None = None) -> Destination:
    """DestinationRefused if nothing may be sent there; Unavailable if its name cannot be looked up now."""
    reason = why_no_url(url)
    if reason is not None:
        raise DestinationRefused(f"this is no address for a webhook: {reason}", where="url")
    parts = urlsplit(url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if tls else 80)
    addresses = await _addresses(host, port, resolve or look_up)
    within = [_is_allowed(address, rules) for address in addresses]
    if not all(open_ or _is_public(address) for address, open_ in zip(addresses, within, strict=True)):
        # The error does not name the address: it would be a way to scan the network from inside.
        raise DestinationRefused("the address is not a public one", where="url", hint="see the setting delivery.allow")
    if not all(within):
        _check_rules(port, rules, tls=tls)
    return Destination(tuple(sorted(addresses, key=lambda address: address.version)), port, host, tls, _path(parts))


def _check_rules(port: int, rules: DeliverySettings, *, tls: bool) -> None:
    if rules.https_only and not tls:
        raise DestinationRefused("alerts are sent to https:// alone", where="url", hint="delivery.https_only")
    if rules.open_ports and port not in rules.open_ports:
        raise DestinationRefused(f"alerts are not sent to port {port}", where="url", hint="delivery.ports")


async def _addresses(host: str, port: int, resolve: Resolve) -> list[Address]:
    found = list(dict.fromkeys(await resolve(host, port)))
    if not found:
        raise Unavailable("the name has no address", where="url")
    if len(found) > MOST_ADDRESSES:
        raise DestinationRefused(f"the name has more than {MOST_ADDRESSES} addresses", where="url")
    try:
        return [_unwrapped(ip_address(item)) for item in found]
    except ValueError:  # with a zone, say
        raise DestinationRefused("the address is not a public one", where="url") from None


async def look_up(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as wrong:
        raise Unavailable(f"the name cannot be looked up: {getattr(wrong, 'strerror', None) or wrong}") from None
    return [str(entry[4][0]) for entry in found]


def _unwrapped(address: Address) -> Address:
    """An IPv4-mapped IPv6 address is checked, and called, as the IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_public(address: Address) -> bool:
    return address.is_global and not any(address in item for item in CLOSED if item.version == address.version)


def _is_allowed(address: Address, rules: DeliverySettings) -> bool:
    return any(address in network for network in rules.allowed if network.version == address.version)


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
