"""The dev chain over HTTP: `/` and `/node/NAME` speak JSON-RPC, `/control` moves the chain and makes nodes fail."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from tracelake.errors import InvalidRequest, SettingsError, SetupError, TraceError
from tracelake_devchain.chain import Chain
from tracelake_devchain.faults import Fault, Faults
from tracelake_devchain.journal import MOVES, Journal, describe, move
from tracelake_devchain.node import respond

_LARGEST = 32 << 20
"""Bytes of one request."""
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `trace devchain`."""

    host: str = "127.0.0.1"
    port: int = 8545
    seed: int = 7
    chain_id: int = 1337
    blocks: int = 1000
    block_time: float = 0.0
    finality: int = 64
    state: Path | None = None
    stop_with_stdin: bool = False


Ready = Callable[[str, Chain], None]
"""Called once, with the server's address, when it answers."""


def serve(options: Options, ready: Ready) -> None:
    """Until Ctrl-C or SIGTERM."""
    _refuse_impossible(options)
    journal = Journal(options.state)
    # Before the loop starts, which handles no signals while blocks are created.
    chain = journal.open(options.seed, options.chain_id, options.blocks, options.finality)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, ready, chain, journal))


def _refuse_impossible(options: Options) -> None:
    for option, so, must in (
        ("--port", 0 <= options.port <= 65535, "a port is 0 to 65535"),  # noqa: PLR2004 - as it says
        ("--chain-id", 0 < options.chain_id < 1 << 63, "a chain id is a whole number above 0, of at most 63 bits"),
        ("--blocks", options.blocks >= 0, "a chain has 0 blocks or more"),
        ("--block-time", 0 <= options.block_time < math.inf, "seconds between blocks are 0 or more"),
        ("--finality", options.finality >= 0, "`finalized` is 0 blocks or more below the head"),
    ):
        if not so:
            raise SettingsError(must, where=option)


async def _serve(options: Options, ready: Ready, chain: Chain, journal: Journal) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    runner = web.AppRunner(DevchainServer(chain, journal).app(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        ready(await _listen(runner, options), chain)
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(_tick(chain, journal, options.block_time))
            if options.stop_with_stdin:
                _on_end_of_input(stop)
            await stop.wait()
            ticking.cancel()
    finally:
        await runner.cleanup()
        journal.close()


async def _listen(runner: web.AppRunner, options: Options) -> str:
    site = web.TCPSite(runner, options.host, options.port)
    try:
        await site.start()
    except socket.gaierror:
        raise SetupError(f"{options.host!r} is no address", where="--host", hint="127.0.0.1, or one of yours") from None
    except OSError as error:
        raise SetupError(
            f"port {options.port} cannot be taken: {error.strerror}",
            where=f"{options.host}:{options.port}",
            hint="choose another with --port N, or 0 for a free one",
        ) from None
    return f"http://{options.host}:{runner.addresses[0][1]}"


async def _tick(chain: Chain, journal: Journal, block_time: float) -> None:
    """A block every so often; none if there is no block time."""
    with contextlib.suppress(asyncio.CancelledError):
        while block_time:
            await asyncio.sleep(block_time)
            journal.note({"do": "mine", "blocks": 1})
            chain.mine()


def _on_end_of_input(stop: asyncio.Event) -> None:
    """Ends when the process that started us ends: it holds the other end of standard input."""

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            stop.set()

    try:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), read)
    except OSError:  # a file or /dev/null: always at its end
        stop.set()


class DevchainServer:
    def __init__(self, chain: Chain, journal: Journal) -> None:
        self._chain, self._journal, self._faults = chain, journal, Faults()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_post("/", self._rpc)
        app.router.add_post("/node/{name}", self._rpc)
        app.router.add_post("/control", self._control)
        return app

    async def _rpc(self, request: web.Request) -> web.StreamResponse:
        node = request.match_info.get("name", "")
        body = await request.read()
        broken = await self._broken(request, node) if self._faults else None
        if broken is not None:
            return broken
        result = respond(self._chain, self._faults, node, body)
        if self._faults and self._faults.strike(("truncate",), node):
            return await _cut_off(request, result)
        return web.Response(body=result, content_type=_JSON)

    async def _broken(self, request: web.Request, node: str) -> web.Response | None:
        """What goes wrong before any call is looked at."""
        if late := self._faults.strike(("slow",), node):
            await asyncio.sleep(late.value)
        fault = self._faults.strike(("throttle", "error", "drop"), node)
        return _break(request, fault) if fault else None

    async def _control(self, request: web.Request) -> web.Response:
        try:
            _expect_friend(request)
            order = json.loads(await request.read())
            if not isinstance(order, dict):
                raise InvalidRequest("an order is an object", where="/")
            return web.json_response(self._do(order))
        except json.JSONDecodeError:
            refusal: TraceError = InvalidRequest("an order is JSON", where="/")
        except TraceError as error:
            refusal = error
        return web.json_response({"error": refusal.as_dict()}, status=400)

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        what = order.get("do")
        if what == "fault":
            self._faults.add({name: value for name, value in order.items() if name != "do"})
        elif what == "clear":
            self._faults.clear(order.get("node"))
        elif what != "describe":
            if what not in MOVES:
                known = ", ".join((*MOVES, "fault", "clear", "describe"))
                raise InvalidRequest(f"there is no order {what!r}", where="/do", hint=f"one of {known}")
            move(self._chain, order)
            self._journal.note(order)
        return describe(self._chain)


def _break(request: web.Request, fault: Fault) -> web.Response:
    if fault.kind == "drop" and request.transport is not None:
        request.transport.abort()
    if fault.kind == "throttle":
        return web.Response(status=429, text="too many requests", headers={"Retry-After": f"{fault.value:g}"})
    return web.Response(status=int(fault.value) if fault.value >= 400 else 500, text="something broke")  # noqa: PLR2004


async def _cut_off(request: web.Request, result: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(result)), "Content-Type": _JSON})
    await response.prepare(request)
    await response.write(result[: len(result) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


def _expect_friend(request: web.Request) -> None:
    """Orders come from this machine, and not from a web page that a browser on it shows."""
    if request.remote is None or not ipaddress.ip_address(request.remote).is_loopback:
        raise InvalidRequest("orders are taken from this machine only", where="/control")
    if request.content_type != _JSON:
        raise InvalidRequest(f"an order's content type is {_JSON}", where="header Content-Type")
