"""Workers by need, with a real supervisor and real processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.child_process import speaking_child
from tests.support.waiting import until
from tracelake.domain.flow.workers import WorkerLoad
from tracelake.errors import ServiceUnavailable
from tracelake.lite.child import ChildStatus
from tracelake.lite.scale_workers import ScaleWorkers
from tracelake.lite.supervisor import Supervisor
from tracelake.settings import UpSettings, WorkerSettings

pytestmark = pytest.mark.anyio

SETTINGS = UpSettings(backoff_seconds=0.05, watchdog_seconds=60, stop_seconds=0.05, start_seconds=60)
"""A process that drains may take longer than one that is to end."""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="trace-t-"))
    yield made
    shutil.rmtree(made)


@dataclass
class Fleet:
    """A supervisor, the load that the test says, and a clock that it moves."""

    folder: Path
    load: WorkerLoad | None = None
    """None: the Dispatcher does not answer."""
    now: float = 0.0
    seen: list[ChildStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(SETTINGS, self.folder, self.folder / "s", self.seen.append)
        settings = WorkerSettings(min=0, max=3, concurrency=4, spare_seconds=30)
        worker = speaking_child("worker", works_until=self.folder / "go")
        self.scale = ScaleWorkers(self.supervisor, worker, settings, self.read, running=0, clock=lambda: self.now)

    async def read(self) -> WorkerLoad:
        if self.load is None:
            raise ServiceUnavailable("it does not answer")
        return self.load

    async def once(self, load: WorkerLoad | None, *, after: float = 0.0) -> int:
        self.load, self.now = load, self.now + after
        return await self.scale.once()

    def states(self) -> dict[str, str]:
        return {status.name: status.state for status in self.supervisor.statuses}


async def test_workers_come_with_the_load_and_go_when_their_work_is_over(folder: Path) -> None:
    fleet, idle = Fleet(folder), WorkerLoad(queued=0, leased=0, keep_warm_seconds=60)
    try:
        assert await fleet.once(idle) == 0
        assert await fleet.once(WorkerLoad(queued=10, leased=0, keep_warm_seconds=60)) == 3
        await until(lambda: list(fleet.states().values()) == ["ready"] * 3, "three workers are ready")
        assert set(fleet.states()) == {"worker", "worker-2", "worker-3"}
        few = WorkerLoad(queued=0, leased=2, keep_warm_seconds=60)
        assert await fleet.once(few, after=10) == 3
        assert await fleet.once(None, after=100) == 3, "while the Dispatcher does not answer, nothing changes"
        assert await fleet.once(few) == 1
        await until(lambda: len(list(folder.glob("drains-*"))) == 2, "both work on, longer than a stop would wait")
        assert fleet.states() == {"worker": "ready", "worker-2": "stopping", "worker-3": "stopping"}
        assert await fleet.once(WorkerLoad(queued=8, leased=0)) == 2, "those that drain are no help"
        await until(lambda: fleet.states().get("worker-4") == "ready", "another has started")
        (folder / "go").touch()  # what they did is over
        await until(lambda: len(fleet.states()) == 2, "both have ended by themselves")
        assert await fleet.once(idle, after=40) == 1, "a job wants to be waited for"
        assert await fleet.once(idle, after=30) == 0
        await until(lambda: fleet.states() == {}, "none is left")
    finally:
        await fleet.supervisor.stop()


async def test_a_system_that_stops_does_not_wait_for_a_worker_that_drains(folder: Path) -> None:
    fleet = Fleet(folder)
    assert await fleet.once(WorkerLoad(queued=1, leased=0, keep_warm_seconds=0)) == 1
    await until(lambda: fleet.states() == {"worker": "ready"}, "it is ready")
    assert await fleet.once(WorkerLoad(queued=0, leased=0, keep_warm_seconds=0), after=31) == 0
    await until(lambda: fleet.states() == {"worker": "stopping"}, "it drains")
    await fleet.supervisor.stop()
    assert fleet.states() in ({}, {"worker": "stopped"})
