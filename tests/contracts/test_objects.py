"""The entry of the ObjectStore port, on every adapter."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.adapters.objects_s3 import S3Objects
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import InvalidRequest, NotFound, ObjectExists, ObjectsUnavailable
from tracelake.lite.network_ports import free_port
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.ports import ObjectStore
from tracelake.wiring import s3_objects

HERE = Folder.parse("s3://trace/tests/")


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "disk":
        yield DiskObjects(tmp_path / "objects")
        return
    server: SeaweedFS = request.getfixturevalue("seaweedfs")
    objects = s3_objects(server.objects_for("worker"))
    yield objects
    objects.delete([found.name for found in objects.objects(HERE)])


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    name = HERE.object("a/b.bin")
    store.put(name, b"\x00\xff" * 1000)
    assert store.get(name) == b"\x00\xff" * 1000


def test_chunks_are_the_bytes_in_their_order(store: ObjectStore) -> None:
    name, body = HERE.object("large.bin"), bytes(range(256)) * 20_000
    store.put(name, body)
    chunks = list(store.chunks(name))
    assert b"".join(chunks) == body
    assert len(chunks) > 1, "it is never held whole"
    with pytest.raises(NotFound):
        list(store.chunks(HERE.object("missing")))


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put(HERE.object("empty"), b"")
    found = store.head(HERE.object("empty"))
    assert found is not None
    assert found.size == 0


def test_a_put_never_replaces_unless_asked_to(store: ObjectStore) -> None:
    name = HERE.object("once")
    store.put(name, b"first")
    with pytest.raises(ObjectExists):
        store.put(name, b"second")
    assert store.get(name) == b"first"
    store.put(name, b"third", replace=True)
    assert store.get(name) == b"third"


def test_of_many_puts_at_once_one_wins_and_is_whole(store: ObjectStore) -> None:
    name, won, bodies = HERE.object("race"), list[int](), [bytes([n]) * 200_000 for n in range(8)]

    def put(n: int) -> None:
        try:
            store.put(name, bodies[n])
        except ObjectExists:
            return
        won.append(n)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get(name) == bodies[won[0]]


def test_an_object_that_is_not_there_is_not_found(store: ObjectStore) -> None:
    assert store.head(HERE.object("nothing")) is None
    with pytest.raises(NotFound):
        store.get(HERE.object("nothing"))


def test_a_folder_lists_what_lies_in_it_and_nothing_beside_it(store: ObjectStore) -> None:
    for name in ("x/1", "x/y/2", "xy/3", "x.4"):
        store.put(HERE.object(name), name.encode())
    found = {item.name: item.size for item in store.objects(HERE.folder("x"))}
    assert found == {HERE.object("x/1"): 3, HERE.object("x/y/2"): 5}
    assert list(store.objects(HERE.folder("nothing"))) == []


def test_deleting_twice_is_deleting_once(store: ObjectStore) -> None:
    store.put(HERE.object("gone"), b"x")
    store.put(HERE.object("stays"), b"x")
    for _ in range(2):
        store.delete([HERE.object("gone"), HERE.object("never")])
    assert [item.name for item in store.objects(HERE)] == [HERE.object("stays")]


def test_a_store_works_in_another_process(store: ObjectStore) -> None:
    code = (
        "import pickle, sys; store, name = pickle.loads(sys.stdin.buffer.read());"
        "store.put(name, b'from there'); assert store.head(name).size == 10"
    )
    name = HERE.object("other")
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps((store, name)), check=True)
    assert store.get(name) == b"from there"


def test_a_store_that_is_away_is_worth_a_retry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ObjectsUnavailable) as refusal:
        DiskObjects(tmp_path / "file" / "below").put(HERE.object("x"), b"x")
    assert refusal.value.retryable


def test_an_s3_that_is_away_is_worth_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.adapters.objects_s3.RETRIES", {"max_retries": 0})
    away = S3Objects("us-east-1", f"http://127.0.0.1:{free_port()}", "KEY", "secret")
    with pytest.raises(ObjectsUnavailable) as refusal:
        away.put(HERE.object("x"), b"x")
    assert refusal.value.retryable
    assert "secret" not in repr(away)


@pytest.mark.parametrize(
    "text",
    [
        *("", "s3://", "s3://trace", "s3://trace/", "file:///etc/passwd", "S3://trace/x", "/etc/passwd"),
        *("s3://trace//x", "s3://trace/x//y", "s3://trace/../x", "s3://trace/x/..", "s3://trace/./x"),
        *("s3://trace/x y", "s3://trace/x\n", "s3://trace/x*", "s3://trace/x?y", "s3://trace/%2e%2e/x"),
        *("s3://Trace/x", "s3://tr/x", "s3://-trace/x", "s3://trace-/x", "s3://tra..ce/x", "s3://trace/" + "a" * 1025),
    ],
)
def test_a_name_that_can_be_read_in_two_ways_is_refused(text: str) -> None:
    for parse in (ObjectName.parse, lambda it: Folder.parse(f"{it}/")):
        with pytest.raises(InvalidRequest):
            parse(text)


SEGMENTS = st.text("ab._=+-", min_size=1, max_size=4).filter(lambda it: it not in {".", ".."})


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.lists(SEGMENTS, min_size=1, max_size=4))
def test_a_folder_holds_exactly_what_begins_with_its_segments(folder: list[str], other: list[str]) -> None:
    here = Folder("trace", tuple(folder))
    there = ObjectName("trace", tuple(other))
    assert here.holds(there) == (other[: len(folder)] == folder and len(other) > len(folder))
    assert Folder.parse(str(here)) == here
    assert ObjectName.parse(str(there)) == there


def test_a_disk_puts_nothing_outside_its_folder(tmp_path: Path) -> None:
    DiskObjects(tmp_path / "objects").put(HERE.object("x"), b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"objects"}
    assert DiskObjects(tmp_path / "objects").for_spark(HERE.object("x")) == f"file://{tmp_path}/objects/trace/tests/x"


_: Callable[[Path], ObjectStore] = DiskObjects
__: Callable[..., ObjectStore] = S3Objects
