"""What people ask of Trace: every call of the user API with who may make it, what is sent and what is answered.

One table, `CALLS`, read by three: the Dispatcher, or the door that a call names, answers it at `/internal/v1`, the
Gateway shows it to the world at `/v1`, and the command line calls it. It is decided where it is answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelake.errors import NotFound
from tracelake.wire.alert_calls import ALERT_CALLS
from tracelake.wire.call import ROLES, Call, Role
from tracelake.wire.user_messages import (
    MAX_BUNDLE_BODY,
    ActivateAnswer,
    ActivateRequest,
    BundleAnswer,
    BundleList,
    BundleRequest,
    BundlesQuery,
    CancelAnswer,
    CancelRequest,
    DagDetail,
    DagList,
    DatasetDetail,
    DatasetFiles,
    DatasetList,
    DeadBatchList,
    DeadBatchQuery,
    DeployAnswer,
    DeployRequest,
    Explanation,
    FailedTasks,
    InvalidateAnswer,
    InvalidateRequest,
    LogsQuery,
    OutboxList,
    OutboxQuery,
    OutboxRetryAnswer,
    OutboxRetryRequest,
    PauseAnswer,
    ReplayAnswer,
    ReplayRequest,
    RetryAnswer,
    TaskDetail,
    TaskLines,
    TaskList,
    TasksQuery,
    TriggerAnswer,
    TriggerRequest,
    VersionList,
    WhyQuery,
)

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
            "Let a paused source go on, as the same run",
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
        Call("task_logs", "GET", "/tasks/{task}/logs", "reader", "What a task has said", TaskLines, query=LogsQuery),
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
            "A dataset by name or uuid: generations, ranges in force, last commits",
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
            "Say that a range no longer holds: its readers do it again",
            InvalidateAnswer,
            body=InvalidateRequest,
        ),
        Call(
            "list_outbox",
            "GET",
            "/outbox",
            "admin",
            "Promises that are owed or were given up, the newest first",
            OutboxList,
            query=OutboxQuery,
        ),
        Call(
            "retry_outbox",
            "POST",
            "/outbox/retry",
            "admin",
            "Try promises again that were given up",
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
            "Try a dead batch again, as it lies or repaired",
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
            "Say that a zip of user code is to come; the same content again is the same bundle",
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
            "Check what was uploaded: Ready, or Refused with the reason; asked again, the same answer",
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
        Call(
            "show_bundle",
            "GET",
            "/udf/bundles/{bundle}",
            "reader",
            "A bundle, and what a handler may name in it",
            BundleAnswer,
        ),
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
"""What can stand in a path. Anything else names nothing, and is never carried further."""


def named(path: Mapping[str, str]) -> dict[str, str]:
    """The parts of a path, or NotFound if one of them cannot be the name of anything."""
    for part, value in path.items():
        if not any(pattern.fullmatch(value) for pattern in PARTS[part]):
            raise NotFound(f"there is no {part} {value[:80]!r}", where=f"{part} in the path")
    return dict(path)
