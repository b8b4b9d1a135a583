"""A real block becomes rows in files as the platform writes them, and they say what the node said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.chain.encoding import exchanges
from tests.support.chain.real_blocks import blocks
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.chain.nodes.responses import TxReceipt
from tracelake.chain.schemas import SCHEMAS
from tracelake.chain.tables import BATCHES, CheckedBlock
from tracelake.data.files.parquet_writer import OutputFolder, write_table
from tracelake.domain.access.object_names import Folder

CHAIN = 3503995874084926


def test_a_real_block_is_in_a_datasets_files_what_its_node_said(shared_data: Path, tmp_path: Path) -> None:
    answers = {name: response for name, _, response in exchanges(shared_data / "execution-apis/eth_getBlockReceipts")}
    output = answers["get-block-receipts-latest"]["result"]
    receipts = msgspec.convert(output, list[TxReceipt])
    logs = [log for receipt in receipts for log in receipt.logs]
    known = CheckedBlock(blocks(shared_data)["get-latest"], receipts, logs)
    found = {name: _written_and_read(name, known, tmp_path).to_pylist() for name in ("blocks", "logs")}
    (block,) = found["blocks"]
    assert "0x" + block["block_hash"].hex() == known.block.hash == output[0]["blockHash"]
    assert (block["gas_used"], block["chain_id"]) == (int(output[-1]["cumulativeGasUsed"], 16), CHAIN)
    expected = [log for receipt in output for log in receipt["logs"]]
    assert expected
    assert [_as_in_json(row) for row in found["logs"]] == [
        (log["transactionHash"], log["address"], log["topics"], log["data"], int(log["logIndex"], 16))
        for log in expected
    ]
    assert {row["block_hash"] for row in found["logs"]} == {block["block_hash"]}


def _written_and_read(name: str, known: CheckedBlock, folder: Path) -> pa.Table:
    objects, place = DiskObjects(folder), Folder("trace", ("real", name))
    table = pa.Table.from_batches([BATCHES[name]([known], CHAIN)], SCHEMAS[name])
    written = write_table(OutputFolder(objects, place), name, table)
    return pq.read_table(pa.BufferReader(objects.get(place.object(written.file.name))))


def _as_in_json(row: dict[str, object]) -> tuple[object, ...]:
    topics = [_hex(row[f"topic{place}"]) for place in range(4) if row[f"topic{place}"] is not None]
    return _hex(row["transaction_hash"]), _hex(row["address"]), topics, _hex(row["data"]), row["log_index"]


def _hex(value: object) -> str:
    assert isinstance(value, bytes)
    return "0x" + value.hex()
