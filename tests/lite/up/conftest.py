"""Fixtures of `trace up`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systems.trace_up import new_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from new_folder()
