"""CSV and JSON files: a value is read as written, or its line is named; a broken file is refused by name."""

from __future__ import annotations

import datetime as dt
import gzip
import lzma
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tracelake.data.files.shape import FileFormat, Shape
from tracelake.data.files.text_files import infer_columns, read_table
from tracelake.errors import WorkFailed

OTHER_UID = 65534
NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
JSON_FITS: list[tuple[str, str, Any]] = [
    ("3", "bigint", 3),
    ("3.0", "int", 3),
    ("1.2e3", "smallint", 1200),
    ("9223372036854775807.0", "bigint", 2**63 - 1),
    ("0e999999999", "int", 0),
    ("12345678901234567.89", "decimal(38,2)", Decimal("12345678901234567.89")),
    ("1.50", "decimal(3,1)", Decimal("1.5")),
    ('"1.50"', "decimal(3,1)", Decimal("1.5")),
    (f"1.5{'0' * 60}", "decimal(38,2)", Decimal("1.50")),
    ("12345678901234567.89", "string", "12345678901234567.89"),
    ("1e2", "string", "1e2"),
    ("true", "string", "true"),
    ('[1.50, {"a": 12345678901234567.89}]', "string", '[1.50,{"a":12345678901234567.89}]'),
    ("9007199254740993", "double", 9007199254740992.0),
    ("18446744073709551616", "double", 2.0**64),
    ("1e-999", "double", 0.0),
    ("1.00000005960464477540", "float", 1.0000001192092896),
    ("16777217", "float", 16777216.0),
    ("true", "boolean", True),
    ('"2025-01-01"', "date", dt.date(2025, 1, 1)),
    ('"2025-01-01T12:00:00"', "timestamp", NOON),
    ('"2025-01-01T13:00:00+01:00"', "timestamp", NOON),
    ('"é"', "binary", "é".encode()),
    ("null", "int", None),
]
JSON_MISFITS = [
    ("1.9", "int"),
    ("1.9", "bigint"),
    ("1e-999999999", "bigint"),
    ("1e999999999", "bigint"),
    ("1e99999999999999999999999", "bigint"),
    ("9223372036854775808", "bigint"),
    ("9223372036854775808.0", "bigint"),
    ("128", "tinyint"),
    ("true", "int"),
    ('"1"', "int"),
    ("[1]", "int"),
    ("1e999", "double"),
    ("-1e999", "float"),
    ("1e300", "float"),
    ("true", "double"),
    ("true", "float"),
    ('"1"', "double"),
    ("1.555", "decimal(38,2)"),
    ("1e-999999999", "decimal(38,2)"),
    ("1e36", "decimal(38,2)"),
    ("true", "decimal(38,2)"),
    ("11", "decimal(38,38)"),
    ("1", "boolean"),
    ('"true"', "boolean"),
    ("20250101", "date"),
    ("1735732800", "timestamp"),
    ("1735732800", "timestamp_ntz"),
    ('"2025-01-01T12:00:00.123456789Z"', "timestamp"),
    ("12", "binary"),
    ('{"a": 1}', "binary"),
]
CSV_FITS = [
    (f"1.5{'0' * 60}", "decimal(38,2)", Decimal("1.50")),
    ("1e2", "decimal(38,2)", Decimal("100.00")),
    ("0x10", "int", 16),
    ("inf", "double", float("inf")),
    ("2.5", "double", 2.5),
]
CSV_MISFITS = [
    ("1.9", "bigint"),
    ("0xff", "tinyint"),
    ("0xffffffffffffffff", "bigint"),
    ("1e999", "double"),
    ("1e300", "float"),
    ("1e-999999999", "decimal(38,2)"),
    ("x\0y", "string"),
]


def written(folder: Path, name: str, body: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(body.encode() if isinstance(body, str) else body)
    return path


def shape(path: Path, columns: dict[str, str], **more: Any) -> Shape:
    kind: FileFormat = "csv" if ".csv" in path.name else "json"
    return Shape(kind, columns, **more)


def read(path: Path, columns: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    table, left_out = read_table(path, f"in/{path.name}", shape(path, columns, **more))
    assert left_out <= shape(path, columns, **more).bad_lines
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def refusals(path: Path, columns: dict[str, str]) -> list[WorkFailed]:
    """The errors of reading the file, and of inferring its columns."""
    with pytest.raises(WorkFailed) as reading:
        read(path, columns)
    with pytest.raises(WorkFailed) as guessing:
        infer_columns(path, f"in/{path.name}", shape(path, {}))
    return [reading.value, guessing.value]


@pytest.mark.parametrize(("text", "kind", "expected"), JSON_FITS)
def test_a_fitting_json_value_is_read_as_written(tmp_path: Path, text: str, kind: str, expected: Any) -> None:
    lines = written(tmp_path, "a.json", f'{{"v": {text}, "more": 1.5}}\n{{}}\n')
    assert read(lines, {"v": kind}) == [{"v": expected}, {"v": None}]
    whole = written(tmp_path, "b.json", f'[{{"v": {text}}}, {{"v": null}}]')
    assert read(whole, {"v": kind}) == [{"v": expected}, {"v": None}]


@pytest.mark.parametrize(("text", "kind"), JSON_MISFITS)
def test_the_error_for_a_json_misfit_names_its_line(tmp_path: Path, text: str, kind: str) -> None:
    path = written(tmp_path, "a.json", f'{{"v": null, "n": 1}}\n{{"v": {text}, "n": 2}}\n{{"n": 3}}\n')
    message = text.strip('"').replace('{"a": 1}', '{"a":1}')
    with pytest.raises(WorkFailed) as refused:
        read(path, {"v": kind, "n": "int"})
    assert refused.value.message == f"in/a.json: line 2: v is {message!r}, which is no {kind}"
    assert not refused.value.retryable
    assert read(path, {"v": kind, "n": "int"}, bad_lines=1) == [{"v": None, "n": 1}, {"v": None, "n": 3}]


@pytest.mark.parametrize(("text", "kind", "expected"), CSV_FITS)
def test_a_fitting_csv_value_is_read_as_written(tmp_path: Path, text: str, kind: str, expected: Any) -> None:
    assert read(written(tmp_path, "a.csv", f"v\n{text}\n"), {"v": kind}) == [{"v": expected}]


@pytest.mark.parametrize(("text", "kind"), CSV_MISFITS)
def test_the_error_for_a_csv_misfit_names_its_line(tmp_path: Path, text: str, kind: str) -> None:
    path = written(tmp_path, "a.csv", f"v,n\n{text},1\n,2\n")
    with pytest.raises(WorkFailed) as refused:
        read(path, {"v": kind, "n": "int"})
    assert refused.value.message == f"in/a.csv: line 2: v is {text!r}, which is no {kind}"
    assert read(path, {"v": kind, "n": "int"}, bad_lines=1) == [{"v": None, "n": 2}]


def test_a_number_beyond_the_inferred_type_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", "".join(f'{{"v": {number}}}\n' for number in range(1000)) + '{"v": 2.5}\n')
    columns = infer_columns(path, "in/a.json", shape(path, {}))
    assert columns == {"v": "bigint"}
    with pytest.raises(WorkFailed, match=r"^in/a.json: line 1001: v is '2.5', which is no bigint$"):
        read(path, columns)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("1", "18446744073709551615", "decimal(38,0)"),
        ("1", "9" * 39, "string"),
        ("1", "2.5", "double"),
        ("1", "1e3", "double"),
    ],
)
def test_an_inferred_type_holds_integers_beyond_64_bits(tmp_path: Path, first: str, second: str, kind: str) -> None:
    for path in (
        written(tmp_path, "a.json", f'{{"v": {first}}}\n{{"v": {second}}}\n'),
        written(tmp_path, "a.csv", f"v\n{first}\n{second}\n"),
    ):
        columns = infer_columns(path, "in/a", shape(path, {}))
        assert columns == {"v": kind}
        assert [Decimal(row["v"]) for row in read(path, columns)] == [Decimal(first), Decimal(second)]


def test_misfits_are_found_among_many_lines(tmp_path: Path) -> None:
    odd = {0, 7, 4_999, 5_000, 9_999}
    path = written(
        tmp_path, "a.json", "".join(f'{{"v": {number}{".5" * (number in odd)}}}\n' for number in range(10_000))
    )
    rows = read(path, {"v": "bigint"}, bad_lines=5)
    assert [row["v"] for row in rows] == [number for number in range(10_000) if number not in odd]


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    for path in (
        written(tmp_path, "a.csv", "id,what\n1,x\n2,café\n".encode("latin-1")),
        written(tmp_path, "a.json", '[{"id": 1, "what": "x"},\n\n{"id": 2, "what": "café"}]'.encode("latin-1")),
    ):
        for refused in refusals(path, {"id": "int", "what": "string"}):
            assert refused.message == f"in/{path.name}: line 3 is not UTF-8: byte 0xe9"
            assert (refused.hint, refused.retryable) == ("save the file as UTF-8", False)
    lines = written(tmp_path, "b.json", '{"id": 1}\n{"id": 2, "what": "café"}\n'.encode("latin-1"))
    with pytest.raises(WorkFailed, match=r"in/b.json: line 2: .*utf-8"):
        read(lines, {"id": "int"})
    assert read(lines, {"id": "int"}, bad_lines=1) == [{"id": 1}]


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_refused_by_name(tmp_path: Path, name: str, encoding: str) -> None:
    bom = "\ufeff" if encoding == "utf-16-be" else ""
    text = "id,what\n1,x\n" if name == "a.csv" else '{"id": 1, "what": "x"}\n'
    for refused in refusals(written(tmp_path, name, f"{bom}{text}".encode(encoding)), {"id": "int"}):
        assert refused.message == f"in/{name} is UTF-16, and only UTF-8 is read"
        assert (refused.hint, refused.retryable) == ("save the file as UTF-8", False)


def test_a_utf8_byte_order_mark_is_not_part_of_the_first_column_name(tmp_path: Path) -> None:
    assert read(written(tmp_path, "a.csv", "\ufeffid\n1\n"), {"id": "int"}) == [{"id": 1}]
    assert read(written(tmp_path, "a.json", '\ufeff{"id": 1}\n'), {"id": "int"}) == [{"id": 1}]
    whole = written(tmp_path, "b.json", '\ufeff [{"id": 1}]')
    assert read(whole, {"id": "int"}) == [{"id": 1}]
    assert infer_columns(whole, "in/b.json", shape(whole, {})) == {"id": "bigint"}


@pytest.mark.parametrize("name", ["a.csv.gz", "a.json.gz", "a.csv.xz", "a.csv.zip"])
def test_a_compressed_file_is_refused_with_a_hint(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    body = b"id\n1\n"
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("a.csv", body)
    else:
        path.write_bytes(gzip.compress(body) if name.endswith(".gz") else lzma.compress(body))
    kind = {"gz": "gzip", "xz": "xz", "zip": "zip"}[name.rpartition(".")[2]]
    for refused in refusals(path, {"id": "int"}):
        assert refused.message == f"in/{name} is packed with {kind}, and packed files are not read"
        assert refused.hint == "unpack it, or leave it out by `pattern`"
        assert not refused.retryable


def test_a_broken_header_is_refused_with_its_line(tmp_path: Path) -> None:
    for refused in refusals(written(tmp_path, "a.csv", 'id,"n"x\n1,2\n'), {"id": "int"}):
        assert refused.message.startswith("in/a.csv: line 1: ',' expected after '\"'")
        assert not refused.retryable
    for refused in refusals(written(tmp_path, "a.csv", "i\0d\0\n1\0\n"), {"id": "int"}):
        assert refused.message == "in/a.csv: line 1: there are NUL bytes"
        assert "UTF-8" in str(refused.hint)


def test_an_empty_file_is_refused_if_a_header_is_expected_and_has_no_rows_otherwise(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "")
    for refused in refusals(path, {"id": "int"}):
        assert refused.message == "in/a.csv is empty: there is no line of column names"
        assert refused.hint == "write the file again, or leave it out by `pattern`"
    assert read(path, {"id": "int"}, header=False) == []
    assert read(written(tmp_path, "a.json", ""), {"id": "int"}) == []
    with pytest.raises(WorkFailed, match="no rows to infer columns from"):
        infer_columns(tmp_path / "a.json", "in/a.json", shape(tmp_path / "a.json", {}))


def test_deeply_nested_objects_are_refused(tmp_path: Path) -> None:
    deep = f'{{"id": 1, "v": {"[" * 5000}{"]" * 5000}}}'
    lines = written(tmp_path, "a.json", f'{{"id": 0}}\n{deep}\n')
    for columns in ({"id": "int"}, {"v": "string"}):
        with pytest.raises(WorkFailed, match=r"^in/a.json: line 2: .*recursion depth"):
            read(lines, columns)
    assert read(lines, {"id": "int"}, bad_lines=1) == [{"id": 0}]
    for refused in refusals(written(tmp_path, "b.json", f"[{deep}]"), {"id": "int"}):
        assert refused.message.startswith("in/b.json is not a list of JSON objects: ")
        assert not refused.retryable


@pytest.mark.parametrize("body", ["[", "[1]", '[{"id": 1}', '[{"id": 1}] x', f'[{{"id": {"1" * 5000}}}]'])
def test_a_file_that_is_not_a_list_of_objects_is_refused_by_name(tmp_path: Path, body: str) -> None:
    for refused in refusals(written(tmp_path, "a.json", body), {"id": "int"}):
        assert refused.message.startswith("in/a.json is not a list of JSON objects: ")


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_a_missing_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    for refused in refusals(tmp_path / name, {"id": "int"}):
        assert refused.message == f"in/{name} disappeared while the job ran"
        assert "trigger" in str(refused.hint)
        assert not refused.retryable


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_a_folder_instead_of_a_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for refused in refusals(tmp_path / name, {"id": "int"}):
        assert refused.message == f"in/{name} cannot be read: Is a directory"
        assert not refused.retryable


def test_an_unreadable_file_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "id\n1\n")
    path.chmod(0)
    with another_user():
        errors = refusals(path, {"id": "int"})
    for refused in errors:
        assert refused.message == "in/a.csv may not be read by this worker"
        assert not refused.retryable


@contextmanager
def another_user() -> Iterator[None]:
    """Root may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(OTHER_UID)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
