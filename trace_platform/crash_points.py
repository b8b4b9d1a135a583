"""Named places before and after every commit and side effect, where a test ends the process to see what comes of it.

Nothing happens at a point unless this process was armed, which only a settings document on standard input can ask for
(`faults.point`; the environment and `trace.toml` are refused). Then the process says so and sends itself the signal at
the chosen pass: SIGKILL, as a power cut would, or SIGSTOP, as a machine that freezes.
`docs/reference/crash_points.md` tells how.
"""

from __future__ import annotations

import os
import signal
from typing import Final, Literal

POINTS: Final = (
    # What people ask.
    "deploy_dag.before_commit",
    "deploy_dag.after_commit",
    "activate_dag.before_commit",
    "activate_dag.after_commit",
    "trigger.before_commit",
    "trigger.after_commit",
    "invalidate.before_commit",
    "invalidate.after_commit",
    "cancel_task.before_commit",
    "cancel_task.after_commit",
    "retry_task.before_commit",
    "retry_task.after_commit",
    "retry_outbox.before_commit",
    "retry_outbox.after_commit",
    "pause_source.before_commit",
    "pause_source.after_commit",
    "resume_source.before_commit",
    "resume_source.after_commit",
    "drain_sources.before_commit",
    "drain_sources.after_commit",
    "replay_batch.before_commit",
    "replay_batch.after_commit",
    # What tasks ask.
    "claim_task.before_commit",
    "claim_task.after_commit",
    "renew_lease.before_commit",
    "renew_lease.after_commit",
    "accept_event.before_commit",
    "accept_event.after_commit",
    "publish_buffer.before_commit",
    "publish_buffer.after_commit",
    "settle_buffers.before_commit",
    "settle_buffers.after_commit",
    "complete_plain.before_commit",
    "complete_plain.after_commit",
    "complete_outputs.before_commit",
    "complete_failed.before_commit",
    "complete_task.after_commit",
    "complete_batch.after_commit",
    # What the Dispatcher does without being asked.
    "drain_outbox.events_routed",
    "drain_outbox.invalidations_routed",
    "drain_outbox.wake_ups_kept",
    "drain_outbox.slots_given",
    "drain_outbox.promises_taken",
    "drain_outbox.before_act",
    "drain_outbox.before_mark",
    "drain_outbox.after_mark",
    "drain_outbox.put_off",
    "call_functions.claimed",
    "call_functions.returned",
    "run_in_process.before_commit",
    "run_in_process.after_commit",
    "reap.leases_ended",
    "reap.retries_queued",
    "retire.tasks_canceled",
    "keep_sources.started",
    "keep_sources.left",
    "keep_sources.moved",
    "keep_sources.settled",
    "release_sources.before_commit",
    "release_sources.after_commit",
    "reconcile.before_commit",
    "reconcile.after_commit",
    "janitor.before_remove",
    "janitor.before_mark",
    "janitor.after_mark",
    "retain.before_remove",
    "retain.files_removed",
    "retain.before_mark",
    "retain.after_mark",
    "owe_batches.owed",
    "clear_batches.before_remove",
    "clear_batches.before_mark",
    "clear_batches.after_mark",
    "forget.forgotten",
    "keep_keys.recorded",
    "keep_keys.settled",
    "keep_keys.rotated",
    "keep_keys.followed",
    # The queue, on either side.
    "queue.before_publish",
    "queue.after_publish",
    "queue.after_receive",
    "queue.before_ack",
    "queue.after_ack",
    "queue.after_extend",
    # The worker.
    "wrapper.received",
    "wrapper.claimed",
    "wrapper.operator_done",
    "wrapper.completed",
    "wrapper.acknowledged",
    "lease_keeper.before_beat",
    "lease_keeper.renewed",
    # Operators that keep rows of their own in the data database.
    "following.before_write",
    "following.before_commit",
    "following.after_commit",
    "following.before_tell",
    "following.told",
    "parquet_compact.begun",
    "parquet_compact.written",
    "parquet_compact.marked",
    "parquet_compact.swept",
    "alert_route.before_commit",
    "alert_route.after_commit",
    # The sink.
    "sink.received",
    "sink.table_prepared",
    "sink.in_hand",
    "sink.before_stage",
    "sink.staged",
    "merge_batches.before_commit",
    "merge_batches.after_commit",
    "sink.put_down",
    "sink.before_settle",
    "sink.settled",
    "sink.acknowledged",
    # The runner of untrusted code.
    "runner.asked",
    "runner.bundle_fetched",
    "runner.bundle_unpacked",
    "runner.sandbox_started",
    "runner.sandbox_made",
    "runner.sandbox_lent",
    "runner.handed_out",
    "runner.object_put",
    "runner.before_forward",
    "runner.forwarded",
    "runner.answered",
    "runner.ended",
    "runner.recycled",
    "runner.sandbox_killed",
    "run_udf.minted",
    "run_udf.ended",
    # The delivery process.
    "delivery.taken",
    "delivery.before_send",
    "delivery.sent",
    "delivery.marked",
)
"""Every point there is; a test compares it with the calls in the code."""

How = Literal["kill", "stop"]
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class _Armed:
    def __init__(self, name: str, nth: int, how: How) -> None:
        self._name = name
        self._left = nth
        self._signal = SIGNALS[how]

    def passed(self, name: str) -> None:
        if name != self._name or self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            os.write(2, f"crash point {name}: {self._signal.name}\n".encode())
            os.kill(os.getpid(), self._signal)


_armed: _Armed | None = None


def crash_point(name: str, *, when: object = True) -> None:
    """Does nothing, unless this process was armed for it. `when`: only a pass at which something had happened."""
    if _armed and when:
        _armed.passed(name)


def arm(name: str | None, nth: int, how: How) -> None:
    """Called once, by the frame of a process, with its settings; None, as always in production, arms nothing."""
    global _armed  # noqa: PLW0603 - it is the process that is armed, not a part of it
    _armed = None if name is None else _Armed(name, nth, how)
