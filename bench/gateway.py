"""The user API behind the Gateway: what authorisation costs, how fast rights change everywhere, and a long list.

Authorisation: calls a second of one route, through a Gateway and a Dispatcher of their own processes, and through a
pair that authorises nobody (`bench.open_apis`), in turns. Rights: from the answer to an admin who takes a right away
until both of two Gateways, or a delivery process, refuse. List: `GET /v1/datasets` of an organisation with many
datasets, users and roles, for an admin, and for readers who have a tenth of the roles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec

from bench.cpu import cpu_seconds, per_task_ms
from bench.hooks import cpu_of
from bench.noop_worker import deploy
from bench.report import report
from bench.rig import Rig, listening, rig
from tests.support.identity.service_tokens import TOKENS
from tracelake.domain.access.service_tokens import derive_token
from tracelake.lite.home import public_pem
from tracelake.lite.network_ports import free_port, free_ports
from tracelake.lite.user_token import mint_user_token
from tracelake.settings import IdentitySettings
from tracelake.store.first_start import FIRST_ADMIN
from tracelake.store.migrate import migrate
from tracelake.wire.service.headers import SERVICE_TOKEN

OK, REFUSED = 200, frozenset({401, 403})
WARM_UP = 50
TURNS = 6
LISTS = 50
FILL = Path(__file__).with_name("fill_identity.sql")
DAG = """
name: bench
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
"""


class Users:
    """The tokens of an issuer, which the Gateways trust."""

    def __init__(self) -> None:
        self._key, self._identity = ec.generate_private_key(ec.SECP256R1()), IdentitySettings()
        self.public = public_pem(self._key)

    def headers(self, subject: str) -> dict[str, str]:
        return {"authorization": f"Bearer {mint_user_token(self._key, self._identity, subject)}"}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=3000, help="calls of each kind")
    parser.add_argument("--concurrency", type=int, default=8, help="calls in progress at once")
    parser.add_argument("--rights", type=int, default=40, help="how often a right is taken away")
    parser.add_argument("--datasets", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--roles", type=int, default=200)
    options, users = parser.parse_args(), Users()
    async with rig() as system, aiohttp.ClientSession(connector=_connector(system)) as http:
        await deploy(system, "bench", DAG)
        await measure_authorisation(system, http, users, options)
        await measure_rights(system, http, users, options)
        await measure_list(system, http, users, options)


async def measure_authorisation(
    system: Rig, http: aiohttp.ClientSession, users: Users, options: argparse.Namespace
) -> None:
    path, admin = "/v1/dags/bench/jobs/ask/source", users.headers(FIRST_ADMIN)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        dispatcher, inner = stack.enter_context(started("bench.open_apis", "dispatcher", second_dispatcher(system)))
        await listening(inner, dispatcher)
        pairs = []
        for module, internal, pid in (
            ("tracelake", system.internal_api, system.dispatcher.pid),
            ("bench.open_apis", f"https://127.0.0.1:{inner}", dispatcher.pid),
        ):
            public, process = await enter(gateway(system, users, module, internal))
            pairs.append((f"{public}{path}", (pid, process.pid)))
            await calls(http, f"{public}{path}", admin, WARM_UP, options.concurrency)
        rates: list[list[float]] = [[], []]
        cpu: list[list[float]] = [[], []]
        for _ in range(TURNS):
            for at, (url, pids) in enumerate(pairs):
                with cpu_of(*pids) as taken:
                    rates[at].append(await calls(http, url, admin, options.size // TURNS, options.concurrency))
                cpu[at].append(sum(taken) * 1000 / (options.size // TURNS))
    guarded, unguarded = (statistics.median(rate) for rate in rates)
    report(
        "gateway.calls",
        guarded,
        "calls/s",
        without_authorisation=round(unguarded, 1),
        share=round(statistics.median(a / b for a, b in zip(*rates, strict=True)), 3),
        target_share=0.9,
        cpu_ms={"authorised": round(statistics.median(cpu[0]), 3), "without": round(statistics.median(cpu[1]), 3)},
        settings={"calls": options.size, "concurrency": options.concurrency, "route": path},
    )


async def calls(http: aiohttp.ClientSession, url: str, headers: dict[str, str], size: int, concurrency: int) -> float:
    """Calls in a second."""
    left = iter(range(size))

    async def call() -> None:
        for _ in left:
            async with http.get(url, headers=headers) as answer:
                body = await answer.read()
                assert answer.status == OK, body

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(concurrency)))
    return size / (time.perf_counter() - began)


async def measure_rights(system: Rig, http: aiohttp.ClientSession, users: Users, options: argparse.Namespace) -> None:
    """A role, a user, a personal token and a token of a service are taken away, in turns."""
    async with AsyncExitStack() as stack:
        gates = [
            (await stack.enter_async_context(gateway(system, users, "tracelake", system.internal_api)))[0]
            for _ in range(2)
        ]
        delivery = await stack.enter_async_context(delivering(system))
        kinds = (demoted, removed, token_revoked, service_token_revoked)
        waits: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
        for number in range(options.rights):
            kind = kinds[number % len(kinds)]
            change, probes = await kind(http, users, gates, delivery, number)
            for probe in probes:
                assert await probe() == OK
            await change()
            began = time.perf_counter()
            waits[kind.__name__].append(max(await asyncio.gather(*(refused_after(probe, began) for probe in probes))))
    seconds = sorted(wait for found in waits.values() for wait in found)
    report(
        "gateway.rights",
        seconds[int(len(seconds) * 0.95)],
        "s (p95)",
        target=3.0,
        p50_s={kind: round(statistics.median(found), 3) for kind, found in waits.items()},
        worst_s={kind: round(max(found), 3) for kind, found in waits.items()},
        settings={"changes": options.rights},
    )


Probe = Callable[[], Awaitable[int]]
Change = Callable[[], Awaitable[Any]]


async def demoted(
    http: aiohttp.ClientSession, users: Users, gates: Sequence[str], _: str, number: int
) -> tuple[Change, list[Probe]]:
    user, change = await _user(http, users, gates[0], f"demoted{number}", "admin")
    probes = [_probe(http, f"{gate}/v1/users", users.headers(user["subject"])) for gate in gates]
    return lambda: change("PUT", "/role", {"role": "reader"}), probes


async def removed(
    http: aiohttp.ClientSession, users: Users, gates: Sequence[str], _: str, number: int
) -> tuple[Change, list[Probe]]:
    user, change = await _user(http, users, gates[0], f"removed{number}", "reader")
    return lambda: change("DELETE", ""), [
        _probe(http, f"{gate}/v1/me", users.headers(user["subject"])) for gate in gates
    ]


async def token_revoked(
    http: aiohttp.ClientSession, users: Users, gates: Sequence[str], _: str, number: int
) -> tuple[Change, list[Probe]]:
    admin, name = users.headers(FIRST_ADMIN), f"robot{number}"
    made = await _called(http, "POST", f"{gates[0]}/v1/tokens", admin, {"name": name})
    headers = {"authorization": f"Bearer {made['token']}"}
    probes = [_probe(http, f"{gate}/v1/dags", headers) for gate in gates]
    return lambda: _called(http, "DELETE", f"{gates[0]}/v1/tokens/{name}", admin), probes


async def service_token_revoked(
    http: aiohttp.ClientSession, users: Users, gates: Sequence[str], delivery: str, number: int
) -> tuple[Change, list[Probe]]:
    admin, url = users.headers(FIRST_ADMIN), f"{gates[0]}/v1/service-tokens"
    made = await _called(http, "POST", url, admin, {"service": "monitor", "name": f"monitor{number}"})
    shown = {SERVICE_TOKEN: derive_token(made["token"], "delivery")}
    probes = [_probe(http, f"{delivery}/metrics", shown)]
    return lambda: _called(http, "DELETE", f"{url}/{made['id']}", admin), probes


async def _user(
    http: aiohttp.ClientSession, users: Users, gate: str, subject: str, role: str
) -> tuple[Any, Callable[..., Awaitable[Any]]]:
    admin = users.headers(FIRST_ADMIN)
    made = await _called(http, "POST", f"{gate}/v1/users", admin, {"subject": subject, "role": role})

    async def change(method: str, path: str, body: Any = None) -> Any:
        return await _called(http, method, f"{gate}/v1/users/{made['id']}{path}", admin, body)

    return made, change


async def _called(http: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str], body: Any = None) -> Any:
    async with http.request(method, url, headers=headers, json=body) as answer:
        found = await answer.json()
        assert answer.status == OK, found
        return found


def _probe(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Probe:
    async def status() -> int:
        async with http.get(url, headers=headers) as answer:
            await answer.read()
            return answer.status

    return status


async def refused_after(probe: Probe, began: float) -> float:
    while (status := await probe()) not in REFUSED:
        assert status == OK, status
        await asyncio.sleep(0.01)
    return time.perf_counter() - began


async def measure_list(system: Rig, http: aiohttp.ClientSession, users: Users, options: argparse.Namespace) -> None:
    sizes = {"users": options.users, "roles": options.roles, "datasets": options.datasets}
    for statement in FILL.read_text().split("\n\n"):
        await system.pool.execute(re.sub(r":(users|roles|datasets)\b", lambda found: str(sizes[found[1]]), statement))
    waits, cpu, rows = dict[str, float](), dict[str, Any](), dict[str, int]()
    callers = {"admin": [FIRST_ADMIN], "reader": [f"reader{number}" for number in range(1, 10)]}
    async with gateway(system, users, "tracelake", system.internal_api) as (public, process):
        for name, subjects in callers.items():
            shown = [users.headers(subject) for subject in subjects]
            await listed(http, f"{public}/v1/datasets", shown, len(shown))
            with cpu_seconds(system) as taken, cpu_of(process.pid) as at_gateway:
                waits[name], rows[name] = await listed(http, f"{public}/v1/datasets", shown, LISTS)
            cpu[name] = per_task_ms({**taken, "gateway": at_gateway[0]}, LISTS)
    report(
        "gateway.datasets",
        max(waits.values()),
        "ms (p50)",
        target=100,
        p50_ms={name: round(wait, 1) for name, wait in waits.items()},
        cpu_ms=cpu,
        rows=rows,
        settings=sizes,
    )


async def listed(
    http: aiohttp.ClientSession, url: str, callers: Sequence[dict[str, str]], size: int
) -> tuple[float, int]:
    """The median of the milliseconds until a list is there, and its rows."""
    waits, body = [], b""
    for number in range(size):
        began = time.perf_counter()
        async with http.get(url, headers=callers[number % len(callers)]) as answer:
            body = await answer.read()
            assert answer.status == OK, body
        waits.append(time.perf_counter() - began)
    return statistics.median(waits) * 1000, len(json.loads(body)["datasets"])


def second_dispatcher(system: Rig) -> tuple[dict[str, Any], int]:
    """The settings of one more on the same databases, and the port of its internal API."""
    task, internal = free_ports(2)
    document = {
        **_common(system),
        "state": {"dsn": system.state},
        "queue": {"dsn": system.server.dsn("queue")},
        "dispatcher": {"task_port": task, "internal_port": internal},
    }
    return document, internal


@asynccontextmanager
async def gateway(
    system: Rig, users: Users, module: str, internal: str
) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    identity = {"service_token": TOKENS["gateway"], "user_public_key": users.public}
    document = {
        **_common(system),
        "gateway": {"port": port},
        "endpoints": {"dispatcher_internal": internal},
        "identity": identity,
    }
    with started(module, "gateway", (document, port)) as (process, _):
        await listening(port, process)
        yield f"https://127.0.0.1:{port}", process


@asynccontextmanager
async def delivering(system: Rig) -> AsyncIterator[str]:
    port, data = free_port(), system.server.create_database("data")
    migrate(data, "data")
    document = {
        **_common(system),
        "delivery": {"internal_port": port},
        "data": {"delivery_dsn": data},
        "endpoints": {"dispatcher_internal": system.internal_api},
        "identity": {"service_token": TOKENS["delivery"]},
    }
    with started("tracelake", "delivery", (document, port)) as (process, _):
        await listening(port, process)
        yield f"https://127.0.0.1:{port}"


def _common(system: Rig) -> dict[str, Any]:
    folder = system.home.parent / "tls"
    tls = {"ca": str(folder / "ca.pem"), "cert": str(folder / "server.pem"), "key": str(folder / "server.pem")}
    return {"home": str(system.home), "tls": tls, "log": {"level": "warning"}}


@contextmanager
def started(
    module: str, name: str, settings: tuple[dict[str, Any], int]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    document, port = settings
    process = subprocess.Popen([sys.executable, "-m", module, name, "--settings", "-"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(document).encode())
    process.stdin.close()
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait()


def _connector(system: Rig) -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(ssl=system.tls, limit=0)


if __name__ == "__main__":
    uvloop.run(main())
