"""All metrics of Trace; docs/reference/metrics.md has a row for each, and a test compares.

One `Metrics` belongs to one process and is passed in. `runtime/figures.py` reads its gauges for systems that do not
scrape.

Labels are bounded: ids of organisations, names of listeners, routes, loops, states, DAGs and jobs; never ids of tasks
or what a caller chose. A metric about the work of organisations has the label `org`; the others are of the process, or
of what all organisations share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG_SECONDS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
QUERY_SECONDS: Final = (0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0)
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

OPENMETRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counted as it happens; `gauges` has the values that are read from the databases on request."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        self.http = HttpTallies()
        registry.register(self.http)
        self.events = Counter(
            "trace_events_accepted", "Events in calls that were accepted.", ("org", "dag", "job"), registry=registry
        )
        self.unchanged = Counter(
            "trace_partitions_unchanged",
            "Partitions that were written again with the same content, so that their readers got no tasks.",
            ("org", "dag", "job"),
            registry=registry,
        )
        self.memoized = Counter(
            "trace_tasks_memoized",
            "Tasks that did not run, because another one had written what they would write.",
            ("org", "dag", "job"),
            registry=registry,
        )
        self.transitions = Counter(
            "trace_task_transitions", "Tasks that went from one state to another.", ("from", "to"), registry=registry
        )
        self.failed_for_good = Counter(
            "trace_tasks_failed",
            "Tasks that have failed for good, by whose fault their last failure was.",
            ("org", "dag", "job", "fault"),
            registry=registry,
        )
        self.batch_size = Histogram(
            "trace_batch_size", "Calls that one statement answered.", ("verb",), buckets=SIZES, registry=registry
        )
        self.loop_seconds = Histogram(
            "trace_loop_seconds", "Time of one step of a loop.", ("loop",), buckets=SECONDS, registry=registry
        )
        self.loop_failures = Counter(
            "trace_loop_failures", "Steps of a loop that failed, outages included.", ("loop",), registry=registry
        )
        self.wakes = Counter(
            "trace_wakes", "Wakes between Dispatchers, by NOTIFY.", ("signal", "direction"), registry=registry
        )
        self.listening = Gauge(
            "trace_listening", "1: this Dispatcher listens for the wakes of others.", registry=registry
        )
        self.worker_tasks = Counter(
            "trace_worker_tasks", "Attempts this worker has ended.", ("org", "dag", "job", "outcome"), registry=registry
        )
        self.worker_seconds = Histogram(
            "trace_worker_task_seconds",
            "Time from claim to the end of an attempt.",
            ("org", "dag", "job"),
            buckets=LONG_SECONDS,
            registry=registry,
        )
        self.left_out = Counter(
            "trace_worker_rows_left_out",
            "Rows that a task read and that have no row in its outputs.",
            ("org", "dag", "job", "reason"),
            registry=registry,
        )
        self.tasks_running = Gauge(
            "trace_worker_tasks_running", "Tasks this worker runs now.", ("org",), registry=registry
        )
        self.sink_batches = Counter(
            "trace_sink_batches", "Batches this sink has dealt with.", ("org", "outcome"), registry=registry
        )
        self.sink_rows = Counter(
            "trace_sink_rows", "Rows of batches that are in their table.", ("org",), registry=registry
        )
        self.sink_seconds = Histogram(
            "trace_sink_group_seconds",
            "Time to stage and merge one group of batches.",
            buckets=LONG_SECONDS,
            registry=registry,
        )
        self.sink_lag = Histogram(
            "trace_sink_lag_seconds",
            "From a batch's publish to its rows in the table.",
            ("org",),
            buckets=LONG_SECONDS,
            registry=registry,
        )
        self.deliveries = Counter(
            "trace_deliveries", "Outcomes of alerts that were to be sent.", ("org", "outcome"), registry=registry
        )
        self.delivery_seconds = Histogram(
            "trace_delivery_seconds",
            "Time that a receiver took to answer.",
            ("org",),
            buckets=SECONDS,
            registry=registry,
        )
        self.delivery_lag = Histogram(
            "trace_delivery_lag_seconds",
            "From a work item's creation to its receiver's 2xx.",
            ("org",),
            buckets=LONG_SECONDS,
            registry=registry,
        )
        self.queries = Counter(
            "trace_queries", "Queries that have ended.", ("org", "caller", "outcome"), registry=registry
        )
        self.query_seconds = Histogram(
            "trace_query_seconds",
            "Time from a query's arrival to its rows or refusal.",
            ("org", "caller"),
            buckets=QUERY_SECONDS,
            registry=registry,
        )
        self.query_rows = Counter(
            "trace_query_rows", "Rows of answers, exported ones included.", ("org",), registry=registry
        )
        self.query_bytes = Counter("trace_query_bytes", "Bytes of those rows.", ("org",), registry=registry)
        self.query_stuck = Counter(
            "trace_query_stuck",
            "Times that Spark was ended with a query that nothing else ended.",
            registry=registry,
        )
        self.query_runs = Counter(
            "trace_query_runs",
            "Queries that an engine was chosen for, by engine and reason.",
            ("org", "engine", "reason"),
            registry=registry,
        )
        self.query_engines = Gauge("trace_query_engines", "Organisations whose Sail runs or starts.", registry=registry)
        self.query_engines_lost = Counter(
            "trace_query_engines_lost", "Times that a Sail ended during a query.", ("org", "reason"), registry=registry
        )
        self.queries_in_progress = Gauge(
            "trace_queries_in_progress", "Queries that run or wait now.", ("state",), registry=registry
        )
        self.query_sessions = Gauge(
            "trace_query_sessions",
            "Spark sessions: fresh ones, and those kept for a caller.",
            ("state",),
            registry=registry,
        )
        self.gauges = LastReadGauges()
        registry.register(self.gauges)

    def moved(self, before: str, after: str, count: int = 1) -> None:
        if count:
            self.transitions.labels(before, after).inc(count)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)


class Tally:
    """What a route answered, in plain numbers: it is counted on the event loop alone, so no lock is needed."""

    __slots__ = ("buckets", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(SECONDS) + 1)
        self.seconds = 0.0

    def add(self, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        bounds = [*(str(bound) for bound in SECONDS), "+Inf"]
        return list(zip(bounds, accumulate(self.buckets), strict=True))


class HttpTallies(Collector):
    """Requests by listener, method and route."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], Tally] = {}

    def of(self, listener: str, method: str, route: str) -> Tally:
        return self._tallies.setdefault((listener, method, route), Tally())

    def collect(self) -> Iterable[Metric]:
        labels = ("listener", "method", "route")
        requests = CounterMetricFamily("trace_http_requests", "Responses of a listener.", labels=(*labels, "status"))
        about = "Time from a request's head to the end of its answer."
        seconds = HistogramMetricFamily("trace_http_request_seconds", about, labels=labels)
        for key, tally in list(self._tallies.items()):
            for status, count in list(tally.statuses.items()):
                requests.add_metric((*key, str(status)), count)
            seconds.add_metric(key, buckets=tally.cumulative(), sum_value=tally.seconds)
        return (requests, seconds)


GAUGES: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "trace_tasks_queued": ("Tasks that wait for a worker or a slot.", ("org", "dag", "job")),
    "trace_tasks_queued_oldest_seconds": ("How long the oldest of them has waited.", ("org", "dag", "job")),
    "trace_tasks_in_flight": (
        "Tasks that are woken, run, or wait for a slot, by operator; always-on sources are left out.",
        ("org", "operator", "runtime", "state"),
    ),
    "trace_rpc_pool_requests": (
        "Requests to the nodes of a pool: under way, leased to workers, and the limit.",
        ("pool", "state"),
    ),
    "trace_rpc_pool_calls_per_second": (
        "Calls a second to each node of a pool: leased to workers, and the limit, if it has one.",
        ("pool", "state"),
    ),
    "trace_rpc_pool_workers": ("Workers that have a share of the limits of a pool of nodes.", ("pool",)),
    "trace_lease_lag_seconds": ("How far past its end the oldest lease is that has not been expired yet.", ()),
    "trace_retry_lag_seconds": ("How far past its time the oldest retry is that was not queued yet.", ()),
    "trace_outbox_pending": ("Outbox entries that are pending.", ("kind",)),
    "trace_outbox_oldest_seconds": ("How long the oldest of them has been due.", ("kind",)),
    "trace_outbox_dead": ("Outbox entries that were given up.", ("org", "kind")),
    "trace_buffer_batches_dead": ("Batches that the sink gave up.", ("org",)),
    "trace_sources": ("Always-on sources.", ("org", "state")),
    "trace_jobs_paused": ("Jobs that get no new tasks.", ("org", "dag", "job", "reason")),
    "trace_events_held": ("Events and invalidations that wait for a paused job.", ("org", "dag", "job")),
    "trace_queue_messages": ("Messages in a queue.", ("queue", "state")),
    "trace_queue_oldest_seconds": ("How long the oldest ready message has waited.", ("queue",)),
    "trace_org_info": ("1, with the name of the organisation in paths.", ("org", "name")),
    "trace_org_limit": ("How much an organisation may use; none where it has no limit.", ("org", "limit")),
    "trace_org_object_bytes": ("What an organisation with a limit of object_bytes stores.", ("org",)),
    "trace_gauges_read": ("1: the figures above were read; 0: their database does not answer.", ()),
}
"""Read from the databases on request. Every Dispatcher has the same values: take max, not sum."""


class LastReadGauges(Collector):
    """Gauges as they were read last."""

    def __init__(self) -> None:
        self._read: dict[str, list[tuple[Sequence[str], float]]] = {}

    def put(self, values: dict[str, list[tuple[Sequence[str], float]]]) -> None:
        """All at once: a gauge that is not named is dropped."""
        self._read = values

    def collect(self) -> Iterable[Metric]:
        for name, samples in self._read.items():
            about, labels = GAUGES[name]
            family = GaugeMetricFamily(name, about, labels=labels)
            for values, value in samples:
                family.add_metric(list(values), value)
            yield family
