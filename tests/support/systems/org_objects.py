"""One object of every kind that a call of users can name, made for an organisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import asyncpg

from tests.support.dispatcher.job_chain import drained
from tests.support.systems.gateway import System

DAG: Final = """\
name: {slug}_shop
defaults: {{runtime: dispatcher}}
jobs:
  - {{name: {slug}_fetch, operator: noop, source: {{kind: manual}}}}
  - {{name: {slug}_hook, operator: noop, source: {{kind: webhook, scheme: hmac, secret: {slug}_key}}}}
  - {{name: {slug}_clean, operator: work, runtime: ecs_platform, inputs: [{{from: {{job: {slug}_fetch}}}}]}}
publish:
  {slug}_orders: {{job: {slug}_clean}}
"""
DELIVERED: Final = """
INSERT INTO source_deliveries (org_id, dag_name, job_name, job_id, delivery_key, body, size_bytes)
SELECT $1, $2, j.name, j.id, 'k', '{}', 2 FROM jobs j WHERE j.org_id = $1 AND j.name = $3 LIMIT 1
RETURNING id
"""
DEAD_BATCH: Final = """
INSERT INTO buffer_publishes (org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri, content_hash, status,
                              error_message, settled_at)
SELECT $1, $2, 1, v.dataset_uuid, v.id, 's3://lake/batch', sha256('x'), 'Dead', 'wrong', now()
  FROM dataset_versions v WHERE v.org_id = $1 AND v.dataset_uuid = $3 LIMIT 1 RETURNING id
"""
DELIVERY: Final = """
INSERT INTO alerts.deliveries (id, org_id, alert_definition_id, alert_name, dedupe_key, channel, severity, event_time,
                               event, producer_task_id, status, attempts, settled_at, last_error)
VALUES (gen_random_uuid(), $1, gen_random_uuid(), $2, 'k', $3, 'info', now(), '{}', gen_random_uuid(), 'Failed', 1,
        now(), 'refused')
RETURNING id
"""


@dataclass(frozen=True)
class Objects:
    """Of an organisation: by what a part of a path, a parameter or a field of a body names."""

    org: UUID
    slug: str
    named: dict[str, str]


async def make_objects(trace: System, data: asyncpg.Pool, slug: str) -> Objects:
    """Through the API, as its users would; in the databases what only other processes make."""
    admin, writer = f"{slug}|admin", f"{slug}|writer"
    dag, fetch, hook = (f"{slug}_{name}" for name in ("shop", "fetch", "hook"))
    org = await trace.control.pool.fetchval("SELECT id FROM orgs WHERE slug = $1", slug)

    async def made(user: str, path: str, body: dict[str, Any]) -> Any:
        return await trace.got(user, "POST", path, json=body)

    version = await trace.deploy(dag, DAG.format(slug=slug), writer)
    request = (await made(writer, f"/v1/dags/{dag}/jobs/{fetch}/trigger", {"start": 0, "end": 9}))["request_id"]
    await drained(trace.control)
    task = (await trace.got(writer, "GET", "/v1/tasks"))["tasks"][0]["id"]
    listed = (await trace.got(writer, "GET", "/v1/datasets"))["datasets"]
    dataset = next(row["dataset_uuid"] for row in listed if row["name"] == f"{slug}_orders")
    await made(admin, "/v1/roles", {"role": f"{slug}_finance"})
    user = (await trace.got(admin, "GET", "/v1/users", params={"subject": f"{slug}|reader"}))["users"][0]["id"]
    await trace.got(admin, "PUT", f"/v1/roles/{slug}_finance/members/{user}")
    await made(writer, "/v1/alerts/channels", {"name": f"{slug}_ops", "url": "https://example.org/"})
    await made(writer, "/v1/alerts/definitions", {"name": f"{slug}_whales", "severity": "info"})
    await made(admin, "/v1/tokens", {"name": f"{slug}_robot"})
    await trace.got(admin, "PUT", f"/v1/secrets/job/{slug}_key", json={"value": "hunter22"})
    sha = (slug.encode().hex() * 64)[:64]
    bundle = await made(
        writer, "/v1/udf/bundles", {"name": f"{slug}_code", "kind": "python", "sha256": sha, "size_bytes": 9}
    )
    changed = DAG.format(slug=slug).replace("operator: work", "operator: work, priority: bulk")
    release = (await made(writer, "/v1/releases", {"dags": [changed]}))["release"]
    backfill = await made(writer, f"/v1/dags/{dag}/backfills", {"job": fetch, "start": 10, "end": 19})
    return Objects(
        org,
        slug,
        {
            "dag": dag,
            "job": fetch,
            "hook": hook,
            "version": version,
            "request": request,
            "task": task,
            "dataset": dataset,
            "dataset_name": f"{slug}_orders",
            "publish": str(await trace.control.pool.fetchval(DEAD_BATCH, org, UUID(task), UUID(dataset))),
            "bundle": bundle["id"],
            "bundle_name": f"{slug}_code",
            "backfill": backfill["backfill"]["id"],
            "release": release["id"],
            "alert": f"{slug}_whales",
            "channel": f"{slug}_ops",
            "delivery_of_alert": str(await data.fetchval(DELIVERY, org, f"{slug}_whales", f"{slug}_ops")),
            "delivery_of_source": str(await trace.control.pool.fetchval(DELIVERED, org, dag, hook)),
            "user": user,
            "subject": f"{slug}|reader",
            "role": f"{slug}_finance",
            "org": slug,
            "token": f"{slug}_robot",
            "secret": f"{slug}_key",
        },
    )
