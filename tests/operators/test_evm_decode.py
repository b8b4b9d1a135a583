"""`evm_decode`: what an event says becomes rows, and what has no row is counted where people look."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.operators.rig import Rig, operator
from tests.walk.walking import working
from trace_platform.chain.abi import ERC20_APPROVAL, ERC20_TRANSFER, ERC721_TRANSFER
from trace_platform.chain.schemas import LOGS
from trace_platform.operators.context import TaskContext

pytestmark = pytest.mark.anyio

DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: logs, operator: some_logs, inputs: [{from: {job: ask}}]}
  - name: decode
    operator: evm_decode
    config: {abi: erc20, events: [transfer, approval]}
    inputs: [{from: {job: logs}}]
    outputs: [transfers, approvals]
publish: {transfers: {job: decode, output: transfers}, approvals: {job: decode, output: approvals}}
"""
WORD = (7).to_bytes(32, "big")
WHO = bytes(12) + b"a" * 20
NOT_AN_ADDRESS = b"b" * 32
FOUND = [
    (ERC20_TRANSFER.topic0, [WHO, WHO], WORD),
    (ERC20_TRANSFER.topic0, [WHO, WHO], WORD[:31]),  # too short for a number
    (ERC20_TRANSFER.topic0, [NOT_AN_ADDRESS, WHO], WORD),
    (ERC721_TRANSFER.topic0, [WHO, WHO, WORD], b""),  # the same first topic, and another event
    (ERC20_APPROVAL.topic0, [WHO, WHO], WORD),
    (b"c" * 32, [], b""),
    (None, [], b""),
]


async def test_logs_without_a_row_are_counted_and_said(rig: Rig) -> None:
    worker = rig.worker()
    with operator("some_logs", write_logs):
        await rig.deploy(DAG)
        async with working(worker):
            await rig.trigger("d", "ask", start=0, end=9)
            states = await rig.settled()
    assert states["decode"] == ["Completed"], await rig.error("decode")
    assert [row["value"] for row in await rig.rows("transfers")] == ["7"]
    assert len(await rig.rows("approvals")) == 1
    (said,) = await rig.fetch(
        "SELECT progress ->> 'message' AS it FROM tasks WHERE progress IS NOT NULL AND job_id ="
        " (SELECT id FROM jobs WHERE name = 'decode')"
    )
    assert said["it"] == "left out: 2 undecoded, 3 of no event"
    counted = worker.metrics.registry.get_sample_value
    for reason, count in {"undecoded": 2, "of no event": 3}.items():
        labels = {"dag": "d", "job": "decode", "reason": reason}
        assert counted("trace_worker_rows_left_out_total", labels) == count


def write_logs(ctx: TaskContext[Any]) -> None:
    rows = []
    for place, (first, topics, data) in enumerate(FOUND):
        row: dict[str, Any] = {field.name: 0 if pa.types.is_integer(field.type) else b"" for field in LOGS}
        row |= {"block_number": 3, "log_index": place, "address": b"t" * 20, "data": data, "topic0": first}
        row |= dict.fromkeys(("topic1", "topic2", "topic3"))
        row |= {f"topic{number}": topic for number, topic in enumerate(topics, 1)}
        rows.append(row)
    for part in ctx.parts(ctx.outputs[0]):
        ctx.outputs[0].write_table(pa.Table.from_pylist(rows, LOGS), part)
