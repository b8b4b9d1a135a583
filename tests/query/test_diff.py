"""A dataset at two commits is compared on Spark: schema, rows, keys, values and sums, for those who may read it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.dispatcher.job_chain import claimed, completion
from tests.support.dispatcher.staged_files import Partition, staged
from tests.support.systems.query import QuerySystem
from tracelake.errors import Incompatible, InvalidRequest, NotFound
from tracelake.query.checked_query import ColdFiles, Relation
from tracelake.query.diff.run import comparison_of
from tracelake.query.diff.sides import sides_of
from tracelake.wire.task.markers import ColumnEntry
from tracelake.wire.user.datasets import DatasetCommit, DatasetDetail, GenerationRow
from tracelake.wire.user.diff import DiffQuery

pytestmark = pytest.mark.anyio

COLUMNS = [
    ColumnEntry(name="block_number", type="bigint"),
    ColumnEntry(name="in a", type="bigint"),
    ColumnEntry(name="note", type="string"),
    ColumnEntry(name="tags", type="map<string,bigint>"),
]
TASK = """
INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)
SELECT j.org_id, j.id, gen_random_uuid()::text, 3600, now()
  FROM jobs j JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id
 WHERE j.name = 'think' AND j.org_id = $1
RETURNING id
"""
Row = tuple[int, int | None, str]


async def commit(system: QuerySystem, span: tuple[int, int], rows: list[Row]) -> int:
    """The rows of a range, as a task of `think` writes them; returns the commit."""
    control, org = system.operators.walk.control, system.operators.walk.org
    task, claims = await claimed(control, await control.pool.fetchval(TASK, org.id))

    def parquet(_stem: str, _partition: Partition) -> bytes:
        numbers, values, notes = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
        tags = pa.array([[("t", 1)] for _ in rows], pa.map_(pa.string(), pa.int64()))
        data = {"block_number": pa.array(numbers, pa.int64()), "in a": pa.array(values, pa.int64())}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(data | {"note": pa.array(notes, pa.string()), "tags": tags}), sink)
        return bytes(sink.getvalue())

    outputs = staged(control.objects, task, span, columns=COLUMNS, content=parquet)
    answer = await control.completer()(completion(task, outputs=outputs), claims)
    assert answer.commits is not None
    (number,) = answer.commits.values()
    return number


async def ask(system: QuerySystem, user: str = "reader", dataset: str = "thought", **query: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {system.token(user)}"}
    return await system.gateway.get(f"/v1/datasets/{dataset}/diff", params=query, headers=headers)


async def diff(system: QuerySystem, **query: Any) -> dict[str, Any]:
    answer = await ask(system, **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
async def commits(system: QuerySystem) -> list[int]:
    """Ten rows and ten rows; then the first ten again: 0 is missing, 1 and 2 have other values, 3 is without one."""
    first = [(n, n * 10, f"row {n}") for n in range(10)]
    changed: list[Row] = [(1, 11, "row 1"), (2, 20, "other"), (3, None, "row 3"), *first[4:]]
    return [
        await commit(system, (0, 9), [*first]),
        await commit(system, (10, 19), [(n, n * 10, f"row {n}") for n in range(10, 20)]),
        await commit(system, (0, 9), [*changed, (9, 90, "row 9")]),
        await commit(system, (0, 9), [*changed]),
    ]


async def test_by_key_what_is_missing_and_what_has_other_values_is_found(
    system: QuerySystem, commits: list[int]
) -> None:
    found = await diff(system, a=commits[1], b=commits[3], key="block_number")
    assert (found["a"]["rows"], found["b"]["rows"], found["shared_rows"]) == (20, 19, 10)
    assert (found["only_a"], found["only_b"], found["changed"], found["equal"]) == (1, 0, 3, 16)
    assert (found["key"], found["schema"], found["not_compared"]) == (["block_number"], [], ["tags"])
    by_name = {item["column"]: item for item in found["columns"]}
    assert [by_name[name]["equal"] for name in ("block_number", "in a", "note")] == [19, 17, 18]
    assert by_name["note"]["share"] == pytest.approx(18 / 19)
    assert (by_name["in a"]["sum_a"], by_name["in a"]["sum_b"]) == (450.0, 421.0)
    assert by_name["note"]["sum_a"] is None
    assert found["differing"] == [
        {"kind": "only_a", "a": [0, 0, "row 0"], "b": None},
        {"kind": "changed", "a": [1, 10, "row 1"], "b": [1, 11, "row 1"]},
        {"kind": "changed", "a": [2, 20, "row 2"], "b": [2, 20, "other"]},
        {"kind": "changed", "a": [3, 30, "row 3"], "b": [3, None, "row 3"]},
    ]


async def test_without_a_key_whole_rows_are_compared_as_often_as_they_are_there(
    system: QuerySystem, commits: list[int]
) -> None:
    found = await diff(system, a=commits[1], b=commits[2])
    assert (found["only_a"], found["only_b"], found["equal"], found["changed"]) == (4, 4, 16, 0)
    assert [(item["kind"], (item["a"] or item["b"])[0]) for item in found["differing"]].count(("only_b", 9)) == 1


async def test_rows_are_compared_by_the_key_of_the_job_as_far_as_it_identifies_them(
    system: QuerySystem, commits: list[int]
) -> None:
    known = "UPDATE jobs SET unique_key = $1 WHERE name = 'think'"
    await system.pool.execute(known, ["block_number"])
    try:
        unique = await diff(system, a=commits[0], b=commits[3], rows=0)
        twice = await diff(system, a=commits[1], b=commits[2], rows=0)
    finally:
        await system.pool.execute(known, None)
    assert (unique["key"], unique["note"], unique["changed"]) == (["block_number"], None, 3)
    assert (twice["key"], twice["changed"], twice["only_b"]) == ([], 0, 4)
    assert twice["note"] == "its key (block_number) has several rows for some values, so whole rows were compared"


async def test_a_range_restricts_what_is_read(system: QuerySystem, commits: list[int]) -> None:
    found = await diff(system, a=commits[0], b=commits[3], key="block_number", start=2, end=4, rows=1)
    assert (found["a"]["rows"], found["b"]["rows"], found["changed"], found["only_a"]) == (3, 3, 2, 0)
    assert len(found["differing"]) == 1


async def test_a_commit_equals_itself_without_reading_a_file(system: QuerySystem, commits: list[int]) -> None:
    found = await diff(system, a=commits[1], b=commits[1], key="block_number")
    assert (found["equal"], found["shared_rows"], found["only_a"], found["only_b"], found["changed"]) == (
        20,
        20,
        0,
        0,
        0,
    )
    assert {item["share"] for item in found["columns"]} == {1.0}


async def test_without_commits_the_last_of_what_is_served_is_compared_with_the_one_before(
    system: QuerySystem, commits: list[int]
) -> None:
    found = await diff(system)
    assert (found["a"]["commit"], found["b"]["commit"]) == (commits[2], commits[3])


async def test_a_comparison_is_audited_as_a_query(system: QuerySystem, commits: list[int]) -> None:
    await diff(system, a=commits[0], b=commits[3])
    find = "SELECT id FROM datasets WHERE name = 'thought' AND org_id = $1"
    dataset = await system.pool.fetchval(find, system.operators.walk.org.id)
    await system.operators.until(
        "SELECT EXISTS (SELECT FROM query_audit WHERE $1 = ANY (datasets) AND verdict = 'answered')", dataset
    )


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ({"key": "nope"}, (409, "incompatible", "query key")),
        ({"key": "tags"}, (409, "incompatible", "query key")),
        ({"a": "9999999"}, (400, "invalid_request", "query a")),
        ({"a": "ffffffff"}, (404, "not_found", "query a")),
        ({"start": "1"}, (400, "invalid_request", "query start")),
        ({"start": "9", "end": "1"}, (400, "invalid_request", "query start")),
        ({"start": "100", "end": "200"}, (400, "invalid_request", "query start")),
        ({"rows": "101"}, (400, "invalid_request", "query rows")),
    ],
)
async def test_what_cannot_be_compared_is_refused_with_the_place(
    system: QuerySystem, commits: list[int], query: dict[str, Any], refusal: tuple[int, str, str]
) -> None:
    sides: dict[str, Any] = {"a": commits[0], "b": commits[3]}
    answer = await ask(system, **(sides | query))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["where"]) == refusal, answer.text


async def test_a_key_that_is_not_unique_is_refused(system: QuerySystem, commits: list[int]) -> None:
    answer = await ask(system, a=commits[0], b=commits[2], key="block_number")
    assert (answer.status_code, answer.json()["error"]["where"]) == (400, "query key"), answer.text


@pytest.mark.parametrize(("user", "dataset"), [("reader", "pay"), ("reader", "theirs"), ("test|rival", "thought")])
async def test_who_may_not_read_a_dataset_does_not_learn_that_it_is_there(
    system: QuerySystem, commits: list[int], user: str, dataset: str
) -> None:
    del commits
    answer = await ask(system, user, dataset, a=1, b=1)
    assert answer.status_code == 404 or (user == "test|rival" and "rows" not in answer.json()), answer.text


A, B = UUID(int=0xAAAA << 112), UUID(int=0xAAAB << 112)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def detail(*generations: tuple[UUID, bool, int | None], commits: dict[int, UUID]) -> DatasetDetail:
    return DatasetDetail(
        dataset_uuid=uuid4(),
        name="x",
        visibility="org",
        dag="d",
        job="j",
        output_index=0,
        storage="parquet",
        last_commit=max(commits, default=None),
        committed_at=None,
        dead_batches=0,
        read_roles=[],
        generations=[
            GenerationRow(
                dataset_version=version,
                current=current,
                storage_location="s3://trace/x/",
                config_hash="c",
                created_at=NOW,
                partitions=0,
                rows=None,
                bytes=None,
                ranges=[],
                last_commit=last,
            )
            for version, current, last in generations
        ],
        lineage=[],
        commits=[
            DatasetCommit(
                commit=number,
                dataset_version=version,
                task_id=A,
                attempt=1,
                scope="",
                rows=None,
                bytes=None,
                committed_at=NOW,
            )
            for number, version in commits.items()
        ],
        newest_dead_batches=[],
        published_ranges=0,
        newest_published_ranges=[],
    )


def test_a_generation_that_is_built_is_compared_with_the_one_that_is_served() -> None:
    building = detail((A, True, 4), (B, False, 7), commits={7: B, 4: A, 3: A})
    assert sides_of(building, DiffQuery()) == (4, 7)
    assert sides_of(building, DiffQuery(a=str(B)[:4])) == (7, 4)
    assert sides_of(building, DiffQuery(b="3")) == (4, 3)
    assert sides_of(building, DiffQuery(a=str(A), b=str(B))) == (4, 7)
    left = detail((A, True, 9), (B, False, 7), commits={9: A, 7: B, 3: A})
    assert sides_of(left, DiffQuery()) == (3, 9)


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        (DiffQuery(a="aaa", b="1"), NotFound),
        (DiffQuery(a="bbbb", b="1"), NotFound),
        (DiffQuery(a="aaaa", b="1"), InvalidRequest),
        (DiffQuery(a=str(B), b="1"), NotFound),
        (DiffQuery(), NotFound),
    ],
)
def test_a_side_that_is_no_commit_and_no_generation_is_refused(query: DiffQuery, refusal: type[Exception]) -> None:
    other = UUID(int=A.int + 1)
    with pytest.raises(refusal):
        sides_of(detail((A, True, 4), (other, False, 2), (B, False, None), commits={4: A}), query)


def relation(**columns: str) -> Relation:
    entries = tuple(ColumnEntry(name=name, type=kind) for name, kind in columns.items())
    return Relation("x", A, A, 1, hot=False, cold=ColdFiles((A, 1), entries, (), 0, 0))


def test_schemas_without_a_common_column_are_incompatible_and_a_changed_type_is_not_compared() -> None:
    with pytest.raises(Incompatible, match="no column in common"):
        comparison_of(relation(a="int"), relation(a="bigint"), [], None)
    both = comparison_of(relation(a="int", b="string"), relation(b="string", a="bigint", c="int"), [], None)
    assert [item.name for item in both.columns] == ["b"]
