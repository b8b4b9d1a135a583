"""A deploy as the API asks for it: under the DAG's name in the path, which the YAML must say too."""

from __future__ import annotations

import asyncio

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deploy import Deployed, deploy_dag
from tracelake.domain.dag.yaml_nodes import name_in
from tracelake.errors import InvalidRequest
from tracelake.store.identity import User


async def deploy_named(control: Control, user: User, dag_name: str, text: str) -> Deployed:
    """Refused before anything is written if the two names differ."""
    said = await asyncio.to_thread(name_in, text)
    if said is not None and said != dag_name:
        raise InvalidRequest(
            f"the YAML is of DAG {said[:128]!r}, the path of {dag_name!r}",
            where="/yaml",
            hint=f"POST it to /v1/dags/{said[:128]}/versions, or change `name`",
        )
    return await deploy_dag(control, user.org_id, user.id, text)
