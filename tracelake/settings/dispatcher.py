"""Settings of the Dispatcher and its loops."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, SecretStr

from tracelake.domain.access.seal import read_keys
from tracelake.settings.base import Group, setting
from tracelake.settings.secrets.references import is_reference


def _readable(given: SecretStr) -> SecretStr:
    if not is_reference(given):
        read_keys(given.get_secret_value())
    return given


SecretKeys = Annotated[SecretStr, AfterValidator(_readable)]


class DispatcherSettings(Group):
    """The control plane's two listeners."""

    host: str = setting("127.0.0.1", "The address that both listeners bind to.")
    task_port: int = setting(0, "Port of the task API, /v1/task/*; 0 takes a free one.", unit="port", ge=0, le=65535)
    internal_port: int = setting(
        0, "Port of the internal API, /internal/*; 0 takes a free one.", unit="port", ge=0, le=65535
    )
    secret_keys: SecretKeys | None = setting(
        None,
        "Encrypts the secrets that organisations store: 32 random bytes in base64. Several are separated by blanks: the"
        " first encrypts, all decrypt. Unset: with `trace up`, keys/secrets.key in the home.",
        unit="base64",
    )
    beat_seconds: float = setting(
        5.0,
        "A loop that is not signalled runs after so long: work that a dead replica left waits no longer.",
        unit="s",
        gt=0,
        le=3600,
    )
    replaced_kept_days: int = setting(
        30,
        "How long the files of a replaced partition stay, for readers that pinned an earlier commit; 0: for ever.",
        unit="days",
        ge=0,
        le=36500,
    )
    functions: int = setting(
        16,
        "Functions (`runtime: lambda`) that a replica has called and waits for, at most; fewer if the runner has"
        " fewer places.",
        unit="count",
        ge=1,
    )
    failure_alert: str = setting(
        "task_failed",
        "The alert that a task raises which has failed for good, in each organisation that defines one of this name.",
        pattern=r"^[a-z][a-z0-9_]{0,127}$",
    )
    max_workers_lost: int = setting(
        10,
        "So many workers may be lost while they run a task and nothing else; then the task is taken for the cause, and"
        " has failed for good.",
        unit="count",
        ge=1,
        le=10000,
    )
    query_audit_kept_days: int = setting(
        365, "How long the audit rows of queries are kept; 0: for ever.", unit="days", ge=0, le=36500
    )
    logs_kept_days: int = setting(14, "How long the logs of tasks are kept; 0: for ever.", unit="days", ge=0)
    slots_kept_days: int = setting(
        90, "How long the slots of cron sources are kept, for people to read.", unit="days", ge=1, le=36500
    )
    deliveries_kept_days: int = setting(
        30,
        "How long the bodies of deliveries to webhook sources are kept. What identifies a delivery is kept longer: for"
        " ever where the scheme signs no time.",
        unit="days",
        ge=1,
        le=36500,
    )
    outbox_kept_days: int = setting(
        7,
        "How long published entries stay in the outbox, for people to read; 0: for ever.",
        unit="days",
        ge=0,
        le=3650,
    )


class FlowSettings(Group):
    """How tasks share what runs them, and how queues that are too long pause the jobs upstream of them."""

    pressure_seconds: float = setting(
        1.0,
        "How often queues are compared with `max_queue_depth` and `max_queue_age`, where a job has one.",
        unit="s",
        gt=0,
        le=60,
    )
    release_queue_depth: int = setting(
        1000,
        "What waited for a paused job becomes tasks while fewer than this are queued for the job.",
        unit="tasks",
        ge=1,
        le=1000000,
    )
    normal_share: int = setting(
        20,
        "While tasks of both priorities wait, so many of `normal` are taken for each one of `bulk`.",
        unit="tasks",
        ge=1,
        le=1000,
    )
    reserved_slots: int = setting(
        1,
        "So many slots of every worker, places for functions, and slots for tasks' queries are never taken by tasks of"
        " `bulk` priority; but `bulk` may always have one.",
        unit="count",
        ge=0,
        le=512,
    )
    rpc_lease_seconds: float = setting(
        10.0,
        "How long a worker may use its share of the limits of `rpc_pools` without an answer of the Dispatcher; so long"
        " others wait for the share of one that has died.",
        unit="s",
        ge=1,
        le=300,
    )


class LoopSettings(Group):
    """The Dispatcher's background loops."""

    reconcile_seconds: float = setting(
        60.0, "How often commits are compared with the tasks that must follow from them.", unit="s", gt=0
    )
    reconcile_slice_seconds: float = setting(
        3600.0, "How much of the past is compared in one pass; all of it is covered in time.", unit="s", gt=0
    )
    reconcile_grace_seconds: float = setting(
        60.0, "What is younger than this is still being processed, and left alone.", unit="s", ge=0
    )
    catch_up_seconds: float = setting(
        21600.0, "How often every input of a job is compared in full with what the job has processed.", unit="s", gt=0
    )
    catch_up_queued: int = setting(
        10000,
        "No tasks are created to catch up while a job has so many queued, so that new updates do not wait behind them.",
        unit="count",
        ge=1,
    )
    metered_tasks: int = setting(
        16,
        "Tasks of a backfill with a budget of requests or bytes that are open at once, at most; fewer where its budget"
        " is nearly used up.",
        unit="count",
        ge=1,
        le=10000,
    )
    lost_wake_up_seconds: float = setting(
        300.0,
        "A wake-up that no worker has claimed for so long, and whose message is gone, is sent again; so is a batch.",
        unit="s",
    )
