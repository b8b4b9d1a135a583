"""Every call of the user API, with the role that it needs and the types of request and answer.

One table, `CALLS`, used by three: the Dispatcher, or the service that a call names, answers it at `/internal/v1`, the
Gateway publishes it at `/v1`, and the command line calls it. The service that answers checks the rights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelake.domain.access.subjects import ROLES, Role
from tracelake.errors import NotFound
from tracelake.wire.calls.alert_calls import ALERT_CALLS
from tracelake.wire.calls.call import LARGE_DAG_SECONDS, Call
from tracelake.wire.calls.identity_calls import IDENTITY_CALLS
from tracelake.wire.calls.release_calls import RELEASE_CALLS
from tracelake.wire.calls.run_calls import RUN_CALLS
from tracelake.wire.user.bundles import MAX_BUNDLE_BODY, BundleAnswer, BundleList, BundleRequest, BundlesQuery
from tracelake.wire.user.dags import (
    ActivateAnswer,
    ActivateRequest,
    DagDetail,
    DagList,
    DeactivateAnswer,
    DeleteDagAnswer,
    DeleteDagQuery,
    DeployAnswer,
    DeployRequest,
    VersionList,
)
from tracelake.wire.user.datasets import (
    DatasetDetail,
    DatasetFiles,
    DatasetList,
    DeadBatchList,
    DeadBatchQuery,
    DropAnswer,
    InvalidateAnswer,
    InvalidateRequest,
    ReplayAnswer,
    ReplayRequest,
)
from tracelake.wire.user.dead_messages import QUEUE_NAME
from tracelake.wire.user.diff import DiffAnswer, DiffQuery
from tracelake.wire.user.fields import OWN_ORG
from tracelake.wire.user.ledger import LedgerPage, LedgerQuery, VerifyPage, VerifyQuery
from tracelake.wire.user.outbox import OutboxList, OutboxQuery, OutboxRetryAnswer, OutboxRetryRequest
from tracelake.wire.user.tasks import (
    CancelAnswer,
    CancelManyRequest,
    CancelRequest,
    FailedTasks,
    LogsQuery,
    ManyTasksAnswer,
    ManyTasksRequest,
    RetryAnswer,
    TaskDetail,
    TaskLines,
    TaskList,
    TasksQuery,
)
from tracelake.wire.user.usage import Usage, UsageQuery
from tracelake.wire.user.why import Explanation, WhyQuery

__all__ = ["CALLS", "MAX_BATCH_BODY", "PARTS", "ROLES", "USER", "Call", "Role", "named"]

USER = "x-trace-user"
"""The header in which the Gateway names the user, by the subject of the token it verified."""

MAX_BATCH_BODY = 24 * 1024 * 1024
"""A repaired batch of 16 MiB, in base64."""


VERIFY_SECONDS = 900.0
"""A page ends after some seconds, but never within a commit, whose files may be large."""

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
            adds_files=True,
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
            "deactivate",
            "DELETE",
            "/dags/{dag}/active",
            "writer",
            "Make no version active: tasks end, sources drain, names are released",
            DeactivateAnswer,
            seconds=LARGE_DAG_SECONDS,
        ),
        Call(
            "delete_dag",
            "DELETE",
            "/dags/{dag}",
            "admin",
            "Delete a DAG that is not active: its versions, and the files of its datasets",
            DeleteDagAnswer,
            query=DeleteDagQuery,
            seconds=LARGE_DAG_SECONDS,
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
        Call(
            "cancel_tasks",
            "POST",
            "/tasks/cancel",
            "writer",
            "End tasks of a DAG, of a job or in a state, some thousand with each call; or count them",
            ManyTasksAnswer,
            body=CancelManyRequest,
        ),
        Call(
            "retry_tasks",
            "POST",
            "/tasks/retry",
            "writer",
            "One more attempt of tasks of a DAG or job that failed for good; or count them",
            ManyTasksAnswer,
            body=ManyTasksRequest,
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
            "drop_dataset",
            "DELETE",
            "/datasets/{dataset}",
            "admin",
            "Remove the rows and files of a dataset that nothing produces or reads",
            DropAnswer,
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
            "list_ledger",
            "GET",
            "/datasets/{dataset}/ledger",
            "reader",
            "The commits of a dataset in their order, with the hashes that link them",
            LedgerPage,
            query=LedgerQuery,
        ),
        Call(
            "verify_dataset",
            "GET",
            "/datasets/{dataset}/verify",
            "writer",
            "Recompute the hashes of a page of commits, and read their files",
            VerifyPage,
            query=VerifyQuery,
            seconds=VERIFY_SECONDS,
            service="query",
        ),
        Call(
            "diff_dataset",
            "GET",
            "/datasets/{dataset}/diff",
            "reader",
            "The differences between a dataset at two commits, or in two generations",
            DiffAnswer,
            query=DiffQuery,
            seconds=VERIFY_SECONDS,
            service="query",
        ),
        Call(
            "invalidate",
            "POST",
            "/datasets/{dataset}/invalidate",
            "admin",
            "Invalidate a range or a partition: the jobs that read it run again",
            InvalidateAnswer,
            body=InvalidateRequest,
        ),
        Call(
            "show_usage",
            "GET",
            "/usage",
            "admin",
            "Sizes of tables and generations, and what retention would delete",
            Usage,
            query=UsageQuery,
            seconds=LARGE_DAG_SECONDS,
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
            adds_files=True,
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
            adds_files=True,
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
        *RELEASE_CALLS,
        *RUN_CALLS,
        *ALERT_CALLS,
        *IDENTITY_CALLS,
    )
}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
PARTS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "dag": (_NAME,),
    "job": (_NAME,),
    "request": (_UUID,),
    "task": (_UUID,),
    "dataset": (_NAME, _UUID),
    "queue": (re.compile(QUEUE_NAME),),
    "publish": (_UUID,),
    "bundle": (_UUID,),
    "backfill": (_UUID,),
    "release": (_UUID,),
    "alert": (_NAME,),
    "channel": (_NAME,),
    "delivery": (_UUID,),
    "user": (_UUID,),
    "role": (_NAME,),
    "org": (_NAME, re.compile(OWN_ORG)),
    "token": (_NAME,),
    "service_token": (_UUID,),
    "kind": (re.compile("job|webhook"),),
    "secret": (re.compile(r"(?=.{1,64}\Z)[a-z][a-z0-9]*(_[a-z0-9]+)*"),),
}
"""What a path parameter may be. Anything else is not found, and is never forwarded."""


def named(path: Mapping[str, str]) -> dict[str, str]:
    """The parts of a path, or NotFound if one of them cannot be the name of anything."""
    for part, value in path.items():
        if not any(pattern.fullmatch(value) for pattern in PARTS[part]):
            raise NotFound(f"there is no {part} {value[:80]!r}", where=f"{part} in the path")
    return dict(path)
