"""Spans: nothing while off; when on, one trace from the worker's run to the statement, sent by OTLP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.systems.walk import walking, working
from tests.support.verbs import trigger
from tracelake.runtime.tracing import current_span, is_tracing, span, start_tracing, stop_tracing, trace_headers
from tracelake.settings import TracingSettings

pytestmark = pytest.mark.anyio


class Receiver:
    """A tiny OTLP/HTTP collector."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        receiver.spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def named(self, name: str) -> list[Any]:
        return [item for item in self.spans if item.name == name]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    made.thread.start()
    yield made
    stop_tracing()
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


def attributes(value: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in value.attributes}


async def test_one_trace_leads_from_the_workers_run_to_the_statement(
    receiver: Receiver, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    start_tracing("test", TracingSettings(endpoint=receiver.endpoint))
    async with walking(state_db, queue_db, tmp_path) as walk:
        async with working(walk.worker("one")):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
            await walk.until("after", ["Completed"])
        task = await walk.control.pool.fetchval(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
        )
    stop_tracing()
    by_id = {item.span_id: item for item in receiver.spans}
    (run,) = [item for item in receiver.named("run") if attributes(item)["trace.job"] == "work"]
    assert attributes(run)["trace.task"] == str(task)
    assert by_id[run.parent_span_id].name == "wake-up"
    (complete,) = receiver.named("POST /v1/task/complete")
    assert complete.parent_span_id == run.span_id
    assert complete.trace_id == run.trace_id
    assert attributes(complete)["trace.task"] == str(task)
    (claim,) = receiver.named("POST /internal/task-claim-batch")
    assert by_id[claim.parent_span_id].name == "wake-up"
    batches = [item for item in receiver.named("complete") if complete.span_id in {link.span_id for link in item.links}]
    (batch,) = batches
    (statement,) = [
        item for item in receiver.named("sql complete.complete_tasks") if item.parent_span_id == batch.span_id
    ]
    assert statement.end_time_unix_nano >= statement.start_time_unix_nano
    here_too = [item for item in receiver.named("run") if attributes(item)["trace.job"] == "after"]
    assert [by_id[item.parent_span_id].name for item in here_too] == ["loop drain_outbox"]


async def test_a_receiver_that_is_away_stops_nothing(state_db: str, queue_db: str, tmp_path: Path) -> None:
    start_tracing("test", TracingSettings(endpoint="http://127.0.0.1:9/v1/traces"))
    try:
        async with walking(state_db, queue_db, tmp_path) as walk, working(walk.worker("one")):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
            await walk.until("after", ["Completed"])
    finally:
        stop_tracing()


def test_a_share_of_nothing_sends_nothing(receiver: Receiver) -> None:
    start_tracing("test", TracingSettings(endpoint=receiver.endpoint, sample=0))
    with span("unseen"):
        assert "traceparent" in trace_headers()  # the next process does not sample it either
    stop_tracing()
    assert receiver.spans == []


def test_off_is_off() -> None:
    start_tracing("test", TracingSettings())
    assert not is_tracing()
    assert span("a") is span("b", task="c")
    assert trace_headers() == {}
    assert current_span() is None


def test_while_it_is_off_the_sdk_is_not_imported() -> None:
    code = (
        "import sys, tracelake.dispatcher.process, tracelake.gateway.process, tracelake.worker.wrapper\n"
        "from tracelake.runtime.tracing import *; from tracelake.settings import TracingSettings\n"
        "start_tracing('x', TracingSettings())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_an_endpoint_without_the_packages_is_a_refusal_that_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from tracelake.runtime.process import run_process; from tracelake.settings import *\n"
        "async def main(process): pass\n"
        "settings = load_settings({'TRACE_TRACING__ENDPOINT': 'http://127.0.0.1:9/'})\n"
        "sys.exit(run_process('worker', settings, main))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "tracing.endpoint" in done.stdout
    assert "make setup" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
