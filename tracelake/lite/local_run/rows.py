"""Files as tables for a local run, queried with the platform's own SQL on Spark.

Spark takes some seconds to start: it starts before the function, and only if there are files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tracelake.domain.access.hadoop_path import hadoop_path
from tracelake.errors import BadInput
from tracelake.wire.internal.queries import QueryAnswer, ReadDataset, ResultColumn, TaskQueryRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READERS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
MOST_ROWS = 100_000
"""The same as in the query service."""


class LocalDatasets:
    """Datasets by name, each in one file."""

    def __init__(self, files: Mapping[str, Path], folder: Path, spark: SparkSession | None = None) -> None:
        """`spark`: a running session to use; it is not stopped."""
        self._files = {name: _readable(name, file) for name, file in files.items()}
        self._folder = folder
        self._lock = threading.Lock()
        self._spark = spark
        self._owns_session = spark is None
        self._frames = dict[str, Any]()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._files)

    def query(self, request: TaskQueryRequest) -> QueryAnswer:
        """Checks the SQL and its plan, and encodes values, as the query service does."""
        from tracelake.domain.sql.gate import check_sql
        from tracelake.query.encode import rows_of
        from tracelake.spark.failures import spark_failures
        from tracelake.spark.plan_check import select

        with self._lock, spark_failures("/sql"):
            checked = check_sql(request.sql, self.names)
            frames = {name: self._frame(name) for name in checked.tables}
            frame = select(self._session(), checked, frames)
            most = min(request.limit or MOST_ROWS, MOST_ROWS)
            table = frame.limit(most + 1).toArrow()
            columns = [
                ResultColumn(name=field.name, type=field.dataType.simpleString()) for field in frame.schema.fields
            ]
        page = table.slice(0, most)
        return QueryAnswer(
            query_id=uuid4(),
            columns=columns,
            rows=rows_of(page),
            row_count=page.num_rows,
            truncated=table.num_rows > most,
            bytes=page.nbytes,
            milliseconds=0,
            datasets=[
                ReadDataset(name=name, dataset_uuid=uuid4(), dataset_version=uuid4(), commit=0)
                for name in checked.tables
            ],
        )

    def warm(self) -> None:
        """Starts Spark before the function's timeout begins to count."""
        if self._files:
            self._session()

    def close(self) -> None:
        from tracelake.spark.session import stop_session

        if self._spark is not None and self._owns_session:
            stop_session(self._spark)
            self._spark = None

    def _session(self) -> SparkSession:
        from tracelake.spark.configuration import SparkOptions
        from tracelake.spark.java import find_java
        from tracelake.spark.session import start_session

        if self._spark is None:
            options = SparkOptions(local_dir=self._folder / "spark", driver_memory="512m", app_name="trace udf test")
            self._spark = start_session(options, find_java(os.environ, self._folder / "java"), os.environ)
        return self._spark

    def _frame(self, name: str) -> DataFrame:
        if name not in self._frames:
            file = self._files[name]
            reader = self._session().read.format(READERS[file.suffix.lower()])
            if file.suffix.lower() == ".csv":
                reader = reader.option("header", "true").option("inferSchema", "true")
            self._frames[name] = reader.load(hadoop_path(file))
        frame: DataFrame = self._frames[name]
        return frame


def _readable(name: str, file: Path) -> Path:
    if file.suffix.lower() not in READERS:
        hint = f"one of: {', '.join(sorted(READERS))}"
        raise BadInput(f"unknown file type: {file}", where=f"--dataset {name}", hint=hint)
    if not file.exists():
        raise BadInput("no such file", where=str(file))
    if hadoop_path(file) is None:
        hint = "move or rename it: its path must not contain any of []{}*?\\"
        raise BadInput("Spark would read this path as a pattern", where=str(file), hint=hint)
    return file
