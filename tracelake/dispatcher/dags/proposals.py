"""What a DAG proposes about who may read its datasets, where something else is decided already.

A proposal counts for a new dataset only. Where it is not followed, a deploy and a plan say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tracelake.domain.dag.hashes import dataset_ids, declared_ids
from tracelake.domain.dag.model import BufferedDataset, Dag, JobOutput, Publication
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.yaml_nodes import plain, read_yaml
from tracelake.domain.ids import DatasetId, OrgId
from tracelake.errors import Problem
from tracelake.store.queries import Queryable, Row, fetch_rows, queries

CODE = "access_is_decided"
HINT = "an admin changes it: `trace datasets access`"


class Decided(Row, frozen=True):
    dataset_uuid: UUID
    name: str
    visibility: str
    read_roles: list[str]
    by_admin: bool


@dataclass(frozen=True)
class OtherProposal:
    name: str
    reason: str


def publications(dag: Dag, org: OrgId) -> dict[DatasetId, Publication | BufferedDataset]:
    """The datasets that a DAG gives a name."""
    ids, declared = dataset_ids(dag, org), declared_ids(dag, org)
    return {
        **{ids[JobOutput(published.job, published.output)]: published for published in dag.publish},
        **{declared[buffered.name]: buffered for buffered in dag.buffered},
    }


def proposed_roles(publication: Publication | BufferedDataset) -> list[str]:
    return [f"role:{role}" for role in publication.read_roles]


async def other_proposals(database: Queryable, org: OrgId, dag: Dag) -> list[OtherProposal]:
    """The proposals that are not followed."""
    named = publications(dag, org)
    names = [publication.name for publication in named.values()]
    decided = await fetch_rows(database, queries("access")["list_decided"], Decided, org, list(named), names)
    return [
        OtherProposal(row.name, _reason(row, roles))
        for row in decided
        if _differs(row, roles := proposed_roles(named[DatasetId(row.dataset_uuid)]))
    ]


async def proposal_warnings(database: Queryable, org: OrgId, dag: Dag, text: str) -> tuple[Problem, ...]:
    """The same as warnings, each at its place in the YAML."""
    found = await other_proposals(database, org, dag)
    return await asyncio.to_thread(_placed, found, text) if found else ()


def _differs(decided: Decided, roles: Sequence[str]) -> bool:
    """A DAG without `read_roles` says nothing against an admin's decision."""
    if decided.by_admin and not roles:
        return False
    return (decided.visibility == "roles") != bool(roles) or set(decided.read_roles) != set(roles)


def _reason(decided: Decided, roles: Sequence[str]) -> str:
    now = _readers(decided.visibility, decided.read_roles)
    proposed = _readers("roles" if roles else "org", roles)
    return f"proposed is that {proposed} may read it, decided is {now}; a deploy does not change that"


def _readers(visibility: str, read_roles: Iterable[str]) -> str:
    """Who may read a dataset, in words."""
    if visibility == "org":
        return "everyone"
    roles = sorted(role.removeprefix("role:") for role in read_roles)
    return f"who has {' or '.join(roles)}" if roles else "nobody but admins"


def _placed(found: Sequence[OtherProposal], text: str) -> tuple[Problem, ...]:
    root, _ = read_yaml(text)
    problems, elements = Problems(root), plain(root).get("publish")
    for item in found:
        problems.warn(("publish", _key(elements, item.name)), CODE, item.reason, HINT)
    return problems.warnings


def _key(elements: object, name: str) -> str | int:
    """`publish` is a mapping by name, or a list."""
    if isinstance(elements, list):
        named = [item.get("name") if isinstance(item, Mapping) else None for item in elements]
        return named.index(name)
    return name
