"""Chunks that were fetched separately must link; otherwise both endpoints are named and nothing is committed."""

from __future__ import annotations

import json

import pytest

from tests.support.chain.devchain import running
from tracelake.domain.ranges import Range, split
from tracelake.errors import WorkFailed
from tracelake.operators.cryo_ingest import Edges, check_links, fetch

TABLES = ["blocks"]


def test_the_error_for_chunks_that_do_not_link_names_both_endpoints() -> None:
    chunks = list(split(Range(0, 30), 10))
    with running(blocks=40) as moving:
        before = moving.pool("before")
        reports = [fetch(before, TABLES, chunk)[1] for chunk in chunks[:2]]
        follows = fetch(before, TABLES, chunks[2])[1]
        moving.reorg(25)
        after = fetch(moving.pool("after"), TABLES, chunks[2])[1]
    check_links(chunks, _edges([*reports, follows]))
    with pytest.raises(WorkFailed, match="block 20 of after does not follow block 19 of before") as named:
        check_links(chunks, _edges([*reports, after]))
    assert named.value.retryable


def _edges(reports: list[str]) -> dict[int, Edges]:
    return {place: Edges(*json.loads(item)) for place, item in enumerate(reports)}
