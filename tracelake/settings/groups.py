"""The settings by group: what each is for, in which unit, and what it may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator


def setting(default: Any, why: str, *, unit: str | None = None, **limits: Any) -> Any:
    return Field(default=default, description=why, json_schema_extra={"unit": unit} if unit else None, **limits)


def _dsn(why: str) -> Any:
    return setting(None, why, unit="postgresql:// URL")


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class StateSettings(Group):
    """The control plane's database. Only the Dispatcher has it."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one; it must own the database it names.")
    pool_max: int = setting(
        8, "Connections a Dispatcher keeps; two cores saturate at about 8.", unit="count", ge=1, le=200
    )
    acquire_seconds: float = setting(
        10.0, "How long a call waits for a free connection; then it is refused with a 503.", unit="s", gt=0, le=300
    )
    stuck_seconds: float = setting(
        60.0,
        "A Dispatcher whose connections are all held for so long without a statement, though Postgres answers, ends "
        "itself to be restarted.",
        unit="s",
        ge=1,
    )


class DataSettings(Group):
    """The data plane's database: hot tables and buffered datasets."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one, with the right to write.")
    query_dsn: SecretStr | None = _dsn("The same database through a role that can only read, for the Query service.")
    delivery_dsn: SecretStr | None = _dsn("The same database through a role that sees deliveries alone, to send them.")


class QueueSettings(Group):
    """The Lite queue's database."""

    dsn: SecretStr | None = _dsn("A queue database of yours in place of the embedded one.")


class PostgresSettings(Group):
    """The embedded servers."""

    os_user: str = setting("nobody", "Who the servers run as when Trace is started by root; Postgres refuses root.")
    shared_buffers: str = setting(
        "256MB", "Memory for pages, for each of the two servers.", unit="Postgres size", pattern=r"^\d+(kB|MB|GB)$"
    )
    start_seconds: float = setting(
        60.0, "How long a server may take to answer; a long crash replay needs more.", unit="s", gt=0
    )


class TlsSettings(Group):
    """Certificate, key and CA of the listeners. Lite makes its own in the home folder."""

    ca: Path | None = setting(None, "The CA that this process trusts when it calls another door.", unit="PEM file")
    cert: Path | None = setting(None, "The certificate this process shows.", unit="PEM file")
    key: Path | None = setting(None, "The key of that certificate.", unit="PEM file")


class DispatcherSettings(Group):
    """The control plane's two listeners."""

    host: str = setting("127.0.0.1", "The address both doors listen on.")
    task_port: int = setting(0, "Port of the task door, /v1/task/*; 0 takes a free one.", unit="port", ge=0, le=65535)
    internal_port: int = setting(
        0, "Port of the internal door, /internal/*; 0 takes a free one.", unit="port", ge=0, le=65535
    )
    beat_seconds: float = setting(
        5.0,
        "A loop that nobody wakes looks again after so long: what a dead replica left behind waits no longer.",
        unit="s",
        gt=0,
        le=3600,
    )
    replaced_kept_days: int = setting(
        30,
        "How long the files of a replaced partition stay, for readers that pinned an earlier commit; then they go.",
        unit="days",
        ge=1,
        le=36500,
    )
    functions: int = setting(
        16,
        "Functions (`runtime: lambda`) that a replica has called and waits for, at most; fewer if the runner says that"
        " it has fewer places.",
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
        365, "How long the audit rows of queries are kept; then they are deleted.", unit="days", ge=1, le=36500
    )
    logs_kept_days: int = setting(14, "How long what tasks have said is kept.", unit="days", ge=1)
    outbox_kept_days: int = setting(
        7, "How long kept promises stay in the outbox, to be read by people; then they go.", unit="days", ge=1, le=3650
    )


class QuerySettings(Group):
    """The Query service: its two listeners, its Spark, and how much a question may have."""

    host: str = setting("127.0.0.1", "The address both doors listen on.")
    task_port: int = setting(
        0, "Port of the task door, /v1/task/query; 0 takes a free one.", unit="port", ge=0, le=65535
    )
    internal_port: int = setting(
        0, "Port of the internal door, /v1/query; 0 takes a free one.", unit="port", ge=0, le=65535
    )
    driver_memory: str = setting(
        "512m",
        "Heap of its Spark; results and small joins fit, large ones spill.",
        unit="JVM size",
        pattern=r"^\d+[mg]$",
    )
    warm_after_seconds: float = setting(
        30.0,
        "Its Spark starts so long after the process, or with the first question: not while the system starts.",
        unit="s",
        ge=0,
    )
    concurrency: int = setting(4, "Questions that run at once; Spark shares its cores.", unit="count", ge=1, le=64)
    user_slots: int = setting(
        1,
        "How many of those are kept for users' queries: tasks never take them, but for the last one there is.",
        unit="count",
        ge=0,
        le=63,
    )
    waiting: int = setting(
        32,
        "Queries of users that may wait for their turn, and as many of tasks; one more is refused as busy.",
        unit="count",
        ge=0,
        le=10_000,
    )
    wait_seconds: float = setting(30.0, "How long one waits before it is refused as busy.", unit="s", gt=0, le=600)
    timeout_seconds: float = setting(60.0, "The longest a question may run; then it is ended.", unit="s", gt=0, le=3600)
    stuck_seconds: float = setting(
        1.5,
        "A query that no interrupt ends takes Spark with it so long after its time is over, and later where Spark does"
        " not get the cores that it wants; those beside it are run once more.",
        unit="s",
        gt=0,
    )
    export_timeout_seconds: float = setting(
        600.0, "The same for one whose rows are exported.", unit="s", gt=0, le=86400
    )
    max_rows: int = setting(100_000, "Rows of one answer; more are exported.", unit="count", ge=1, le=10_000_000)
    max_bytes: int = setting(
        64 * 1024 * 1024, "Size of one answer's rows; what is larger is exported.", unit="bytes", ge=1024, le=2**31
    )
    max_value_bytes: int = setting(
        4 * 1024 * 1024,
        "Size of one value that a query may make, as far as its text tells; one that may make a larger is refused.",
        unit="bytes",
        ge=1024,
        le=2**30,
    )
    export_prefix: str = setting(
        "s3://trace/exports/",
        "Where users' exports go, below it in a folder of their organisation.",
        unit="s3:// folder",
        pattern=r"^s3://.+/$",
    )
    sessions: int = setting(
        16,
        "Prepared sessions that are kept, about 2 MB each. One serves one grant, and is thrown away with it.",
        unit="count",
        ge=1,
        le=1000,
    )


class GatewaySettings(Group):
    """The only public door."""

    host: str = setting("127.0.0.1", "The address it listens on; loopback until you mean to open it.")
    port: int = setting(0, "Its port; 0 takes a free one.", unit="port", ge=0, le=65535)


class EndpointSettings(Group):
    """Where the other processes' doors are. `trace up` fills these in."""

    dispatcher_task: str | None = setting(None, "The Dispatcher's task door.", unit="https:// URL")
    dispatcher_internal: str | None = setting(None, "The Dispatcher's internal door.", unit="https:// URL")
    query_task: str | None = setting(None, "The Query service's task door.", unit="https:// URL")
    query_internal: str | None = setting(None, "The Query service's internal door.", unit="https:// URL")
    delivery_internal: str | None = setting(None, "The delivery process's internal door.", unit="https:// URL")


class IdentitySettings(Group):
    """Who a process is, and whom the Gateway believes."""

    worker_token: SecretStr | None = setting(None, "What a trusted process shows at the internal listeners.")
    user_issuer: str = setting("trace-local", "The `iss` that a user's token must carry.")
    user_audience: str = setting("trace", "The `aud` that a user's token must carry.")
    user_public_key: str | None = setting(
        None, "The local issuer's public key; `trace up` fills it in.", unit="PEM text"
    )
    user_token_max_days: int = setting(
        366, "A user's token that holds for longer is refused, whoever signed it.", unit="days", ge=1, le=3660
    )
    user_jwks_url: str | None = setting(
        None,
        "Where an OIDC issuer publishes its keys (`jwks_uri`); set, it takes the place of the local issuer's key.",
        unit="https:// URL",
        pattern=r"^https://",
    )


class ClientSettings(Group):
    """Which system the verbs of the command line speak to. Unset, or with `--home`: the one in the home folder."""

    gateway_url: str | None = setting(None, "The Gateway of that system.", unit="https:// URL", pattern=r"^https://")
    ca: Path | None = setting(
        None, "The CA of the Gateway's certificate; unset: those this machine trusts.", unit="PEM file"
    )
    token: SecretStr | None = setting(None, "Your token, from your identity provider or from `trace token`.")


class TokenSettings(Group):
    """Capability tokens of tasks: the keys that sign them, and how verifiers keep up with the keys."""

    issuer: str = setting(
        "trace-dispatcher", "The `iss` of every capability; a token of another deployment is refused by it."
    )
    key_folder: Path | None = setting(
        None,
        "Private keys, one PEM file each; unset: keys/task in the home. All Dispatchers must see the same folder.",
        unit="folder",
    )
    rotation_days: int = setting(
        30, "A key that has signed for so long is replaced by a new one.", unit="days", ge=1, le=3650
    )
    overlap_seconds: float = setting(
        300.0, "How long a new key is published before it signs; every verifier must get to see it.", unit="s", ge=2
    )
    max_life_seconds: int = setting(
        86400, "The longest life of a token; a longer task renews it by its heartbeats.", unit="s", ge=600, le=86400
    )
    refresh_floor_seconds: float = setting(
        5.0, "A verifier fetches the keys at most this often, whatever key ids it is shown.", unit="s", ge=1, le=60
    )
    remembered: int = setting(
        20_000, "Verified tokens that a process remembers, about 2 kB each; 0 verifies each time.", unit="count", ge=0
    )

    @model_validator(mode="after")
    def _overlap_outlasts_caches(self) -> Self:
        if self.overlap_seconds < 2 * self.refresh_floor_seconds:
            raise ValueError("overlap_seconds must be at least twice refresh_floor_seconds")
        return self


class LoopSettings(Group):
    """What the Dispatcher does without being asked."""

    reconcile_seconds: float = setting(
        60.0, "How often what was committed is compared with the tasks that must follow from it.", unit="s", gt=0
    )
    reconcile_slice_seconds: float = setting(
        3600.0, "How much of the past is compared in one beat; all of it comes round in time.", unit="s", gt=0
    )
    reconcile_grace_seconds: float = setting(
        60.0, "What is younger than this is still on its usual way, and left alone.", unit="s", ge=0
    )
    lost_wake_up_seconds: float = setting(
        300.0,
        "A woken task that nobody has claimed for so long, and whose message is gone, is woken again; so is a batch.",
        unit="s",
    )


class WorkerSettings(Group):
    """The worker: which tasks it takes, and how many at once."""

    runtime: str = setting("ecs_platform", "The runtime whose wake-ups it waits for.", pattern=r"^[a-z][a-z0-9_]*$")
    concurrency: int = setting(
        8, "Tasks in hand at once; Spark shares its cores among them. Sources do not count.", unit="count", ge=1, le=512
    )
    files_folder: Path | None = setting(
        None, "Where the files lie that jobs may read (`read_files`); unset: they may read none.", unit="folder"
    )


class SinkSettings(Group):
    """The sink: how much it takes at once, and what it refuses."""

    batch_bytes: int = setting(
        16 * 1024 * 1024, "A larger batch is refused: a producer cuts its rows into several.", unit="bytes", ge=1024
    )
    line_bytes: int = setting(
        1024 * 1024, "A longer line of JSON is refused: a row is no document.", unit="bytes", ge=1024
    )
    unpacked_bytes: int = setting(
        256 * 1024 * 1024,
        "A Parquet or Arrow batch that unpacks to more is refused, before it does: a small file may hold terabytes.",
        unit="bytes",
        ge=1024 * 1024,
        le=1024 * 1024 * 1024,
    )
    messages: int = setting(
        32, "Batches taken from the queue at once, and read in one Spark job.", ge=1, le=500, unit="count"
    )
    tasks: int = setting(
        4, "Spark tasks that read one group; about twice the cores that Spark has.", unit="count", ge=1, le=500
    )
    groups: int = setting(
        2, "Groups of batches in hand at once: while one is merged, the next is read.", unit="count", ge=1, le=16
    )
    max_crashes: int = setting(
        5,
        "So many sinks in turn may die while they read a batch; then it is set aside as dead, and waits for a person.",
        unit="count",
        ge=2,
        le=1000,
    )
    driver_memory: str = setting(
        "512m", "Heap of the process that drives its Spark; rows pass by it.", unit="JVM size", pattern=r"^\d+[mg]$"
    )
    applied_kept_days: int = setting(
        30,
        "How long the note that a batch was applied stays at least; then it goes, if the batch is settled.",
        unit="days",
        ge=1,
        le=36500,
    )
    batches_kept_seconds: int = setting(
        3600, "How long a batch stays in the object store after its rows are committed; dead ones stay.", unit="s", ge=0
    )


class SparkSettings(Group):
    """Where rows move."""

    master: str = setting("local[*]", "The Spark master; `local[*]` is this machine, all cores.")
    remote: str | None = setting(
        None, "A Spark Connect server in place of a master.", unit="sc:// URL", pattern=r"^sc://"
    )
    remote_token: SecretStr | None = setting(None, "What the Spark Connect server asks its callers for.")
    python: Path | None = setting(
        None,
        "The Python of a cluster's executors, by its path there, with the packages Trace needs; ours is sent to them.",
        unit="file",
    )
    driver_memory: str = setting("1g", "Heap of the process that drives Spark.", unit="JVM size", pattern=r"^\d+[mg]$")
    shuffle_partitions: int = setting(4, "Partitions after a shuffle; about twice the cores.", unit="count", ge=1)
    quick_compiler: bool = setting(
        default=False,
        why="Java compiles quickly and no better, for short runs: what moves many rows takes twice as long or more.",
    )

    @field_validator("remote")
    @classmethod
    def _keeps_no_token(cls, remote: str | None) -> str | None:
        if remote and ("token=" in remote.lower() or "@" in remote):
            raise ValueError("an address is shown to people: a token goes into spark.remote_token")
        return remote

    @property
    def remote_url(self) -> str | None:
        """With the token, as Spark wants it."""
        if self.remote is None or self.remote_token is None:
            return self.remote
        slash = "" if "/" in self.remote.removeprefix("sc://") else "/"
        return f"{self.remote}{slash};token={self.remote_token.get_secret_value()}"


class UpSettings(Group):
    """`trace up`: how the supervisor starts, watches and restarts."""

    port_base: int = setting(
        7400, "The first of the ports that the doors and servers take; 0 takes free ones.", unit="port", ge=0, le=65500
    )
    backoff_seconds: float = setting(
        0.5, "Wait before the first restart of a crashed process; it doubles.", unit="s", gt=0
    )
    backoff_max_seconds: float = setting(30.0, "The longest wait between restarts.", unit="s", gt=0)
    steady_seconds: float = setting(
        60.0, "A process that ran this long is forgiven its earlier crashes.", unit="s", gt=0
    )
    start_seconds: float = setting(
        120.0, "How long a process may take to be ready before it is restarted.", unit="s", gt=0
    )
    watchdog_seconds: float = setting(
        30.0, "A process silent for so long hangs, and is restarted; it speaks three times as often.", unit="s", ge=3
    )
    stop_seconds: float = setting(20.0, "How long a process may take to end before it is killed.", unit="s", gt=0)
    log_megabytes: int = setting(
        50, "A process's log is turned over at this size; one old log is kept.", unit="MB", ge=1
    )

    @model_validator(mode="after")
    def _backoff_grows(self) -> Self:
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError("backoff_max_seconds must not be smaller than backoff_seconds")
        return self
