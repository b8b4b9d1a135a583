"""DAGs as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.list_dags import list_dags
from trace_platform.dispatcher.list_versions import list_versions
from trace_platform.dispatcher.show_dag import DagShown, JobShown, show_dag
from trace_platform.store.identity import User
from trace_platform.user_contracts import DagDetail, DagList, DagRow, JobRow


async def dags_for(control: Control, user: User) -> DagList:
    found = await list_dags(control, user.org_id)
    return DagList(
        dags=[
            DagRow(
                name=one.dag_name,
                active_version=one.active,
                activated_at=one.activated_at,
                versions=one.versions,
                deployed_at=one.deployed_at,
                jobs=one.jobs,
            )
            for one in found
        ]
    )


async def dag_for(control: Control, user: User, dag_name: str) -> DagDetail:
    versions = await list_versions(control.pool, user.org_id, dag_name)
    shown = await show_dag(control, user.org_id, dag_name)
    return DagDetail(
        name=shown.dag_name,
        active_version=shown.active,
        versions=versions.versions,
        shown_version=shown.version,
        jobs=[_job(one) for one in shown.jobs],
        yaml=_yaml(shown),
    )


def _job(one: JobShown) -> JobRow:
    return JobRow(
        name=one.name,
        activation=one.activation,
        runtime=one.runtime,
        operator=one.operator,
        source=one.source_kind,
        source_state=one.source_state,
        inputs=[_named(each, f"{each['job']}[{each['output']}]") for each in one.inputs],
        outputs=[_named(each, f"{one.name}[{index}]") for index, each in enumerate(one.outputs)],
        queued=one.queued,
        in_flight=one.in_flight,
        oldest_seconds=one.oldest_seconds,
    )


def _named(dataset: Mapping[str, Any], otherwise: str) -> str:
    """The published name, or who makes it."""
    return str(dataset["name"] or otherwise)


def _yaml(shown: DagShown) -> str:
    return next(one.yaml for one in shown.versions if one.id == shown.version)
