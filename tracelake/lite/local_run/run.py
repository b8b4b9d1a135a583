"""A bundle run on this machine, against files: what it would publish, tell and say. Nothing is sent anywhere.

The code runs in a process of its own, with the doors' stand-ins where the real ones would be; not in a sandbox, as it
is its author who runs it. It finds the standard library and what the bundle brings, and nothing that happens to be
installed here.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import msgspec

from tracelake.domain.storage_locations import buffer_folder, buffered_table, shared_buffer_folder
from tracelake.errors import InvalidRequest
from tracelake.lite.local_run.endpoints import RecordedCalls, StandIns
from tracelake.lite.local_run.rows import Snapshot
from tracelake.udf.pack import Packed
from tracelake.udf.unpack import unpack
from tracelake.wire.task_messages import AlertRef, InputRef, Invocation, JobRef, OutputRef, ScopeRef, UdfRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON: Final = """
import importlib, json, sys
sys.path.insert(0, ".")
module, _, name = sys.argv[1].rpartition(".")
getattr(importlib.import_module(module.replace("/", ".")), name)(json.load(sys.stdin), None)
"""
NODE: Final = """
import { existsSync, readFileSync } from "fs";
import { resolve } from "path";
import { pathToFileURL } from "url";
const [, handler] = process.argv;
const dot = handler.lastIndexOf(".");
const file = [".js", ".mjs", ".cjs"].map((end) => resolve(handler.slice(0, dot) + end)).find(existsSync);
const found = await import(pathToFileURL(file));
await (found[handler.slice(dot + 1)] ?? found.default[handler.slice(dot + 1)])(JSON.parse(readFileSync(0)), {});
process.exit(0);
"""


@dataclass(frozen=True)
class Rehearsal:
    """What a task would be."""

    datasets: Mapping[str, Path] = field(default_factory=dict)
    publishes: Sequence[str] = ()
    """Buffered datasets that it may write."""
    tells: Sequence[str] = ()
    """Outputs that it may tell of."""
    scope: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None
    alerts: Sequence[Mapping[str, Any]] = ()
    seconds: float = 60.0


@dataclass(frozen=True)
class Played:
    """How it went."""

    status: str
    error: str | None
    rows: Mapping[str, list[dict[str, Any]]]
    events: list[dict[str, Any]]
    progress: Mapping[str, Any] | None
    state: Any
    log: str
    seconds: float


def rehearse(packed: Packed, asked: Rehearsal, spark: SparkSession | None = None) -> Played:
    with tempfile.TemporaryDirectory(prefix="trace-udf-test-") as kept, _snapshot(asked, Path(kept), spark) as snapshot:
        snapshot.warm()
        code = Path(kept, "code")
        unpack(packed.archive, code)
        began = time.monotonic()
        with _served(StandIns(_invocation(packed, asked), snapshot)) as listeners:
            log, ended = _run(packed, code, listeners, asked.seconds)
        return _played(listeners.heard, log, ended, time.monotonic() - began)


def _played(heard: RecordedCalls, log: str, ended: str | None, seconds: float) -> Played:
    done = heard.completion
    told: Mapping[str, Any] = heard.result if isinstance(heard.result, Mapping) else {}
    status = done.status if done else "Failed"
    error = done.error_message if done else ended or told.get("errorMessage") or "it ended without having completed"
    state = done.state if done else None
    return Played(status, error, heard.batches, heard.events, heard.progress, state, log, seconds)


def _run(packed: Packed, code: Path, listeners: StandIns, seconds: float) -> tuple[str, str | None]:
    """What it wrote, and why it ended if that was not by itself."""
    child = subprocess.Popen(
        _command(packed, code),
        cwd=code,
        env=_environment(packed, code, listeners),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    over = threading.Thread(target=_end_when_answered, args=(child, listeners), daemon=True)
    over.start()
    try:
        out, _ = child.communicate(msgspec.json.encode(listeners.invocation), timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        out, _ = child.communicate()
        return out.decode(errors="replace"), f"it ran longer than {seconds:g} s, and was ended"
    code_of_exit = child.returncode
    return out.decode(errors="replace"), f"it exited with {code_of_exit}" if code_of_exit > 0 else None


def _end_when_answered(child: subprocess.Popen[bytes], listeners: StandIns) -> None:
    """A bootstrap never ends by itself: it waits for the next invocation."""
    listeners.heard.over.wait()
    child.terminate()


def _command(packed: Packed, code: Path) -> list[str]:
    if packed.kind == "python":  # -S: without what is installed here
        return [sys.executable, "-I", "-S", "-u", "-B", "-c", PYTHON, packed.handler]
    if packed.kind == "node":
        return ["node", "--input-type=module", "-e", NODE, packed.handler]
    return [str(code / "bootstrap")]


def _environment(packed: Packed, code: Path, listeners: StandIns) -> dict[str, str]:
    url = f"http://{listeners.address}"
    passed = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    return passed | {
        "HOME": str(code.parent),
        "TMPDIR": str(code.parent),
        "LAMBDA_TASK_ROOT": str(code),
        "_HANDLER": packed.handler,
        "AWS_LAMBDA_RUNTIME_API": listeners.address,
        "TRACE_TASK_URL": url,
        "TRACE_QUERY_URL": url,
        "TRACE_OBJECTS_URL": url,
    }


def _invocation(packed: Packed, asked: Rehearsal) -> Invocation:
    task, buffered = uuid4(), {name: uuid4() for name in asked.publishes}
    try:
        return Invocation(
            task_id=task,
            attempt=1,
            job=JobRef(dag_name="rehearsal", name="udf"),
            operator="udf",
            config=asked.config,
            inputs=[_input(name, first=n == 0) for n, name in enumerate(asked.datasets)],
            outputs=[*_buffers(buffered), *_told(asked.tells, len(buffered))],
            scope=msgspec.convert(dict(asked.scope), ScopeRef),
            state=asked.state,
            alerts=[
                msgspec.convert({"alert_definition_id": str(uuid4()), **alert}, AlertRef) for alert in asked.alerts
            ],
            udf=UdfRef(
                bundle="rehearsal",
                sha256="",
                kind=packed.kind,
                handler=packed.handler,
                size_bytes=len(packed.archive),
                url="",
            ),
            lease_token=uuid4(),
            lease_expires_at=datetime.now(UTC) + timedelta(hours=1),
            capability_token=_token(task, buffered),
        )
    except msgspec.ValidationError as wrong:
        raise InvalidRequest(f"the event cannot be: {wrong}", where="--event, --alert") from None


def _input(name: str, *, first: bool) -> InputRef:
    return InputRef(dataset_uuid=uuid4(), dataset_version=uuid4(), commit=1, name=name, alias=name, trigger=first)


def _buffers(datasets: Mapping[str, UUID]) -> Iterator[OutputRef]:
    for index, (name, dataset) in enumerate(datasets.items()):
        place = f"postgres_table:{buffered_table(dataset)}"
        yield OutputRef(
            output_index=index, dataset_uuid=dataset, dataset_version=uuid4(), storage_location=place, name=name
        )


def _told(names: Sequence[str], first: int) -> Iterator[OutputRef]:
    for index, name in enumerate(names, first):
        place = f"s3://trace/datasets/{name}/"
        yield OutputRef(
            output_index=index, dataset_uuid=uuid4(), dataset_version=uuid4(), storage_location=place, name=name
        )


def _token(task: UUID, buffered: Mapping[str, UUID]) -> str:
    """In the form of a capability, signed by nobody: it says where batches go."""
    write = [str(buffer_folder("scratch", dataset, task, 1)) for dataset in buffered.values()]
    write += [str(shared_buffer_folder("scratch", task, 1))] if buffered else []
    parts = ({"alg": "none"}, {"task_id": str(task), "attempt": 1, "s3": {"read": [], "write": write}})
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), ""])


@contextmanager
def _snapshot(asked: Rehearsal, folder: Path, spark: SparkSession | None) -> Iterator[Snapshot]:
    snapshot = Snapshot(asked.datasets, folder, spark)
    try:
        yield snapshot
    finally:
        snapshot.close()


@contextmanager
def _served(listeners: StandIns) -> Iterator[StandIns]:
    thread = threading.Thread(target=listeners.serve_forever, name="stand-ins", daemon=True)
    thread.start()
    try:
        yield listeners
    finally:
        listeners.shutdown()
        listeners.server_close()
        thread.join()
