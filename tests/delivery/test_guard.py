"""Nothing is sent into our own network, whatever a user writes and whatever a name server says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.systems.delivery import SETTINGS, DeliverySystem, Receiver
from tests.support.tls import tls_in, trusting
from tests.support.waiting import SECONDS
from tracelake.delivery.backoff import pause_before_next, retry_after
from tracelake.delivery.check_address import CLOSED, Destination, find_destination
from tracelake.delivery.post import Sender
from tracelake.errors import DestinationRefused, Unavailable
from tracelake.runtime.listeners import Listener, json_response, listener_app, open_listeners
from tracelake.settings import DeliverySettings

pytestmark = pytest.mark.anyio

STRICT = DeliverySettings()
ANY_PORT = DeliverySettings(ports="", https_only=False)
PUBLIC = "93.184.216.34"

INTO_OUR_NETWORK = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://127.255.255.254:5432/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://0/",
    "http://0.0.0.0/",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://169.254.170.2/",
    "http://[fd00:ec2::254]/",
    "http://100.100.100.200/",
    "http://100.64.0.1/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://198.18.0.1/",
    "http://192.0.2.1/",
    "http://203.0.113.7/",
    "http://224.0.0.1/",
    "http://239.255.255.255/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://[::]/",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::169.254.169.254]/",
    "http://[64:ff9b:1::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2001:0:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fec0::1]/",
    "http://[fc00::1]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://[100::1]/",
]
NOT_EVEN_AN_ADDRESS = [
    "ftp://example.org/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "https://user@example.org/",
    "https://user:password@127.0.0.1/",
    "https://example.org@127.0.0.1/",
    "https://127.0.0.1\\@example.org/",
    "https://example.org\t.evil.org/",
    "https://example.org/\r\nX-Trace-Signature: x",
    "https:// example.org/",
    "https://[fe80::1%25eth0]/",
    "https://[::1/",
    "https://example.org:0/",
    "https://example.org:65536/",
    "https://example.org:abc/",
    "https:///etc",
    "https://ex\u0430mple.org/",
    "https://\uff11\uff12\uff17.0.0.1/",
    "https://127\u30020\u30020\u30021/",
    "javascript:alert(1)",
    "",
]


def says(*addresses: str) -> Any:
    """A name server that answers every query with this."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        del host, port
        return addresses

    return resolve


@pytest.mark.parametrize("url", INTO_OUR_NETWORK)
async def test_an_address_of_our_own_network_is_refused_however_it_is_written(url: str) -> None:
    with pytest.raises(DestinationRefused, match=r"not a public one|a link-local address"):
        await find_destination(url, ANY_PORT)


@pytest.mark.parametrize("url", NOT_EVEN_AN_ADDRESS)
async def test_an_invalid_address_is_refused_before_a_lookup(url: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise AssertionError((host, port))

    with pytest.raises(DestinationRefused, match="no address for a webhook"):
        await find_destination(url, ANY_PORT, resolve)


LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

closed = st.one_of(
    *(
        st.integers(int(item.network_address), int(item.broadcast_address)).map(
            IPv4Address if item.version == 4 else IPv6Address
        )
        for item in CLOSED
    )
)


@given(bad=closed, good=st.lists(st.just(PUBLIC), max_size=3), place=st.integers(0, 3))
@LAW
async def test_a_name_with_one_address_that_is_not_public_is_refused(bad: Any, good: list[str], place: int) -> None:
    answer = [*good[:place], str(bad), *good[place:]]
    with pytest.raises(DestinationRefused):
        await find_destination("https://example.org/", STRICT, says(*answer))


@given(number=st.integers(0, 2**32 - 1))
@LAW
async def test_an_ipv4_mapped_address_is_checked_as_ipv4(number: int) -> None:
    async def verdict(address: str) -> bool:
        try:
            return bool(await find_destination("https://example.org/", STRICT, says(address)))
        except DestinationRefused:
            return False

    plain = IPv4Address(number)
    assert await verdict(str(plain)) == await verdict(f"::ffff:{plain}")
    for dress in (f"64:ff9b::{plain}", f"::{plain}", str(IPv6Address((0x2002 << 112) | (number << 80)))):
        assert not await verdict(dress)


async def test_only_https_and_the_ports_of_the_settings_are_reached() -> None:
    public = says(PUBLIC)
    place = await find_destination("https://example.org/a?b=c", STRICT, public)
    assert place == Destination((ip_address(PUBLIC),), 443, "example.org", tls=True, path="/a?b=c")
    assert (await find_destination("https://example.org:8443", STRICT, public)).host_header == "example.org:8443"
    for url in ("http://example.org/", "https://example.org:22/", "http://example.org:443/"):
        with pytest.raises(DestinationRefused):
            await find_destination(url, STRICT, public)
    assert (await find_destination("http://example.org:81/", ANY_PORT, public)).port == 81


async def test_an_allowed_network_is_open_and_nothing_beside_it() -> None:
    settings = DeliverySettings(allow="10.1.0.0/16 fd00:1::/32")
    assert await find_destination("http://in.example.org:8080/", settings, says("10.1.2.3"))
    assert await find_destination("http://in.example.org:8080/", settings, says("::ffff:10.1.2.3"))
    assert await find_destination("http://in.example.org:8080/", settings, says("fd00:1::5"))
    for answer in (("10.2.0.1",), ("10.1.2.3", "10.2.0.1"), ("fd00:2::1",)):
        with pytest.raises(DestinationRefused):
            await find_destination("https://in.example.org/", settings, says(*answer))
    with pytest.raises(DestinationRefused, match="https"):
        await find_destination("http://in.example.org/", settings, says("10.1.2.3", PUBLIC))


async def test_a_name_is_looked_up_once_and_what_was_checked_is_what_is_called(
    system: DeliverySystem, receiver: Receiver
) -> None:
    """A name server that changes its mind after the check (rebinding) is not queried a second time."""
    lookups: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        del port
        lookups.append(host)
        return ["127.0.0.1"] if len(lookups) == 1 else ["127.0.0.2"]

    await system.channel("ops", f"http://hook.example.org:{receiver.port}/x")
    await system.items(await system.alert(), ["a"])
    async with system.delivering(system.alert_sender(resolve=rebinding)):
        assert (await system.settled())["a"][0] == "Sent"
    assert lookups == ["hook.example.org"]
    (got,) = receiver.got
    assert got.headers["host"] == f"hook.example.org:{receiver.port}"


async def test_an_alert_to_our_own_network_fails_and_does_not_say_what_is_there(
    system: DeliverySystem, receiver: Receiver
) -> None:
    await system.channel("ops", receiver.url())
    await system.items(await system.alert(), ["a"])
    settings = SETTINGS.model_copy(update={"allow": "", "https_only": False, "ports": ""})
    async with system.delivering(system.alert_sender(settings)):
        status, attempts, reason = (await system.settled())["a"]
    assert (status, attempts) == ("Failed", 1)
    assert reason == "the address is not a public one (see the setting delivery.allow)"
    assert receiver.got == []


async def test_a_certificate_is_verified_against_the_name_though_the_address_is_called(tmp_path: Path) -> None:
    async def hook(request: Request) -> Response:
        return json_response({"host": request.headers["host"]})

    async def ready() -> None: ...

    tls = tls_in(tmp_path)
    listener = Listener("hook", "127.0.0.1", 0, listener_app([Route("/", hook, methods=["POST"])], ready))
    sender = Sender(1000, trusting(tls.ca))
    try:
        async with open_listeners([listener], tls) as at, asyncio.timeout(SECONDS):
            port = int(at["hook"].rpartition(":")[2])
            here = (IPv4Address("127.0.0.1"),)
            assert (await sender.post(Destination(here, port, "localhost", True, "/"), b"{}", {})).status == 200  # noqa: FBT003
            with pytest.raises(Unavailable, match="certificate"):
                await sender.post(Destination(here, port, "example.org", True, "/"), b"{}", {})  # noqa: FBT003
    finally:
        await sender.close()


@given(attempt=st.integers(1, 10_000), requested=st.one_of(st.none(), st.floats(0, 1e12)))
@LAW
def test_a_pause_is_never_longer_than_the_maximum_and_else_not_shorter_than_requested(
    attempt: int, requested: float | None
) -> None:
    pause = pause_before_next(attempt, requested, STRICT)
    assert STRICT.backoff_seconds / 2 <= pause <= STRICT.backoff_max_seconds
    assert pause >= min(requested or 0, STRICT.backoff_max_seconds)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-7", None),
        ("soon", None),
        ("\u0667", None),
        ("99999999999999", 999999999.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 60.0),
        ("Wed, 31 Dec 1969 23:00:00 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:01:00", 60.0),
    ],
)
def test_retry_after_is_read_in_both_its_forms(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, datetime(1970, 1, 1, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        {"allow": "10.0.0.1/8"},
        {"allow": "everything"},
        {"ports": "0"},
        {"ports": "http"},
        {"lease_seconds": 10.0, "timeout_seconds": 6.0},
        {"backoff_seconds": 10.0, "backoff_max_seconds": 5.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        DeliverySettings(**wrong)
