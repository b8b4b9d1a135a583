"""DAGs as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.list import list_dags
from tracelake.dispatcher.dags.show import JobShown, VersionShown, show_dag
from tracelake.store.identity import User
from tracelake.wire.user_messages import DagDetail, DagList, DagRow, JobRow, Version


async def dags_for(control: Control, user: User) -> DagList:
    found = await list_dags(control, user.org_id)
    return DagList(dags=[DagRow(**vars(summary)) for summary in found])


async def dag_for(control: Control, user: User, dag_name: str) -> DagDetail:
    shown = await show_dag(control, user.org_id, dag_name)
    return DagDetail(
        name=shown.name,
        active_version=shown.active_version,
        versions=[_version(version) for version in shown.versions],
        shown_version=shown.version,
        jobs=[_job(job) for job in shown.jobs],
        yaml=next(version.yaml for version in shown.versions if version.dag_version_id == shown.version),
    )


def _version(version_shown: VersionShown) -> Version:
    return Version(
        dag_version_id=version_shown.dag_version_id,
        yaml_hash=version_shown.yaml_hash,
        active=version_shown.active,
        created_at=version_shown.created_at,
        deployed_by=version_shown.deployed_by,
    )


def _job(job_shown: JobShown) -> JobRow:
    return JobRow(
        name=job_shown.name,
        activation=job_shown.activation,
        runtime=job_shown.runtime,
        operator=job_shown.operator,
        source=job_shown.source_kind,
        source_state=job_shown.source_state,
        inputs=[
            _named(
                element, f"{element['job']}[{element['output']}]" if element["job"] else str(element["dataset_uuid"])
            )
            for element in job_shown.inputs
        ],
        outputs=[_named(output, f"{job_shown.name}[{index}]") for index, output in enumerate(job_shown.outputs)],
        queued=job_shown.queued,
        in_flight=job_shown.in_flight,
        oldest_seconds=job_shown.oldest_seconds,
    )


def _named(dataset: Mapping[str, Any], otherwise: str) -> str:
    """The published name, or who makes it."""
    return str(dataset["name"] or otherwise)
