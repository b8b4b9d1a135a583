"""Code that cannot be isolated is refused, unless a setting allows it; then a warning is logged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests.support.operators import registered
from tests.support.systems.runner import HANDS, RunnerSystem, invocation, running_system
from tests.support.waiting import until
from tracelake.errors import SetupError
from tracelake.sandbox.bubblewrap import Isolation, bwraps, choose_isolation
from tracelake.sandbox.seccomp import ARCHITECTURES, program
from tracelake.udf.process import Refusing

pytestmark = pytest.mark.anyio


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A bwrap as it is where user namespaces are switched off."""
    path = tmp_path / "bwrap"
    path.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    path.chmod(0o755)
    return path


def test_without_namespaces_untrusted_code_is_refused(failing: Path) -> None:
    with pytest.raises(SetupError, match="No permissions to create new namespace") as refused:
        choose_isolation(candidates=[failing])
    assert "TRACE_UDF__UNSAFE=1" in (refused.value.hint or "")
    with pytest.raises(SetupError, match="there is no bubblewrap"):
        choose_isolation(candidates=[])


def test_the_next_bubblewrap_is_tried_when_the_first_does_not_work(failing: Path) -> None:
    isolation = choose_isolation(candidates=[failing, *bwraps()])
    assert isolation.bwrap == bwraps()[0]
    isolation.close()


async def test_a_runner_without_isolation_reports_why_to_each_task(system: RunnerSystem, failing: Path) -> None:
    with pytest.raises(SetupError) as missing:
        choose_isolation(candidates=[failing])
    udf = system.python("def handler(event, context): return 1\n")
    with pytest.raises(SetupError, match="cannot be isolated"):
        await Refusing(missing.value, system.settings.udf).run(invocation(await system.claimed(), udf))


async def test_a_setting_allows_to_run_without_isolation(clone: Any, tmp_path: Path, failing: Path) -> None:
    isolation = choose_isolation(unsafe=True, candidates=[failing])
    assert isolation == Isolation(None)
    dsns = {"state": clone("state"), "queue": clone("queue")}
    with registered(hands=HANDS):
        async with running_system(dsns, tmp_path / "unsafe", isolation) as system:
            udf = system.python("import os\ndef handler(event, context): return os.getuid()\n")
            assert (await system.run(udf)).body == os.getuid()


async def test_a_sandbox_leaves_the_runners_session_once_it_is_isolated(
    system: RunnerSystem,
) -> None:
    """If the runner is killed while they are built, its keeper finds what is left by the session."""
    code = "import os, time\ndef handler(event, context):\n    time.sleep(1)\n    return os.getsid(0)\n"
    warm = set(bwraps_of_ours())  # of tests before this one
    running = asyncio.create_task(system.run(system.python(code)))
    (builder,) = await until(lambda: set(bwraps_of_ours()) - warm, "a sandbox is built", every=0.002)
    assert os.getsid(builder.pid) == os.getsid(0)
    assert os.getpgid(builder.pid) == builder.pid, "Ctrl-C does not reach it"
    await until(
        lambda: any(os.getsid(inside.pid) != os.getsid(0) for inside in builder.children()[:1]),
        "it has a session of its own",
        every=0.002,
    )
    assert (await running).body > 0, "a session of its own: 0 is one that is not to be seen from inside"


def bwraps_of_ours() -> Iterator[psutil.Process]:
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == "bwrap":
                yield child


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_is_whole_on_each_architecture(machine: str) -> None:
    """Every jump lands within it, and it ends with a verdict."""
    steps = [program(machine)[at : at + 8] for at in range(0, len(program(machine)), 8)]
    assert len(steps) < 4096
    for at, step in enumerate(steps):
        code, yes, no = int.from_bytes(step[:2], "little"), step[2], step[3]
        if code & 0x07 == 0x05:
            assert at + 1 + max(yes, no) < len(steps)
    assert steps[-1][:2] == b"\x06\x00"


async def test_each_sandbox_of_root_is_another_user(system: RunnerSystem) -> None:
    if os.geteuid() != 0:
        pytest.skip("run it as root: only root has user ids to give to sandboxes, a user namespace has one")
    code = "import os, time\ndef handler(event, context):\n    time.sleep(0.5)\n    return os.getuid()\n"
    answers = await asyncio.gather(*(system.run(system.python(f"{code}# {uuid4()}\n")) for _ in range(2)))
    assert len({answer.body for answer in answers}) == 2
    assert 0 not in {answer.body for answer in answers}
