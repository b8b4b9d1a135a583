"""The session of `bench.operators_on_sail`, also as a plugin of pytest: tests then share it in place of their Spark.

What differs from a worker's session: `addArtifacts` does nothing, since Sail does not support it; and settings which
pyspark's client asks for, and Sail does not know, are set.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.spark import session as shared
from tracelake.spark.configuration import SparkOptions, for_connect

ADDRESS: Final = "TRACE_BENCH_SAIL"
RESULTS: Final = "TRACE_BENCH_RESULTS"
"""The file to which each test is written, and why it failed."""
UNKNOWN: Final = {
    "spark.sql.session.localRelationSizeLimit": str(2**31),
    "spark.sql.session.localRelationCacheThreshold": str(2**20),
    "spark.sql.session.localRelationChunkSizeRows": "10000",
    "spark.sql.session.localRelationChunkSizeBytes": str(2**24),
    "spark.sql.session.localRelationBatchOfChunksSizeBytes": str(2**28),
}


def connected(address: str) -> Any:
    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.session import SparkSession

    SparkConnectClient.add_artifacts = _nothing  # type: ignore[method-assign]
    session: Any = SparkSession.builder.remote(address).getOrCreate()
    for key, value in {**for_connect(SparkOptions(Path("/nowhere"))), **UNKNOWN}.items():
        session.conf.set(key, value)
    return session


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or (report.when == "call" and report.passed):
        with Path(os.environ[RESULTS]).open("a") as results:
            results.write(json.dumps([report.nodeid, report.longreprtext if report.failed else ""]) + "\n")


def _nothing(*_: Any, **__: Any) -> None:
    """Our package is on the server's path already."""


if ADDRESS in os.environ:
    shared.shared_session = lambda: connected(os.environ[ADDRESS])
