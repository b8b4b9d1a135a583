"""Runs a bundle on this machine against files, and reports what it would write and emit. Nothing is sent anywhere.

The code runs in a process of its own, on the runner's Runtime API and with its bootstraps; not in a sandbox, since its
author runs it. It finds the standard library and the content of the bundle, and no package that is installed here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import msgspec

from tracelake.domain.access.storage_locations import buffer_folder, buffered_table, shared_buffer_folder
from tracelake.errors import InvalidRequest
from tracelake.lite.local_run.endpoints import LocalEndpoints
from tracelake.lite.local_run.rows import LocalDatasets
from tracelake.settings import UdfSettings
from tracelake.udf.invoke import payload_of
from tracelake.udf.pack import Packed
from tracelake.udf.runtime_api import FunctionError
from tracelake.udf.sandbox_contents import Code, command, environment, local_run
from tracelake.udf.sandbox_listener import SandboxListener
from tracelake.udf.unpack import unpack
from tracelake.wire.task.lifecycle import AlertRef, InputRef, Invocation, JobRef, OutputRef, ScopeRef, UdfRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTIONS: Final = 256


@dataclass(frozen=True)
class LocalTask:
    """The task that the function gets."""

    datasets: Mapping[str, Path] = field(default_factory=dict)
    publishes: Sequence[str] = ()
    """Buffered datasets that it may write."""
    emits: Sequence[str] = ()
    """Outputs for which it may emit events."""
    scope: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None
    alerts: Sequence[Mapping[str, Any]] = ()
    seconds: float = 60.0


@dataclass(frozen=True)
class LocalResult:
    status: str
    error: str | None
    rows: Mapping[str, list[dict[str, Any]]]
    events: list[dict[str, Any]]
    progress: Mapping[str, Any] | None
    state: Any
    log: str
    seconds: float


def run_locally(packed: Packed, task: LocalTask, spark: SparkSession | None = None) -> LocalResult:
    with tempfile.TemporaryDirectory(prefix="trace-udf-test-") as name:
        folder = Path(name)
        with closing(LocalDatasets(task.datasets, folder, spark)) as snapshot:
            snapshot.warm()
            unpack(packed.archive, folder / "code")
            endpoints = LocalEndpoints(_invocation(packed, task), snapshot)
            code = Code(folder / "code", packed.kind, packed.handler)
            began = time.monotonic()
            log, failure = asyncio.run(_serve_and_run(code, endpoints, task.seconds))
            return _result(endpoints, log, failure, time.monotonic() - began)


def _result(endpoints: LocalEndpoints, log: str, failure: str | None, seconds: float) -> LocalResult:
    calls, done = endpoints.calls, endpoints.calls.completion
    status = done.status if done else "Failed"
    error = done.error_message if done else failure or "it ended without having completed"
    state = done.state if done else None
    return LocalResult(status, error, calls.batches, calls.events, calls.progress, state, log, seconds)


async def _serve_and_run(code: Code, endpoints: LocalEndpoints, seconds: float) -> tuple[str, str | None]:
    listener = SandboxListener(endpoints.handle, CONNECTIONS, None)
    try:
        return await _run(code, endpoints, await listener.open_loopback(), seconds)
    finally:
        await listener.close()


async def _run(code: Code, endpoints: LocalEndpoints, port: int, seconds: float) -> tuple[str, str | None]:
    """The output, and why it failed if it did."""
    process = await _start(code, port)
    output = asyncio.create_task(_read_all(process.stdout))
    exited = asyncio.create_task(process.wait())
    request, deadline_ms = str(endpoints.invocation.task_id), int((time.time() + seconds) * 1000)
    answer = asyncio.create_task(endpoints.runtime.invoke(request, payload_of(endpoints.invocation, {}), deadline_ms))
    try:
        await asyncio.wait({answer, exited}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        failure = _failure(endpoints, answer, exited, seconds)
    finally:
        answer.cancel()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await exited
    return (await output).decode(errors="replace"), failure


def _failure(
    endpoints: LocalEndpoints,
    answer: asyncio.Task[bytes | FunctionError],
    exited: asyncio.Task[int],
    seconds: float,
) -> str | None:
    if answer.done():
        result = answer.result()
        return result.message if isinstance(result, FunctionError) else None
    if endpoints.runtime.init_error is not None:
        return endpoints.runtime.init_error.message
    if exited.done():
        return f"it exited with {exited.result()}"
    return f"it ran longer than {seconds:g} s, and was ended"


async def _start(code: Code, port: int) -> asyncio.subprocess.Process:
    folder, settings = code.folder.parent, UdfSettings()
    place = local_run(code, folder, port)
    program, *arguments = command(code, place, settings)
    if code.kind == "python":  # -S: without the packages that are installed here
        arguments = ["-S", "-u", *arguments]
    here = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    return await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=code.folder,
        env=environment(code, place, settings) | here | {"HOME": str(folder), "TMPDIR": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


async def _read_all(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream else b""


def _invocation(packed: Packed, task: LocalTask) -> Invocation:
    task_id, buffered = uuid4(), {name: uuid4() for name in task.publishes}
    try:
        return Invocation(
            task_id=task_id,
            attempt=1,
            job=JobRef(dag_name="local-run", name="udf"),
            operator="udf",
            config=task.config,
            inputs=[_input(name, first=n == 0) for n, name in enumerate(task.datasets)],
            outputs=[*_buffers(buffered), *_outputs(task.emits, len(buffered))],
            scope=msgspec.convert(dict(task.scope), ScopeRef),
            state=task.state,
            alerts=[msgspec.convert({"alert_definition_id": str(uuid4()), **alert}, AlertRef) for alert in task.alerts],
            udf=UdfRef(
                bundle="local-run",
                sha256="",
                kind=packed.kind,
                handler=packed.handler,
                size_bytes=len(packed.archive),
                url="",
            ),
            lease_token=uuid4(),
            lease_expires_at=datetime.now(UTC) + timedelta(hours=1),
            capability_token=_token(task_id, buffered),
        )
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"invalid event or alert: {error}", where="--event, --alert") from None


def _input(name: str, *, first: bool) -> InputRef:
    return InputRef(dataset_uuid=uuid4(), dataset_version=uuid4(), commit=1, name=name, alias=name, trigger=first)


def _buffers(datasets: Mapping[str, UUID]) -> Iterator[OutputRef]:
    for index, (name, dataset) in enumerate(datasets.items()):
        place = f"postgres_table:{buffered_table(dataset)}"
        yield OutputRef(
            output_index=index, dataset_uuid=dataset, dataset_version=uuid4(), storage_location=place, name=name
        )


def _outputs(names: Sequence[str], first: int) -> Iterator[OutputRef]:
    for index, name in enumerate(names, first):
        place = f"s3://trace/datasets/{name}/"
        yield OutputRef(
            output_index=index, dataset_uuid=uuid4(), dataset_version=uuid4(), storage_location=place, name=name
        )


def _token(task: UUID, buffered: Mapping[str, UUID]) -> str:
    """An unsigned capability: the SDK reads from it where batches go."""
    write = [str(buffer_folder("scratch", dataset, task, 1)) for dataset in buffered.values()]
    write += [str(shared_buffer_folder("scratch", task, 1))] if buffered else []
    parts = ({"alg": "none"}, {"task_id": str(task), "attempt": 1, "s3": {"read": [], "write": write}})
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), ""])
