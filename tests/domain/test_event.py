"""Events: the shapes of the wire, their scope keys, and the dedupe keys of S9."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tracelake.domain.event import (
    CursorScope,
    Event,
    LabelScope,
    RangeScope,
    Scope,
    WholeScope,
    partition_key,
    read_scope,
    scope_key,
)
from tracelake.domain.ids import DatasetId, DatasetVersion, TaskId
from tracelake.domain.ranges import inclusive
from tracelake.errors import InvalidRequest

DATASET, VERSION = DatasetId(UUID(int=1)), DatasetVersion(UUID(int=2))


@pytest.mark.parametrize(
    ("wire", "scope", "key"),
    [
        ({"cursor": 12345}, CursorScope(12345), "cursor:12345"),
        ({"cursor": 0}, CursorScope(0), "cursor:0"),
        (
            {"partition_key": "1000000-1010000", "start": 1000000, "end": 1010000},
            RangeScope(inclusive(1000000, 1010000)),
            "partition:1000000-1010000",
        ),
        ({"partition_key": "1000000-1010000"}, RangeScope(inclusive(1000000, 1010000)), "partition:1000000-1010000"),
        ({"start": 5, "end": 5}, RangeScope(inclusive(5, 5)), "partition:5-5"),
        ({"partition_key": "2025-12-31"}, LabelScope("2025-12-31"), "partition:2025-12-31"),
        ({"partition_key": "2025-12"}, LabelScope("2025-12"), "partition:2025-12"),
        ({}, WholeScope(), "whole"),
    ],
)
def test_each_shape_of_the_wire_has_one_scope(wire: dict[str, Any], scope: Scope, key: str) -> None:
    assert read_scope(**wire) == scope
    assert scope_key(scope) == key
    assert partition_key(scope) == (key.removeprefix("partition:") if key.startswith("partition:") else None)


@pytest.mark.parametrize(
    ("wire", "where"),
    [
        ({"cursor": 1, "partition_key": "1-2"}, "/cursor"),
        ({"cursor": 1, "start": 1, "end": 2}, "/cursor"),
        ({"cursor": -1}, "/cursor"),
        ({"cursor": 2**63}, "/cursor"),
        ({"start": 1}, "/end"),
        ({"end": 1}, "/start"),
        ({"start": 2, "end": 1}, "/start"),
        ({"start": 0, "end": 2**63 - 1}, "/start"),
        ({"start": 1, "end": 2, "partition_key": "1-3"}, "/partition_key"),
        ({"start": 1, "end": 2, "partition_key": "2025-12-31"}, "/partition_key"),
        ({"partition_key": ""}, "/partition_key"),
        ({"partition_key": "a:b"}, "/partition_key"),
        ({"partition_key": "../x"}, "/partition_key"),
        ({"partition_key": ".."}, "/partition_key"),
        ({"partition_key": "a b"}, "/partition_key"),
        ({"partition_key": "x" * 201}, "/partition_key"),
        ({"partition_key": "é"}, "/partition_key"),
    ],
)
def test_other_shapes_are_refused_at_the_field(wire: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_scope(**wire)
    assert refusal.value.where == where


def test_a_label_cannot_pass_for_a_later_key() -> None:
    with pytest.raises(InvalidRequest):
        read_scope(partition_key="1-2:commit:4")


def test_an_event_is_one_however_often_it_is_sent() -> None:
    event = Event(DATASET, VERSION, read_scope(partition_key="1-2"))
    same = Event(DATASET, VERSION, read_scope(start=1, end=2))
    assert event.id_from(TaskId(UUID(int=3))) == same.id_from(TaskId(UUID(int=3)))
    assert event.id_from(TaskId(UUID(int=3))) != event.id_from(TaskId(UUID(int=4)))
