"""A block range into Arrow: `python -m bench.fetch [--size N]`.

Blocks a second of `fetch_range` (blocks, transactions, logs) against a dev chain that has made its blocks already;
beside it, in turns, what a bare asyncio client does with the same server: aiohttp, a fast decoder, a row at a time, no
check of anything. And what the server itself gives, and what proving costs alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
import pyarrow as pa
import uvloop

from bench.report import report
from tests.support.chain.devchain import Devchain, running
from tracelake.chain.fetch import fetch_range_sync
from tracelake.chain.proofs.verify import (
    check_bloom,
    check_header,
    check_receipts_root,
    check_transactions_root,
    check_withdrawals_root,
)
from tracelake.chain.schemas import BLOCKS, LOGS, TRANSACTIONS
from tracelake_devchain.build_block import Made
from tracelake_devchain.chain import Chain

T = TypeVar("T")
TURNS: Final = 5
BATCH: Final = 100
LANES: Final = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=3000, help="blocks")
    size = parser.parse_args().size
    load = round(os.getloadavg()[0], 2)
    rates: dict[str, list[float]] = {name: [] for name in ("proved", "sampled", "unproved", "bare", "server")}
    with running(blocks=size) as devchain:
        loop(served(devchain, size))  # every spelling is made
        for _ in range(TURNS):
            for name, share in (("proved", 1.0), ("sampled", 0.1), ("unproved", 0.0)):
                rates[name].append(ours(devchain, size, share))
            rates["bare"].append(loop(bare(devchain, size)))
            rates["server"].append(loop(served(devchain, size)))
    shares = {
        f"share_{name}": round(statistics.median(o / b for o, b in zip(rates[name], rates["bare"], strict=True)), 2)
        for name in ("proved", "sampled", "unproved")
    }
    middle = {name: round(statistics.median(rate)) for name, rate in rates.items()}
    print(middle)
    report(
        "fetch",
        middle["proved"],
        "blocks/s",
        share=shares["share_proved"],
        **shares,
        rates=middle,
        microseconds_to_prove=proving(min(size, 1000)),
        settings={"size": size, "batch_size": BATCH, "max_concurrency": LANES, "turns": TURNS, "load_at_start": load},
    )


def loop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def ours(devchain: Devchain, size: int, verify_roots: float) -> float:
    pool = devchain.pool(verify_roots=verify_roots, batch_size=BATCH, max_concurrency=LANES)
    start = time.perf_counter()
    fetched = fetch_range_sync(pool, 1, size)
    assert fetched.tables["blocks"].num_rows == size
    return size / (time.perf_counter() - start)


def session_of() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=LANES), read_bufsize=1 << 20)


async def asked(devchain: Devchain, first: int, last: int, take: Any, session: aiohttp.ClientSession) -> None:
    """Every block and its receipts, in batches; `take` gets each answer's bytes."""
    pieces = iter(range(first, last + 1, BATCH // 2))

    async def lane() -> None:
        for start in pieces:
            numbers = range(start, min(start + BATCH // 2, last + 1))
            calls = [("eth_getBlockByNumber", [hex(n), True]) for n in numbers]
            calls += [("eth_getBlockReceipts", [hex(n)]) for n in numbers]
            body = [
                {"jsonrpc": "2.0", "id": place, "method": method, "params": params}
                for place, (method, params) in enumerate(calls)
            ]
            async with session.post(devchain.url, data=json.dumps(body)) as response:
                take(await response.read(), len(numbers))

    await asyncio.gather(*(lane() for _ in range(LANES)))


async def served(devchain: Devchain, size: int) -> float:
    began = time.perf_counter()
    async with session_of() as session:
        await asked(devchain, 1, size, lambda *_: None, session)
    return size / (time.perf_counter() - began)


async def bare(devchain: Devchain, size: int) -> float:
    began = time.perf_counter()
    async with session_of() as session:
        await bare_tables(devchain, 1, size, session)
    return size / (time.perf_counter() - began)


async def bare_tables(devchain: Devchain, first: int, last: int, session: aiohttp.ClientSession) -> dict[str, pa.Table]:
    """What one writes in an afternoon: decode, a dict a row, `from_pylist`."""
    rows: dict[str, list[dict[str, Any]]] = {"blocks": [], "transactions": [], "logs": []}
    decode = msgspec.json.Decoder().decode

    def take(content: bytes, count: int) -> None:
        answers = [batch["result"] for batch in sorted(decode(content), key=lambda batch: batch["id"])]
        for block, receipts in zip(answers[:count], answers[count:], strict=True):
            plain_rows(block, receipts, rows)

    await asked(devchain, first, last, take, session)
    schemas = {"blocks": BLOCKS, "transactions": TRANSACTIONS, "logs": LOGS}
    return {name: pa.Table.from_pylist(rows[name], schema) for name, schema in schemas.items()}


def plain_rows(block: Any, receipts: Any, rows: dict[str, list[dict[str, Any]]]) -> None:
    def octets(text: str | None) -> bytes | None:
        return bytes.fromhex(text[2:]) if text is not None else None

    def number(text: str | None) -> int | None:
        return int(text, 16) if text is not None else None

    common = {"block_number": number(block["number"]), "block_hash": octets(block["hash"]), "chain_id": 1337}
    common["timestamp"] = number(block["timestamp"])
    rows["blocks"].append(
        common
        | {
            "author": octets(block["miner"]),
            "gas_used": number(block["gasUsed"]),
            "extra_data": octets(block["extraData"]),
            "base_fee_per_gas": number(block["baseFeePerGas"]),
            "parent_hash": octets(block["parentHash"]),
            "state_root": octets(block["stateRoot"]),
            "transactions_root": octets(block["transactionsRoot"]),
            "receipts_root": octets(block["receiptsRoot"]),
            "withdrawals_root": octets(block["withdrawalsRoot"]),
            "gas_limit": number(block["gasLimit"]),
            "blob_gas_used": number(block["blobGasUsed"]),
            "excess_blob_gas": number(block["excessBlobGas"]),
        }
    )
    for tx, receipt in zip(block["transactions"], receipts, strict=True):
        value, data = int(tx["value"], 16), bytes.fromhex(tx["input"][2:])
        rows["transactions"].append(
            common
            | {
                "transaction_index": number(tx["transactionIndex"]),
                "transaction_hash": octets(tx["hash"]),
                "nonce": number(tx["nonce"]),
                "from_address": octets(tx["from"]),
                "to_address": octets(tx["to"]),
                "value_binary": value.to_bytes(32, "big"),
                "value_string": str(value),
                "value_f64": float(value),
                "input": data,
                "gas_limit": number(tx["gas"]),
                "gas_used": number(receipt["gasUsed"]),
                "gas_price": number(tx["gasPrice"]),
                "transaction_type": number(tx["type"]),
                "max_priority_fee_per_gas": number(tx.get("maxPriorityFeePerGas")),
                "max_fee_per_gas": number(tx.get("maxFeePerGas")),
                "success": receipt["status"] == "0x1",
                "n_input_bytes": len(data),
                "n_input_zero_bytes": data.count(0),
                "n_input_nonzero_bytes": len(data) - data.count(0),
            }
        )
        for log in receipt["logs"]:
            topics = [octets(topic) for topic in log["topics"]] + [None] * 4
            rows["logs"].append(
                common
                | {
                    "transaction_index": number(log["transactionIndex"]),
                    "log_index": number(log["logIndex"]),
                    "transaction_hash": octets(log["transactionHash"]),
                    "address": octets(log["address"]),
                    **{f"topic{place}": topics[place] for place in range(4)},
                    "data": octets(log["data"]),
                    "n_data_bytes": len(log["data"]) // 2 - 1,
                }
            )


def proving(size: int) -> dict[str, float]:
    """CPU microseconds a block, for each kind of check."""
    known = list(Chain(blocks=size).blocks(1, size))
    checks: dict[str, Callable[[Made], None]] = {
        "header": lambda made: check_header(made.block),
        "bloom": lambda made: check_bloom(made.block, made.logs),
        "transactions_root": lambda made: check_transactions_root(made.block),
        "receipts_root": lambda made: check_receipts_root(made.block, made.receipts),
        "withdrawals_root": lambda made: check_withdrawals_root(made.block),
    }
    spent = {}
    for name, check in checks.items():
        start = time.process_time()
        for made in known:
            check(made)
        spent[name] = round(1e6 * (time.process_time() - start) / size, 1)
    return spent


if __name__ == "__main__":
    main()
