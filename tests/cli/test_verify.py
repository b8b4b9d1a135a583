"""`trace verify` finds each kind of damage, names it, and reports what retention has deleted as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.dispatcher.staged_files import parquet_of, staged
from tests.support.systems.command_line import Running, Trace
from tracelake.domain.access.object_names import Folder, ObjectName

pytestmark = pytest.mark.usefixtures("known_operators")

SPANS = ((0, 9), (10, 19), (20, 29))
WITHOUT_HASHES = "previous_hash = NULL, files_hash = NULL, inputs_hash = NULL, code_hash = NULL, hash = NULL"


@pytest.fixture
def committed(running: Running, trace: Trace, file: Path) -> Running:
    """Dataset `shop_clean` has three commits of a file each."""
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    for span in SPANS:
        assert trace("trigger", "shop", "fetch", "--range", f"{span[0]}-{span[1]}").code == 0
        running.do(drained(running.control))
        running.do(commit(running, span))
    return running


async def commit(running: Running, *spans: tuple[int, int], **options: Any) -> None:
    control = running.control
    task_id = await control.pool.fetchval("SELECT id FROM tasks WHERE status = 'Queued' ORDER BY id LIMIT 1")
    task, claims = await claimed(control, task_id)
    outputs = staged(control.objects, task, *spans, **{"content": parquet_of, **options})
    await control.completer()(completion(task, outputs=outputs), claims)


def verified(trace: Trace, *options: str) -> tuple[int, list[tuple[int, str]], dict[str, Any]]:
    """The exit code, commit and kind of each damage, and all of the answer."""
    done = trace("verify", "shop_clean", *options, "--json")
    return done.code, [(item["commit"], item["kind"]) for item in done.json["damages"]], done.json


def stored_files(running: Running) -> list[ObjectName]:
    rows = running.do(
        running.control.pool.fetch(
            "SELECT location, files -> 0 ->> 'name' AS name FROM partition_versions ORDER BY valid_from"
        )
    )
    return [Folder.parse(row["location"]).object(row["name"]) for row in rows]


def without_triggers(dsn: str, *statements: str) -> None:
    """As somebody with all rights on the database would change it."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in statements:
            connection.execute(statement)


def test_an_undamaged_dataset_is_verified_with_its_rows(committed: Running, trace: Trace) -> None:
    code, damages, found = verified(trace, "--rows")
    assert (code, damages) == (0, [])
    assert (found["commits"], found["files"], found["rows"], found["unchained"]) == (3, 3, 30, 0)
    assert "no damage found" in trace("verify", "shop_clean").out
    assert committed.control


def test_a_flipped_byte_is_found(committed: Running, trace: Trace) -> None:
    name, objects = stored_files(committed)[1], committed.control.objects
    body = bytearray(objects.get(name))
    body[10] ^= 1
    objects.put(name, bytes(body), replace=True)
    code, damages, found = verified(trace)
    assert (code, damages) == (1, [(2, "file_changed")])
    assert found["damages"][0]["where"] == str(name)
    assert "does not match its checksum" in trace("verify", "shop_clean").out


def test_a_removed_file_is_found(committed: Running, trace: Trace) -> None:
    name = stored_files(committed)[2]
    committed.control.objects.delete([name])
    code, damages, found = verified(trace)
    assert (code, damages) == (1, [(3, "file_missing")])
    assert found["damages"][0]["where"] == str(name)


def test_a_file_added_to_the_folder_of_a_commit_is_found(committed: Running, trace: Trace) -> None:
    folder = Folder.parse(str(stored_files(committed)[0]).rpartition("/")[0] + "/")
    committed.control.objects.put(folder.object("more.parquet"), b"rows of somebody")
    code, damages, found = verified(trace)
    assert (code, damages) == (1, [(1, "file_added")])
    assert found["damages"][0]["where"] == str(folder.object("more.parquet"))


def test_a_changed_entry_of_the_ledger_is_found(committed: Running, trace: Trace, state_db: str) -> None:
    without_triggers(state_db, "UPDATE commits SET row_count = 11 WHERE number = 2")
    assert verified(trace)[:2] == (1, [(2, "entry_changed")])
    assert committed.control


def test_swapped_entries_of_the_ledger_are_found(committed: Running, trace: Trace, state_db: str) -> None:
    swapped = "task_id, attempt, created_at, previous_hash, files_hash, inputs_hash, code_hash, hash"
    columns = ", ".join(f"o.{name.strip()}" for name in swapped.split(","))
    without_triggers(
        state_db,
        "ALTER TABLE commits DROP CONSTRAINT commits_effect_once",
        "CREATE TEMP TABLE old AS SELECT * FROM commits",
        f"UPDATE commits c SET ({swapped}) = (SELECT {columns} FROM old o WHERE o.number = 5 - c.number)"  # noqa: S608
        " WHERE c.number IN (2, 3)",
    )
    code, damages, found = verified(trace)
    assert code == 1
    assert {(2, "entries_swapped"), (3, "entries_swapped")} <= set(damages)
    assert "commit 2 has the entry of commit 3" in {item["message"] for item in found["damages"]}
    assert committed.control


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        ("UPDATE partition_versions SET files = '[]' WHERE valid_from = 2", (2, "partitions_changed")),
        ("UPDATE partition_versions SET row_count = 9 WHERE valid_from = 3", (3, "partitions_changed")),
        ("UPDATE task_inputs SET input_commit = 7", (2, "inputs_changed")),
        ("UPDATE jobs SET config_hash = 'other' WHERE name = 'clean'", (1, "code_changed")),
        ("DELETE FROM commits WHERE number = 2", (2, "entry_missing")),
        ("DELETE FROM commits WHERE number = 3", (3, "entry_missing")),
        ("UPDATE dataset_heads SET last_hash = sha256('x')", (3, "chain_broken")),
        (f"UPDATE commits SET {WITHOUT_HASHES} WHERE number = 2", (2, "entry_changed")),  # noqa: S608
    ],
)
def test_each_other_change_of_the_ledger_is_found(
    committed: Running,
    trace: Trace,
    state_db: str,
    change: str,
    damage: tuple[int, str],
) -> None:
    without_triggers(state_db, change)
    code, damages, _ = verified(trace)
    assert code == 1
    assert damage in damages
    assert committed.control


def test_files_deleted_by_retention_are_no_damage(committed: Running, trace: Trace) -> None:
    former = stored_files(committed)[0]
    assert trace("invalidate", "shop_orders", "--range", "0-9", "--reason", "again").code == 0
    committed.do(drained(committed.control))
    committed.do(commit(committed, SPANS[0]))
    committed.do(
        committed.control.pool.execute(
            "UPDATE partition_versions SET files_removed_at = now() WHERE valid_to IS NOT NULL"
        )
    )
    committed.control.objects.delete([former])
    code, damages, found = verified(trace)
    assert (code, damages, found["removed"], found["files"]) == (0, [], 1, 3)


def test_rows_that_differ_from_what_was_committed_are_found(committed: Running, trace: Trace) -> None:
    assert trace("trigger", "shop", "fetch", "--range", "30-39").code == 0
    committed.do(drained(committed.control))
    committed.do(commit(committed, (30, 39), content=lambda stem, _: parquet_of(stem, (30, 41))))
    assert verified(trace)[:2] == (0, [])
    code, damages, found = verified(trace, "--rows")
    assert (code, damages) == (1, [(4, "rows_differ"), (4, "rows_differ")])
    assert [item["message"].partition(" ")[2] for item in found["damages"]] == [
        "has 12 rows, not 10",
        "has blocks 30 to 41, and its partition is 30-39",
    ]


def test_commits_older_than_the_ledger_are_counted_and_their_files_verified(
    committed: Running,
    trace: Trace,
    state_db: str,
) -> None:
    without_triggers(
        state_db,
        f"UPDATE commits SET {WITHOUT_HASHES}",  # noqa: S608
        "UPDATE dataset_heads SET last_hash = NULL",
    )
    assert trace("trigger", "shop", "fetch", "--range", "30-39").code == 0
    committed.do(drained(committed.control))
    committed.do(commit(committed, (30, 39)))
    code, damages, found = verified(trace)
    assert (code, damages, found["commits"], found["unchained"]) == (0, [], 4, 3)
    committed.control.objects.delete([stored_files(committed)[0]])
    assert verified(trace)[1] == [(1, "file_missing")]


def test_the_ledger_is_exported_as_lines_of_json(committed: Running, trace: Trace) -> None:
    lines = [json.loads(line) for line in trace("datasets", "ledger", "shop_clean", "--json").out.splitlines()]
    assert [line["commit"] for line in lines] == [1, 2, 3]
    assert lines[1]["previous_hash"] == lines[0]["hash"]
    assert lines[2]["partitions"][0]["files"][0]["sha256"]
    assert lines[0]["hash"] in trace("datasets", "ledger", "shop_clean").out
    assert committed.control


def test_usage_shows_the_size_of_tables_and_of_what_was_committed(committed: Running, trace: Trace) -> None:
    committed.do(committed.control.pool.execute("ANALYZE"))
    found = trace("db", "usage", "--days", "0", "--json").json
    assert {"tasks", "commits", "partition_versions"} <= {item["table"] for item in found["tables"]}
    clean = next(item for item in found["generations"] if item["dataset"] == "shop_clean")
    sizes = [committed.control.objects.head(name) for name in stored_files(committed)]
    assert clean["current_bytes"] == clean["week_bytes"] == sum(item.size for item in sizes if item)
    assert (clean["current_rows"], clean["partitions"], clean["week_commits"]) == (30, 3, 3)
    assert {item["kind"]: item["rows"] for item in found["older"]}["tasks"] == 3
    shown = trace("db", "usage").out
    assert "shop_clean" in shown
    assert "older than 30 days" in shown
