"""What a claim puts into the token: each input once, under a name of its own, and the folders of this attempt. 1 s."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.dispatcher.tasks.grant import _folders, _read
from tracelake.domain.access.grants import refuse_duplicates
from tracelake.store.jobs import StoredOutput
from tracelake.wire.task.lifecycle import InputRef

TASK, ORG = UUID(int=7), UUID(int=8)


def an_input(number: int, alias: str, name: str | None = None) -> InputRef:
    place = f"s3://trace/datasets/{number}/v/"
    return InputRef(
        dataset_uuid=UUID(int=number),
        dataset_version=UUID(int=100 + number),
        commit=number,
        name=name,
        alias=alias,
        storage_location=place,
    )


def names(*inputs: InputRef) -> list[str | None]:
    return [item.name for item in _read(inputs)]


def test_an_input_is_called_by_its_published_name_else_as_the_dag_calls_it() -> None:
    assert names(an_input(1, "mine", "blocks"), an_input(2, "cleaned")) == ["blocks", "cleaned"]


def test_a_name_of_the_dag_gives_way_to_a_published_one() -> None:
    assert names(an_input(1, "logs"), an_input(2, "other", "logs"), an_input(3, "logs_2")) == [
        "logs_2",
        "logs",
        "logs_2_2",
    ]


def test_an_input_that_is_wired_twice_is_granted_once_under_its_published_name() -> None:
    assert names(an_input(1, "a", "blocks"), an_input(1, "b", "blocks")) == ["blocks"]
    assert names(an_input(1, "a"), an_input(1, "b")) == ["a", "b"]


NAMES = st.sampled_from(["a", "a_2", "b", "x" * 128])


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(NAMES, max_size=3, unique=True), st.lists(NAMES, max_size=4))
def test_no_two_inputs_share_a_name(published: list[str], unpublished: list[str]) -> None:
    inputs = [an_input(number, "any", name) for number, name in enumerate(published)]
    inputs += [an_input(10 + number, alias) for number, alias in enumerate(unpublished)]
    granted = _read(inputs)
    refuse_duplicates(granted)
    assert len({item.name for item in granted}) == len(inputs)


def test_an_attempt_writes_into_folders_that_carry_its_number() -> None:
    outputs = (
        StoredOutput(0, UUID(int=1), UUID(int=2), "s3://trace/datasets/d/v/", "parquet"),
        StoredOutput(1, UUID(int=3), UUID(int=4), "postgres_table:dataset_3", "buffered"),
        StoredOutput(2, UUID(int=5), UUID(int=6), "postgres_table:dataset_5", "postgres"),
    )
    job: Any = SimpleNamespace(outputs=outputs, org_id=ORG)
    assert [str(folder) for folder in _folders("trace-scratch", job, TASK, 2)] == [
        f"s3://trace/datasets/d/v/attempts/{TASK}/2/",
        f"s3://trace-scratch/buffers/{UUID(int=3)}/{TASK}/2/",
        f"s3://trace-scratch/buffers/{TASK}/2/",
        f"s3://trace-scratch/scratch/{ORG}/{TASK}/2/",
    ]
