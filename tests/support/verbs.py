"""Verbs of the Dispatcher for tests that hold a Control, with the parts of it that each takes, as its routes do."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tracelake.capability.claims import Claims
from tracelake.dispatcher.buffers import dead_batches, publish
from tracelake.dispatcher.bundles import push
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags import activate, deploy, switch
from tracelake.dispatcher.events import accept
from tracelake.dispatcher.events import invalidate as invalidating
from tracelake.dispatcher.events import trigger as triggering
from tracelake.dispatcher.flow import pause_job as pauses
from tracelake.dispatcher.sources import fire_schedules as firing
from tracelake.dispatcher.tasks import cancel, retry
from tracelake.domain.event import read_partition
from tracelake.store.identity import User
from tracelake.wire.internal.sources import FiredAnswer
from tracelake.wire.task.buffers import BufferPublishAnswer, BufferPublishRequest
from tracelake.wire.task.outputs import EventsAnswer, EventsRequest
from tracelake.wire.user.bundles import BundleAnswer, BundleRequest
from tracelake.wire.user.dags import PauseAnswer
from tracelake.wire.user.datasets import ReplayAnswer
from tracelake.wire.user.tasks import CancelAnswer, RetryAnswer


async def deploy_dag(control: Control, org_id: UUID, user_id: UUID | None, text: str) -> deploy.Deployed:
    runtimes, bucket = control.runtime_specs(), control.places.bucket
    return await deploy.deploy_dag(control.pool, org_id, user_id, text, runtimes=runtimes, bucket=bucket)


async def activate_dag(control: Control, org_id: UUID, dag_name: str, version_id: UUID) -> switch.Activated:
    named = org_id, dag_name, version_id
    return await activate.activate_dag(control.pool, control.after_commit, *named, runtimes=control.runtime_specs())


async def trigger(control: Control, org_id: UUID, dag: str, job: str, **scope: Any) -> triggering.Triggered:
    return await triggering.trigger(control.pool, control.after_commit, org_id, dag, job, jobs=control.jobs, **scope)


async def invalidate(
    control: Control, org_id: UUID, user_id: UUID, dataset: str | UUID, **span: Any
) -> invalidating.Invalidated:
    named = {name: span.pop(name) for name in ("start", "end", "partition_key") if name in span}
    verb, outbox = invalidating.invalidate, control.after_commit.outbox
    return await verb(control.pool, outbox, org_id, user_id, dataset, scope=read_partition(**named), **span)


async def accept_events(control: Control, request: EventsRequest, claims: Claims) -> EventsAnswer:
    return await accept.accept_events(control.hot, control.jobs, control.after_commit, request, claims)


async def publish_buffer(control: Control, request: BufferPublishRequest, claims: Claims) -> BufferPublishAnswer:
    objects, scratch = control.objects, control.places.scratch_bucket
    parts = control.pool, control.after_commit.outbox, request, claims
    return await publish.publish_buffer(*parts, objects=objects, scratch_bucket=scratch)


async def replay_batch(control: Control, org_id: UUID, publish_id: UUID, repaired: bytes | None) -> ReplayAnswer:
    objects, scratch = control.objects, control.places.scratch_bucket
    parts = control.pool, control.after_commit.outbox, org_id, publish_id, repaired
    return await dead_batches.replay_batch(*parts, objects=objects, scratch_bucket=scratch)


async def cancel_task(control: Control, org_id: UUID, task_id: UUID, reason: str) -> CancelAnswer:
    return await cancel.cancel_task(control.pool, control.after_commit, org_id, task_id, reason)


async def retry_task(control: Control, org_id: UUID, task_id: UUID) -> RetryAnswer:
    return await retry.retry_task(control.pool, control.after_commit, org_id, task_id)


async def pause_job(control: Control, user: User, dag: str, job: str) -> PauseAnswer:
    return await pauses.pause_job(control.pool, control.after_commit, user, dag, job)


async def resume_job(control: Control, user: User, dag: str, job: str) -> PauseAnswer:
    return await pauses.resume_job(control.pool, control.after_commit, user, dag, job)


async def fire_schedules(control: Control) -> FiredAnswer:
    return await firing.fire_schedules(control.pool, control.after_commit)


async def announce_bundle(control: Control, user: User, request: BundleRequest) -> BundleAnswer:
    bucket, limit = control.places.bucket, control.bundles.max_bytes
    return await push.announce_bundle(control.pool, user, request, bucket=bucket, limit=limit)


async def upload_bundle(control: Control, org_id: UUID, bundle_id: UUID, archive: bytes) -> BundleAnswer:
    objects, limit = control.objects, control.bundles.max_bytes
    return await push.upload_bundle(control.pool, org_id, bundle_id, archive, objects=objects, limit=limit)


async def finalize_bundle(control: Control, org_id: UUID, bundle_id: UUID) -> BundleAnswer:
    objects, limits = control.objects, control.bundle_limits()
    return await push.finalize_bundle(control.pool, org_id, bundle_id, objects=objects, limits=limits)
