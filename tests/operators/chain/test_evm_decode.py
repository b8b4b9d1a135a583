"""`evm_decode`: logs of events become rows, and logs without a row are counted and reported."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.support.chain.encoding import encode
from tests.support.chain.token_logs import table_of, write, write_logs
from tests.support.metrics import counted
from tests.support.systems.operators import OperatorSystem, operator
from tests.support.systems.walk import working
from tracelake.chain.abi.events import read_abi
from tracelake.chain.schemas import BLOCKS, LOGS
from tracelake.errors import InvalidDag

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
NO_LOGS = (
    "logs is no dataset of logs: it lacks transaction_index (bigint), transaction_hash (binary), log_index (bigint),"
    " address (binary), topic0 (binary), topic1 (binary), topic2 (binary), topic3 (binary), data (binary) (read one"
)
TEXTS = pa.schema([field.with_type(pa.string()) if field.name == "topic0" else field for field in LOGS])


@pytest.mark.parametrize("files", [1, 3])
async def test_logs_without_a_row_are_counted_and_reported(system: OperatorSystem, files: int) -> None:
    worker = system.worker()
    with operator("some_logs", write_logs):
        await system.deploy(DAG if files == 1 else DAG.replace("approval]}", f"approval], files: {files}}}"))
        async with working(worker):
            await system.trigger("d", "ask", start=0, end=9)
            states = await system.settled()
    assert states["decode"] == ["Completed"], await system.error("decode")
    assert [row["value"] for row in await system.rows("transfers")] == ["7"]
    assert len(await system.rows("approvals")) == 1
    assert [len(partition["files"]) for partition in await system.partitions("transfers")] == [files]
    (row,) = await system.fetch(
        "SELECT progress ->> 'message' AS it FROM tasks WHERE progress IS NOT NULL AND job_id ="
        " (SELECT id FROM jobs WHERE name = 'decode')"
    )
    assert row["it"] == "left out: 2 undecoded, 3 of no event"
    for reason, count in {"undecoded": 2, "of no event": 3}.items():
        labels = {"dag": "d", "job": "decode", "reason": reason}
        assert counted(worker.metrics, "trace_worker_rows_left_out_total", **labels) == count


@pytest.mark.parametrize(
    ("schema", "where", "message"),
    [
        (BLOCKS, "", NO_LOGS),
        (TEXTS, "", "logs is no dataset of logs: it lacks topic0 (binary) ("),
        (LOGS, ", where: nothing = 1", "nothing"),
    ],
    ids=["blocks", "texts", "where"],
)
async def test_an_input_without_log_columns_fails_once_and_the_error_names_them(
    system: OperatorSystem, schema: pa.Schema, where: str, message: str
) -> None:
    with operator("some_logs", lambda ctx: write(ctx, schema.empty_table())):
        await system.deploy(DAG.replace("{from: {job: logs}}", "{from: {job: logs}, name: logs" + where + "}"))
        states = await system.run("d", "ask", start=0, end=9)
    assert states["decode"] == ["Failed"]
    error = await system.error("decode")
    assert message in error
    assert "Traceback" not in error
    assert "\tat " not in error
    assert [row["attempt"] for row in await system.fetch("SELECT attempt FROM tasks WHERE status = 'Failed'")] == [1]


async def test_the_transfers_of_collectibles_become_rows(system: OperatorSystem) -> None:
    with operator("some_logs", write_logs):
        await system.deploy(DAG.replace("abi: erc20", "abi: erc721"))
        states = await system.run("d", "ask", start=0, end=9)
    assert states["decode"] == ["Completed"], await system.error("decode")
    (row,) = await system.rows("transfers")
    assert (row["log_index"], row["from_address"], row["token_id"]) == (3, b"a" * 20, "7")
    assert await system.rows("approvals") == []


OWN = [
    {
        "type": "event",
        "name": "Named",
        "inputs": [
            {"type": "string", "name": "label", "indexed": True},
            {"type": "string", "name": "title"},
            {"type": "tuple[]", "name": "legs", "components": [{"type": "uint256", "name": "amount"}]},
            {"type": "int24", "name": "tick"},
            {"type": "bytes[]", "name": "calls"},
        ],
    },
    {"type": "event", "name": "Hidden", "anonymous": True, "inputs": []},
]
OWN_DAG = DAG.replace("{abi: erc20, events: [transfer, approval]}", f"{{abi: '{json.dumps(OWN)}', events: [named]}}")
OWN_DAG = (
    OWN_DAG.replace("[transfers, approvals]", "[named]").split("publish:")[0] + "publish: {named: {job: decode}}\n"
)


async def test_a_custom_abi_makes_rows_with_hashes_for_long_indexed_values(system: OperatorSystem) -> None:
    (event,) = read_abi(OWN)
    kinds = tuple(argument.type for argument in event.arguments[1:])
    data = encode(kinds, ["a title", [{"amount": 2**200}, {"amount": 1}], -5, [b"\1"]])
    # A hundred calls with the same 3200 bytes: more than any log may unpack to.
    numbers = [128, 128, 0, 160, 0, 100, *[3200] * 100, 3200]
    bomb = b"".join(number.to_bytes(32, "big") for number in numbers) + bytes(3200)
    logs = [(event.topic0, [b"h" * 32], data), (event.topic0, [b"h" * 32], bomb), (None, [], b"")]
    with operator("some_logs", lambda ctx: write(ctx, table_of(logs))):
        await system.deploy(OWN_DAG)
        states = await system.run("d", "ask", start=0, end=9)
    assert states["decode"] == ["Completed"], await system.error("decode")
    (row,) = await system.rows("named")
    assert row["label_hash"] == b"h" * 32
    assert (row["title"], row["tick"], row["calls"]) == ("a title", -5, '["0x01"]')
    assert json.loads(row["legs"]) == [{"amount": str(2**200)}, {"amount": "1"}]
    rows = await system.fetch("SELECT progress ->> 'message' AS it FROM tasks WHERE progress IS NOT NULL")
    assert "left out: 1 undecoded, 1 of no event" in [row["it"] for row in rows]


async def test_an_anonymous_event_cannot_be_selected(system: OperatorSystem) -> None:
    with operator("some_logs", write_logs), pytest.raises(InvalidDag, match="the ABI has no event 'hidden'"):
        await system.deploy(OWN_DAG.replace("[named]", "[hidden]"))
