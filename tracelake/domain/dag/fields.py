"""Every field of the DAG language, by its mapping. The reader accepts no other; the docs must explain each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tracelake.domain.cutover import LIMITS

SHARED = (
    "runtime",
    "execution_strategy",
    "idle_timeout",
    "update_strategy",
    "scaling",
    "priority",
    "max_queue_depth",
    "max_queue_age",
    "resume_queue_depth",
    "resume_queue_age",
    "timeout_seconds",
    "heartbeat_timeout_seconds",
    "heartbeat_interval_seconds",
    "max_attempts",
    "max_platform_failures",
    "retry",
)
"""What `defaults` may set for all jobs: how they run, never what they are."""

FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dag": ("name", "defaults", "jobs", "publish"),
        "defaults": SHARED,
        "job": (
            "name",
            "activation",
            "operator",
            "source",
            "bootstrap",
            "config",
            "inputs",
            "outputs",
            "unique_key",
            "udf",
            "secrets",
            "replay",
            "cutover",
            *SHARED,
        ),
        "source": (
            "kind",
            "schedule",
            "tz",
            "dst",
            "overlap",
            "catch_up",
            "jitter",
            "pause_on_failure",
            "scheme",
            "secret",
            "tolerance",
            "max_bytes",
        ),
        "bootstrap": ("reset_outputs",),
        "inputs": ("from", "where", "name", "trigger"),
        "from": ("job", "output", "dataset"),
        "outputs": ("name", "storage", "dataset"),
        "scaling": ("max_concurrency",),
        "retry": ("backoff", "max_backoff"),
        "udf": ("bundle", "sha256", "handler"),
        "cutover": LIMITS,
        "publish": (
            "name",
            "job",
            "output",
            "read_roles",
            "storage",
            "write_mode",
            "columns",
            "unique_key",
            "indexes",
        ),
        "column": ("type", "nullable"),
    }
)
