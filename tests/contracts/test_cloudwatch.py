"""Figures on CloudWatch: those of Prometheus, in bounded requests; an outage costs figures and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.aws.faulty_aws import FaultyAws, Refusal, faulty_aws
from tests.support.dispatcher.control import an_org, control_for
from tests.support.waiting import until
from tracelake.adapters.cloudwatch import AT_ONCE, CloudWatch
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.loop import Loop, run_loop, stopped
from tracelake.dispatcher.maintenance.publish_metrics import PublishMetrics
from tracelake.dispatcher.read_gauges import Samples
from tracelake.dispatcher.signal import Signal
from tracelake.domain.figure import Figure
from tracelake.errors import ServiceUnavailable, SettingsError
from tracelake.lite.doctor.figures import examine_figures
from tracelake.runtime.figures import TOTALS, WITHOUT_FIGURE, figures_of
from tracelake.runtime.metrics import GAUGES, Metrics
from tracelake.settings import MetricsSettings, load_settings

pytestmark = pytest.mark.anyio

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
async def aws(moto: str) -> AsyncIterator[FaultyAws]:
    async with faulty_aws(moto) as faulty:
        yield faulty


@pytest.fixture
def settings(aws: FaultyAws) -> MetricsSettings:
    return MetricsSettings(cloudwatch_namespace=f"Trace/{uuid4().hex}", cloudwatch_endpoint=aws.url)


@pytest.fixture
async def cloudwatch(settings: MetricsSettings) -> AsyncIterator[CloudWatch]:
    opened = CloudWatch(settings)
    yield opened
    await opened.close()


@pytest.fixture
async def control(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Control]:
    async with control_for(state_db, queue_db, tmp_path) as made:
        yield made


def stored(moto: str, settings: MetricsSettings) -> Series:
    client = boto3.client("cloudwatch", region_name="us-east-1", endpoint_url=moto)
    found = Series()
    for page in client.get_paginator("list_metrics").paginate(Namespace=settings.cloudwatch_namespace):
        for metric in page["Metrics"]:
            labels = {item["Name"]: item["Value"] for item in metric["Dimensions"]}
            found[metric["MetricName"], frozenset(labels.items())] = maximum(client, metric)
    return found


def maximum(client: Any, metric: dict[str, Any]) -> float:
    now = datetime.now(UTC)
    period = {"StartTime": now - timedelta(hours=1), "EndTime": now + timedelta(hours=1), "Period": 7200}
    asked = {name: metric[name] for name in ("Namespace", "MetricName", "Dimensions")}
    answer = client.get_metric_statistics(**asked, **period, Statistics=["Maximum"])
    return max(float(point["Maximum"]) for point in answer["Datapoints"])


def shown(metrics: Metrics) -> Series:
    """The same gauges as Prometheus reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name in GAUGES
    }


async def test_cloudwatch_has_every_gauge_that_prometheus_has_with_the_same_value(
    control: Control, moto: str, settings: MetricsSettings, cloudwatch: CloudWatch
) -> None:
    org = await an_org(control.pool)
    await control.pool.execute(
        "INSERT INTO outbox (org_id, kind, payload, available_at)"
        " VALUES ($1, 'route_event', '{}', now() - interval '7 s')",
        org.id,
    )
    assert await PublishMetrics(control.gauges, control.metrics, cloudwatch, most=1000).once() == 0
    expected = {key: value for key, value in shown(control.metrics).items() if key[0] not in WITHOUT_FIGURE}
    found = stored(moto, settings)
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    totals = {(name, frozenset[tuple[str, str]]()) for name in TOTALS}
    assert set(found) == set(expected) | totals
    oldest = [value for (name, labels), value in expected.items() if name == "trace_outbox_oldest_seconds" and labels]
    assert found["trace_outbox_oldest_seconds", frozenset()] == max(oldest) >= 7
    assert found["trace_outbox_pending", frozenset()] == 1


def read(count: int) -> Metrics:
    metrics = Metrics()
    samples: Samples = {
        "trace_tasks_queued": [(("org", "dag", f"job{number}"), float(number)) for number in range(count)],
        "trace_lease_lag_seconds": [((), 3.0)],
        "trace_gauges_read": [((), 1.0)],
    }
    metrics.gauges.put(samples)
    return metrics


def test_totals_are_those_of_all_series_and_there_is_one_where_nothing_waits() -> None:
    figures = {(figure.name, *figure.labels.values()): figure.value for figure in figures_of(read(5), 1000)[0]}
    assert figures["trace_tasks_queued",] == 0 + 1 + 2 + 3 + 4
    assert figures["trace_tasks_queued_oldest_seconds",] == 0
    assert figures["trace_outbox_pending",] == 0


def test_no_total_is_made_up_when_the_database_does_not_answer() -> None:
    metrics = Metrics()
    metrics.gauges.put({"trace_gauges_read": [((), 0.0)]})
    assert figures_of(metrics, 1000) == ([Figure("trace_gauges_read", 0.0)], 0)


def test_of_too_many_series_those_of_the_system_and_then_the_largest_are_sent() -> None:
    figures, left_out = figures_of(read(500), 60)
    assert (len(figures), left_out) == (60, 500 + 2 + len(TOTALS) - 60)
    assert Figure("trace_lease_lag_seconds", 3.0) in figures
    jobs = [figure.labels["job"] for figure in figures if figure.labels]
    assert jobs == [f"job{number}" for number in range(499, 499 - len(jobs), -1)]


async def test_many_figures_are_sent_in_requests_that_cloudwatch_takes(
    moto: str, settings: MetricsSettings, aws: FaultyAws, cloudwatch: CloudWatch
) -> None:
    labels = [{"org": "o" * 36, "dag": "d" * 64, "job": f"{number:064}"} for number in range(2 * AT_ONCE + 1)]
    await cloudwatch.put([Figure("trace_tasks_queued", number, item) for number, item in enumerate(labels)])
    sent = [f"MetricData.member.{AT_ONCE}.Value" in request for request in aws.requests("PutMetricData")]
    assert sent == [True, True, False]
    assert all(f"MetricData.member.{AT_ONCE + 1}.Value" not in request for request in aws.requests("PutMetricData"))
    client = boto3.client("cloudwatch", region_name="us-east-1", endpoint_url=moto)
    pages = client.get_paginator("list_metrics").paginate(Namespace=settings.cloudwatch_namespace)
    assert sum(len(page["Metrics"]) for page in pages) == len(labels)


@pytest.mark.parametrize(
    ("value", "becomes"),
    [(float("nan"), 0.0), (float("inf"), 2.0**360), (float("-inf"), -(2.0**360)), (5e-324, 0.0), (1e300, 2.0**360)],
)
async def test_a_value_that_cloudwatch_refuses_does_not_cost_the_request(
    aws: FaultyAws, cloudwatch: CloudWatch, value: float, becomes: float
) -> None:
    await cloudwatch.put([Figure("trace_lease_lag_seconds", value), Figure("trace_retry_lag_seconds", 7.0)])
    (sent,) = aws.requests("PutMetricData")
    assert float(sent["MetricData.member.1.Value"]) == becomes
    assert float(sent["MetricData.member.2.Value"]) == 7.0


@pytest.mark.parametrize("label", ["", "  ", ":begins", "ключ", "a\nb", "x" * 5000])
async def test_a_label_that_cloudwatch_refuses_is_sent_in_a_form_that_it_takes(
    aws: FaultyAws, cloudwatch: CloudWatch, label: str
) -> None:
    await cloudwatch.put([Figure("trace_outbox_pending", 1.0, {"kind": label})])
    (sent,) = aws.requests("PutMetricData")
    value = sent["MetricData.member.1.Dimensions.member.1.Value"]
    assert 1 <= len(value) <= 1024
    assert value.isascii()
    assert value.isprintable()
    assert value.strip()
    assert not value.startswith(":")


@pytest.mark.parametrize(
    "refusal", [Refusal("Throttling", 400, "Rate exceeded"), Refusal("InternalFailure", 500), Refusal("SlowDown", 503)]
)
async def test_a_request_that_is_throttled_or_fails_is_repeated(
    moto: str, settings: MetricsSettings, aws: FaultyAws, cloudwatch: CloudWatch, refusal: Refusal
) -> None:
    aws.refuse("PutMetricData", refusal, times=2)
    await cloudwatch.put([Figure("trace_lease_lag_seconds", 3.0)])
    assert len(aws.requests("PutMetricData")) == 3
    assert stored(moto, settings) == {("trace_lease_lag_seconds", frozenset()): 3.0}


@pytest.mark.parametrize(
    ("refusal", "fix"),
    [
        (Refusal("AccessDenied", 403), "allow the action cloudwatch:PutMetricData"),
        (Refusal("InvalidClientTokenId", 403), "renew the credentials"),
        (Refusal("RequestExpired", 400), "set the clock"),
    ],
)
async def test_a_refusal_says_what_to_do(
    settings: MetricsSettings, aws: FaultyAws, refusal: Refusal, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloudwatch = CloudWatch(settings)
    monkeypatch.setattr(cloudwatch._aws, "_retry_for", 0.0)
    aws.refuse("PutMetricData", refusal)
    try:
        with pytest.raises(ServiceUnavailable) as refused:
            await cloudwatch.put([Figure("trace_lease_lag_seconds", 3.0)])
    finally:
        await cloudwatch.close()
    assert fix in str(refused.value.hint)
    assert refused.value.retryable


async def test_an_outage_ends_no_loop_and_the_figures_after_it_are_stored(
    control: Control, moto: str, settings: MetricsSettings, aws: FaultyAws, cloudwatch: CloudWatch
) -> None:
    aws.refuse("PutMetricData", Refusal("AccessDenied", 403), times=2)
    work = PublishMetrics(control.gauges, control.metrics, cloudwatch, most=1000)
    loop = Loop("publish_metrics", work.once, work.next_due, Signal(), 0.05, control.metrics)
    running = asyncio.create_task(run_loop(loop))
    try:
        await until(lambda: bool(stored(moto, settings)), "figures are stored after the outage")
    finally:
        await stopped(running)
    failures = control.metrics.registry.get_sample_value("trace_loop_failures_total", {"loop": "publish_metrics"})
    assert failures == 2


@pytest.mark.parametrize(
    "given", [{"cloudwatch_region": "eu-west-1"}, {"cloudwatch_endpoint": "http://h"}, {"cloudwatch_seconds": 5.0}]
)
def test_settings_without_a_namespace_are_refused_since_they_have_no_effect(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="without cloudwatch_namespace"):
        MetricsSettings(**given)


@pytest.mark.parametrize("name", ["AWS/Trace", "", "a b", "x" * 256])
def test_a_namespace_that_cloudwatch_refuses_is_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        MetricsSettings(cloudwatch_namespace=name)


def test_the_adapter_needs_a_namespace() -> None:
    with pytest.raises(SettingsError, match="namespace"):
        CloudWatch(MetricsSettings())


async def test_the_doctor_names_the_right_that_is_missing(
    tmp_path: Path, moto: str, settings: MetricsSettings, aws: FaultyAws
) -> None:
    given = load_settings({}, home=tmp_path).model_copy(update={"metrics": settings})
    aws.refuse("PutMetricData", Refusal("AccessDenied", 403), times=1)
    (denied,) = await asyncio.to_thread(examine_figures, given)
    assert (denied.ok, "allow the action cloudwatch:PutMetricData" in str(denied.fix)) == (False, True)
    (fine,) = await asyncio.to_thread(examine_figures, given)
    assert (fine.ok, fine.found) == (True, f"{settings.cloudwatch_namespace} of CloudWatch in us-east-1")
    assert stored(moto, settings) == {("trace_doctor", frozenset()): 1.0}
    assert examine_figures(load_settings({}, home=tmp_path)) == []
