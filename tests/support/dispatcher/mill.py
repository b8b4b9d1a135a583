"""DAG `mill` (ask, grind, bake), which tests of versions change, and a state machine over it for laws."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.support.dispatcher.control import Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.releases import promoted
from tests.support.dispatcher.run_tasks import caught_up, settle
from tests.support.verbs import retry_task, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.dispatcher.maintenance.reconcile import Reconciler
from tracelake.errors import Conflict
from tracelake.settings import RUNTIMES, FlowSettings, LoopSettings

T = TypeVar("T")
READER = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: sell, operator: pull, inputs: [{from: {dataset: flour}}]}
"""
NEWEST = "SELECT id FROM releases WHERE org_id = $1 ORDER BY created_at DESC LIMIT 1"
SETTINGS = LoopSettings(reconcile_seconds=0.000001, reconcile_grace_seconds=0, reconcile_slice_seconds=1e6)
FAILED = """
SELECT t.id
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
  JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id
 WHERE t.org_id = $1 AND t.status = 'Failed'
"""


def mill(operator: str, publish: str, grind: int = 1, bake: int = 1) -> str:
    """The DAG with this operator in every job, and these numbers in the config of two of them."""
    return f"""
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: {operator}, source: {{kind: manual}}}}
  - {{name: grind, operator: {operator}, config: {{n: {grind}}}, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: bake, operator: {operator}, config: {{n: {bake}}}, inputs: [{{from: {{job: grind}}}}]}}
publish:
  {publish}
"""


def variants(operator: str, publish: str) -> list[str]:
    return [mill(operator, publish, *numbers) for numbers in ((1, 1), (2, 1), (1, 2))]


async def asked(control: Control, org: Org, *spans: tuple[int, int]) -> None:
    """The source of `mill` is triggered for each of these ranges."""
    for start, end in spans:
        await trigger(control, org.id, "mill", "ask", start=start, end=end, request_id=uuid4())


class MillMachine(RuleBasedStateMachine):
    """A Dispatcher's verbs on an organisation of its own; a subclass adds what happens, and checks how it ends."""

    dsns: tuple[str, str] = ("", "")
    folder: Path = Path()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.control: Control = self.do(self.stack.enter_async_context(control_for(*self.dsns, self.folder)))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def deploy_first(self, variant: str) -> None:
        self.org: Org = self.do(an_org(self.control.pool, f"o{uuid4().hex[:12]}"))
        self.deploy(variant)

    def deploy(self, variant: str) -> None:
        self.do(deployed_and_active(self.control, self.org, variant))

    def change_newest_release(self, verb: Callable[..., Coroutine[Any, Any, Any]], *, force: bool) -> None:
        """Most of them cannot be changed so, and must not be."""
        release = self.do(self.control.pool.fetchval(NEWEST, self.org.id))
        how = {"force": force} if verb is promoted else {}
        if release is not None:
            with suppress(Conflict):
                self.do(verb(self.control, self.org, release, **how))

    @rule()
    def catch_up(self) -> None:
        self.do(caught_up(self.control))

    @rule()
    def release_held(self) -> None:
        """What waits for paused jobs is released, moved or dropped."""
        self.do(self._release_held())

    async def _release_held(self) -> None:
        while await ApplyPressure(self.control.pool, self.control.after_commit, FlowSettings()).once():
            pass

    @rule()
    def lose(self) -> None:
        """Outbox entries vanish, as if a row had been deleted by hand."""
        self.do(self.control.pool.execute("DELETE FROM outbox WHERE status = 'Pending'"))

    def teardown(self) -> None:
        try:
            if hasattr(self, "org"):
                self.do(self.check())
        finally:
            self.do(self.stack.aclose())
            self.loop.close()

    async def check(self) -> None:
        raise NotImplementedError

    async def run_all(self, **how: Any) -> None:
        """What is lost is found, what is held released, what failed is retried, and everything runs."""
        pool = self.control.pool
        while True:
            await Reconciler(pool, self.control.queue, RUNTIMES, self.control.after_commit.outbox, SETTINGS).once()
            await pool.execute("UPDATE catch_ups SET due_at = now()")
            await self._release_held()
            ran = await settle(self.control, **how)
            for failed in await self._failed():
                await retry_task(self.control, self.org.id, failed)
                ran += 1
            if not ran:
                return

    async def _failed(self) -> list[UUID]:
        return [row["id"] for row in await self.control.pool.fetch(FAILED, self.org.id)]


def run_machine(machine: type[MillMachine], dsns: tuple[str, str], folder: Path, examples: int) -> None:
    machine.dsns, machine.folder = dsns, folder
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
