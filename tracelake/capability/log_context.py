"""The fields of log lines and spans about a claimed task: organisation, DAG, job, task, attempt."""

from __future__ import annotations

from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.wire.task.lifecycle import Claimed


def task_fields(claimed: Claimed) -> dict[str, str | int]:
    """The organisation is read from the token of the claim, which is not verified here."""
    task = claimed.task
    return {
        "org": str(decode(parse_token(claimed.capability_token).payload).org_id),
        "dag": task.job.dag_name,
        "job": task.job.name,
        "task": str(task.task_id),
        "attempt": claimed.attempt,
    }
