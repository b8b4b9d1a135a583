"""Hashes of columns: equal for the same values in the same order, whatever stands in the other columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.files.column_hashes import MAX_COLUMNS, combined
from tracelake.data.files.parquet_writer import OutputFolder, write_table
from tracelake.domain.access.object_names import Folder

COLUMNS: dict[str, pa.Array] = {
    "number": pa.array([1, 2, None, 4], pa.int64()),
    "Text": pa.array(["a", "", None, "a"]),
    "bytes": pa.array([b"\x00", b"", None, b"\xff"]),
    "list": pa.array([[1, 2], [], None, [None]], pa.list_(pa.int32())),
    "struct": pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": []}, {"x": 2, "y": None}]),
    "map": pa.array([[("k", 1)], [], None, [("k", None)]], pa.map_(pa.string(), pa.int64())),
    "a.b": pa.array([1.5, float("nan"), None, -0.0]),
    "flag": pa.array([True, False, None, True]),
}


@pytest.fixture
def place(tmp_path: Path) -> OutputFolder:
    return OutputFolder(DiskObjects(tmp_path), Folder.parse("s3://trace/datasets/one/"))


def hashes(place: OutputFolder, table: pa.Table) -> dict[str, str]:
    return dict(write_table(place, "part", table).hashes)


def test_each_column_has_a_hash_that_no_other_column_decides(place: OutputFolder) -> None:
    before = hashes(place, pa.table(COLUMNS))
    assert set(before) == {name.lower() for name in COLUMNS}
    assert len(set(before.values())) == len(COLUMNS)
    for name, values in COLUMNS.items():
        reversed_ = values.take(pa.array([3, 2, 1, 0]))
        after = hashes(place, pa.table({**COLUMNS, name: reversed_}))
        assert {other for other in before if before[other] != after[other]} == {name.lower()}
        alone = hashes(place, pa.table({"long": ["x" * 100_000 * n for n in range(4)], name: values}))
        assert alone[name.lower()] == before[name.lower()]


@pytest.mark.parametrize(
    "other",
    [
        pa.array([1, 2, None, 4], pa.int32()),
        pa.array([1, 2, None], pa.int64()),
        pa.array([1, 2, None, 4, None], pa.int64()),
        pa.array([1, None, 2, 4], pa.int64()),
        pa.array([1, 2, 0, 4], pa.int64()),
        pa.array([1, 2, None, 4], pa.timestamp("us")),
    ],
)
def test_other_values_types_orders_and_numbers_of_rows_have_other_hashes(place: OutputFolder, other: pa.Array) -> None:
    assert hashes(place, pa.table({"number": other})) != hashes(place, pa.table({"number": COLUMNS["number"]}))


def test_the_case_of_a_name_is_part_of_the_hash_and_not_of_its_key(place: OutputFolder) -> None:
    lower, upper = (hashes(place, pa.table({name: COLUMNS["number"]})) for name in ("number", "NUMBER"))
    assert (list(lower), list(upper)) == (["number"], ["number"])
    assert lower != upper


def test_names_outside_of_ascii_and_very_many_columns_have_no_hashes(place: OutputFolder) -> None:
    assert hashes(place, pa.table({"größe": [1], "a": [2]})) == {}
    assert hashes(place, pa.table({f"c{n}": [n] for n in range(MAX_COLUMNS + 1)})) == {}


def test_several_files_have_the_hashes_of_all_in_their_order() -> None:
    first, second = {"a": "x", "b": "y"}, {"a": "z", "b": "y"}
    assert combined([first]) == first
    both = combined([first, second])
    assert set(both) == {"a", "b"}
    assert both != combined([second, first])
    assert combined([first, {}]) == combined([]) == {}


def test_no_rows_have_hashes_of_their_columns_too(place: OutputFolder) -> None:
    empty = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())})
    assert len(set(hashes(place, empty).values())) == 2
