from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.spark.session import shared_session, with_generated_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark() -> SparkSession:
    return with_generated_code(shared_session())
