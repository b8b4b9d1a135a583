"""Settings of the processes that run on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from tracelake.settings.base import Group, setting


class QuerySettings(Group):
    """The Query service: its two listeners, its Spark, and the limits of a query."""

    host: str = setting("127.0.0.1", "The address that both listeners bind to.")
    task_port: int = setting(
        0, "Port of the task API, /v1/task/query; 0 takes a free one.", unit="port", ge=0, le=65535
    )
    internal_port: int = setting(
        0, "Port of the internal API, /v1/query; 0 takes a free one.", unit="port", ge=0, le=65535
    )
    driver_memory: str = setting(
        "512m",
        "Heap of its Spark; results and small joins fit, large ones spill.",
        unit="JVM size",
        pattern=r"^\d+[mg]$",
    )
    warm_after_seconds: float = setting(
        30.0,
        "Its Spark starts so long after the process, or with the first query: not while the system starts.",
        unit="s",
        ge=0,
    )
    concurrency: int = setting(4, "Queries that run at once; Spark shares its cores.", unit="count", ge=1, le=64)
    org_concurrency: int = setting(3, "How many of those may be of one organisation.", unit="count", ge=1, le=64)
    user_slots: int = setting(
        1,
        "How many of those are kept for users' queries, of all and of one organisation: tasks never take them, but for"
        " the last one there is.",
        unit="count",
        ge=0,
        le=63,
    )
    task_slots: int = setting(
        1,
        "The same for tasks' queries: users never take them. Of what tasks may take, those of `bulk` priority leave"
        " `flow.reserved_slots` to others.",
        unit="count",
        ge=0,
        le=63,
    )
    waiting: int = setting(
        32,
        "Queries of an organisation's users that may wait for their turn, as many of its tasks, and as many of its"
        " `bulk` tasks; one more is refused as busy.",
        unit="count",
        ge=0,
        le=10_000,
    )
    rights_seconds: float = setting(
        2.0,
        "How often the rights of a user are checked while a query, comparison or verification of theirs runs; it ends"
        " when one was taken away.",
        unit="s",
        gt=0,
        le=60,
    )
    engine_seconds: float = setting(
        0.0,
        "For how many seconds in a minute the queries of one organisation may run, added up; 0 is no limit. Then its"
        " next ones are refused as busy.",
        unit="s",
        ge=0,
        le=1_000_000,
    )
    wait_seconds: float = setting(30.0, "How long one waits before it is refused as busy.", unit="s", gt=0, le=600)
    timeout_seconds: float = setting(60.0, "The longest a query may run; then it is ended.", unit="s", gt=0, le=3600)
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
        "Size of one value that a query may make, as far as its text shows; one that may make a larger is refused.",
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
    engine: Literal["spark", "sail", "auto"] = setting(
        "auto",
        "What runs queries. `auto`: Sail runs those of which it is known to give the same rows, Spark the others, and"
        " all of them where there is no sandbox for Sail. `spark`: Spark runs all. `sail`: what Sail does not run is"
        " refused.",
    )
    spark_nice: int = setting(
        3,
        "By how much the priority of its Spark is lower than its own (`nice`), so that large queries do not slow those"
        " on Sail. 0 where `engine` is `spark`.",
        unit="count",
        ge=0,
        le=19,
    )
    sail_memory_mb: int = setting(
        512, "Memory of one organisation's Sail; one that takes more is ended.", unit="MiB", ge=256, le=65536
    )
    sail_cpus: float = setting(
        1.5,
        "Cores that one organisation's Sail may use, where this process may make cgroups; elsewhere its processes"
        " have a lower priority.",
        unit="cores",
        gt=0.05,
        le=256,
    )
    sail_threads: int = setting(2, "Threads of one organisation's Sail that run queries.", unit="count", ge=1, le=256)
    sail_concurrency: int = setting(
        4, "Queries of one organisation that run on Sail at once.", unit="count", ge=1, le=64
    )
    sail_processes: int = setting(
        16, "Organisations that have a Sail at once, idle ones included.", unit="count", ge=1, le=900
    )
    sail_idle_seconds: float = setting(
        300.0, "A Sail that no query used for so long is ended.", unit="s", gt=0, le=86400
    )
    sail_scan_mb: int = setting(
        256, "A query whose files are larger together runs on Spark.", unit="MiB", ge=1, le=65536
    )
    sail_hot_rows: int = setting(
        200_000,
        "Rows of a table in Postgres that are copied for a query on Sail; one that needs more runs on Spark.",
        unit="count",
        ge=0,
        le=100_000_000,
    )
    sail_hot_mb: int = setting(64, "The same in bytes.", unit="MiB", ge=1, le=65536)
    sail_files_mb: int = setting(
        512, "Room for the files that one organisation's Sail keeps for later queries.", unit="MiB", ge=0, le=1048576
    )
    sessions: int = setting(
        16,
        "Prepared sessions that are kept, about 2 MB each. One serves one grant, and is thrown away with it.",
        unit="count",
        ge=1,
        le=1000,
    )


class WorkerSettings(Group):
    """The worker: which tasks it takes, and how many at once."""

    runtime: str = setting("ecs_platform", "The runtime whose wake-ups it waits for.", pattern=r"^[a-z][a-z0-9_]*$")
    concurrency: int = setting(
        8,
        "Tasks that run at once; they share the cores of Spark. Sources do not count.",
        unit="count",
        ge=1,
        le=512,
    )
    min: int = setting(
        1,
        "Workers that `trace up` keeps running; 0: none while no job needs one (`idle_timeout`).",
        unit="count",
        ge=0,
        le=64,
    )
    max: int = setting(
        1, "Workers that `trace up` runs at most; each has a Spark of its own.", unit="count", ge=1, le=64
    )
    spare_seconds: float = setting(
        30.0, "A worker that has not been needed for so long is stopped, when its tasks are over.", unit="s", ge=0
    )
    files_folder: Path | None = setting(
        None, "Where the files are that jobs may read (`read_files`); unset: they may read none.", unit="folder"
    )

    limits_host: str = setting(
        "127.0.0.1",
        "The address where the executors of its Spark ask whether a request to a node fits the limits of `rpc_pools`,"
        " and for keys of the object store (`task_credentials`); with Spark on a cluster, one of this machine that the"
        " executors can reach.",
    )

    task_credentials: bool = setting(
        default=False,
        why="Tasks read and write the object store with keys of their own, on executors too: for the folders of their"
        " token alone, and replaced before they end. It needs `credentials.role_arn` of the Dispatcher.",
    )

    @model_validator(mode="after")
    def _min_is_not_above_max(self) -> Self:
        if self.min > self.max:
            raise ValueError("worker.min must not be larger than worker.max")
        return self


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
        2, "Groups of batches in progress at once: while one is merged, the next is read.", unit="count", ge=1, le=16
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
        "How long the record that a batch was applied stays at least; then it is deleted, if the batch is settled.",
        unit="days",
        ge=1,
        le=36500,
    )
    batches_kept_seconds: int = setting(
        3600, "How long a batch stays in the object store after its rows are committed; dead ones stay.", unit="s", ge=0
    )
