"""Metrics are true, are served to authorised callers only, and cost the database little however often they are read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from starlette.applications import Starlette

from tests.support.identity.service_tokens import TOKENS
from tests.support.systems.walk import Walk, walking, working
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS
from tracelake.dispatcher.read_gauges import Gauges
from tracelake.domain.access.service_tokens import hash_token
from tracelake.errors import Forbidden, SetupError, Unauthenticated
from tracelake.gateway.process import public_api
from tracelake.lite.network_ports import free_port
from tracelake.lite.plan import _metrics
from tracelake.query.process import metrics_route
from tracelake.runtime.metrics import GAUGES, Metrics
from tracelake.runtime.metrics_listener import STALL_SECONDS, _Handler, serve_metrics
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.request_middleware import RequestMiddleware, Routes
from tracelake.settings import IdentitySettings, MetricsSettings
from tracelake.store.queries import queries
from tracelake.wire.service.gate import DispatcherGate, guarded

pytestmark = pytest.mark.anyio
DOC = Path(__file__).parent.parent.parent / "docs" / "reference" / "metrics.md"
BEARER = {"Authorization": f"Bearer {TOKENS['monitor']}"}


@pytest.fixture
async def walk(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    async with walking(state_db, queue_db, tmp_path) as made:
        yield made


async def scraped(walk: Walk) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, in the order of their names."""
    answer = await walk.dispatcher.http.get("/metrics", headers=BEARER)
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_an_events_way_is_counted_at_every_step(walk: Walk) -> None:
    async with working(walk.worker("one")):
        for cursor in range(3):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
        await walk.until("after", ["Completed"] * 3)
    found, org = await scraped(walk), str(walk.org.id)
    assert found["trace_events_accepted_total", "walk", "ask", org] == 3
    assert found["trace_events_accepted_total", "walk", "work", org] == 3
    assert found["trace_events_accepted_total", "walk", "after", org] == 3
    for step in (("new", "Queued"), ("Queued", "Running"), ("Running", "Completed")):
        assert found["trace_task_transitions_total", *step] == 6  # three of each job
    complete = ("dispatcher_task", "POST", "/v1/task/complete")
    assert found["trace_http_requests_total", *complete, "200"] == 3
    assert found["trace_http_request_seconds_count", *complete] == 3
    assert found["trace_batch_size_sum", "claim"] == 3
    assert found["trace_loop_seconds_count", "drain_outbox"] > 0
    assert found["trace_gauges_read",] == 1
    assert found["trace_queue_messages", "tasks-ecs_platform", "ready"] == 0
    assert found["process_open_fds",] > 0


async def test_what_waits_is_seen_with_its_depth_and_age(walk: Walk) -> None:
    for cursor in range(2):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
    await walk.until("work", ["Queued"] * 2)
    pool = walk.control.pool
    await pool.execute("UPDATE tasks SET queued_at = now() - interval '90 s'")
    await pool.execute(
        "INSERT INTO outbox (org_id, kind, payload, status, last_error, processed_at)"
        " VALUES ($1, 'enqueue_task', '{}', 'Failed', 'x', now())",
        walk.org.id,
    )
    found, org = await scraped(walk), str(walk.org.id)
    assert found["trace_gauges_read",] == 1
    assert found["trace_org_info", "acme", org] == 1
    assert found["trace_tasks_queued", "walk", "work", org] == 2
    assert found["trace_tasks_queued_oldest_seconds", "walk", "work", org] >= 90
    assert found["trace_outbox_dead", "enqueue_task", org] == 1
    assert found["trace_outbox_pending", "route_event"] == 0
    assert found["trace_queue_messages", "tasks-ecs_platform", "ready"] == 2
    assert found["trace_lease_lag_seconds",] == 0


async def test_lags_say_how_late_leases_retries_and_outbox_entries_are(state_db: str, walk: Walk) -> None:
    # No worker runs here: a database without loops would do; this one is held by a lock.
    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
    await walk.until("work", ["Queued"])
    with psycopg.connect(state_db) as held:
        held.execute(
            "UPDATE tasks SET status = 'Running', lease_token = gen_random_uuid(), worker_id = 'w',"
            " started_at = now() - interval '100 s', lease_expires_at = now() - interval '60 s'"
        )
        row = held.execute(queries("gauges")["lags"]).fetchone()
        assert row is not None
        assert row[0] >= 60
        held.execute(
            "INSERT INTO outbox (org_id, kind, payload, available_at)"
            " SELECT id, 'route_event', '{}', now() - interval '7 s' FROM orgs"
        )
        pending = {
            kind: (depth, age) for kind, depth, age in held.execute(queries("gauges")["outbox_pending"]).fetchall()
        }
        assert pending["route_event"][0] == 1
        assert pending["route_event"][1] >= 7
        held.rollback()


async def test_many_scrapes_are_one_query_on_the_database(walk: Walk) -> None:
    gauges = Gauges(
        walk.control.pool, walk.control.queue, walk.control.runtimes, walk.control.metrics, fresh_seconds=3600
    )
    await gauges.refresh()
    before = walk.control.metrics.text()
    assert b"trace_tasks_queued{" not in before
    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
    await walk.until("work", ["Queued"])
    await gauges.refresh()
    assert b"trace_tasks_queued{" not in walk.control.metrics.text()
    await Gauges(walk.control.pool, walk.control.queue, walk.control.runtimes, walk.control.metrics).refresh()
    assert b"trace_tasks_queued{" in walk.control.metrics.text()


async def test_without_a_database_the_process_still_serves_its_own_counters(walk: Walk) -> None:
    await Gauges(walk.control.pool, walk.control.queue, walk.control.runtimes, walk.control.metrics).refresh()
    walk.control.pool.terminate()
    gauges = Gauges(walk.control.pool, walk.control.queue, walk.control.runtimes, walk.control.metrics)
    await gauges.refresh()
    text = walk.control.metrics.text().decode()
    assert "trace_gauges_read 0.0" in text
    assert "trace_queue_messages{" not in text  # old figures are not reported as new ones
    assert "trace_loop_seconds_count" in text


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic dGhlIHdvcmtlciB0b2tlbg=="}]
)
async def test_metrics_need_the_token_of_a_monitor(walk: Walk, headers: dict[str, str]) -> None:
    inside = walk.dispatcher.http
    unauthenticated = httpx.Request("GET", inside.base_url.join("/metrics"), headers=headers)
    assert (await inside.send(unauthenticated, auth=None)).status_code == 401
    assert (await inside.get("/metrics")).status_code == 200  # the header of services does as well
    assert (await walk.tasks._http.get("/metrics", headers=BEARER)).status_code == 404


async def test_the_public_api_and_the_query_api_need_it_too() -> None:
    metrics = Metrics()

    async def service_of(token_hash: bytes) -> str:
        return "monitor" if token_hash == hash_token("m") else "sink"

    inside = Starlette(routes=guarded("query", [metrics_route(metrics)], DispatcherGate(service_of)))
    async with _over(inside) as query:
        assert (await query.get("/metrics", headers={"Authorization": "Bearer m"})).status_code == 200
        with pytest.raises(Forbidden, match="the service sink may not"):
            await query.get("/metrics", headers={"Authorization": "Bearer s"})
        with pytest.raises(Unauthenticated, match="needs a service's token"):
            await query.get("/metrics")
    no_client: httpx.AsyncClient = None  # type: ignore[assignment]
    from tracelake.wire.client import DispatcherClient

    async with _over(public_api(DispatcherClient(no_client), IdentitySettings(service_token=SecretStr("g")))) as public:
        assert (await public.get("/metrics", headers=BEARER)).status_code == 404


async def test_what_a_caller_chooses_never_becomes_a_label(walk: Walk) -> None:
    inside = walk.dispatcher.http
    await inside.get(f"/internal/{uuid4()}")
    await inside.request("PROPFIND", "/internal/task-claim")
    await inside.get(f"/internal/v1/tasks/{uuid4()}")
    found = {key[1:5] for key in await scraped(walk) if key[0] == "trace_http_requests_total"}
    listener = "dispatcher_internal"
    assert (listener, "GET", "(none)", "404") in found
    assert (listener, "other", "/internal/task-claim", "405") in found
    assert any(key[2] == "/internal/v1/tasks/{task}" for key in found)
    labels = " ".join(" ".join(key) for key in found)
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", labels)


async def test_a_request_is_named_once_and_a_name_that_could_break_a_line_is_not_taken(walk: Walk) -> None:
    inside = walk.dispatcher.http
    assert (await inside.get("/healthz", headers={"X-Request-Id": "mine-7"})).headers["x-request-id"] == "mine-7"
    other = (await inside.get("/healthz", headers={"X-Request-Id": 'x" y'})).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", other)
    assert (await inside.get("/healthz")).headers["x-request-id"] != other


async def test_an_application_that_breaks_is_counted_as_a_fault() -> None:
    metrics = Metrics()

    async def broken(*_: object) -> None:
        raise RuntimeError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with pytest.raises(RuntimeError):
        await RequestMiddleware(broken, "d", metrics)(scope, None, None)  # type: ignore[arg-type]
    labels = {"listener": "d", "method": "GET", "route": "(none)", "status": "500"}
    assert metrics.registry.get_sample_value("trace_http_requests_total", labels) == 1
    assert Routes([]).template("/x") == "(none)"


async def test_a_process_without_a_listener_serves_metrics_on_loopback_if_configured() -> None:
    metrics, port = Metrics(), free_port()
    async with httpx.AsyncClient() as http:
        with serve_metrics(metrics, port):
            assert "trace_worker_tasks_running" in (await http.get(f"http://127.0.0.1:{port}/metrics")).text
            with pytest.raises(SetupError, match=str(port)), serve_metrics(metrics, port):
                pass
        with pytest.raises(httpx.ConnectError):
            await http.get(f"http://127.0.0.1:{port}/metrics")
    with serve_metrics(metrics, 0):
        pass  # nothing listens


async def test_a_scraper_that_stalls_delays_no_other_and_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    assert _Handler.timeout == STALL_SECONDS
    with serve_metrics(Metrics(), port):
        monkeypatch.setattr(_Handler, "timeout", 600)
        _, stalled = await asyncio.open_connection("127.0.0.1", port)
        stalled.write(b"GET /metrics HTTP/1.1\r\nhost")
        try:
            async with httpx.AsyncClient(timeout=SECONDS) as http:
                assert (await http.get(f"http://127.0.0.1:{port}/metrics")).status_code == 200
        finally:
            stalled.close()
            await stalled.wait_closed()
        monkeypatch.setattr(_Handler, "timeout", 0.1)
        for sent in (b"", b"GET /metrics HTTP/1.1\r\nhost"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(SECONDS):
                assert await reader.read() == b""
            writer.close()


def test_under_trace_up_each_process_has_a_port_of_its_own() -> None:
    assert len({_metrics(name, MetricsSettings(port=9400)).port for name in PROCESSES}) == len(PROCESSES)
    assert {_metrics(name, MetricsSettings()).port for name in PROCESSES} == {0}


def test_every_metric_is_documented_and_every_documented_metric_exists() -> None:
    assert set(re.findall(r"^\| `(trace_\w+)`", DOC.read_text(), re.MULTILINE)) == set(names())


OF_ALL = {
    "trace_http_requests": "a listener serves all, and whose a request is, is known only after it was counted",
    "trace_http_request_seconds": "as trace_http_requests",
    "trace_task_transitions": "one statement changes tasks of several organisations",
    "trace_batch_size": "calls of several organisations are answered together",
    "trace_loop_seconds": "a loop works for all",
    "trace_loop_failures": "a loop works for all",
    "trace_wakes": "between Dispatchers",
    "trace_listening": "of the process",
    "trace_sink_group_seconds": "batches of several organisations are merged together",
    "trace_query_stuck": "Spark is ended for all",
    "trace_query_engines": "counts organisations",
    "trace_queries_in_progress": "the slots of the process",
    "trace_query_sessions": "fresh ones belong to nobody yet",
    "trace_rpc_pool_requests": "a pool is shared by all",
    "trace_rpc_pool_calls_per_second": "a pool is shared by all",
    "trace_rpc_pool_workers": "a pool is shared by all",
    "trace_lease_lag_seconds": "how late the loop is",
    "trace_retry_lag_seconds": "how late the loop is",
    "trace_outbox_pending": "the outbox is shared by all",
    "trace_outbox_oldest_seconds": "the outbox is shared by all",
    "trace_queue_messages": "a queue is shared by all",
    "trace_queue_oldest_seconds": "a queue is shared by all",
    "trace_gauges_read": "of the process",
}
"""Metrics that are not about the work of one organisation, and why."""


def test_each_metric_is_of_an_organisation_or_of_all_and_its_labels_are_documented() -> None:
    route = "listener", "method", "route"
    labels: dict[str, tuple[str, ...]] = {
        "trace_http_requests": (*route, "status"),
        "trace_http_request_seconds": route,
    }
    labels |= {found._name: found._labelnames for found in vars(Metrics()).values() if hasattr(found, "_labelnames")}
    labels |= {name: tuple(names) for name, (_, names) in GAUGES.items()}
    assert set(labels) == {name.removesuffix("_total") for name in names()}
    assert {name for name, found in labels.items() if "org" not in found} == set(OF_ALL)
    documented = re.findall(r"^\| `(trace_\w+)` \|([^|]*)\|", DOC.read_text(), re.MULTILINE)
    assert {name.removesuffix("_total"): tuple(re.findall(r"`(\w+)`", found)) for name, found in documented} == labels


INDEXES = {
    "queued": {"idx_tasks_queued"},
    "outbox_pending": {"idx_outbox_pending", "idx_outbox_taken"},
    "outbox_dead": {"idx_outbox_failed"},
    "lags": {"idx_tasks_lease_expiry", "idx_tasks_next_retry"},
    "batches_dead": {"idx_buffer_publishes_dead"},
}


@pytest.mark.parametrize("name", INDEXES)
def test_every_look_at_a_table_that_grows_is_by_an_index_of_live_rows(name: str, state_db: str) -> None:
    with psycopg.connect(state_db) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = "\n".join(row[0] for row in connection.execute("EXPLAIN " + queries("gauges")[name].partition("\n")[2]))
    assert INDEXES[name] <= set(re.findall(r"(?:using|on) (idx_\w+)", plan)), plan
    assert not re.search(r"Seq Scan on (tasks|outbox|buffer_publishes)", plan)


def test_gauges_are_all_named() -> None:
    assert all(name.startswith("trace_") for name in GAUGES)


def _over(app: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://test")  # type: ignore[arg-type]


def names() -> Iterator[str]:
    """Every metric of ours, as Prometheus names it."""
    for family in Metrics().registry.collect():
        if family.name.startswith("trace_"):
            yield f"{family.name}_total" if family.type == "counter" else family.name
    yield from GAUGES
