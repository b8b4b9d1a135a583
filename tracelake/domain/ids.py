"""Names for the things of Trace, and ids made from what they mean.

An id that follows from its meaning needs no lookup and makes every repeated deploy, event and completion land on the
row it landed on before. So each maker below takes exactly the facts that distinguish two things, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NewType
from uuid import UUID, uuid5

_HEX = "[0-9a-fA-F]"
ID_PREFIX = (
    rf"^({_HEX}{{1,8}}|{_HEX}{{8}}(-{_HEX}{{4}}){{0,2}}-{_HEX}{{0,4}}|{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{0,12}})$"
)
"""The beginning of a UUID as it is written, up to all of it."""

OrgId = NewType("OrgId", UUID)
DagVersionId = NewType("DagVersionId", UUID)
JobId = NewType("JobId", UUID)
DatasetId = NewType("DatasetId", UUID)
DatasetVersion = NewType("DatasetVersion", UUID)
"""A generation of a dataset, or a range publication inside one."""
TaskId = NewType("TaskId", UUID)
EventId = NewType("EventId", UUID)
InvalidationId = NewType("InvalidationId", UUID)
DeliveryId = NewType("DeliveryId", UUID)
"""An alert event on its way to one channel; receivers know it as `X-Trace-Delivery`."""

Attempt = NewType("Attempt", int)
"""Counted from 1; a retry is the next one of the same task."""
CommitNumber = NewType("CommitNumber", int)
"""Rises by one for each accepted completion that touched the dataset."""

DagName = NewType("DagName", str)
JobName = NewType("JobName", str)
DatasetName = NewType("DatasetName", str)
YamlHash = NewType("YamlHash", str)
ConfigHash = NewType("ConfigHash", str)
LineageHash = NewType("LineageHash", str)
"""A job's config hash together with those of everything upstream of it."""

NAMESPACE = UUID("6f1d2c1e-5a0b-5c57-9f0e-7472616365aa")
"""Changing it would give every existing dataset a new id."""


def dag_version_id(
    org: OrgId, dag: DagName, yaml_hash: YamlHash, foreign: Mapping[DatasetName, DatasetVersion] | None = None
) -> DagVersionId:
    """`foreign`: the generations of other DAGs that its own are derived from."""
    read = [f"{name}={foreign[name]}" for name in sorted(foreign)] if foreign else []
    return DagVersionId(_made_from("dag_version", str(org), dag, yaml_hash, *read))


def job_id(version: DagVersionId, job: JobName) -> JobId:
    return JobId(_made_from("job", str(version), job))


def dataset_id(org: OrgId, dag: DagName, job: JobName, output_index: int) -> DatasetId:
    """The same on every deploy: a dataset outlives the versions of the DAG that fills it."""
    return DatasetId(_made_from("dataset", str(org), dag, job, output_index))


def declared_dataset_id(org: OrgId, dag: DagName, name: DatasetName) -> DatasetId:
    """Of a dataset that no job owns: the DAG declares it by name, and any of its jobs may write it."""
    return DatasetId(_made_from("declared_dataset", str(org), dag, name))


def generation_id(dataset: DatasetId, lineage: LineageHash) -> DatasetVersion:
    """A new generation exactly when the producing job, or anything upstream of it, would produce other bytes."""
    return DatasetVersion(_made_from("generation", str(dataset), lineage))


def event_id(producer: TaskId, dataset: DatasetId, version: DatasetVersion, scope_key: str) -> EventId:
    """One event for each of these four, however often and by whichever attempt it is sent."""
    return EventId(_made_from("event", str(producer), str(dataset), str(version), scope_key))


def invalidation_id(dataset: DatasetId, version: DatasetVersion, scope_key: str, cause: str) -> InvalidationId:
    """`cause` names what it follows from (a commit, a request): the same range may be invalidated many times."""
    return InvalidationId(_made_from("invalidation", str(dataset), str(version), scope_key, cause))


def delivery_id(org: OrgId, alert: UUID, dedupe_key: str, channel: str) -> DeliveryId:
    """One for each event and channel, however often the event is published and routed."""
    return DeliveryId(_made_from("delivery", str(org), str(alert), dedupe_key, channel))


def _made_from(*meaning: str | int) -> UUID:
    # A JSON list, because parts joined by a separator could be cut at another place and mean something else.
    return uuid5(NAMESPACE, json.dumps(meaning, separators=(",", ":")))
