"""Keys of a worker's tasks on a real S3 server: for the task's folders alone, in other processes too, and replaced.

Costs 8 s, of which the server's start is 4.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.systems.on_s3 import on_s3
from tests.support.systems.walk import OnDispatcher, walking
from tests.support.waiting import until
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import CredentialsUnavailable, SettingsError
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.ports import ObjectStore, SessionKeys
from tracelake.settings import ObjectSettings, load_settings
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wiring import task_objects
from tracelake.worker import task_keys
from tracelake.worker.process import check_task_credentials
from tracelake.worker.task_api import WorkerTaskApi
from tracelake.worker.task_keys import KeySource, TaskKeys

pytestmark = pytest.mark.anyio

IN_ANOTHER_PROCESS = """
import pickle, sys
from tracelake.errors import TraceError
store, names = pickle.load(sys.stdin.buffer)
for name in names:
    try:
        store.put(name, b"from an executor")
    except TraceError as refusal:
        print(type(refusal).__name__, refusal.message[:200])
    else:
        print("put")
"""


@dataclass(frozen=True)
class Running:
    """An attempt that a worker runs."""

    store: ObjectStore
    source: KeySource
    own: Folder
    platform: ObjectStore
    api: WorkerTaskApi
    claimed: Claimed


@asynccontextmanager
async def attempt(seaweedfs: SeaweedFS, databases: tuple[str, str], folder: Path) -> AsyncIterator[Running]:
    places = on_s3(seaweedfs, folder)
    async with walking(*databases, folder, **places) as walk:
        system = OnDispatcher(walk)
        await system.trigger("walk", "ask")
        claimed = await system.claim_task("work")
        api, sources = WorkerTaskApi(claimed, walk.tasks), list[KeySource]()
        settings = load_settings({"TRACE_WORKER__TASK_CREDENTIALS": "true"}, home=folder)
        open_store = task_objects(settings.model_copy(update={"objects": places["places"]}))
        assert open_store is not None

        def noted(keys: KeySource) -> ObjectStore:
            sources.append(keys)
            return open_store(keys)

        keys = TaskKeys(walk.tasks, "127.0.0.1", noted)  # type: ignore[arg-type]
        async with keys.serving():
            with keys.open(claimed, api) as store:
                own = next(iter(decode(parse_token(claimed.capability_token).payload).grants.storage.write))
                yield Running(store, sources[0], own, places["objects"], api, claimed)
        with pytest.raises(CredentialsUnavailable):
            await asyncio.to_thread(sources[0])


async def test_another_process_writes_where_the_token_says_and_nowhere_else(
    seaweedfs: SeaweedFS, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with attempt(seaweedfs, (state_db, queue_db), tmp_path) as running:
        sent = pickle.dumps(running.store)
        keys = await asyncio.to_thread(running.source)
        assert keys.secret_access_key.encode() not in sent
        assert keys.session_token.encode() not in sent
        inside = running.own.object("mine")
        outside = [ObjectName.parse(f"s3://{running.own.bucket}/elsewhere/x"), ObjectName.parse("s3://trace/x/y")]
        said = await asyncio.to_thread(in_another_process, running.store, [inside, *outside])
        assert said[0] == "put"
        assert [line.split()[0] for line in said[1:]] == ["ObjectsUnavailable"] * len(outside)
        assert running.platform.get(inside) == b"from an executor"
        assert [running.platform.head(name) for name in outside] == [None, None]


async def test_keys_are_shared_until_they_are_about_to_end_and_then_replaced(
    seaweedfs: SeaweedFS, state_db: str, queue_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attempt(seaweedfs, (state_db, queue_db), tmp_path) as running:
        same = await asyncio.gather(*(asyncio.to_thread(running.source) for _ in range(8)))
        assert len({keys.session_token for keys in same}) == 1
        monkeypatch.setattr(task_keys, "SOON", timedelta(days=1))
        other = await asyncio.to_thread(running.source)
        assert other.session_token != same[0].session_token
        assert other.expires_at >= same[0].expires_at


async def test_who_does_not_know_the_secret_reads_no_keys_and_cannot_make_any_up(
    seaweedfs: SeaweedFS, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with attempt(seaweedfs, (state_db, queue_db), tmp_path) as running:
        with pytest.raises(CredentialsUnavailable, match="is not the worker"):
            await asyncio.to_thread(replace(running.source, secret=b"x" * 32))
        with pytest.raises(CredentialsUnavailable, match="has ended"):
            await asyncio.to_thread(replace(running.source, task="another.1"))
        with pytest.raises(CredentialsUnavailable, match="does not answer"):
            await asyncio.to_thread(replace(running.source, port=1))


async def test_a_caller_that_names_no_task_is_disconnected(
    seaweedfs: SeaweedFS, state_db: str, queue_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_keys, "LINE_SECONDS", 0.1)
    async with attempt(seaweedfs, (state_db, queue_db), tmp_path) as running:
        for sent in (b"", b"half a na", b"x" * 10_000):
            reader, writer = await asyncio.open_connection(running.source.host, running.source.port)
            writer.write(sent)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert (await asyncio.to_thread(running.source)).session_token, "others are served"


async def test_a_store_asks_for_new_keys_before_its_own_end_and_not_for_each_call(
    seaweedfs: SeaweedFS, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with attempt(seaweedfs, (state_db, queue_db), tmp_path) as running:
        keys = await asyncio.to_thread(running.source)
        name, asked = running.own.object("mine"), list[SessionKeys]()

        def source(left: timedelta) -> SessionKeys:
            asked.append(replace(keys, expires_at=datetime.now(UTC) + left))
            return asked[-1]

        settings = load_settings({"TRACE_WORKER__TASK_CREDENTIALS": "true"}, home=tmp_path)
        places = seaweedfs.objects_for("worker")
        open_store = task_objects(settings.model_copy(update={"objects": places}))
        assert open_store is not None
        asked_once = open_store(lambda: source(timedelta(hours=1)))
        for _ in range(3):
            await asyncio.to_thread(asked_once.put, name, b"x", replace=True)
        assert len(asked) == 1
        asked_again = open_store(lambda: source(timedelta(minutes=4)))

        async def put() -> bool:
            await asyncio.to_thread(asked_again.put, name, b"x", replace=True)
            return len(asked) > 2

        await until(put, "the store has asked again, minutes before its keys end")


def test_keys_of_tasks_need_a_store_that_has_keys(tmp_path: Path) -> None:
    settings = load_settings({"TRACE_WORKER__TASK_CREDENTIALS": "true"}, home=tmp_path)
    with pytest.raises(SettingsError, match="disk") as refusal:
        check_task_credentials(settings)
    assert refusal.value.where == "worker.task_credentials"
    others = settings.model_copy(update={"objects": ObjectSettings(backend="s3")})
    check_task_credentials(others)


def in_another_process(store: ObjectStore, names: list[ObjectName]) -> list[str]:
    argv = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    done = subprocess.run(argv, input=pickle.dumps((store, names)), capture_output=True, check=True)
    return done.stdout.decode().splitlines()
