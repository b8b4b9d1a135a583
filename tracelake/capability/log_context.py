"""What a claimed task is, as lines and spans about it say: organisation, DAG, job, task, attempt."""

from __future__ import annotations

from tracelake.capability.claims import decode
from tracelake.capability.jws import take_apart
from tracelake.wire.task_messages import Claimed


def task_fields(claimed: Claimed) -> dict[str, str | int]:
    """The organisation stands in the token that the Dispatcher gave out with the claim; it is not checked here."""
    task = claimed.task
    return {
        "org": str(decode(take_apart(claimed.capability_token).payload).org_id),
        "dag": task.job.dag_name,
        "job": task.job.name,
        "task": str(task.task_id),
        "attempt": claimed.attempt,
    }
