"""A partition and its files as doors tell of them, from a row of `partition_versions`."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from tracelake.wire.task_messages import PartitionFiles


def partition_files(row: asyncpg.Record) -> PartitionFiles:
    return PartitionFiles(
        partition_key=row["partition_key"],
        location=row["location"],
        files=from_text(row["files"]),
        commit=row["valid_from"],
        start=row["start"],
        end=row["end"],
        row_count=row["row_count"],
    )


def from_text(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
