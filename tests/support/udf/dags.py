"""A DAG whose second job runs a bundle and publishes to a buffered dataset."""

from __future__ import annotations

from typing import Any

from tests.support.dispatcher.job_chain import drained
from tests.support.systems.gateway import System
from tests.support.udf.bundle_calls import BUNDLE, WRITER, sha256

DAG = """\
name: watch
jobs:
  - name: orders
    operator: noop
    runtime: dispatcher
    source: {{kind: manual}}
  - name: detect
    operator: udf
    runtime: {runtime}
    inputs: [{{from: {{job: orders}}, name: orders}}]
    outputs: [{{dataset: alert_events}}, told]
    udf: {{bundle: {bundle}, sha256: "{sha256}", handler: {handler}}}
    config: {{limit: 5, names: [a, b]}}
publish:
  watch_orders: {{job: orders}}
  watch_told: {{job: detect, output: told}}
  alert_events:
    storage: postgres
    write_mode: buffered
    columns:
      dedupe_key: text
      severity: {{type: text, nullable: false}}
      amount: bigint
    unique_key: [dedupe_key]
"""


def dag(
    archive: bytes = BUNDLE, *, bundle: str = "detector", handler: str = "main.handler", runtime: str = "ecs_udf"
) -> str:
    return DAG.format(bundle=bundle, sha256=sha256(archive), handler=handler, runtime=runtime)


async def deployed(trace: System, text: str) -> None:
    done = await trace.got(WRITER, "POST", "/v1/dags/watch/versions", json={"yaml": text})
    await trace.got(WRITER, "PUT", "/v1/dags/watch/active", json={"dag_version_id": done["dag_version_id"]})


async def triggered(trace: System, **scope: Any) -> Any:
    """The id of a task of `detect`."""
    await trace.got(WRITER, "POST", "/v1/dags/watch/jobs/orders/trigger", json=scope or {"start": 0, "end": 9})
    await drained(trace.control)
    found = await trace.control.pool.fetchval(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'detect' ORDER BY t.created_at DESC"
    )
    assert found is not None
    return found
