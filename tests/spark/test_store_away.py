"""A failure while a Spark task fetches and writes is reported as our own error, and is retryable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.spark.session import shared_session
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.files.parquet_writer import OutputFolder, write_ranges
from tracelake.domain.access.object_names import Folder
from tracelake.domain.error_codes import PLATFORM_CODES, is_platform_fault
from tracelake.domain.ranges import Range
from tracelake.errors import (
    DiskFull,
    ObjectsUnavailable,
    ProviderThrottled,
    ProviderUnavailable,
    TraceError,
    WorkFailed,
    WrongChain,
)
from tracelake.spark.failures import rebuilt, spark_failures


def fetch(span: Range) -> tuple[dict[str, pa.Table], str]:
    return {"rows": pa.table({"n": list(range(span.start, span.stop))})}, ""


@pytest.mark.parametrize("in_spark", [False, True])
def test_a_store_that_fails_during_a_put_is_an_error_of_one_sentence(tmp_path: Path, in_spark: bool) -> None:
    root, spans = tmp_path / "objects", [Range(0, 2), Range(2, 4)]
    place = OutputFolder(DiskObjects(root), Folder.parse("s3://trace/x/"))
    spark: Any = shared_session() if in_spark else None
    (root / "trace").mkdir(parents=True)
    (root / "trace" / "x").write_text("a file in the place of the folder")
    with pytest.raises(ObjectsUnavailable) as failure:
        write_ranges(spark, fetch, spans, {"rows": place}, {"rows": "rows"})
    assert failure.value.message.startswith("the object store does not answer: ")
    assert "Not a directory" in failure.value.message
    assert "\n" not in failure.value.message
    assert failure.value.where == "s3://trace/x/rows_0_1.parquet"
    assert failure.value.retryable
    (root / "trace" / "x").unlink()
    written = write_ranges(spark, fetch, spans, {"rows": place}, {"rows": "rows"})
    assert sorted(item.file.rows for _, item in written) == [2, 2]


@pytest.mark.parametrize("in_spark", [False, True])
@pytest.mark.parametrize(
    "refusal",
    [
        DiskFull.of("the object store", "s3://trace/x/rows_0_1.parquet"),
        ProviderThrottled("too many requests", where="a"),
        ProviderUnavailable("no answer", where="a"),
    ],
    ids=lambda refusal: str(refusal.code),
)
def test_a_full_disk_and_an_unreachable_node_are_platform_errors(
    tmp_path: Path, refusal: TraceError, in_spark: bool
) -> None:
    place = OutputFolder(DiskObjects(tmp_path / "objects"), Folder.parse("s3://trace/x/"))

    def refuse(_: Range) -> tuple[dict[str, pa.Table], str]:
        raise refusal

    spark: Any = shared_session() if in_spark else None
    with pytest.raises(TraceError) as failure:
        write_ranges(spark, refuse, [Range(0, 2)], {"rows": place}, {"rows": "rows"})
    assert failure.value.as_dict() == refusal.as_dict()
    assert is_platform_fault(failure.value.code, retryable=failure.value.retryable)


def test_an_error_of_the_job_stays_an_error_of_the_job(tmp_path: Path) -> None:
    place = OutputFolder(DiskObjects(tmp_path / "objects"), Folder.parse("s3://trace/x/"))

    def refuse(span: Range) -> tuple[dict[str, pa.Table], str]:
        raise WrongChain(f"block {span.start} is of another chain", where="a")

    with pytest.raises(WorkFailed) as failure:
        write_ranges(None, refuse, [Range(0, 2)], {"rows": place}, {"rows": "rows"})
    assert not is_platform_fault(failure.value.code, retryable=failure.value.retryable)


@pytest.mark.parametrize("code", sorted(PLATFORM_CODES))
def test_a_worker_reports_every_platform_error_with_its_code(code: str) -> None:
    failure = {"code": code, "message": "m", "where": "w", "hint": "h", "retryable": True}
    assert rebuilt(failure).as_dict() == failure


def test_an_unexpected_error_is_reported_without_the_jvm_stack(tmp_path: Path) -> None:
    place = OutputFolder(DiskObjects(tmp_path / "objects"), Folder.parse("s3://trace/x/"))

    def cut(span: Range) -> tuple[dict[str, pa.Table], str]:
        raise OSError(f"the cable is cut at {span.start}")

    with pytest.raises(WorkFailed) as failure:
        write_ranges(shared_session(), cut, [Range(0, 2)], {"rows": place}, {"rows": "rows"})
    assert "OSError: the cable is cut at 0" in failure.value.message
    assert "JVM stacktrace" not in failure.value.message
    assert "\tat org.apache" not in failure.value.message
    assert failure.value.retryable


@pytest.mark.parametrize(
    "query",
    [
        "SELECT raise_error('IOException: No space left on device')",
        "SELECT CAST(concat('IOException: No space left on device', id) AS int) FROM range(2)",
        "SELECT raise_error(concat('\\n', 'Unavailable: of the query'))",
    ],
)
def test_words_of_a_query_are_no_error_of_the_platform(query: str) -> None:
    with pytest.raises(WorkFailed) as refused, spark_failures("/config/query"):
        shared_session().sql(query).collect()
    assert not is_platform_fault(refused.value.code, retryable=refused.value.retryable)
