"""A deployed chain of jobs, as the Dispatcher sees it: `first` (a manual source), then `second`, then `third`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from tests.support.dispatcher.control import Org, an_org
from tracelake.capability.claims import Claims, decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest
from tracelake.wire.task.outputs import CompleteRequest, EventBody

JOBS = ("first", "second", "third")


@dataclass(frozen=True)
class Chain:
    org: Org
    jobs: dict[str, UUID]
    datasets: dict[str, UUID]
    versions: dict[str, UUID]

    def event(self, job: str, **scope: object) -> EventBody:
        fields: dict[str, Any] = {"dataset_uuid": self.datasets[job], "dataset_version": self.versions[job], **scope}
        return EventBody(**fields)


async def deploy_chain(control: Control, *, slug: str = "acme", max_concurrency: int | None = None) -> Chain:
    pool = control.pool
    org = await an_org(pool, slug)
    version = await pool.fetchval(
        "INSERT INTO dag_versions (org_id, dag_name, yaml_hash, yaml) VALUES ($1, 'chain', 'h', 'x') RETURNING id",
        org.id,
    )
    chain = Chain(org, {}, {}, {})
    above: UUID | None = None
    for name in JOBS:
        dataset = await pool.fetchval(
            "INSERT INTO datasets (org_id, producer_dag_name, producer_job_name, producer_output_index)"
            " VALUES ($1, 'chain', $2, 0) RETURNING id",
            org.id,
            name,
        )
        generation = await pool.fetchval(
            "INSERT INTO dataset_versions (org_id, dataset_uuid, storage_location, config_hash)"
            " VALUES ($1, $2::uuid, 's3://trace/datasets/' || $2::uuid::text || '/v/', $3) RETURNING id",
            org.id,
            dataset,
            name,
        )
        await pool.execute(
            "INSERT INTO dag_version_datasets VALUES ($1, $2, $3, $4)", org.id, version, dataset, generation
        )
        source = above is None
        job = await pool.fetchval(
            "INSERT INTO jobs (org_id, name, dag_name, dag_version_id, activation, runtime, operator, source,"
            " execution_strategy, config_hash, input_datasets, output_datasets, update_strategy, scaling,"
            " timeout_seconds)"
            " VALUES ($1, $2, 'chain', $3, $4::job_activation, 'ecs_platform', 'noop', $5, $6::execution_strategy, $2,"
            " $7, $8, 'replace', $9, 3600) RETURNING id",
            org.id,
            name,
            version,
            "source" if source else "reactive",
            {"kind": "manual"} if source else None,
            None if source else "PerUpdate",
            [] if source else [above],
            [dataset],
            {"max_concurrency": max_concurrency} if max_concurrency else {},
        )
        if not source:
            await pool.execute(
                "INSERT INTO job_inputs (job_id, position, org_id, dataset_uuid) VALUES ($1, 0, $2, $3)",
                job,
                org.id,
                above,
            )
        chain.jobs[name], chain.datasets[name], chain.versions[name] = job, dataset, generation
        above = dataset
    await pool.execute("INSERT INTO dag_current_versions VALUES ($1, 'chain', $2)", org.id, version)
    return chain


async def a_task(control: Control, chain: Chain, job: str = "first", *, key: str | None = None) -> UUID:
    """A task ready to be claimed, as if it had been routed."""
    found: UUID = await control.pool.fetchval(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)"
        " VALUES ($1, $2, $3, 3600, now()) RETURNING id",
        chain.org.id,
        chain.jobs[job],
        key or str(uuid4()),
    )
    return found


async def claimed(control: Control, task_id: UUID) -> tuple[Claimed, Claims]:
    (answer,) = await control.claimer().claim([ClaimRequest(task_id=task_id, worker_id="w")])
    assert isinstance(answer, Claimed), answer
    return answer, decode(parse_token(answer.capability_token).payload)


def completion(task: Claimed, **more: object) -> CompleteRequest:
    return CompleteRequest(
        task_id=task.task.task_id,
        attempt=task.attempt,
        lease_token=task.lease_token,
        **{"status": "Completed", **more},  # type: ignore[arg-type]
    )


async def drained(control: Control) -> None:
    drain = control.drain()
    while await drain.once():
        pass


async def tasks_of(control: Control, chain: Chain, job: str) -> list[UUID]:
    rows = await control.pool.fetch("SELECT id FROM tasks WHERE job_id = $1 ORDER BY id", chain.jobs[job])
    return [row["id"] for row in rows]


async def status(control: Control, task_id: object) -> str:
    found: str = await control.pool.fetchval("SELECT status::text FROM tasks WHERE id = $1", task_id)
    return found


async def expire(control: Control, task_id: object) -> None:
    """Expires the lease, as if the worker had been silent for long."""
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() - interval '1 s' WHERE id = $1", task_id)
    assert await control.expire_leases().once() == 1


async def retry_now(control: Control, task_id: object) -> None:
    await control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE id = $1", task_id)
    assert await control.expire_leases().once() == 1
