"""Warns at a deploy of webhook sources whose secret is not set here: they would accept no call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelake.dispatcher.sources.accept_hooks import readiness
from tracelake.domain.dag.model import SourceKind
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.yaml_nodes import plain, read_yaml
from tracelake.errors import Problem

CODE = "secret_is_missing"
HINT = "until it is set, senders are asked to come again; a variable needs a restart of the Dispatcher"


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
