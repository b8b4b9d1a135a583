"""cryo's own files become a dataset with our columns, and a `sql` job reads them and ours as one table.

The jobs are those that docs/how-to/read_cryo_files.md shows.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import ROOT
from tests.support.systems.chain import ChainSystem, rows_of, truth
from tests.support.systems.walk import working
from tracelake.chain.columns import words
from tracelake.chain.schemas import TRANSACTIONS
from tracelake.operators.api.context import Resources
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper
from tracelake_devchain.expected_rows import truth_table

pytestmark = pytest.mark.anyio

DOC = ROOT / "docs" / "how-to" / "read_cryo_files.md"
JOBS = re.findall(r"```yaml\n(- name: cryos\n.*?)```", DOC.read_text(), re.DOTALL)[0]
LAST = 29
DAG = """
name: both
defaults: {runtime: ecs_platform, retry: {backoff: 1s, max_backoff: 1s}}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: ingest
    operator: cryo_ingest
    config: {rpc_pool: dev, tables: [transactions]}
    inputs: [{from: {job: ask}}]
    outputs: [transactions]
  - {name: load, operator: noop, runtime: dispatcher, source: {kind: manual}}
JOBS
  - name: apart
    operator: sql
    config:
      mode: full
      query: |
        SELECT 'ours' AS whose, * EXCEPT (block_hash, timestamp) FROM transactions
        EXCEPT ALL SELECT 'ours', * EXCEPT (block_hash, timestamp) FROM cryos
        UNION ALL
        (SELECT 'cryos' AS whose, * EXCEPT (block_hash, timestamp) FROM cryos WHERE chain_id = 1337
        EXCEPT ALL SELECT 'cryos', * EXCEPT (block_hash, timestamp) FROM transactions)
    inputs:
      - {from: {job: ingest, output: transactions}, name: transactions}
      - {from: {job: cryos}}
""".replace("JOBS\n", textwrap.indent(JOBS, "  "))
OURS = ("block_hash", "timestamp")
LOOSE = pa.schema([field.with_nullable(nullable=True) for field in TRANSACTIONS])
CRYO = pa.schema(
    [
        ("block_number", pa.uint32()),
        ("transaction_index", pa.uint64()),
        ("transaction_hash", pa.large_binary()),
        ("nonce", pa.uint64()),
        ("from_address", pa.large_binary()),
        ("to_address", pa.large_binary()),
        ("value_binary", pa.large_binary()),
        ("value_string", pa.large_string()),
        ("value_f64", pa.float64()),
        ("input", pa.large_binary()),
        ("gas_limit", pa.uint64()),
        ("gas_used", pa.uint64()),
        ("gas_price", pa.uint64()),
        ("transaction_type", pa.uint32()),
        ("max_priority_fee_per_gas", pa.uint64()),
        ("max_fee_per_gas", pa.uint64()),
        ("success", pa.bool_()),
        ("n_input_bytes", pa.uint32()),
        ("n_input_zero_bytes", pa.uint32()),
        ("n_input_nonzero_bytes", pa.uint32()),
        ("chain_id", pa.uint64()),
    ]
)
"""As cryo writes them; the files that it wrote are held against it where they are."""


def worker(system: ChainSystem) -> Wrapper:
    resources = Resources(system.data_dsn, {"dev": system.devchain.pool()}, folder=system.folder / "files")
    return replace(system.walk.worker("one"), runner=Runner(system.walk.control.objects, resources, system.spark))


def folder_of(system: ChainSystem) -> Path:
    """Where `read_files` looks, with the blocks of ours as cryo would have written them."""
    folder = system.folder / "files" / "cryo"
    folder.mkdir(parents=True)
    table = truth_table(system.devchain.chain(), "transactions", 0, LAST)
    pq.write_table(table.drop_columns(list(OURS)).cast(CRYO), folder / "tx_0.parquet")
    return folder


async def joined(system: ChainSystem) -> list[dict[str, Any]]:
    await system.deploy(DAG)
    async with working(worker(system)):
        await system.trigger("both", "ask", 0, LAST)
        await system.trigger("both", "load", 0, LAST)
        await system.settled()
    assert await system.failures() == []
    cryos = await system.cold("both", "cryos")
    assert cryos is not None
    assert cryos.schema == LOOSE
    apart = await system.cold("both", "apart")
    assert apart is not None
    assert apart.to_pylist() == []
    both = await system.cold("both", "all_transactions")
    assert both is not None
    assert both.column_names == TRANSACTIONS.names
    return list(both.to_pylist())


async def test_blocks_that_cryo_and_we_both_wrote_are_the_same_rows_but_for_our_own_columns(
    system: ChainSystem,
) -> None:
    """20 s."""
    folder_of(system)
    rows = await joined(system)
    ours = truth(system.devchain, "transactions", 0, LAST)
    assert by_place(row for row in rows if row["block_hash"]) == ours
    assert by_place(row for row in rows if not row["block_hash"]) == [row | dict.fromkeys(OURS) for row in ours]


async def test_files_that_cryo_wrote_and_ours_are_one_table(system: ChainSystem, shared_data: Path) -> None:
    """20 s."""
    folder = folder_of(system)
    real = sorted((shared_data / "cryo").glob("*.parquet"))
    for path in real:
        assert pq.read_schema(path).remove_metadata() == CRYO
        shutil.copy(path, folder)
    rows = [row for row in await joined(system) if row["chain_id"] != system.devchain.chain().chain_id]
    written = pa.concat_tables(map(pq.read_table, real)).to_pylist()
    assert by_place(rows) == [row | dict.fromkeys(OURS) for row in written]
    assert [row["block_number"] for row in written] == [45216, 45463, 46336]
    for row in rows:
        value = int(row["value_string"])
        assert words([hex(value)]).to_pylist() == [row["value_binary"]], "a u256 is the same 32 bytes in both"
        assert row["value_f64"] == float(value)


def by_place(rows: Any) -> list[dict[str, Any]]:
    return rows_of(pa.Table.from_pylist(list(rows), LOOSE), "transactions")
