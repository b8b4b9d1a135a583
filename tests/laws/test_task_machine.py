"""Any interleaving of verbs, duplicates, late and forged replies leaves a task where the pure table says it must be."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import Chain, a_task, completion, deploy_chain, drained, tasks_of
from tests.support.task_machine import ENDED, Phase, Verb, after, after_failure, phase_of, state_of
from tests.support.task_machine import TRANSITIONS as FINE_TRANSITIONS
from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.renew_lease import Beat
from tracelake.domain.task import TRANSITIONS, TaskState
from tracelake.errors import Conflict, LeaseLost
from tracelake.store.queries import queries
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, HeartbeatRequest, NotClaimed
from tracelake.wire.task.outputs import CompleteRequest

T = TypeVar("T")
MAX_ATTEMPTS = 3
MAX_PLATFORM_FAILURES = 2


@dataclass
class Model:
    """What the table says of one task."""

    phase: Phase = Phase.QUEUED
    attempt: int = 1
    lost: int = 0
    """Attempts that the platform ended; `is_lost`: the current one among them."""
    is_lost: bool = False
    holder: UUID | None = None
    """The lease token of the current attempt."""
    accepted: CompleteRequest | None = None
    """The completion that ended the current attempt."""
    completed: int = 0
    leases: list[tuple[Claimed, Claims]] = field(default_factory=list)
    said: list[tuple[CompleteRequest, Claims]] = field(default_factory=list)


class TaskMachine(RuleBasedStateMachine):
    dsns: tuple[str, str] = ("", "")
    folder: Path = Path()
    """Of all examples: a database and its signing keys belong together."""

    tasks: Bundle[UUID] = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.models: dict[UUID, Model] = {}
        self.control: Control = self.do(self.stack.enter_async_context(control_for(*self.dsns, self.folder)))
        self.complete = self.control.completer()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.chain: Chain = self.do(deploy_chain(self.control, slug=f"o{uuid4().hex[:12]}"))
        limit = "UPDATE jobs SET max_platform_failures = $1"
        self.do(self.control.pool.execute(limit, MAX_PLATFORM_FAILURES))

    @rule(target=tasks)
    def create(self) -> UUID:
        task = self.do(a_task(self.control, self.chain))
        self.models[task] = Model()
        return task

    @rule(task=tasks)
    def claim(self, task: UUID) -> None:
        model = self.models[task]
        (answer,) = self.do(self.control.claimer().claim([ClaimRequest(task_id=task, worker_id="w")]))
        if model.phase is Phase.QUEUED:
            assert isinstance(answer, Claimed)
            assert answer.attempt == model.attempt
            model.phase, model.holder, model.accepted = after(model.phase, Verb.CLAIM), answer.lease_token, None
            model.leases.append((answer, self.do(self._claims(answer))))
        else:
            assert isinstance(answer, NotClaimed)

    @rule(task=tasks, back=st.integers(0, 3), forged=st.booleans())
    def heartbeat(self, task: UUID, back: int, *, forged: bool) -> None:
        model = self.models[task]
        if not model.leases:
            return
        lease, claims = self._lease(model, back)
        token = uuid4() if forged else lease.lease_token
        request = HeartbeatRequest(task_id=task, attempt=lease.attempt, lease_token=token)
        try:
            answer = self.do(self.control.renewer().batched(self.control.metrics)(Beat(request, claims)))
        except LeaseLost:
            assert forged or lease.lease_token != model.holder or model.phase not in {Phase.RUNNING, Phase.CANCELED}
        else:
            assert not forged
            assert lease.lease_token == model.holder
            assert answer.canceled == (model.phase is Phase.CANCELED)

    @rule(
        task=tasks,
        back=st.integers(0, 3),
        forged=st.booleans(),
        how=st.sampled_from(["Completed", "event", "Failed", "busy"]),
    )
    def reply(self, task: UUID, back: int, *, forged: bool, how: str) -> None:
        """A completion of any attempt that ever was, now or late, true or forged."""
        model = self.models[task]
        if not model.leases:
            return
        lease, claims = self._lease(model, back)
        request = self._request(lease, how, forged=forged)
        self._send(model, request, claims)

    @rule(task=tasks, which=st.integers(0, 5))
    def repeat(self, task: UUID, which: int) -> None:
        model = self.models[task]
        if model.said:
            request, claims = model.said[which % len(model.said)]
            self._send(model, request, claims)

    @rule(task=tasks)
    def lose(self, task: UUID) -> None:
        """The worker is silent and its lease is expired."""
        model = self.models[task]
        if model.phase is not Phase.RUNNING:
            return
        sql = "UPDATE tasks SET lease_expires_at = now() - interval '1 s' WHERE id = $1"
        self.do(self.control.pool.execute(sql, task))
        self.do(self.control.expire_leases().once())
        self._fail(model, Verb.TIME_OUT, platform=True)

    @rule(task=tasks)
    def retry(self, task: UUID) -> None:
        model = self.models[task]
        if model.phase not in {Phase.FAILED_WAITING, Phase.LOST_WAITING}:
            return
        self.do(self.control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE id = $1", task))
        self.do(self.control.expire_leases().once())
        model.phase, model.attempt, model.holder = after(model.phase, Verb.RETRY), model.attempt + 1, None
        model.is_lost = False

    @rule(task=tasks)
    def cancel(self, task: UUID) -> None:
        model = self.models[task]
        sql = queries("lifecycle")["cancel_task"]
        canceled = self.do(self.control.pool.fetchval(sql, task, self.chain.org.id, "asked"))
        if (model.phase, Verb.CANCEL) in _table():
            assert canceled in {"Queued", "Running", "Failed"}
            model.phase = Phase.CANCELED
        else:
            assert canceled is None

    @invariant()
    def rows_are_where_the_model_is(self) -> None:
        for task, model in self.models.items():
            row = self.do(self.control.pool.fetchrow("SELECT * FROM tasks WHERE id = $1", task))
            assert row is not None
            state = TaskState(row["status"])
            lost = state is TaskState.FAILED and row["completion_hash"] is None
            assert phase_of(state, waits=row["next_retry_at"] is not None, timed_out=lost) is model.phase
            assert row["attempt"] == model.attempt
            assert row["platform_failures"] == model.lost
            assert row["lease_token"] == model.holder
            assert state_of(model.phase) is state

    def teardown(self) -> None:
        try:
            if self.models:
                self._assert_one_task_per_completion()
        finally:
            self.do(self.stack.aclose())
            self.loop.close()

    def _assert_one_task_per_completion(self) -> None:
        self.do(drained(self.control))
        made = self.do(tasks_of(self.control, self.chain, "second"))
        with_events = [
            m for m in self.models.values() if m.phase is Phase.COMPLETED and m.accepted and m.accepted.events
        ]
        assert len(made) == len(with_events)
        assert all(model.completed <= 1 for model in self.models.values())

    async def _claims(self, answer: Claimed) -> Claims:
        from tracelake.capability.claims import decode
        from tracelake.capability.jws import parse_token

        return decode(parse_token(answer.capability_token).payload)

    def _lease(self, model: Model, back: int) -> tuple[Claimed, Claims]:
        return model.leases[-1 - back % len(model.leases)]

    def _request(self, lease: Claimed, how: str, *, forged: bool) -> CompleteRequest:
        number = int.from_bytes(lease.task.task_id.bytes[-6:])
        more: dict[str, object] = {
            "Completed": {},
            "event": {"events": [self.chain.event("first", cursor=number)]},
            "Failed": {"status": "Failed", "error_message": "no luck"},
            "busy": {"status": "Failed", "error_message": "no free place", "error_code": "busy"},
        }[how]  # type: ignore[assignment]
        request = completion(lease, **more)
        if not forged:
            return request
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        return CompleteRequest(**{**fields, "lease_token": uuid4()})

    def _send(self, model: Model, request: CompleteRequest, claims: Claims) -> None:
        current = request.lease_token == model.holder and request.attempt == model.attempt
        verb = Verb.COMPLETE if request.status == "Completed" else Verb.FAIL
        open_ = current and (model.phase, verb) in _table() and model.accepted is None
        try:
            answer = self.do(self.complete(request, claims))
        except LeaseLost:
            assert not open_
            assert model.accepted is None or not current
            return
        except Conflict:
            assert current
            assert model.accepted is not None
            assert model.accepted != request
            return
        model.said.append((request, claims))
        if not open_:
            assert current
            assert model.accepted == request, "only the very same words are answered again"
            return
        assert answer.status == request.status
        model.accepted = request
        if verb is Verb.COMPLETE:
            model.phase, model.completed = after(model.phase, verb), model.completed + 1
            model.lost, model.is_lost = model.lost - model.is_lost, False
        else:
            self._fail(model, verb, platform=request.error_code == "busy")
        assert (answer.next_retry_at is not None) == (model.phase is Phase.FAILED_WAITING)

    def _fail(self, model: Model, verb: Verb, *, platform: bool) -> None:
        """Counted against one of two limits; a late reply says anew against which."""
        model.lost, model.is_lost = model.lost - model.is_lost + platform, platform
        used, allowed = (model.lost, MAX_PLATFORM_FAILURES) if platform else (model.attempt - model.lost, MAX_ATTEMPTS)
        model.phase = after_failure(model.phase, verb, attempt=used, max_attempts=allowed)


def _table() -> Any:
    from tests.support.task_machine import TRANSITIONS

    return TRANSITIONS


def test_ended_phases_are_those_that_nothing_leaves_by_itself() -> None:
    assert {Phase.COMPLETED, Phase.CANCELED} <= ENDED


def test_states_change_as_the_domain_says_and_in_no_other_way() -> None:
    changes = {(state_of(phase), state_of(end)) for (phase, _), end in FINE_TRANSITIONS.items()}
    assert {(before, end) for before, ends in TRANSITIONS.items() for end in ends} == {
        (before, end) for before, end in changes if before != end
    }


def guard_transitions(dsn: str) -> None:
    """From now on Postgres refuses a change of state that the domain does not know."""
    known = ", ".join(f"('{before}', '{end}')" for before, ends in TRANSITIONS.items() for end in ends)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE check_violation USING MESSAGE = format('%s becomes %s', OLD.status, NEW.status); END $$"
        )
        connection.execute(
            b"CREATE TRIGGER known_transitions BEFORE UPDATE ON tasks FOR EACH ROW WHEN (OLD.status <> NEW.status"
            + f" AND (OLD.status::text, NEW.status::text) NOT IN ({known})) EXECUTE FUNCTION refuse()".encode()
        )


def test_the_task_machine_agrees_with_its_table(state_db: str, queue_db: str, tmp_path: Path) -> None:
    guard_transitions(state_db)
    TaskMachine.dsns, TaskMachine.folder = (state_db, queue_db), tmp_path
    run_state_machine_as_test(
        TaskMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
