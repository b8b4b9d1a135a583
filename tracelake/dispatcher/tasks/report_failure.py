"""Reports a task that has failed for good: counts it by job, and logs an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from tracelake.dispatcher.control import Control

log = structlog.get_logger()

FIELDS = ("org", "dag", "job", "task", "attempt", "fault", "because")


def report_final_failure(control: Control, failure: Mapping[str, Any]) -> None:
    """`failure`: org, dag, job, task, attempt, fault and because; other fields are ignored."""
    control.metrics.failed_for_good.labels(failure["dag"], failure["job"], failure["fault"]).inc()
    fields = {name: failure[name] for name in FIELDS}
    log.error("task failed for good", **fields | {"org": str(fields["org"]), "task": str(fields["task"])})
