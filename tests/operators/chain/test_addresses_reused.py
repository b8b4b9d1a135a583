"""On Spark: a contract that is added to `evm_decode` is decoded where it has logs, and nowhere else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.dispatcher.releases import promoted, started, state_of
from tests.support.systems.operators import OperatorSystem, operator
from tests.support.systems.walk import working
from tests.support.waiting import until
from tracelake.chain.abi.events import ERC20_TRANSFER
from tracelake.chain.schemas import LOGS
from tracelake.operators.api.context import TaskContext

pytestmark = pytest.mark.anyio

USDC, DAI, WETH = (bytes([n]) * 20 for n in (1, 2, 3))
WHO = bytes(12) + b"a" * 20
CONTRACTS = {0: [USDC, DAI], 10: [USDC, WETH], 20: [DAI]}
"""By the first block of each range."""
TASKS = """
SELECT t.partitions[1] AS key, t.memoized_from IS NOT NULL AS reused
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN release_members m ON m.dag_version_id = j.dag_version_id
 WHERE m.release_id = $1 AND j.name = 'decode'
"""


def write_logs(ctx: TaskContext[Any]) -> None:
    """A transfer of each contract in the first block of the range."""
    for span in ctx.ranges(ctx.outputs[0]):
        rows = [a_transfer(span.start, place, who) for place, who in enumerate(CONTRACTS[span.start])]
        ctx.outputs[0].write_table(pa.Table.from_pylist(rows, LOGS), span)


def a_transfer(block: int, place: int, contract: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {field.name: 0 if pa.types.is_integer(field.type) else b"" for field in LOGS}
    row |= {"block_number": block, "log_index": place, "address": contract, "data": block.to_bytes(32, "big")}
    return row | {"topic0": ERC20_TRANSFER.topic0, "topic1": WHO, "topic2": WHO, "topic3": None}


def dag(*contracts: bytes) -> str:
    listed = ", ".join(f"'0x{contract.hex().upper()}'" for contract in contracts)
    return f"""
name: d
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: logs, operator: some_logs, inputs: [{{from: {{job: ask}}}}]}}
  - name: decode
    operator: evm_decode
    config: {{abi: erc20, events: [transfer], addresses: [{listed}]}}
    inputs: [{{from: {{job: logs}}}}]
publish: {{transfers: {{job: decode}}}}
"""


async def test_only_ranges_with_logs_of_the_new_contract_are_decoded_again(system: OperatorSystem) -> None:
    with operator("some_logs", write_logs):
        await system.deploy(dag(USDC, DAI))
        async with working(system.worker()):
            for start in CONTRACTS:
                await system.trigger("d", "ask", start=start, end=start + 9)
            await system.settled()
            assert await found(system) == [(0, USDC), (0, DAI), (10, USDC), (20, DAI)]
            control, org = system.walk.control, system.walk.org
            release = await started(control, org, dag(USDC, DAI, WETH))

            async def is_ready() -> bool:
                return await state_of(control, org, release) == "Ready"

            await until(is_ready, "the release is ready")
        await promoted(control, org, release)
    tasks = {row["key"]: row["reused"] for row in await system.fetch(TASKS, release)}
    assert tasks == {"0-9": True, "10-19": False, "20-29": True}
    assert await found(system) == [(0, USDC), (0, DAI), (10, USDC), (10, WETH), (20, DAI)]


async def found(system: OperatorSystem) -> list[tuple[int, bytes]]:
    rows = [(row["block_number"], bytes(row["address"])) for row in await system.rows("transfers")]
    return sorted(rows)
