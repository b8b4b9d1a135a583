"""A job that evaluates an alert, deployed."""

from __future__ import annotations

from tests.support.dispatcher.control import Org, an_org
from tracelake.dispatcher.alerts.edit import create_alert
from tracelake.dispatcher.alerts.edit_channels import create_channel
from tracelake.dispatcher.control import Control
from tracelake.store.identity import User, find_user
from tracelake.wire.user.alerts import AlertRequest, ChannelRequest

HASH = "ab" * 32
DAG = f"""
name: watch
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - name: look
    operator: alert_evaluate
    runtime: ecs_udf
    udf: {{bundle: looker, sha256: "{HASH}"}}
    config: {{definitions: [whales, minnows]}}
    inputs: [{{from: {{job: ask}}}}]
    outputs: [{{dataset: alert_events}}]
  - {{name: plain, operator: pull, runtime: ecs_platform, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: route, operator: alert_route, runtime: ecs_platform, inputs: [{{from: {{job: plain}}}}]}}
publish:
  alert_events:
    storage: postgres
    write_mode: buffered
    columns:
      alert_definition_id: text
      dedupe_key: text
      event_time: {{type: timestamp, nullable: false}}
      chain_id: bigint
      block_number: bigint
      block_hash: bytes
      tx_hash: bytes
      severity: {{type: text, nullable: false}}
      payload: json
    unique_key: [alert_definition_id, dedupe_key]
"""


async def a_watch(control: Control, slug: str) -> tuple[Org, User]:
    """An organisation with channels and three alerts, `whales`, `minnows` and `others`."""
    org = await an_org(control.pool, slug)
    user = await find_user(control.pool, f"test|{slug}")
    assert user is not None
    for name in ("ops", "page"):
        await create_channel(
            control.pool, user, ChannelRequest(name=name, url=f"https://{slug}.example.org/", secret="s" * 20)
        )
    for name in ("whales", "minnows", "others"):
        request = AlertRequest(name=name, severity="info", params={"of": slug}, channels=["ops", "page"])
        await create_alert(control.pool, user, request)
    await control.pool.execute(
        "INSERT INTO udf_bundles (org_id, name, kind, sha256, size_bytes, location, status, finalized_at,"
        " entry_points)"
        " VALUES ($1, 'looker', 'python', $2, 1, 's3://trace/looker.zip', 'Ready', now(), '{main}')",
        org.id,
        HASH,
    )
    return org, user
