"""`evm_decode` of several inputs: a partition is made from all of them, whichever created the task, each log once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.support.systems.operators import OperatorSystem, operator
from tests.support.systems.walk import working
from tests.support.verbs import invalidate
from tracelake.chain.abi.events import ERC20_TRANSFER
from tracelake.chain.schemas import LOGS
from tracelake.domain.ranges import Range
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outcome import OperatorConfig

pytestmark = pytest.mark.anyio

DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: old, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: new, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: large
    operator: range_splitter
    runtime: dispatcher
    config: {chunk: 500}
    inputs: [{from: {job: old}}]
  - name: small
    operator: range_splitter
    runtime: dispatcher
    config: {chunk: 50}
    inputs: [{from: {job: new}}]
  - {name: past, operator: some_logs, config: {fork: past}, inputs: [{from: {job: large}}]}
  - {name: recent, operator: some_logs, config: {fork: FORK}, inputs: [{from: {job: small}}]}
  - name: decode
    operator: evm_decode
    config: {abi: erc20, events: [transfer]}
    inputs:
      - {from: {job: past}, name: past_logs}
      - {from: {job: recent}, name: recent_logs}
publish: {past_logs: {job: past}, recent_logs: {job: recent}, transfers: {job: decode}}
"""
WHO = bytes(12) + b"a" * 20


class Fork(OperatorConfig):
    fork: str
    chain: int = 0
    empty: list[int] | None = None
    """The first and the last of the blocks without a log."""


def write_logs(ctx: TaskContext[Fork]) -> None:
    """A transfer in each block of the range, worth its number; on another fork, two."""
    logs_of_a_block = 1 if ctx.config.fork == "past" else 2
    empty = range(ctx.config.empty[0], ctx.config.empty[1] + 1) if ctx.config.empty else ()
    for span in ctx.ranges(ctx.outputs[0]):
        full = [block for block in blocks(span) if block not in empty]
        rows = [a_transfer(ctx.config, block, place) for block in full for place in range(logs_of_a_block)]
        ctx.outputs[0].write_table(pa.Table.from_pylist(rows, LOGS), span)


def blocks(span: Range) -> Iterator[int]:
    yield from range(span.start, span.stop)


def a_transfer(config: Fork, block: int, place: int) -> dict[str, Any]:
    row: dict[str, Any] = {field.name: 0 if pa.types.is_integer(field.type) else b"" for field in LOGS}
    row |= {"block_number": block, "log_index": place, "block_hash": config.fork.encode(), "address": b"t" * 20}
    return row | {
        "chain_id": config.chain,
        "topic0": ERC20_TRANSFER.topic0,
        "topic1": WHO,
        "topic2": WHO,
        "topic3": None,
        "data": block.to_bytes(32, "big"),
    }


async def test_an_invalidation_of_one_input_keeps_the_rows_of_the_other(system: OperatorSystem) -> None:
    with operator("some_logs", write_logs, config=Fork):
        await system.deploy(DAG.replace("FORK", "recent"))
        async with working(system.worker()):
            await system.trigger("d", "old", start=0, end=1999)
            await system.trigger("d", "new", start=2000, end=2099)
            await system.settled()
            before = await system.rows("transfers")
            walk = system.walk
            await invalidate(
                walk.control,
                walk.org.id,
                walk.org.user,
                "past_logs",
                start=1900,
                end=2099,
                reason="a test",
                request_id=uuid4(),
            )
            states = await system.settled()
    assert states["decode"] == ["Completed"] * 7, await system.error("decode")
    assert [partition["partition_key"] for partition in await system.partitions("transfers")] == [
        "0-499", "500-999", "1000-1499", "1500-1999", "2000-2049", "2050-2099",
    ]  # fmt: skip
    assert [row["block_number"] for row in before] == [*range(2000), *sorted([*range(2000, 2100)] * 2)]
    assert await system.rows("transfers") == before


async def test_a_log_that_two_inputs_hold_is_one_row(system: OperatorSystem) -> None:
    with operator("some_logs", write_logs, config=Fork):
        await system.deploy(DAG.replace("FORK", "past"))
        async with working(system.worker()):
            await system.trigger("d", "new", start=450, end=499)
            await system.settled()
            await system.trigger("d", "old", start=0, end=499)
            states = await system.settled()
    assert states["decode"] == ["Completed"] * 2, await system.error("decode")
    assert [partition["partition_key"] for partition in await system.partitions("transfers")] == ["0-449", "450-499"]
    assert [row["value"] for row in await system.rows("transfers")] == [str(block) for block in range(500)]


@pytest.mark.parametrize("where", ["", ", where: log_index < 2"], ids=["all logs", "a selection"])
async def test_the_last_input_wins_where_inputs_disagree_about_a_block(system: OperatorSystem, where: str) -> None:
    with operator("some_logs", write_logs, config=Fork):
        await system.deploy(DAG.replace("FORK", "recent").replace("recent_logs}\n", f"recent_logs{where}}}\n"))
        async with working(system.worker()):
            await system.trigger("d", "new", start=450, end=499)
            await system.settled()
            await system.trigger("d", "old", start=0, end=499)
            await system.settled()
    found = [(row["block_number"], row["block_hash"]) for row in await system.rows("transfers")]
    unchanged = [(block, b"past") for block in range(450)]
    assert found == unchanged + sorted([(block, b"recent") for block in range(450, 500)] * 2)


SPANS: dict[str, dict[str, Any]] = {"old": {"start": 0, "end": 499}, "new": {"start": 450, "end": 499}}
EMPTIED = DAG.replace("{fork: FORK}", "{fork: recent, empty: [470, 470]}")
"""A reorg replaced 470 by a block without logs, after the backfill."""


@pytest.mark.parametrize(
    ("order", "where"),
    [(("old", "new"), ""), (("new", "old"), ""), (("old", "new"), ", where: log_index < 2")],
    ids=["backfill first", "tip first", "the same selection of both"],
)
async def test_a_block_replaced_by_an_empty_one_keeps_no_rows(
    system: OperatorSystem, order: tuple[str, str], where: str
) -> None:
    with operator("some_logs", write_logs, config=Fork):
        await system.deploy(EMPTIED.replace("_logs}\n", f"_logs{where}}}\n"))
        async with working(system.worker()):
            for source in order:
                await system.trigger("d", source, **SPANS[source])
                await system.settled()
    found = [(row["block_number"], row["block_hash"]) for row in await system.rows("transfers")]
    unchanged = [(block, b"past") for block in range(450)]
    assert found == unchanged + sorted([(block, b"recent") for block in range(450, 500) if block != 470] * 2)


async def test_rows_of_inputs_with_different_filters_are_united(system: OperatorSystem) -> None:
    """Inputs may have different filters: a missing log of a block proves nothing."""
    both = DAG.replace("fork: past", "fork: recent").replace("FORK", "recent")
    with operator("some_logs", write_logs, config=Fork):
        await system.deploy(
            both.replace("past_logs}\n", "past_logs, where: log_index = 0}\n").replace(
                "recent_logs}\n", "recent_logs, where: log_index = 1}\n"
            )
        )
        async with working(system.worker()):
            for source, span in SPANS.items():
                await system.trigger("d", source, **span)
                await system.settled()
    found = [(row["block_number"], row["log_index"]) for row in await system.rows("transfers")]
    assert found == sorted([*((block, 0) for block in range(500)), *((block, 1) for block in range(450, 500))])


async def test_a_block_of_another_chain_removes_no_rows(system: OperatorSystem) -> None:
    """Even where the other chain has no log in a whole partition, and so none that shows its chain."""
    other = DAG.replace("{fork: FORK}", "{fork: recent, chain: 7, empty: [450, 499]}")
    with operator("some_logs", write_logs, config=Fork):
        await system.deploy(other)
        async with working(system.worker()):
            await system.trigger("d", "new", start=400, end=499)
            await system.settled()
            await system.trigger("d", "old", start=0, end=499)
            await system.settled()
    found = [(row["block_number"], row["block_hash"]) for row in await system.rows("transfers")]
    others = [(block, b"recent") for block in range(400, 450)]
    assert found == sorted([*((block, b"past") for block in range(500)), *others, *others])
