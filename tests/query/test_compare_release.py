"""What a release has built is compared on Spark with what serves, row by row, and its figures are stored with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.support.systems.operators import operator
from tests.support.systems.query import QuerySystem
from tests.support.systems.walk import working
from tests.support.waiting import until
from tracelake.domain.ranges import Range
from tracelake.operators.api.outcome import OperatorConfig

pytestmark = pytest.mark.anyio

DAG = """
name: market
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: open, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - name: quote
    operator: quotes
    config: {{changed: {changed}, kind: {kind}}}
    inputs: [{{from: {{job: open}}}}]
    unique_key: [block_number]
    cutover: {{max_changed_rows: 10%, max_missing_keys: 0}}
  - name: copy
    operator: quotes
    config: {{changed: {changed}}}
    inputs: [{{from: {{job: open}}}}]
    unique_key: [side]
publish:
  quotes: {{job: quote}}
  copies: {{job: copy}}
"""


DONE = """
SELECT count(*) = 4 FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.dag_name = 'market' AND t.status = 'Completed'
"""


class Config(OperatorConfig):
    changed: int = 0
    kind: str = "int"


def quotes(ctx: Any) -> None:
    """A row for each block; the first `changed` of them have another value."""
    for part in ctx.parts(ctx.outputs[0]):
        assert isinstance(part, Range)
        numbers = list(range(part.start, part.stop))
        values = [number * 10 + (number < ctx.config.changed) for number in numbers]
        as_text = {"price": [str(value) for value in values]}
        table = as_text if ctx.config.kind == "text" else {"block_number": numbers, "price": values}
        ctx.outputs[0].write_table(pa.table(table), part)


@dataclass(frozen=True)
class Market:
    system: QuerySystem
    release: str

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await call(self.system, method, f"/v1/releases/{self.release}{path}", **more)

    async def detail(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.call("GET", "")).json()
        return found

    async def compared(self) -> dict[str, dict[str, Any]]:
        """Every dataset, once the Query service has compared it."""
        answer = await self.call("POST", "/compare")
        assert answer.status_code == 200, answer.text

        async def ended() -> bool:
            return all(item["state"] in {"Done", "Failed"} for item in (await self.detail())["comparisons"])

        await until(ended, "the Query service has compared the datasets")
        return {item["dataset"]: item for item in (await self.detail())["comparisons"]}


async def call(system: QuerySystem, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {system.token('test|acme')}"}
    return await system.gateway.request(method, path, headers=headers, **more)


async def released(system: QuerySystem, **config: Any) -> Market:
    """A release with this change, built by a worker."""
    text = DAG.format(**{"changed": 0, "kind": "int", **config})
    answer = await call(system, "POST", "/v1/releases", json={"dags": [text]})
    assert answer.status_code == 200, answer.text
    market = Market(system, answer.json()["release"]["id"])

    async def ready() -> bool:
        return bool((await market.detail())["release"]["state"] == "Ready")

    await until(ready, "the release is built")
    return market


@pytest.fixture(scope="module")
async def serving(system: QuerySystem) -> AsyncIterator[QuerySystem]:
    """Twenty blocks in two partitions are served; a worker runs."""
    with operator("quotes", quotes, config=Config):
        await system.operators.deploy(DAG.format(changed=0, kind="int"))
        async with working(system.operators.worker("market")):
            for first in (0, 10):
                await system.operators.trigger("market", "open", first, first + 9)
            await system.operators.until(DONE)
            yield system


async def test_a_release_is_compared_by_the_known_key_or_whole_rows_and_its_limits_block_it(
    serving: QuerySystem,
) -> None:
    market = await released(serving, changed=3)
    found = await market.compared()
    by_key, whole = found["quotes"]["result"], found["copies"]["result"]
    figures = ("rows_a", "rows_b", "only_a", "only_b", "changed", "equal")
    assert [by_key[name] for name in figures] == [20, 20, 0, 0, 3, 17]
    assert (by_key["key"], by_key["columns"][1]["share"]) == (["block_number"], 0.85)
    assert [whole[name] for name in figures] == [20, 20, 3, 3, 0, 17]
    assert whole["key"] == []
    assert whole["note"] == "side of its key (side) is not in both with one type, so whole rows were compared"
    assert found["quotes"]["exceeded"] == ["changed rows: 3 (15% of 20 rows), and `max_changed_rows` is 10%"]
    again = await market.compared()
    assert {name: item["compared_at"] for name, item in again.items()} == {
        name: item["compared_at"] for name, item in found.items()
    }, "it is stored for these commits"
    answer = await market.call("POST", "/promote", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "quotes: changed rows: 3" in answer.json()["error"]["message"]

    span = {"release": market.release, "start": 2, "end": 5}
    rows = await call(serving, "GET", "/v1/datasets/quotes/diff", params=span)
    assert rows.status_code == 200, rows.text
    assert (rows.json()["key"], rows.json()["changed"], rows.json()["equal"]) == (["block_number"], 1, 3)
    assert rows.json()["differing"] == [{"kind": "changed", "a": [2, 20], "b": [2, 21]}]

    for query, refusal in (
        ({"release": market.release, "a": "1"}, (400, "invalid_request", "query release")),
        ({"release": market.release, "start": 50, "end": 60}, (400, "invalid_request", "query start")),
        ({"release": market.release, "key": "nope"}, (409, "incompatible", "query key")),
        ({"release": "0" * 8 + "-0000-0000-0000-" + "0" * 12}, (404, "not_found", "release")),
    ):
        answer = await call(serving, "GET", "/v1/datasets/quotes/diff", params=query)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["where"]) == refusal, answer.text
    answer = await call(serving, "GET", "/v1/datasets/thought/diff", params={"release": market.release})
    assert (answer.status_code, "makes no new generation of thought" in answer.text) == (404, True)

    assert (await market.call("POST", "/abandon")).status_code == 200
    answer = await call(serving, "GET", "/v1/datasets/quotes/diff", params={"release": market.release})
    assert (answer.status_code, "is Abandoned" in answer.text) == (409, True)


async def test_schemas_without_a_common_column_fail_the_comparison_and_block(serving: QuerySystem) -> None:
    market = await released(serving, kind="text")
    quotes_ = (await market.compared())["quotes"]
    assert quotes_["state"] == "Failed"
    assert "block_number bigint, price bigint" in quotes_["error"]
    answer = await market.call("POST", "/promote", json={})
    assert answer.json()["release"]["state"] == "Ready", "it is compared once more for this promotion"

    async def refused() -> bool:
        return "cannot be compared" in ((await market.detail())["release"]["message"] or "")

    await until(refused, "the promotion is refused")
    assert not (await market.detail())["release"]["when_ready"]


async def test_a_release_within_its_limits_is_promoted_once_it_is_compared(serving: QuerySystem) -> None:
    market = await released(serving, changed=1)
    answer = await market.call("POST", "/promote", json={})
    assert answer.status_code == 200, answer.text

    async def serves() -> bool:
        return bool((await market.detail())["release"]["state"] == "Serving")

    await until(serves, "the release is promoted")
    found = {item["dataset"]: item for item in (await market.detail())["comparisons"]}
    assert (found["quotes"]["result"]["changed"], found["copies"]["state"]) == (1, "Idle")
