"""Two Query services behind one address: no query needs the process of the one before, nor that both are there."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.support.systems.query import QuerySystem, another_service, behind_one_address

pytestmark = pytest.mark.anyio
ADMIN = "test|acme"
COUNT = "SELECT count(*) AS n, sum(value) AS s FROM feed"


async def test_queries_reach_either_service_see_what_was_committed_and_outlive_the_loss_of_one(
    system: QuerySystem,
) -> None:
    async with AsyncExitStack() as second:
        other = await second.enter_async_context(another_service(system))
        async with behind_one_address(other, system) as (public, balancer):
            await system.add("feed")
            (count, total), *_ = await system.rows(ADMIN, COUNT)
            for _ in range(4):
                assert await public.rows(ADMIN, COUNT) == [[count, total]]
                refusal = await public.ask(ADMIN, "SELECT * FROM theirs")
                assert refusal.status_code == 400, refusal.text
            assert len(balancer.accepted) == 2, "both were asked"
            first = await system.add("feed", 5)
            more = [[count + 5, total + sum(range(first, first + 5)) * 10]]
            assert [await public.rows(ADMIN, COUNT) for _ in range(2)] == [more] * 2
            await second.aclose()
            assert [await public.rows(ADMIN, COUNT) for _ in range(2)] == [more] * 2
