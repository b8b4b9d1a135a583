"""Two DAGs of which one reads the other: a mill and a shop."""

from __future__ import annotations

from uuid import UUID, uuid4

from tests.support.dispatcher.control import Org
from tests.support.verbs import trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.wire.user.backfills import GapsQuery

MILL = """
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: pull, source: {{kind: manual}}}}
  - {{name: grind, operator: pull, config: {{n: {0}}}, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: bake, operator: pull, config: {{n: {1}}}, inputs: [{{from: {{job: grind}}}}]}}
publish:
  flour: {{job: grind}}
"""
SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: sell, operator: pull, inputs: [{from: {dataset: flour}}]}
publish:
  bread: {job: sell}
"""
SERVED = """
SELECT d.producer_job_name AS job, s.dataset_version AS version,
       array(SELECT p.partition_key FROM partition_versions p
              WHERE p.dataset_version = s.dataset_version AND p.valid_to IS NULL ORDER BY 1) AS keys
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
"""
READ = """
SELECT DISTINCT i.input_dataset_version
  FROM commits m
  JOIN task_inputs i ON i.task_id = m.task_id AND i.attempt = m.attempt
 WHERE m.dataset_version = $1
"""
COMPLETED = """
SELECT j.name, count(*) AS tasks
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
 WHERE t.status = 'Completed'
 GROUP BY j.name
"""


async def ask(control: Control, org: Org, first: int) -> None:
    await trigger(control, org.id, "mill", "ask", start=first, end=first + 9, request_id=uuid4())


async def served(control: Control) -> dict[str, tuple[UUID, list[str]]]:
    return {row["job"]: (row["version"], row["keys"]) for row in await control.pool.fetch(SERVED)}


async def is_complete(control: Control, org: Org) -> bool:
    found = [await list_gaps(control.pool, org.as_user, GapsQuery(of=dag)) for dag in ("mill", "shop")]
    return all(gaps.complete for gaps in found)
