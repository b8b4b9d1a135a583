"""A program: a thousand clients, each with one call that it repeats until it is accepted.

Standard input is a JSON object, standard output another: which calls were accepted with which answer, how often calls
were refused and why, and every answer that is neither an acceptance nor a clear refusal.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import httpx

from tests.support.tls import https

CLEAR: Final = frozenset({429, 503})
QUERY: Final = "SELECT 1 AS answer"
LONGEST_PAUSE: Final = 5.0
AT_ONCE: Final = 500
"""They share one Python here: more of them would be slow to speak, and a listener hangs up on those."""


@dataclass(frozen=True)
class ClientRequest:
    url: str
    ca_file: str
    token: str
    triggers: int
    queries: int
    seconds: float
    """After these, calls that were not accepted are given up."""


@dataclass
class Calls:
    """What became of them."""

    triggers: int
    queries: int
    events: dict[str, list[str]] = field(default_factory=dict)
    """The ids of the events by the id of the request that was accepted."""
    answered: int = 0
    """Queries with the right answer."""
    refused: dict[str, int] = field(default_factory=Counter)
    """By status and code."""
    broken: dict[str, int] = field(default_factory=Counter)
    """Connections that ended without an answer, by the kind of the error."""
    unclear: list[str] = field(default_factory=list)
    given_up: int = 0


@dataclass(frozen=True)
class Clients:
    http: httpx.AsyncClient
    room: asyncio.Semaphore
    calls: Calls


def main() -> None:
    asked = ClientRequest(**json.load(sys.stdin))
    json.dump(vars(asyncio.run(_call(asked))), sys.stdout)


async def _call(asked: ClientRequest) -> Calls:
    calls = Calls(asked.triggers, asked.queries)
    headers, limits = {"authorization": f"Bearer {asked.token}"}, httpx.Limits(max_connections=None)
    async with https(asked.url, asked.ca_file, headers=headers, timeout=60, limits=limits) as http:
        clients = Clients(http, asyncio.Semaphore(AT_ONCE), calls)
        work = [_trigger(clients, cursor) for cursor in range(asked.triggers)]
        work += [_query(clients) for _ in range(asked.queries)]
        done = await asyncio.gather(*(_within(asked.seconds, call) for call in work))
    calls.given_up = done.count(False)
    return calls


async def _within(seconds: float, call: Any) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await call
    except TimeoutError:
        return False
    return True


async def _trigger(clients: Clients, cursor: int) -> None:
    request = str(uuid4())
    body = {"cursor": cursor, "request_id": request}
    answer = await _accepted(clients, "/v1/dags/clients/jobs/call/trigger", body)
    clients.calls.events[request] = answer["event_ids"]


async def _query(clients: Clients) -> None:
    calls, answer = clients.calls, await _accepted(clients, "/v1/query", {"sql": QUERY})
    if answer["rows"] == [[1]]:
        calls.answered += 1
    else:
        calls.unclear.append(f"{QUERY}: {answer}")


async def _accepted(clients: Clients, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Retries after each refusal, when Retry-After says so, and after each broken connection."""
    while True:
        try:
            async with clients.room:
                answer = await clients.http.post(path, json=body)
        except httpx.TransportError as broke:
            clients.calls.broken[type(broke).__name__] += 1
            await asyncio.sleep(1)
            continue
        if answer.is_success:
            accepted: dict[str, Any] = answer.json()
            return accepted
        await asyncio.sleep(_pause(clients.calls, answer))


def _pause(calls: Calls, answer: httpx.Response) -> float:
    again = answer.headers.get("retry-after", "")
    if answer.status_code not in CLEAR or not again.isdecimal():
        calls.unclear.append(f"{answer.status_code} {answer.text[:300]}")
        return LONGEST_PAUSE
    calls.refused[f"{answer.status_code} {answer.json()['error']['code']}"] += 1
    return min(float(again), LONGEST_PAUSE)


if __name__ == "__main__":
    main()
