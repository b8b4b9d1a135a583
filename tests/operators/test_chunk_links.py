"""Chunks that were fetched apart must follow each other, or both endpoints are named and nothing counts."""

from __future__ import annotations

import json

import pytest

from tests.support.devchain import running
from tracelake.domain.ranges import Range, split
from tracelake.errors import WorkFailed
from tracelake.operators.cryo_ingest import Edges, check_links, fetch

TABLES = ["blocks"]


def test_chunks_that_do_not_follow_each_other_name_both_endpoints() -> None:
    chunks = list(split(Range(0, 30), 10))
    with running(blocks=40) as moving:
        before = moving.pool("before")
        told = [fetch(before, TABLES, chunk)[1] for chunk in chunks[:2]]
        follows = fetch(before, TABLES, chunks[2])[1]
        moving.reorg(25)
        after = fetch(moving.pool("after"), TABLES, chunks[2])[1]
    check_links(chunks, _edges([*told, follows]))
    with pytest.raises(WorkFailed, match="block 20 of after does not follow block 19 of before") as named:
        check_links(chunks, _edges([*told, after]))
    assert named.value.retryable


def _edges(told: list[str]) -> dict[int, Edges]:
    return {part: Edges(*json.loads(item)) for part, item in enumerate(told)}
