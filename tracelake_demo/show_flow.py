"""The part of `trace demo` about flow: a long queue pauses what is upstream, and a schedule fires a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx

from tracelake.errors import SetupError
from tracelake_demo.system import Running

NAME: Final = "flow"
BLOCKS: Final = 1000
"""Of one trigger; in ranges of 10, each of which is a task."""
FEW: Final = 100


@dataclass(frozen=True)
class ShowFlow:
    system: Running
    line: Callable[[str], None]
    wait: Callable[[Callable[[], Any], str], None]
    expect: Callable[[bool, str], None]

    def show(self) -> None:
        self._pressure()
        self._schedule()

    def _pressure(self) -> None:
        triggers, pause = self._until_paused()
        self._trigger(triggers * BLOCKS, FEW)
        self.line(f"trace trigger        {triggers * BLOCKS // 10} tasks for `load`, which runs one at a time")
        self.line(f"trace job pauses     {NAME}.{pause['job']} is {pause['because']}")
        self.line(f"                     a further trigger is accepted; {self._held() or 'no'} event waits meanwhile")
        tasks = (triggers * BLOCKS + FEW) // 10
        self.wait(lambda: len(self.system.tasks(NAME, job="load", status="Completed")) == tasks, "all is processed")
        self.wait(lambda: not self._pauses(), "nothing is paused any more")
        self.line(f"                     resumed when the queue was short: {tasks} tasks, each once")

    def _until_paused(self) -> tuple[int, dict[str, Any]]:
        """How many triggers it took, and the pause: a quick machine may have worked one off before it is looked at."""
        for number in range(4):
            self._trigger(number * BLOCKS, BLOCKS)
            tasks = (number + 1) * BLOCKS // 10
            self.wait(partial(self._is_paused_or_done, tasks), "the queue of `load` pauses `cut`")
            if pauses := self._pauses():
                return number + 1, pauses[0]
        raise SetupError("the demo failed: expected that the queue of `load` pauses `cut`")

    def _is_paused_or_done(self, tasks: int) -> bool:
        return bool(self._pauses()) or len(self.system.tasks(NAME, job="load", status="Completed")) >= tasks

    def _trigger(self, first: int, blocks: int) -> None:
        self.system.trace("trigger", NAME, "ask", "--range", f"{first}-{first + blocks - 1}")

    def _pauses(self) -> list[dict[str, Any]]:
        answer = self.system.get("/v1/pauses")
        self.expect(answer.status_code == httpx.codes.OK, "the pauses are listed")
        return [pause for pause in answer.json()["pauses"] if pause["dag"] == NAME and pause["cause"]]

    def _held(self) -> int:
        """How many events are held, as soon as some are; 0 if everything is processed before any is seen."""
        found = 0

        def is_held() -> bool:
            nonlocal found
            pauses = self._pauses()
            found = sum(int(pause["held"]) for pause in pauses)
            return found > 0 or not pauses

        self.wait(is_held, "what comes meanwhile is held, or all is processed")
        return found

    def _schedule(self) -> None:
        source = self.system.trace("source", "show", NAME, "tick")
        fired = [slot for slot in source["slots"] if slot["reason"] is None]
        self.line(f"trace source show    {NAME}.tick, {source['source']['schedule']!r}: {_fires(source, len(fired))}")
        self.system.trace("source", "fire", NAME, "tick")
        tasks = len(fired) + 1
        self.wait(lambda: len(self.system.tasks(NAME, job="tock", status="Completed")) >= tasks, "each fire has a task")
        self.line("trace source fire    at once, by hand: its task is completed")


def _fires(source: dict[str, Any], fired: int) -> str:
    following = source["next_fires"][0]["local"]
    times = "once" if fired == 1 else f"{fired} times"
    return f"fired {times} so far, and next at {following}" if fired else f"fires first at {following}"
