"""Settings of untrusted code: where it runs, and how much of the machine it gets."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr

from tracelake.settings.base import URL, Group, setting


class UdfSettings(Group):
    """The runner: its listener, its sandboxes, and their limits; or AWS Lambda in its place for `runtime: lambda`."""

    invoker: Literal["runner", "lambda"] = setting(
        "runner", "Where functions of `runtime: lambda` run: on the runner, or on AWS Lambda."
    )
    lambda_function: str | None = setting(
        None,
        "The name or ARN of the runner function on Lambda, with an alias after a colon if it has one.",
        pattern=r"^(arn:[a-z0-9-]+:lambda:[a-z0-9-]+:\d{12}:function:)?[A-Za-z0-9_-]{1,64}(:[A-Za-z0-9$_-]{1,128})?$",
    )
    lambda_region: str = setting("us-east-1", "The region of the runner function.", pattern=r"^[a-z0-9-]+$")
    lambda_endpoint: str | None = setting(None, "The server of Lambda; unset: AWS.", unit="URL", pattern=URL)
    lambda_tenants: bool = setting(
        default=True,
        why="The runner function has the tenant isolation PER_TENANT, and each organisation is a tenant. Off: an"
        " environment serves the organisation that it served first, which code in it can get around.",
    )

    host: str = setting("127.0.0.1", "The address its listener binds to.")
    port: int = setting(
        0, "Port of its listener (Lambda's Invoke API); 0 takes a free one.", unit="port", ge=0, le=65535
    )
    invoke_url: str | None = setting(
        None, "Where the Dispatcher finds the runner; `trace up` fills it in.", unit="URL", pattern=r"^https?://"
    )
    invoke_token: SecretStr | None = setting(
        None, "What the Dispatcher sends to the runner; `trace up` makes one at each start."
    )
    unsafe: bool = setting(
        default=False,
        why="Run untrusted code without a sandbox where the kernel offers none. It can then do all that Trace can.",
    )
    memory_mb: int = setting(512, "Memory of all processes of one sandbox.", unit="MiB", ge=64, le=65536)
    tmp_mb: int = setting(64, "Room in /tmp of one sandbox; it is memory too.", unit="MiB", ge=1, le=65536)
    tmp_files: int = setting(
        16_384, "Files and folders in /tmp of one sandbox; one that has more is ended.", unit="count", ge=64
    )
    put_mb: int = setting(
        256, "How much one attempt may write through the object endpoint, all objects together.", unit="MiB", ge=1
    )
    put_objects: int = setting(
        10_000, "How many objects one attempt may write through the object endpoint.", unit="count", ge=1
    )
    processes: int = setting(64, "Processes and threads in one sandbox.", unit="count", ge=16, le=4096)
    open_files: int = setting(256, "Open files of one process in a sandbox.", unit="count", ge=32, le=65536)
    sandboxes: int = setting(8, "Sandboxes at once, warm ones included.", unit="count", ge=1, le=900)
    per_org: int = setting(4, "Sandboxes of one organisation at once.", unit="count", ge=1, le=900)
    tasks: int = setting(2, "Tasks of `ecs_udf` that run at once; each has a sandbox to itself.", unit="count", ge=1)
    wait_seconds: float = setting(
        2.0, "How long an invocation waits for a sandbox before it is refused (429).", unit="s", ge=0, le=60
    )
    start_seconds: float = setting(10.0, "How long a sandbox may take to ask for its first task.", unit="s", gt=0)
    idle_seconds: float = setting(300.0, "A warm sandbox that is not used for so long is ended.", unit="s", gt=0)
    cache_days: int = setting(
        30,
        "An unpacked bundle that no task has asked for in so long is removed; it can be fetched again.",
        unit="days",
        ge=2,
        le=3650,
    )
    invocations: int = setting(1000, "A sandbox is replaced after so many invocations.", unit="count", ge=1)
    timeout_seconds: int = setting(
        900, "How long a function may run whose task names no time of its own.", unit="s", ge=1, le=86400
    )
    result_bytes: int = setting(
        6 * 1024 * 1024, "The largest result of a function, as on Lambda.", unit="bytes", ge=1024
    )
    log_lines: int = setting(
        1000, "Lines of one invocation that are kept; of the rest only the number.", unit="count", ge=0, le=100_000
    )
    log_bytes: int = setting(1024 * 1024, "Their size together.", unit="bytes", ge=0)
    connections: int = setting(
        16, "Connections of one sandbox to each of its APIs at once.", unit="count", ge=1, le=1024
    )
    requests_per_second: float = setting(
        100.0, "Requests of one sandbox to each API but the Runtime API; more of them wait.", unit="count/s", gt=0
    )
