"""A task that has failed for good is said loudly: counted by job, and logged as an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from tracelake.dispatcher.control import Control

log = structlog.get_logger()

SAID = ("org", "dag", "job", "task", "attempt", "fault", "because")


def report_final_failure(control: Control, failure: Mapping[str, Any]) -> None:
    """`failure`: org, dag, job, task, attempt, fault and because; what else it holds is left out."""
    control.metrics.failed_for_good.labels(failure["dag"], failure["job"], failure["fault"]).inc()
    said = {name: failure[name] for name in SAID}
    log.error("task failed for good", **said | {"org": str(said["org"]), "task": str(said["task"])})
