"""Listeners: TLS that renews itself, refusals in one shape, ports that are taken said before anything is served."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.tls import https, ready, tls_in, trusting
from tests.support.waiting import until
from tracelake.errors import Conflict, DatabaseUnavailable, NotFound, SettingsError, SetupError, TraceError
from tracelake.lite.network_ports import free_ports
from tracelake.runtime.listeners import STATUS_OF, Listener, _bind, _server, listener_app, open_listeners
from tracelake.settings import HttpSettings

pytestmark = pytest.mark.anyio


def refusing(refusal: TraceError) -> Route:
    async def refuse(_: Request) -> Response:
        raise refusal

    return Route("/refuse", refuse)


async def certificate_of(address: str, ca: Path) -> bytes:
    url = httpx.URL(address)
    context = trusting(ca)
    _, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


async def test_a_running_listener_shows_a_renewed_certificate_to_the_next_caller(tmp_path: Path) -> None:
    tls = tls_in(tmp_path, datetime.now(UTC) - timedelta(days=61))  # 29 days are left: due
    ca = tls.ca
    assert ca is not None
    async with open_listeners(
        [Listener("d", "127.0.0.1", 0, listener_app([], ready))], tls, look_every=0.02
    ) as addresses:
        before = await certificate_of(addresses["d"], ca)
        tls_in(tmp_path)

        async def reached() -> bool:
            return await certificate_of(addresses["d"], ca) != before

        await until(reached, "the new certificate is served")


@pytest.mark.parametrize("refusal", [NotFound("no"), Conflict("no"), DatabaseUnavailable("no"), SettingsError("no")])
async def test_a_refusal_is_an_answer_in_one_shape(tmp_path: Path, refusal: TraceError) -> None:
    tls = tls_in(tmp_path)
    listener = Listener("d", "127.0.0.1", 0, listener_app([refusing(refusal)], ready))
    async with open_listeners([listener], tls) as addresses, https("", tls.ca) as http:
        answer = await http.get(addresses["d"] + "/refuse")
        nowhere = await http.get(addresses["d"] + "/nowhere")
    assert answer.status_code == next(status for kind, status in STATUS_OF if isinstance(refusal, kind))
    assert answer.json() == {"error": refusal.as_dict()}
    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "not_found")


async def test_a_listener_that_is_not_ready_says_so_and_stays_alive(tmp_path: Path) -> None:
    async def away() -> None:
        raise DatabaseUnavailable("Postgres does not answer")

    tls = tls_in(tmp_path)
    listener = Listener("d", "127.0.0.1", 0, listener_app([], away))
    async with open_listeners([listener], tls) as addresses, https("", tls.ca) as http:
        assert (await http.get(addresses["d"] + "/healthz")).status_code == 200
        answer = await http.get(addresses["d"] + "/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"]["retryable"] is True


async def test_a_listener_closes_though_a_client_keeps_a_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = tls_in(tmp_path)
    listener = Listener("d", "127.0.0.1", 0, listener_app([], ready))
    async with https("", tls.ca) as http:  # which reads nothing between two requests
        async with open_listeners([listener], tls) as addresses:
            assert (await http.get(f"{addresses['d']}/healthz")).is_success
        assert "exceeded" not in caplog.text, "it waited for no client in vain"


async def test_a_taken_port_is_named_and_nothing_is_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = Listener("task", "127.0.0.1", port, listener_app([], ready))
        with pytest.raises(SetupError, match=f"the task listener cannot listen on 127.0.0.1:{port}"):
            async with open_listeners([listener], tls_in(tmp_path)):
                pass


async def test_a_listener_keeps_a_connection_longer_than_its_callers_do() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    keep_alive = _server(listener_app([], ready), context, HttpSettings()).config.timeout_keep_alive
    expires = httpx.Limits().keepalive_expiry
    assert expires is not None
    assert keep_alive > 2 * expires


async def test_two_listeners_cannot_have_one_port(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    listeners = [Listener(name, "127.0.0.1", port, listener_app([], ready)) for name in ("task", "internal")]
    with pytest.raises(SetupError, match=f"the internal listener cannot listen on 127.0.0.1:{port}"):
        async with open_listeners(listeners, tls_in(tmp_path)):
            pass


@pytest.mark.parametrize("missing", ["cert", "key"])
async def test_a_listener_without_a_certificate_does_not_open(tmp_path: Path, missing: str) -> None:
    tls = tls_in(tmp_path).model_copy(update={missing: None})
    with pytest.raises(SettingsError, match=f"tls.{missing}"):
        async with open_listeners([], tls):
            pass
    broken = tls_in(tmp_path).model_copy(update={missing: tmp_path / "nowhere"})
    with pytest.raises(SetupError, match="cannot be used"):
        async with open_listeners([], broken):
            pass


async def test_an_answers_body_does_not_wait_for_its_head_to_be_acknowledged() -> None:
    listener = _bind(Listener("any", "127.0.0.1", 0, listener_app([], ready)))
    met: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted: socket.socket = writer.get_extra_info("socket")
        met.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(meet, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await met == 1
        writer.close()
