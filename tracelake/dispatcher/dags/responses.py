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
    return DagList(dags=[DagRow(**vars(one)) for one in found])


async def dag_for(control: Control, user: User, dag_name: str) -> DagDetail:
    shown = await show_dag(control, user.org_id, dag_name)
    return DagDetail(
        name=shown.name,
        active_version=shown.active_version,
        versions=[_version(one) for one in shown.versions],
        shown_version=shown.version,
        jobs=[_job(one) for one in shown.jobs],
        yaml=next(one.yaml for one in shown.versions if one.dag_version_id == shown.version),
    )


def _version(one: VersionShown) -> Version:
    return Version(
        dag_version_id=one.dag_version_id,
        yaml_hash=one.yaml_hash,
        active=one.active,
        created_at=one.created_at,
        deployed_by=one.deployed_by,
    )


def _job(one: JobShown) -> JobRow:
    return JobRow(
        name=one.name,
        activation=one.activation,
        runtime=one.runtime,
        operator=one.operator,
        source=one.source_kind,
        source_state=one.source_state,
        inputs=[
            _named(each, f"{each['job']}[{each['output']}]" if each["job"] else str(each["dataset_uuid"]))
            for each in one.inputs
        ],
        outputs=[_named(each, f"{one.name}[{index}]") for index, each in enumerate(one.outputs)],
        queued=one.queued,
        in_flight=one.in_flight,
        oldest_seconds=one.oldest_seconds,
    )


def _named(dataset: Mapping[str, Any], otherwise: str) -> str:
    """The published name, or who makes it."""
    return str(dataset["name"] or otherwise)
