"""What a release has built is compared on Spark with what serves, row by row, and its figures are stored with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
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
name: {name}
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
  {name}_quotes: {{job: quote}}
  {name}_copies: {{job: copy}}
"""


DONE = """
SELECT count(*) = 4 FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.dag_name = $1 AND t.status = 'Completed'
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
    """A DAG that serves, and its release."""

    system: QuerySystem
    name: str
    release: str = ""

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await call(self.system, method, f"/v1/releases/{self.release}{path}", **more)

    async def diff(self, **query: Any) -> httpx.Response:
        query = {"release": self.release, **query}
        return await call(self.system, "GET", f"/v1/datasets/{self.name}_quotes/diff", params=query)

    async def detail(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.call("GET", "")).json()
        return found

    async def compared(self) -> dict[str, dict[str, Any]]:
        """`quotes` and `copies`, once the Query service has compared them."""
        answer = await self.call("POST", "/compare")
        assert answer.status_code == 200, answer.text

        async def ended() -> bool:
            return all(item["state"] in {"Done", "Failed"} for item in (await self.detail())["comparisons"])

        await until(ended, "the Query service has compared the datasets")
        return await self.comparisons()

    async def comparisons(self) -> dict[str, dict[str, Any]]:
        prefix = f"{self.name}_"
        return {item["dataset"].removeprefix(prefix): item for item in (await self.detail())["comparisons"]}


async def call(system: QuerySystem, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {system.token('test|acme')}"}
    return await system.gateway.request(method, path, headers=headers, **more)


async def released(serving: Market, **config: Any) -> Market:
    """A release with this change, built by a worker."""
    text = DAG.format(**{"name": serving.name, "changed": 0, "kind": "int", **config})
    answer = await call(serving.system, "POST", "/v1/releases", json={"dags": [text]})
    assert answer.status_code == 200, answer.text
    market = replace(serving, release=answer.json()["release"]["id"])

    async def ready() -> bool:
        return bool((await market.detail())["release"]["state"] == "Ready")

    await until(ready, "the release is built")
    return market


@pytest.fixture
async def serving(system: QuerySystem) -> AsyncIterator[Market]:
    """Twenty blocks in two partitions are served, of a DAG that only this test releases; a worker runs."""
    name = f"market_{next(system.unused)}"
    with operator("quotes", quotes, config=Config):
        await system.operators.deploy(DAG.format(name=name, changed=0, kind="int"))
        async with working(system.operators.worker("market")):
            for first in (0, 10):
                await system.operators.trigger(name, "open", first, first + 9)
            await system.operators.until(DONE, name)
            yield Market(system, name)


async def test_a_release_is_compared_by_the_known_key_or_whole_rows_and_its_limits_block_it(
    serving: Market,
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
    assert f"{serving.name}_quotes: changed rows: 3" in answer.json()["error"]["message"]

    rows = await market.diff(start=2, end=5)
    assert rows.status_code == 200, rows.text
    assert (rows.json()["key"], rows.json()["changed"], rows.json()["equal"]) == (["block_number"], 1, 3)
    assert rows.json()["differing"] == [{"kind": "changed", "a": [2, 20], "b": [2, 21]}]

    for query, refusal in (
        ({"a": "1"}, (400, "invalid_request", "query release")),
        ({"start": 50, "end": 60}, (400, "invalid_request", "query start")),
        ({"key": "nope"}, (409, "incompatible", "query key")),
        ({"release": "0" * 8 + "-0000-0000-0000-" + "0" * 12}, (404, "not_found", "release")),
    ):
        answer = await market.diff(**query)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["where"]) == refusal, answer.text
    answer = await call(market.system, "GET", "/v1/datasets/thought/diff", params={"release": market.release})
    assert (answer.status_code, "makes no new generation of thought" in answer.text) == (404, True)

    assert (await market.call("POST", "/abandon")).status_code == 200
    answer = await market.diff()
    assert (answer.status_code, "is Abandoned" in answer.text) == (409, True)


async def test_schemas_without_a_common_column_fail_the_comparison_and_block(serving: Market) -> None:
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


async def test_a_release_within_its_limits_is_promoted_once_it_is_compared(serving: Market) -> None:
    market = await released(serving, changed=1)
    answer = await market.call("POST", "/promote", json={})
    assert answer.status_code == 200, answer.text

    async def serves() -> bool:
        return bool((await market.detail())["release"]["state"] == "Serving")

    await until(serves, "the release is promoted")
    found = await market.comparisons()
    assert (found["quotes"]["result"]["changed"], found["copies"]["state"]) == (1, "Idle")
