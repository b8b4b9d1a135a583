"""Every call of the user API, with the role that it needs and the types of request and answer.

One table, `CALLS`, used by three: the Dispatcher, or the service that a call names, answers it at `/internal/v1`, the
Gateway publishes it at `/v1`, and the command line calls it. The service that answers checks the rights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelake.errors import NotFound
from tracelake.wire.alert_calls import ALERT_CALLS
from tracelake.wire.call import ROLES, Call, Role
from tracelake.wire.user_bundles import MAX_BUNDLE_BODY, BundleAnswer, BundleList, BundleRequest, BundlesQuery
from tracelake.wire.user_dags import (
    ActivateAnswer,
    ActivateRequest,
    DagDetail,
    DagList,
    DeployAnswer,
    DeployRequest,
    PauseAnswer,
    TriggerAnswer,
    TriggerRequest,
    VersionList,
)
from tracelake.wire.user_datasets import (
    DatasetDetail,
    DatasetFiles,
    DatasetList,
    DeadBatchList,
    DeadBatchQuery,
    InvalidateAnswer,
    InvalidateRequest,
    ReplayAnswer,
    ReplayRequest,
)
from tracelake.wire.user_outbox import OutboxList, OutboxQuery, OutboxRetryAnswer, OutboxRetryRequest
from tracelake.wire.user_tasks import (
    CancelAnswer,
    CancelRequest,
    FailedTasks,
    LogsQuery,
    RetryAnswer,
    TaskDetail,
    TaskLines,
    TaskList,
    TasksQuery,
)
from tracelake.wire.user_why import Explanation, WhyQuery

__all__ = ["CALLS", "MAX_BATCH_BODY", "PARTS", "ROLES", "USER", "Call", "Role", "named"]

USER = "x-trace-user"
"""The header in which the Gateway names the user, by the subject of the token it verified."""

MAX_BATCH_BODY = 24 * 1024 * 1024
"""A repaired batch of 16 MiB, in base64."""

LARGE_DAG_SECONDS = 300.0
"""Hundreds of jobs are checked and stored job by job."""

CALLS: Mapping[str, Call] = {
    call.name: call
    for call in (
        Call("list_dags", "GET", "/dags", "reader", "Every DAG, and which version of it is active", DagList),
        Call("show_dag", "GET", "/dags/{dag}", "reader", "A DAG: versions, jobs, YAML", DagDetail),
        Call("list_versions", "GET", "/dags/{dag}/versions", "reader", "Its versions, the newest first", VersionList),
        Call(
            "deploy",
            "POST",
            "/dags/{dag}/versions",
            "writer",
            "Deploy a version; the same meaning again is the same version",
            DeployAnswer,
            body=DeployRequest,
            takes_yaml=True,
            seconds=LARGE_DAG_SECONDS,
        ),
        Call(
            "activate",
            "PUT",
            "/dags/{dag}/active",
            "writer",
            "Make a deployed version the active one",
            ActivateAnswer,
            body=ActivateRequest,
            seconds=LARGE_DAG_SECONDS,
        ),
        Call(
            "trigger",
            "POST",
            "/dags/{dag}/jobs/{job}/trigger",
            "writer",
            "Start a manual source: a cursor, one partition, or a range",
            TriggerAnswer,
            body=TriggerRequest,
            optional_body=True,
        ),
        Call(
            "pause_source",
            "POST",
            "/dags/{dag}/jobs/{job}/pause",
            "writer",
            "Stop an always-on source and keep it stopped, also over deploys",
            PauseAnswer,
        ),
        Call(
            "resume_source",
            "POST",
            "/dags/{dag}/jobs/{job}/resume",
            "writer",
            "Resume a paused source, as the same run",
            PauseAnswer,
        ),
        Call("list_tasks", "GET", "/tasks", "reader", "Tasks, the newest first", TaskList, query=TasksQuery),
        Call(
            "failed_tasks",
            "GET",
            "/failed-tasks",
            "reader",
            "Tasks that have failed for good within a day: how many, and the newest",
            FailedTasks,
        ),
        Call(
            "show_task",
            "GET",
            "/tasks/{task}",
            "reader",
            "A task: its cause, attempts, what it read and what it committed",
            TaskDetail,
        ),
        Call("task_logs", "GET", "/tasks/{task}/logs", "reader", "The log lines of a task", TaskLines, query=LogsQuery),
        Call("retry_task", "POST", "/tasks/{task}/retry", "writer", "One more attempt of a failed task", RetryAnswer),
        Call(
            "cancel_task",
            "POST",
            "/tasks/{task}/cancel",
            "writer",
            "End a task that has not ended",
            CancelAnswer,
            body=CancelRequest,
        ),
        Call("list_datasets", "GET", "/datasets", "reader", "Every dataset and its last commit", DatasetList),
        Call(
            "show_dataset",
            "GET",
            "/datasets/{dataset}",
            "reader",
            "A dataset by name or uuid: generations, current ranges, last commits",
            DatasetDetail,
        ),
        Call(
            "list_dataset_files",
            "GET",
            "/datasets/{dataset}/files",
            "reader",
            "The files that hold a dataset now, by partition",
            DatasetFiles,
        ),
        Call(
            "invalidate",
            "POST",
            "/datasets/{dataset}/invalidate",
            "admin",
            "Invalidate a range: the jobs that read it run again",
            InvalidateAnswer,
            body=InvalidateRequest,
        ),
        Call(
            "list_outbox",
            "GET",
            "/outbox",
            "admin",
            "Outbox entries that are pending or were given up, the newest first",
            OutboxList,
            query=OutboxQuery,
        ),
        Call(
            "retry_outbox",
            "POST",
            "/outbox/retry",
            "admin",
            "Retry outbox entries that were given up",
            OutboxRetryAnswer,
            body=OutboxRetryRequest,
            optional_body=True,
        ),
        Call(
            "list_dead_batches",
            "GET",
            "/sink/dead",
            "writer",
            "Batches that the sink refused, with line and reason, the newest first",
            DeadBatchList,
            query=DeadBatchQuery,
        ),
        Call(
            "replay_batch",
            "POST",
            "/sink/dead/{publish}/replay",
            "writer",
            "Retry a dead batch, unchanged or repaired",
            ReplayAnswer,
            body=ReplayRequest,
            optional_body=True,
            most_bytes=MAX_BATCH_BODY,
        ),
        Call(
            "announce_bundle",
            "POST",
            "/udf/bundles",
            "writer",
            "Announce the upload of a zip of user code; the same content again is the same bundle",
            BundleAnswer,
            body=BundleRequest,
        ),
        Call(
            "upload_bundle",
            "PUT",
            "/udf/bundles/{bundle}/content",
            "writer",
            "Send the bytes of an announced zip",
            BundleAnswer,
            takes_bytes="application/octet-stream",
            most_bytes=MAX_BUNDLE_BODY,
        ),
        Call(
            "finalize_bundle",
            "POST",
            "/udf/bundles/{bundle}/finalize",
            "writer",
            "Check what was uploaded: Ready, or Refused with the reason. Idempotent",
            BundleAnswer,
        ),
        Call(
            "list_bundles",
            "GET",
            "/udf/bundles",
            "reader",
            "Bundles of user code, the newest first",
            BundleList,
            query=BundlesQuery,
        ),
        Call("show_bundle", "GET", "/udf/bundles/{bundle}", "reader", "A bundle, and its entry points", BundleAnswer),
        Call(
            "why",
            "GET",
            "/why",
            "reader",
            "Why a task or a partition is as it is: event, rule, task, attempts, commit",
            Explanation,
            query=WhyQuery,
        ),
        *ALERT_CALLS,
    )
}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
PARTS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "dag": (_NAME,),
    "job": (_NAME,),
    "task": (_UUID,),
    "dataset": (_NAME, _UUID),
    "publish": (_UUID,),
    "bundle": (_UUID,),
    "alert": (_NAME,),
    "channel": (_NAME,),
    "delivery": (_UUID,),
}
"""What a path parameter may be. Anything else is not found, and is never forwarded."""


def named(path: Mapping[str, str]) -> dict[str, str]:
    """The parts of a path, or NotFound if one of them cannot be the name of anything."""
    for part, value in path.items():
        if not any(pattern.fullmatch(value) for pattern in PARTS[part]):
            raise NotFound(f"there is no {part} {value[:80]!r}", where=f"{part} in the path")
    return dict(path)
