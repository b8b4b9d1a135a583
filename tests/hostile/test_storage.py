"""Hostile storage: every case is refused, or what it opens is provably what it opened before. 12 s.

The numbers are those of the list of hostile cases. 18 to 20 (forged tokens, floods of key ids) are in
`tests/tokens/test_hostile_tokens.py`; 15, 16 and 22 also in `tests/storage`, on a real S3 server and a real listener.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tests.support.cases.hostile_storage import ESCAPES, GLOBS, MARKED, PREFIXES
from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.listeners import Listeners, opened, settings_in
from tests.support.dispatcher.staged_files import folder_of, staged
from tests.support.identity.tokens import CLAIMS
from tests.support.session_policy import allows
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.capability.claims import decode, encode
from tracelake.capability.refusal import TokenRefused
from tracelake.dispatcher.tasks.completion.commit_outputs import _published_folder
from tracelake.dispatcher.tasks.completion.verify_outputs import verify_outputs
from tracelake.domain.access.grants import CREDENTIALS, GrantedDataset, S3Prefixes, StorageGrant, grants_of
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.access.session_policy import LIST, READ, WRITE, refuse_wider, session_policy
from tracelake.domain.ids import DatasetId, DatasetVersion
from tracelake.errors import Forbidden, InvalidRequest, NotFound, TraceError
from tracelake.gateway.process import public_api
from tracelake.settings import IdentitySettings
from tracelake.wire.client import DispatcherClient
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.markers import FileEntry, Marker, attempt_folder, encode_marker, marker_in
from tracelake.wire.task.outputs import OutputBody, StorageRef
from tracelake.worker import run_udf

FOO = Folder.parse("s3://lake/a/foo/")
OUT = Folder.parse("s3://lake/out/1/")
GRANT = StorageGrant(frozenset({FOO, OUT}), frozenset({OUT}))


@pytest.mark.parametrize("case", PREFIXES)
def test_a_hostile_prefix_is_no_folder_and_no_claim(case: str) -> None:
    text = PREFIXES[case]
    with pytest.raises(InvalidRequest):
        Folder.parse(text)
    for claim in ({"read": (text,)}, {"write": (text,)}):
        with pytest.raises(InvalidRequest) as refusal:
            S3Prefixes(**claim)
        assert refusal.value.where in {"/s3/read", "/s3/write"}


@pytest.mark.parametrize("case", PREFIXES)
def test_a_signed_token_with_a_hostile_prefix_is_refused(case: str) -> None:
    payload = json.loads(encode(CLAIMS))
    payload["s3"]["read"] = [PREFIXES[case]]
    with pytest.raises(TokenRefused):
        decode(json.dumps(payload).encode(errors="surrogatepass"))


def test_1_a_folder_does_not_open_one_whose_name_begins_alike() -> None:
    policy = session_policy(GRANT)
    for key in ("a/foobar/x", "a/foo", "a/fo/x", "a/x", "A/foo/x", "x/a/foo/x"):
        assert not GRANT.may_read(ObjectName.parse(f"s3://lake/{key}"))
        assert not allows(policy, "s3:GetObject", "lake", key)
    assert allows(policy, "s3:GetObject", "lake", "a/foo/x")


def test_13_an_empty_grant_is_an_explicit_denial() -> None:
    nothing = replace(CLAIMS, s3=S3Prefixes())
    assert CREDENTIALS not in nothing.grants.endpoints
    policy = session_policy(nothing.grants.storage)
    assert json.loads(policy)["Statement"] == [{"Effect": "Deny", "Action": "*", "Resource": "*"}]


def test_14_two_hundred_prefixes_are_refused_and_not_cut() -> None:
    many = S3Prefixes(read=tuple(f"s3://lake/datasets/{n}/" for n in range(200)))
    with pytest.raises(Forbidden, match="200 folders"):
        session_policy(replace(CLAIMS, s3=many).grants.storage)


@pytest.mark.parametrize("action", sorted(WRITE))
def test_15_a_read_grant_writes_nothing(action: str) -> None:
    policy = session_policy(GRANT)
    assert not allows(policy, action, "lake", "a/foo/x")
    assert allows(policy, action, "lake", "out/1/x")


@pytest.mark.parametrize("prefix", [None, "", "a", "a/", "a/foo", "a/foobar/", "out/", "*", "a/*", "a/fo?/"])
def test_16_a_list_without_the_prefix_or_with_a_shorter_one_is_refused(prefix: str | None) -> None:
    assert not allows(session_policy(GRANT), LIST, "lake", prefix=prefix)


ANY_TEXT = (
    st.text(max_size=30)
    | st.sampled_from(sorted(PREFIXES.values()))
    | st.from_regex(r"s3://[a-z*.$]{2,6}/([a-z.*?${}%+=]{0,4}/){0,4}", fullmatch=True)
)

FOLDERS = st.sampled_from(["s3://lake/a/", "s3://lake/a/b/", "s3://lake/ab/", "s3://lak/a/", "s3://lake2/a/"])
KEYS = st.sampled_from(["a/x", "a/b/x", "a/", "a", "ab/x", "A/x", "x/a/x"]) | st.text(max_size=20)


def test_any_prefix_opens_that_folder_or_nothing(pytestconfig: pytest.Config) -> None:
    """Long by `--prefix-examples`."""
    seen = Counter[str]()

    @settings(deadline=None, derandomize=True, database=None, max_examples=pytestconfig.getoption("--prefix-examples"))
    @given(FOLDERS | FOLDERS | ANY_TEXT, FOLDERS | FOLDERS | ANY_TEXT, st.sampled_from(["lake", "lak", "lake2"]), KEYS)
    def holds(read: str, write: str, bucket: str, key: str) -> None:
        try:
            storage = replace(CLAIMS, s3=S3Prefixes(read=(read,), write=(write,))).grants.storage
            policy = session_policy(storage)
        except TraceError:
            seen["refused"] += 1
            return
        refuse_wider(policy, storage)
        text = f"s3://{bucket}/{key}"
        for action in READ | WRITE:
            prefixes = (write,) if action in WRITE else (read, write)
            inside = any(text.startswith(prefix) for prefix in prefixes)
            assert allows(policy, action, bucket, key) == inside
            seen["inside" if inside else "outside"] += 1

    holds()
    assert min(seen["refused"], seen["inside"], seen["outside"]) > 0, seen


# 17, 21, 26, 28: at the listener


@pytest.fixture
async def listeners(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Listeners]:
    async with control_for(state_db, queue_db, tmp_path) as control, opened(control, settings_in(tmp_path)) as made:
        yield made


@pytest.mark.anyio
async def test_26_a_batch_outside_of_what_the_attempt_may_write_is_refused(listeners: Listeners) -> None:
    claimed, dataset = await listeners.claim(), str(listeners.chain.datasets["first"])
    for case, uri in ESCAPES.items():
        given = uri.format(dataset=dataset, task=claimed["task"]["task_id"])
        answer = await listeners.say("buffer-publish", claimed, dataset_uuid=dataset, batch_uri=given, record_count=1)
        assert (answer.status_code, answer.json()["error"]["where"]) == (403, "/batch_uri"), case
    assert await listeners.control.pool.fetchval("SELECT count(*) FROM buffer_publishes") == 0


@pytest.mark.anyio
async def test_24_an_output_that_lies_elsewhere_is_not_committed(listeners: Listeners) -> None:
    """Not even in the attempt's own scratch: what lies there is removed."""
    claimed = await listeners.claim()
    task, declared = claimed["task"]["task_id"], claimed["task"]["outputs"][0]
    dataset = {name: declared[name] for name in ("dataset_uuid", "dataset_version")}
    for location in (
        f"s3://trace-scratch/scratch/{listeners.chain.org.id}/{task}/1/",
        f"{declared['storage_location']}attempts/{task}/2/",
        f"{declared['storage_location']}attempts/{task}/1/deeper/",
        declared["storage_location"],
        f"s3://trace/datasets/{uuid4()}/v/attempts/{task}/1/",
    ):
        answer = await listeners.say(
            "complete", claimed, status="Completed", outputs=[{**dataset, "location": location, "start": 0, "end": 1}]
        )
        assert (answer.status_code, answer.json()["error"]["where"]) == (403, "/outputs/0/location"), location


@pytest.mark.anyio
async def test_24_code_of_a_user_that_claims_rows_without_files_commits_nothing(listeners: Listeners) -> None:
    """Neither by a call of the task API, as from a Lambda function, nor by what it returns to the worker's sandbox."""
    claimed = await listeners.claim()
    good = msgspec.convert(claimed, Claimed)
    outputs = msgspec.to_builtins(staged(listeners.control.objects, good, (0, 9)))
    answer = await listeners.say("complete", claimed, status="Completed", outputs=outputs)
    assert answer.status_code == 200, answer.text

    claimed = await listeners.claim()
    declared = claimed["task"]["outputs"][0]
    dataset = {name: declared[name] for name in ("dataset_uuid", "dataset_version")}
    for lie in ({"start": 0, "end": 9}, {"start": 10, "end": 19}, {"partition_key": "x"}, {"partition_key": "all"}, {}):
        output = {**dataset, **lie, "row_count": 7, "files": [{"name": "x"}]}
        returned = run_udf.completion(msgspec.convert(claimed, Claimed), msgspec.json.encode({"outputs": [output]}))
        for message in (output, msgspec.to_builtins(returned.outputs[0])):
            answer = await listeners.say("complete", claimed, status="Completed", outputs=[message])
            assert (answer.status_code, answer.json()["error"]["where"]) == (400, "/outputs/0/location"), lie

    files = await listeners.say("files", claimed, dataset_uuid=dataset["dataset_uuid"])
    (partition,) = files.json()["partitions"]
    assert Folder.parse(partition["location"]) == folder_of(good)


@pytest.mark.anyio
async def test_25_a_range_is_published_only_where_its_generation_lies(listeners: Listeners) -> None:
    claimed = await listeners.claim()
    declared = claimed["task"]["outputs"][0]
    dataset = {name: declared[name] for name in ("dataset_uuid", "dataset_version")}
    home = declared["storage_location"].removeprefix("s3://trace/")
    for bucket, prefix in (("trace", "datasets/"), ("lake", home), ("trace", f"{home}../x/"), ("trace", f"x/{home}")):
        ref = {"scheme": "s3", "bucket": bucket, "prefix": prefix, "glob": "*.parquet"}
        published = [{**dataset, "storage_ref": ref, "range_start": 0, "range_end": 1}]
        answer = await listeners.say("complete", claimed, status="Completed", datasets_published=published)
        assert answer.status_code in {400, 403}, (bucket, prefix)
    assert (
        await listeners.control.pool.fetchval("SELECT count(*) FROM dataset_versions WHERE generation IS NOT NULL") == 0
    )


@pytest.mark.parametrize("glob", GLOBS)
def test_25_a_glob_leads_nowhere_else(glob: str) -> None:
    ref = StorageRef(scheme="s3", bucket="lake", prefix="org/blocks/", glob=glob)
    with pytest.raises(InvalidRequest):
        _published_folder(ref, CLAIMS.datasets[0], "/0")
    good = StorageRef(scheme="s3", bucket="lake", prefix="org/blocks/", glob="blocks_*.parquet")
    assert str(_published_folder(good, CLAIMS.datasets[0], "/0")) == "s3://lake/org/blocks/"


def test_28_the_gateway_has_no_way_to_what_is_for_tasks_or_inside() -> None:
    nothing: Any = None
    paths = [
        getattr(route, "path", "")
        for route in public_api(DispatcherClient(nothing), IdentitySettings(service_token=SecretStr("x"))).routes
    ]
    assert not [path for path in paths if path.startswith(("/v1/task/", "/internal"))]


# 23, 24: the disk store


@pytest.fixture
def disk(tmp_path: Path) -> DiskObjects:
    store = DiskObjects(tmp_path / "objects")
    store.put(OUT.object("mine"), b"mine")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("secret")
    return store


def test_23_a_link_in_the_store_is_no_object(disk: DiskObjects, tmp_path: Path) -> None:
    own = tmp_path / "objects" / "lake" / "out" / "1"
    (own / "link").symlink_to(tmp_path / "secret")
    (own / "folder").symlink_to(tmp_path / "outside")
    os.mkfifo(own / "pipe")
    for name in ("link", "folder", "folder/x", "pipe"):
        assert disk.head(OUT.object(name)) is None
        with pytest.raises(NotFound):
            disk.get(OUT.object(name))
    assert [found.name for found in disk.objects(OUT)] == [OUT.object("mine")]
    assert list(disk.objects(OUT.folder("folder"))) == []


def test_23_nothing_is_written_or_removed_through_a_link(disk: DiskObjects, tmp_path: Path) -> None:
    own = tmp_path / "objects" / "lake" / "out" / "1"
    (own / "folder").symlink_to(tmp_path / "outside")
    (own / "link").symlink_to(tmp_path / "secret")
    for name in ("folder/new", "link"):
        with pytest.raises(NotFound):
            disk.put(OUT.object(name), b"x", replace=True)
    disk.delete([OUT.object("folder/x"), OUT.object("link")])
    assert {path.name for path in (tmp_path / "outside").iterdir()} == {"x"}
    assert (tmp_path / "secret").read_text() == "secret"


def test_23_a_rename_after_the_check_changes_nothing(disk: DiskObjects, tmp_path: Path) -> None:
    own = tmp_path / "objects" / "lake" / "out" / "1"
    with disk._opened(OUT.object("mine")) as file:
        (own / "mine").unlink()
        (own / "mine").symlink_to(tmp_path / "secret")
        assert file.read() == b"mine"


@pytest.mark.anyio
@pytest.mark.parametrize("name", MARKED)
async def test_24_a_marker_that_lists_what_lies_elsewhere_commits_nothing(name: str, tmp_path: Path) -> None:
    disk, dataset, version = DiskObjects(tmp_path / "objects"), UUID(int=3), UUID(int=4)
    written = GrantedDataset(DatasetId(dataset), DatasetVersion(version), None, None, "s3://lake/org/new/", "write")
    claims = replace(CLAIMS, datasets=(written,))
    folder = attempt_folder(written.storage_ref, claims.task_id, claims.attempt)
    size = len(b"theirs")
    file = FileEntry(name=name, rows=1, bytes=size, sha256="x")
    disk.put(Folder.parse("s3://lake/org/new/").object("x.parquet"), b"theirs")
    marker = Marker(
        task_id=claims.task_id,
        attempt=1,
        dataset_uuid=dataset,
        dataset_version=version,
        files=[file],
        columns=[],
    )
    disk.put(marker_in(folder), encode_marker(marker))
    output = OutputBody(dataset_uuid=dataset, dataset_version=version, location=str(folder))
    with pytest.raises(TraceError):
        await verify_outputs(disk, [output], claims)


def test_the_mounts_of_a_sandbox_follow_from_the_same_folders() -> None:
    """The disk store issues no keys: what would be mounted is what a policy would allow."""
    claims = replace(CLAIMS, s3=S3Prefixes(read=("s3://lake/a/foo/",), write=("s3://lake/out/1/",)))
    assert grants_of(claims).storage == GRANT
