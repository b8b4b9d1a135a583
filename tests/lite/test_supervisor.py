"""The supervisor keeps real processes alive, and leaves none behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS, until
from tracelake.errors import SetupError
from tracelake.lite.child import FAILURES_BEFORE_HELD_BACK, Child, ChildStatus
from tracelake.lite.end_orphans import end_sessions, members_of
from tracelake.lite.launch import Launch
from tracelake.lite.log_files import rotate_log
from tracelake.lite.supervisor import Supervisor
from tracelake.settings import UpSettings

SPEAKS = """
import os, socket, sys, time, signal, subprocess
def notify(text):
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
def ready():
    notify("READY=1\\nSTATUS=here I am")
def beat():
    while True:
        notify("WATCHDOG=1")
        time.sleep(0.2)
"""

LONG_TIMEOUTS = UpSettings(
    backoff_seconds=0.05, backoff_max_seconds=0.2, watchdog_seconds=60, stop_seconds=60, start_seconds=60
)
"""A child of a busy machine may be slow; a test of one that does nothing any more has shorter time-outs."""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="trace-t-"))
    yield made
    shutil.rmtree(made)


class Watched:
    """A supervisor and the states that it reported."""

    def __init__(self, folder: Path, settings: UpSettings = LONG_TIMEOUTS) -> None:
        self.story: list[tuple[str, str]] = []
        self.supervisor = Supervisor(settings, folder, folder / "s", self.note)

    def note(self, seen: ChildStatus) -> None:
        self.story.append((seen.name, seen.state))

    def seen(self, name: str) -> ChildStatus:
        return next(item for item in self.supervisor.statuses if item.name == name)


def child(name: str, code: str, **more: object) -> Child:
    launch = Launch([sys.executable, "-c", SPEAKS + code], env={"PATH": os.defpath}, cwd=Path("/"))
    return Child(name, lambda: launch, **more)  # type: ignore[arg-type]


def supervised(folder: Path, work: Callable[[Watched], Awaitable[None]], **impatient: float) -> Watched:
    watched = Watched(folder, LONG_TIMEOUTS.model_copy(update=impatient))

    async def run() -> None:
        try:
            await work(watched)
        finally:
            await watched.supervisor.stop()

    asyncio.run(run())
    return watched


def test_stages_start_in_order_and_stop_in_reverse(folder: Path) -> None:
    async def work(watched: Watched) -> None:
        await watched.supervisor.start([child("first", "ready(); beat()")])
        await watched.supervisor.start([child("second", "ready(); beat()")])

    story = supervised(folder, work).story
    assert story.index(("first", "ready")) < story.index(("second", "starting"))
    assert story.index(("second", "stopped")) < story.index(("first", "stopping"))


def test_children_are_stopped_before_those_they_depend_on(folder: Path) -> None:
    async def work(watched: Watched) -> None:
        ahead = asyncio.create_task(watched.supervisor.start([child("ahead", "ready(); beat()")], ahead=True))
        await watched.supervisor.start([child("ground", "ready(); beat()")])
        await watched.supervisor.start([child("beside", "ready(); beat()")])
        await ahead

    story = supervised(folder, work).story
    assert story.index(("ahead", "stopped")) < story.index(("ground", "stopping"))


def test_a_killed_child_comes_back_as_another_process(folder: Path) -> None:
    async def work(watched: Watched) -> None:
        await watched.supervisor.start([child("one", "ready(); beat()")])
        before = watched.seen("one").pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(
            lambda: watched.seen("one").state == "ready" and watched.seen("one").pid != before,
            "the supervisor has noticed it",
        )
        assert watched.seen("one").restarts == 1

    supervised(folder, work)


def test_a_child_that_falls_silent_is_restarted(folder: Path) -> None:
    async def work(watched: Watched) -> None:
        await watched.supervisor.start([child("one", "ready(); beat()")])
        before = watched.seen("one").pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        await until(
            lambda: watched.seen("one").state == "ready" and watched.seen("one").pid != before,
            "the supervisor has noticed it",
        )

    supervised(folder, work, watchdog_seconds=3)


def test_an_essential_child_that_cannot_start_is_reported_with_its_last_lines(folder: Path) -> None:
    async def work(watched: Watched) -> None:
        with pytest.raises(SetupError, match="bad does not start: ended with exit code 7") as refused:
            await watched.supervisor.start([child("bad", "print('no such table'); sys.exit(7)", essential=True)])
        assert "no such table" in (refused.value.hint or "")

    supervised(folder, work)


def test_a_child_that_keeps_dying_at_its_start_is_held_back_and_the_others_go_on(folder: Path) -> None:
    """Killed or ended by itself: the start is over for the others, and it is started again after a wait."""
    good_now = folder / "good"
    dies = f"print('no memory', flush=True); os.path.exists({str(good_now)!r}) and (ready(), beat()); "

    async def work(watched: Watched) -> None:
        killed = child("killed", dies + "os.kill(os.getpid(), signal.SIGKILL)")
        ended = child("ended", dies + "sys.exit(7)")
        await watched.supervisor.start([killed, ended, child("other", "ready(); beat()")])
        other = watched.seen("other")
        assert other.state == "ready"
        await until(
            lambda: all(watched.seen(item).state == "held back" for item in ("killed", "ended")),
            "the supervisor has noticed it",
        )
        assert "was ended by SIGKILL" in watched.seen("killed").status
        assert "ended with exit code 7" in watched.seen("ended").status
        assert "its log ends: no memory" in watched.seen("ended").status
        before = watched.seen("killed").restarts
        assert before >= FAILURES_BEFORE_HELD_BACK
        await until(lambda: watched.seen("killed").restarts > before, "the supervisor has noticed it")
        good_now.touch()
        await until(
            lambda: all(watched.seen(item).state == "ready" for item in ("killed", "ended")),
            "the supervisor has noticed it",
        )
        assert watched.seen("other") == other

    supervised(folder, work)


def test_a_child_that_failed_thousands_of_times_is_still_restarted(folder: Path) -> None:
    """As with settings that are wrong for a night: it starts once they are right."""
    is_fixed = False
    works = child("misconfigured", "ready(); beat()")

    def launch() -> Launch:
        if not is_fixed:
            raise SetupError("a setting is wrong")
        return works.launch()

    async def work(watched: Watched) -> None:
        nonlocal is_fixed
        await watched.supervisor.start([replace(works, launch=launch)])
        await until(lambda: watched.seen("misconfigured").restarts > 2000, "it has failed thousands of times")
        is_fixed = True
        await until(lambda: watched.seen("misconfigured").state == "ready", "it runs")

    supervised(folder, work, backoff_seconds=0.0001, backoff_max_seconds=0.0001)


def test_an_essential_child_that_is_killed_at_its_start_is_waited_for(folder: Path) -> None:
    counted = folder / "count"
    code = f"f = open({str(counted)!r}, 'a'); f.write('x'); f.close()\n"
    code += f"if len(open({str(counted)!r}).read()) < 6: os.kill(os.getpid(), signal.SIGKILL)\nready(); beat()"

    async def work(watched: Watched) -> None:
        await watched.supervisor.start([child("ground", code, essential=True)])
        assert (watched.seen("ground").state, watched.seen("ground").restarts) == ("ready", 5)

    supervised(folder, work)


def test_a_child_that_ignores_the_signal_is_killed_and_all_of_its_family_with_it(folder: Path) -> None:
    family: set[int] = set()
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); subprocess.Popen(['sleep', '600']); ready(); beat()"

    async def work(watched: Watched) -> None:
        await watched.supervisor.start([child("stubborn", stubborn)])
        pid = watched.seen("stubborn").pid
        assert pid is not None
        family.add(pid)
        assert len(members_of(family)) == 2

    supervised(folder, work, stop_seconds=1)
    assert members_of(family) == []


def test_what_a_crashed_child_left_running_is_ended_before_the_next_one_starts(folder: Path) -> None:
    async def work(watched: Watched) -> None:
        await watched.supervisor.start([child("one", "subprocess.Popen(['sleep', '600']); ready(); beat()")])
        before = watched.seen("one").pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(
            lambda: watched.seen("one").state == "ready" and watched.seen("one").pid != before,
            "the supervisor has noticed it",
        )
        assert members_of({before}) == []

    supervised(folder, work)


def test_a_secret_on_standard_input_reaches_the_child_and_no_other_place(folder: Path) -> None:
    async def work(watched: Watched) -> None:
        code = "secret = sys.stdin.read(); notify('READY=1\\nSTATUS=' + secret[::-1]); beat()"
        argv = [sys.executable, "-c", SPEAKS + code]
        quiet = Launch(argv, env={"PATH": os.defpath}, cwd=Path("/"), stdin=b"drowssap")
        await watched.supervisor.start([Child("one", lambda: quiet)])
        assert watched.seen("one").status == "password"
        place = Path(f"/proc/{watched.seen('one').pid}")
        assert b"drowssap" not in (place / "cmdline").read_bytes() + (place / "environ").read_bytes()

    supervised(folder, work)


SUPERVISES = """
import asyncio, os, sys
from pathlib import Path
from tests.lite.test_supervisor import Watched, child
async def main():
    watched = Watched(Path(sys.argv[1]))
    await watched.supervisor.start([child("one", "subprocess.Popen(['sleep', '600']); ready(); beat()")])
    print(watched.seen("one").pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("guard_too", [False, True])
def test_when_the_supervisor_is_killed_no_child_survives_it(folder: Path, *, guard_too: bool) -> None:
    """With the guard the whole family goes; if the guard is killed as well, the kernel still ends the children."""
    argv = [sys.executable, "-c", SUPERVISES, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        session = int(process.stdout.readline())
        assert len(members_of({session})) == 2
        if guard_too:
            os.kill(guard_of(process.pid), signal.SIGKILL)
        process.kill()
    deadline = time.monotonic() + SECONDS
    while session in (left := members_of({session})) or (left and not guard_too):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)


def guard_of(supervisor: int) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == supervisor and b"tracelake.lite.end_orphans" in command:
            return int(entry.name)
    raise AssertionError("no guard")


def test_a_log_that_grew_too_large_is_rotated_while_it_is_written(folder: Path) -> None:
    log = folder / "one.log"
    with log.open("ab") as writer:
        writer.write(b"x" * 1_100_000)
        writer.flush()
        rotate_log(log, 1)
        writer.write(b"after\n")
        writer.flush()
    assert log.read_bytes() == b"after\n"
    assert (folder / "one.log.1").stat().st_size == 1_100_000


def test_a_process_that_starts_while_a_process_tree_is_listed_is_found_too() -> None:
    """Its parent is seen no more, and it was not there when the look began: a third of these, if one look were all."""
    dying = (
        "import os, sys, time\nprint(flush=True)\ntime.sleep(float(sys.argv[1]))\n"
        "if os.fork() == 0:\n    time.sleep(60)\nos._exit(0)\n"
    )
    for turn in range(40):
        argv = [sys.executable, "-S", "-c", dying, str(turn % 20 / 2000)]
        with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            parent.stdout.readline()
            end_sessions({parent.pid})
            parent.stdout.close()
            parent.wait()
            left = members_of({parent.pid})
            for member in left:
                os.kill(member, signal.SIGKILL)
        assert left == []


def test_a_child_gets_one_stop_signal_and_finishes_its_work(folder: Path) -> None:
    """On a second signal a process stops at once, and drops its work."""
    counts = (
        "\nasked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n"
        "ready()\n"
        "while not asked: notify('WATCHDOG=1'); time.sleep(0.02)\n"
        "notify('STATUS=has heard it')\n"
        f"while not os.path.exists({str(folder / 'go')!r}): notify('WATCHDOG=1'); time.sleep(0.02)\n"
        f"open({str(folder / 'asked')!r}, 'w').write(str(len(asked)))\n"
    )

    async def work(watched: Watched) -> None:
        await watched.supervisor.start([child("one", counts)])
        (started,) = watched.supervisor._children
        stopping = asyncio.create_task(watched.supervisor.stop())
        await until(lambda: started._reported.status == "has heard it", "the child has received the signal")
        beaten = started._reported.last
        # A signal at every heartbeat would have been repeated by now.
        await until(lambda: started._reported.last > beaten, "another heartbeat has arrived")
        (folder / "go").touch()
        await stopping

    supervised(folder, work)
    assert (folder / "asked").read_text() == "1"
