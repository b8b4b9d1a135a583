"""Logs of tokens, some of which no event of theirs fits; and a task that writes them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tracelake.chain.abi.events import ERC20_APPROVAL, ERC20_TRANSFER, ERC721_TRANSFER
from tracelake.chain.schemas import LOGS
from tracelake.operators.api.context import TaskContext

WORD = (7).to_bytes(32, "big")
WHO = bytes(12) + b"a" * 20
NOT_AN_ADDRESS = b"b" * 32
FOUND: list[tuple[bytes | None, list[bytes], bytes]] = [
    (ERC20_TRANSFER.topic0, [WHO, WHO], WORD),
    (ERC20_TRANSFER.topic0, [WHO, WHO], WORD[:31]),  # too short for a number
    (ERC20_TRANSFER.topic0, [NOT_AN_ADDRESS, WHO], WORD),
    (ERC721_TRANSFER.topic0, [WHO, WHO, WORD], b""),  # the same first topic, but another event
    (ERC20_APPROVAL.topic0, [WHO, WHO], WORD),
    (b"c" * 32, [], b""),
    (None, [], b""),
]


def write_logs(ctx: TaskContext[Any]) -> None:
    write(ctx, table_of(FOUND))


def write(ctx: TaskContext[Any], table: pa.Table) -> None:
    for part in ctx.parts(ctx.outputs[0]):
        ctx.outputs[0].write_table(table, part)


def table_of(logs: list[tuple[bytes | None, list[bytes], bytes]]) -> pa.Table:
    rows = []
    for place, (first, topics, data) in enumerate(logs):
        row: dict[str, Any] = {field.name: 0 if pa.types.is_integer(field.type) else b"" for field in LOGS}
        row |= {"block_number": 3, "log_index": place, "address": b"t" * 20, "data": data, "topic0": first}
        row |= dict.fromkeys(("topic1", "topic2", "topic3"))
        row |= {f"topic{number}": topic for number, topic in enumerate(topics, 1)}
        rows.append(row)
    return pa.Table.from_pylist(rows, LOGS)
