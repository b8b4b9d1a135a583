"""The DAGs that come with Trace can be deployed as they are, and do what they say.

`evm_quickstart` runs in `tests/chain_walk/test_quickstart.py`, and with its alerts and `alerts` in
`tests/lite/test_demo.py`; `files_quickstart` in `tests/operators/test_read_files.py`; `files_schedule` in
`tests/operators/test_fired_sources.py`; `evm_schedule` in `tests/chain_walk/test_ingest_schedule.py`; the rest here.
That all of them are valid is shown in `tests/docs/test_dags_in_docs.py`.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from tests.support.dispatcher.control import deployed_and_active
from tests.support.spark.session import shared_session
from tests.support.systems.walk import walking, working
from tests.support.verbs import trigger
from tracelake.lite.local_run.run import LocalTask, run_locally
from tracelake.udf.pack import pack
from tracelake_demo.check_alerts import large_transfers
from tracelake_demo.run import quickstart
from tracelake_devchain.chain import Chain
from tracelake_devchain.expected_rows import truth_table

FOLDER = Path(__file__).parent.parent / "dags"


def test_the_demo_runs_the_example_that_a_reader_finds_in_dags() -> None:
    assert quickstart() == (FOLDER / "evm_quickstart.yaml").read_text()


@pytest.mark.anyio
async def test_ranges_are_cut_and_joined_and_each_full_one_is_noted_on_a_worker(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with walking(state_db, queue_db, tmp_path) as walk:
        await deployed_and_active(walk.control, walk.org, (FOLDER / "ranges.yaml").read_text())
        async with working(walk.worker("one")):
            await trigger(walk.control, walk.org.id, "ranges", "ask", start=0, end=2499, request_id=uuid4())
            await walk.until("note", ["Completed"] * 2)  # 2000 to 2499 is no full range
            await walk.until_outbox_is_empty()
        assert await walk.statuses("cut") == ["Completed"]
        assert await walk.statuses("join") == ["Completed"] * 50
        assert await walk.statuses("note") == ["Completed"] * 2


def test_the_example_of_code_finds_every_large_transfer_of_its_blocks_and_no_other(tmp_path: Path) -> None:
    """As `trace udf test` runs it."""
    chain, file = Chain(blocks=60), tmp_path / "logs.parquet"
    pq.write_table(truth_table(chain, "logs", 0, 60), file)
    task = LocalTask(
        datasets={"logs": file},
        publishes=["alert_events"],
        scope={"start": 20, "end": 49},
        alerts=[{"name": "large_transfers", "severity": "warning"}],
    )
    played = run_locally(pack(FOLDER / "large_transfers"), task, shared_session())
    assert played.status == "Completed", played
    expected = large_transfers(chain, 20, 49)
    found = {row["dedupe_key"]: row for row in played.rows["alert_events"]}
    assert {key: int(row["payload"]["amount"]) for key, row in found.items()} == expected
    assert {row["severity"] for row in found.values()} == {"warning", "critical"}
    assert f"{len(expected)} large transfers in blocks 20 to 49" in played.log
