"""A query, an export or a comparison ends when its user loses the right to it while it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.systems.query import FOREVER, ROWS, QuerySystem
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ADMIN = "test|acme"
SECRET = FOREVER.replace("orders", "pay")
"""Over the dataset that the role finance may read."""


@dataclass(frozen=True)
class Person:
    """A user of acme whom only one test knows."""

    system: QuerySystem
    subject: str
    path: str

    async def ask(self, sql: str, *, token: str | None = None, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.system.token(self.subject)}"}
        return await self.system.gateway.post("/v1/query", json={"sql": sql, **more}, headers=headers)


async def administer(system: QuerySystem, method: str, path: str, **body: Any) -> Any:
    headers = {"authorization": f"Bearer {system.token(ADMIN)}"}
    answer = await system.gateway.request(method, path, json=body or None, headers=headers)
    assert answer.is_success, answer.text
    return answer.json()


async def a_person(system: QuerySystem, role: str = "reader", *, finance: bool = False) -> Person:
    subject = f"person_{uuid4().hex[:8]}"
    made = await administer(system, "POST", "/v1/users", subject=subject, role=role)
    if finance:
        await administer(system, "PUT", f"/v1/roles/finance/members/{made['id']}")
    return Person(system, subject, made["id"])


async def began(system: QuerySystem, query: asyncio.Task[httpx.Response]) -> None:
    """Spark works for it."""
    await until(lambda: query.done() or system.runs_tasks(), "the query runs")
    assert not query.done(), query.result().text


async def ended(system: QuerySystem, query: asyncio.Task[httpx.Response], status: int = 403) -> None:
    answer = await query
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"] == "the right to this was taken away while it ran"
    await system.until_nothing_runs()
    assert await system.rows(ADMIN, "SELECT count(*) AS n FROM orders") == [[ROWS]]


@pytest.mark.parametrize("more", [{}, {"export": {"files": 1}}], ids=["query", "export"])
async def test_the_query_or_export_of_a_removed_user_ends(system: QuerySystem, more: dict[str, Any]) -> None:
    person = await a_person(system)
    query = asyncio.create_task(person.ask(FOREVER, **more))
    await began(system, query)
    await administer(system, "DELETE", f"/v1/users/{person.path}")
    await ended(system, query)


async def test_the_query_of_a_user_who_loses_the_role_ends(system: QuerySystem) -> None:
    person = await a_person(system, finance=True)
    query = asyncio.create_task(person.ask(SECRET))
    await began(system, query)
    await administer(system, "DELETE", f"/v1/roles/finance/members/{person.path}")
    await ended(system, query)


async def test_the_query_of_a_demoted_admin_ends_if_others_may_not_read_the_dataset(system: QuerySystem) -> None:
    person = await a_person(system, "admin")
    query = asyncio.create_task(person.ask(SECRET))
    await began(system, query)
    await administer(system, "PUT", f"/v1/users/{person.path}/role", role="reader")
    await ended(system, query)


async def test_the_query_of_a_revoked_token_ends(system: QuerySystem) -> None:
    person = await a_person(system)
    headers = {"authorization": f"Bearer {system.token(person.subject)}"}
    made = await system.gateway.post("/v1/tokens", json={"name": "bot"}, headers=headers)
    query = asyncio.create_task(person.ask(FOREVER, token=made.json()["token"]))
    await began(system, query)
    assert (await system.gateway.delete("/v1/tokens/bot", headers=headers)).is_success
    await ended(system, query)


async def test_the_end_is_in_the_audit(system: QuerySystem) -> None:
    person = await a_person(system)
    query = asyncio.create_task(person.ask(FOREVER))
    await began(system, query)
    await administer(system, "DELETE", f"/v1/users/{person.path}")
    await ended(system, query)
    await system.operators.until(
        "SELECT EXISTS (SELECT FROM query_audit WHERE verdict = 'refused' AND code = 'forbidden')"
    )
