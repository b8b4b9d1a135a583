"""Warns of webhook sources whose secret is not set: they accept no call. At a deploy, and when a Dispatcher starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog

from tracelake.dispatcher.identity.stored_secrets import stored_secrets
from tracelake.dispatcher.sources.accept_hooks import readiness
from tracelake.domain.access.seal import Seal
from tracelake.domain.dag.model import SourceKind
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.yaml_nodes import plain, read_yaml
from tracelake.errors import Problem
from tracelake.settings.secrets.hooks import split_secrets
from tracelake.store.queries import Queryable, Row, fetch_rows, queries

log = structlog.get_logger()

CODE = "secret_is_missing"
HINT = "until it is set, senders are asked to come again; a variable needs a restart of the Dispatcher"


class ActiveHook(Row, frozen=True):
    org_id: UUID
    org: str
    dag: str
    job: str
    source: Any


async def warn_at_start(database: Queryable, seal: Seal, secrets: Mapping[str, Sequence[str]]) -> None:
    """It goes on: others have their secret, and one that an organisation stores counts from the next call on."""
    hooks = await fetch_rows(database, queries("hooks")["list_active_hooks"], ActiveHook)
    wanted = [(hook.org_id, str(hook.source["secret"])) for hook in hooks]
    stored = await stored_secrets(database, seal, "webhook", wanted) if wanted else {}
    for hook in hooks:
        own = {name: split_secrets(value or "") for (org, name), value in stored.items() if org == hook.org_id}
        if reason := readiness({**secrets, **own}, hook.source):
            log.warning("a webhook source has no secret", org=hook.org, dag=hook.dag, job=hook.job, because=reason)


def warn_missing_secrets(text: str, secrets: Mapping[str, Sequence[str]]) -> tuple[Problem, ...]:
    """Of a DAG that was accepted. A warning and no refusal: a secret may be set after its DAG is deployed."""
    if SourceKind.WEBHOOK not in text:
        return ()
    root, _ = read_yaml(text)
    problems = Problems(root)
    for number, job in enumerate(plain(root)["jobs"]):
        source: Mapping[str, Any] = job.get("source") or {}
        if source.get("kind") == SourceKind.WEBHOOK and (reason := readiness(secrets, source)) is not None:
            problems.warn(("jobs", number, "source", "secret"), CODE, reason, HINT)
    return problems.warnings
