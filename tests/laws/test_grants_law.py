"""What a token allows, against an oracle that compares texts: names and keys drawn so that they nearly collide. 2 s."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.identity.tokens import CLAIMS
from tracelake.domain.access.grants import GrantedDataset, S3Prefixes, grants_of
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.ids import CommitNumber, DatasetId, DatasetName, DatasetVersion
from tracelake.errors import InvalidRequest

SETTINGS = settings(deadline=None, derandomize=True, database=None, max_examples=300)

BUCKETS = st.sampled_from(["lake", "lake2", "la-ke"])
SEGMENTS = st.sampled_from(["a", "aa", "a.b", "b", "a=1", "A", "a+", "_", "..."])
KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)
PREFIXES = st.builds(lambda bucket, key: f"s3://{bucket}/{key}/", BUCKETS, KEYS)
OBJECTS = st.builds(lambda bucket, key: f"s3://{bucket}/{key}", BUCKETS, KEYS)
NAMES = st.sampled_from(["blocks", "logs", "blocks_2"])
IDS = st.integers(1, 4).map(lambda n: UUID(int=n))


@dataclass(frozen=True)
class Claimed:
    datasets: tuple[GrantedDataset, ...]
    s3: S3Prefixes


@st.composite
def datasets(draw: st.DrawFn) -> GrantedDataset:
    access: Literal["read", "write"] = draw(st.sampled_from(["read", "write"]))
    return GrantedDataset(
        DatasetId(draw(IDS)),
        DatasetVersion(draw(IDS)),
        CommitNumber(draw(st.integers(0, 3))) if access == "read" else None,
        DatasetName(draw(NAMES)) if access == "read" else None,
        draw(PREFIXES | st.just("hot.logs")),
        access,
    )


def identity_of(granted_dataset: GrantedDataset) -> object:
    return granted_dataset.name if granted_dataset.access == "read" else granted_dataset.dataset_uuid


CLAIMED = st.builds(
    Claimed,
    st.lists(datasets(), max_size=5, unique_by=identity_of).map(tuple),
    st.builds(S3Prefixes, st.lists(PREFIXES, max_size=3).map(tuple), st.lists(PREFIXES, max_size=3).map(tuple)),
)


def lies_in(text: str, prefixes: tuple[str, ...]) -> bool:
    """The oracle: every prefix ends in a slash, so a text that begins with one, and goes on, lies in it."""
    return any(text.startswith(prefix) and text != prefix for prefix in prefixes)


@SETTINGS
@given(CLAIMED, OBJECTS)
def test_storage_is_what_the_prefixes_say_and_what_is_written_can_be_read(claims: Claimed, key: str) -> None:
    storage, name = grants_of(claims).storage, ObjectName.parse(key)
    assert storage.may_write(name) == lies_in(key, claims.s3.write)
    assert storage.may_read(name) == (lies_in(key, claims.s3.read) or lies_in(key, claims.s3.write))


@SETTINGS
@given(CLAIMED, PREFIXES)
def test_a_folder_can_be_listed_if_everything_in_it_can_be_read(claims: Claimed, folder: str) -> None:
    allowed = (*claims.s3.read, *claims.s3.write)
    assert grants_of(claims).storage.may_list(Folder.parse(folder)) == (folder in allowed or lies_in(folder, allowed))


@SETTINGS
@given(CLAIMED, NAMES, IDS)
def test_views_are_the_datasets_that_may_be_read_and_no_others(claims: Claimed, name: str, dataset: UUID) -> None:
    grants = grants_of(claims)
    seen = [dataset for dataset in claims.datasets if dataset.access == "read" and dataset.name == name]
    assert [name in grants.views] == [bool(seen)]
    for item in seen:
        view = grants.views[name]
        assert (view.dataset_uuid, view.dataset_version, view.commit, view.storage_ref, view.name) == (
            *(item.dataset_uuid, item.dataset_version, item.commit, item.storage_ref),
            name,
        )
    readable = {dataset.dataset_uuid for dataset in claims.datasets if dataset.access == "read"}
    assert (grants.read(dataset) is not None) == (dataset in readable)
    assert (dataset in grants.written) == any(
        item.dataset_uuid == dataset for item in claims.datasets if item.access == "write"
    )


@SETTINGS
@given(CLAIMED)
def test_an_endpoint_is_open_to_a_task_that_has_a_grant_for_it(claims: Claimed) -> None:
    reads = any(dataset.access == "read" for dataset in claims.datasets)
    writes = any(dataset.access == "write" for dataset in claims.datasets)
    expected = {"heartbeat", "complete", "events", "logs"}
    expected |= {"files"} if reads or writes else set()
    expected |= {"query"} if reads else set()
    expected |= {"buffer-publish"} if writes and claims.s3.write else set()
    expected |= {"credentials"} if claims.s3.read or claims.s3.write else set()
    assert grants_of(claims).endpoints == {f"POST /v1/task/{name}" for name in expected}


def test_two_datasets_cannot_share_a_name_in_one_token() -> None:
    blocks = CLAIMS.datasets[0]
    with pytest.raises(InvalidRequest) as refusal:
        replace(CLAIMS, datasets=(blocks, replace(blocks, commit=CommitNumber(8))))
    assert refusal.value.where == "/datasets/name"
    assert replace(CLAIMS, datasets=(blocks, blocks)).grants.views.keys() == {"blocks"}
