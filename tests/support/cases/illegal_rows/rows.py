"""A legal row of each table of the state database, and two organisations that have one of each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def uid(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


T0, T1, T2 = (f"2025-01-01T00:0{minute}:00Z" for minute in range(3))
HASH = bytes(32)
HEX = "0" * 64
LONG = "a" * 129
ES256 = '{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}'
OTHER_ORG = {"org_id": uid("org b")}

# A legal row of each table, unlike those in SEED.
LEGAL: dict[str, Row] = {
    "orgs": {"name": "New", "slug": "new"},
    "query_audit": {
        "id": uid("asked"),
        "org_id": uid("org a"),
        "user_id": uid("user a"),
        "asked_at": T0,
        "sql_sha256": HASH,
        "verdict": "answered",
    },
    "users": {"org_id": uid("org a"), "external_id": "new", "role": "reader"},
    "org_roles": {"org_id": uid("org a"), "slug": "new", "name": "New"},
    "org_role_memberships": {"org_id": uid("org a"), "role_id": uid("role a"), "user_id": uid("user a")},
    "restores": {"epoch": 1, "backup_id": uid("backup"), "backed_up_at": T0},
    "org_secrets": {
        "org_id": uid("org a"),
        "kind": "job",
        "name": "api_key",
        "key_id": "a",
        "sealed": HASH,
        "set_by": "ada",
    },
    "org_limits": {"org_id": uid("org a"), "name": "tasks", "most": 5, "set_by": "ada"},
    "org_storage": {"org_id": uid("org a"), "bytes": 1},
    "sandboxed_runtimes": {"runtime": "mine", "is_function": False},
    "service_tokens": {"service": "sink", "name": "new"},
    "audit_entries": {
        "org_id": uid("org a"),
        "actor": "ada",
        "action": "deploy",
        "object": "dag=mill",
        "origin": "127.0.0.1",
        "seq": 1,
        "hash": HASH,
    },
    "audit_chains": {"org_id": uid("org a"), "seq": 5, "hash": HASH, "pruned_seq": 2, "pruned_hash": HASH},
    "service_token_hashes": {"token_id": uid("service token"), "listener": "query", "token_hash": HASH},
    "user_tokens": {
        "org_id": uid("org a"),
        "user_id": uid("user a"),
        "name": "new",
        "token_hash": HASH,
        "role": "reader",
        "created_at": T0,
        "expires_at": T1,
    },
    "signing_keys": {"kid": "new", "purpose": "task", "public_jwk": ES256},
    "udf_bundles": {
        "org_id": uid("org a"),
        "name": "new",
        "kind": "python",
        "sha256": HEX,
        "size_bytes": 1,
        "location": "s3://bundles/new.zip",
    },
    "dag_versions": {"org_id": uid("org a"), "dag_name": "new", "yaml_hash": "h", "yaml": "y"},
    "deleted_versions": {"org_id": uid("org a"), "dag_version_id": uid("dag a"), "deleted_by": uid("user a")},
    "dag_current_versions": {"org_id": uid("org a"), "dag_name": "dag", "dag_version_id": uid("dag a")},
    "dags_behind": {"org_id": uid("org b"), "dag_name": "dag"},
    "jobs": {
        "org_id": uid("org a"),
        "name": "new",
        "dag_name": "dag",
        "dag_version_id": uid("dag a"),
        "activation": "reactive",
        "runtime": "ecs_platform",
        "operator": "noop",
        "execution_strategy": "PerUpdate",
        "config_hash": "h",
        "input_datasets": [uid("data a")],
        "update_strategy": "replace",
    },
    "datasets": {
        "org_id": uid("org a"),
        "producer_dag_name": "dag",
        "producer_job_name": "new",
        "producer_output_index": 0,
    },
    "dataset_access": {
        "org_id": uid("org a"),
        "dataset_uuid": uid("data a"),
        "name": "blocks",
        "visibility": "org",
    },
    "dataset_versions": {
        "org_id": uid("org a"),
        "dataset_uuid": uid("data a"),
        "storage_location": "s3://cold/new/",
        "config_hash": "new",
    },
    "dag_version_datasets": {
        "org_id": uid("org a"),
        "dag_version_id": uid("dag a"),
        "dataset_uuid": uid("data a"),
        "dataset_version": uid("version a"),
    },
    "job_inputs": {"job_id": uid("job a"), "position": 0, "org_id": uid("org a"), "dataset_uuid": uid("data a")},
    "column_lineage": {
        "org_id": uid("org a"),
        "job_id": uid("job a"),
        "output_dataset_uuid": uid("data a"),
        "output_column": "x",
        "input_dataset_uuid": uid("data a2"),
        "input_column": "y",
    },
    "tasks": {"org_id": uid("org a"), "job_id": uid("job a")},
    "task_attempts": {
        "task_id": uid("task a"),
        "attempt": 1,
        "org_id": uid("org a"),
        "lease_token": uid("token"),
        "worker_id": "w",
        "started_at": T0,
    },
    "task_logs": {"task_id": uid("task a"), "attempt": 1, "n": 0, "at": T0, "level": "info", "text": "said"},
    "operator_state": {"org_id": uid("org a"), "job_id": uid("job a")},
    "dataset_heads": {"dataset_uuid": uid("data a2"), "org_id": uid("org a"), "last_commit": 1},
    "removed_generations": {
        "org_id": uid("org a"),
        "dataset_uuid": uid("data a"),
        "dataset_version": uid("version a"),
        "up_to_commit": 1,
        "storage_location": "s3://trace/a/",
    },
    "commits": {
        "dataset_uuid": uid("data a"),
        "number": 9,
        "org_id": uid("org a"),
        "dataset_version": uid("version a"),
        "task_id": uid("task a"),
        "attempt": 1,
        "scope": "new",
    },
    "partition_versions": {
        "dataset_version": uid("version a"),
        "partition_key": "daily",
        "valid_from": 1,
        "org_id": uid("org a"),
        "dataset_uuid": uid("data a"),
        "location": "s3://cold/new/",
    },
    "task_inputs": {
        "task_id": uid("task a"),
        "org_id": uid("org a"),
        "input_dataset_uuid": uid("data a"),
        "input_dataset_version": uid("version a"),
    },
    "processed_inputs": {
        "lineage_id": uid("lineage"),
        "dataset_version": uid("version a"),
        "partition_key": "daily",
        "read_at": T1,
        "task_id": uid("task a"),
    },
    "backfills": {"org_id": uid("org a"), "dag_name": "mill", "planned": 1},
    "dag_activations": {"org_id": uid("org a"), "dag_name": "dag", "dag_version_id": uid("dag a"), "since": T0},
    "releases": {"id": uid("new release"), "org_id": uid("org a"), "plan_hash": "h", "when_ready": False},
    "release_members": {
        "release_id": uid("release a"),
        "org_id": uid("org a"),
        "dag_name": "dag",
        "dag_version_id": uid("dag a"),
    },
    "release_comparisons": {
        "release_id": uid("release a"),
        "org_id": uid("org a"),
        "dataset_uuid": uid("data a"),
        "former_version": uid("version a"),
        "dataset_version": uid("version a"),
    },
    "catch_ups": {"job_id": uid("job a"), "dataset_uuid": uid("data a"), "org_id": uid("org a")},
    "events": {
        "org_id": uid("org a"),
        "kind": "update",
        "producer_run_id": uid("task a"),
        "producer_task_id": uid("task a"),
        "producer_attempt": 1,
        "dataset_uuid": uid("data a"),
        "dataset_version": uid("version a"),
        "scope": "new",
    },
    "held_events": {
        "job_id": uid("job a"),
        "seq": 1,
        "event_id": uid("event a"),
        "org_id": uid("org a"),
        "waits_for": uid("job a"),
    },
    "data_invalidations": {
        "org_id": uid("org a"),
        "dataset_uuid": uid("data a"),
        "dataset_version": uid("version a"),
        "block_range": "[0,10)",
        "partition_key": "0-9",
        "reason": "reorg",
        "producer_task_id": uid("task a"),
        "producer_attempt": 1,
    },
    "data_invalidation_jobs": {
        "invalidation_id": uid("invalidation a"),
        "job_id": uid("job a"),
        "org_id": uid("org a"),
        "task_id": uid("task a"),
    },
    "buffer_publishes": {
        "org_id": uid("org a"),
        "task_id": uid("task a"),
        "attempt": 1,
        "dataset_uuid": uid("data a"),
        "dataset_version": uid("version a"),
        "batch_uri": "s3://scratch/new.jsonl",
        "content_hash": HASH,
    },
    "alert_channels": {
        "org_id": uid("org a"),
        "name": "new",
        "kind": "webhook",
        "url": "https://example.org/",
        "secret": "s" * 16,
        "created_by": uid("user a"),
    },
    "alert_definitions": {
        "org_id": uid("org a"),
        "name": "new",
        "severity": "info",
        "created_by": uid("user a"),
        "max_age_seconds": 1,
    },
    "alert_definition_channels": {
        "org_id": uid("org a"),
        "alert_definition_id": uid("alert a"),
        "channel_id": uid("channel a"),
    },
    "buffered_datasets": {
        "org_id": uid("org a"),
        "dataset_uuid": uid("data a"),
        "dataset_version": uid("version a"),
        "dag_name": "dag",
        "name": "new",
        "declaration": '{"columns": [], "unique_key": [], "indexes": []}',
    },
    "outbox": {"org_id": uid("org a"), "kind": "enqueue_task", "payload": "{}"},
    "sources": {"job_id": uid("job a"), "org_id": uid("org a")},
    "reconcile_marks": {"only_one": True},
    "orphan_file_marks": {"only_one": True},
    "source_drains": {"until": "infinity"},
    "rpc_shares": {
        "pool": "main",
        "worker": "one",
        "request": 1,
        "in_flight": 1,
        "used": 0,
        "wanted": 0,
        "limit_in_flight": 1,
        "expires_at": "infinity",
    },
    "in_flight_limits": {"kind": "operator", "name": "new", "max_in_flight": 1},
    "pauses": {
        "org_id": uid("org a"),
        "job_id": uid("job a"),
        "priority": "bulk",
        "reason": "depth",
        "cause_job_id": uid("job a2"),
        "threshold": 100,
        "observed": 150,
    },
}


LEGAL |= {
    "source_schedules": {"job_id": uid("job a"), "org_id": uid("org a"), "decided_until": T0, "due_at": T1},
    "source_slots": {
        "org_id": uid("org a"),
        "dag_name": "dag",
        "job_name": "job",
        "slot": T0,
        "job_id": uid("job a"),
        "task_id": uid("task a"),
    },
    "source_deliveries": {
        "id": uid("delivery"),
        "org_id": uid("org a"),
        "dag_name": "dag",
        "job_name": "job",
        "job_id": uid("job a"),
        "delivery_key": "one",
        "body": "{}",
        "size_bytes": 2,
        "task_id": uid("task a"),
    },
}


def a(table: str, **changes: Any) -> tuple[str, Row]:
    """A row of the table: its legal one with these changes."""
    return table, {**LEGAL[table], **changes}


def tenant(letter: str) -> list[tuple[str, Row]]:
    org = {"org_id": uid(f"org {letter}")}
    data = {**org, "dataset_uuid": uid(f"data {letter}"), "dataset_version": uid(f"version {letter}")}
    return [
        a("orgs", id=uid(f"org {letter}"), slug=f"org_{letter}"),
        a("users", **org, id=uid(f"user {letter}"), external_id=f"user {letter}"),
        a("org_roles", **org, id=uid(f"role {letter}"), slug="seed"),
        a("udf_bundles", **org, id=uid(f"bundle {letter}"), sha256="1" * 64),
        a("dag_versions", **org, id=uid(f"dag {letter}"), dag_name="dag"),
        a("releases", **org, id=uid(f"release {letter}")),
        a("releases", **org, id=uid(f"release {letter}2")),
        a("datasets", **org, id=uid(f"data {letter}"), producer_job_name="seed"),
        a("datasets", **org, id=uid(f"data {letter}2"), producer_job_name="seed", producer_output_index=1),
        a("dataset_versions", org_id=org["org_id"], dataset_uuid=data["dataset_uuid"], id=uid(f"version {letter}")),
        a("jobs", **org, id=uid(f"job {letter}"), name="seed", dag_version_id=uid(f"dag {letter}")),
        a("jobs", **org, id=uid(f"job {letter}2"), name="seed2", dag_version_id=uid(f"dag {letter}")),
        a("tasks", **org, id=uid(f"task {letter}"), job_id=uid(f"job {letter}")),
        a("commits", **data, number=1, task_id=uid(f"task {letter}"), scope="1"),
        a("commits", **data, number=2, task_id=uid(f"task {letter}"), scope="2"),
        a("events", **data, id=uid(f"event {letter}"), scope="seed"),
        a("data_invalidations", **data, id=uid(f"invalidation {letter}")),
        a("alert_channels", **org, id=uid(f"channel {letter}"), name="seed", created_by=None),
        a("alert_definitions", **org, id=uid(f"alert {letter}"), name="seed", created_by=None),
    ]


SEED = [row for letter in "ab" for row in tenant(letter)]


SEED.append(a("service_tokens", id=uid("service token"), name="seed"))
SEED.append(a("dag_current_versions", org_id=uid("org b"), dag_version_id=uid("dag b")))
SEED[9] = a("dataset_versions", id=uid("version a"), config_hash="seed")

# Task rows, by what has happened to them.
ATTEMPT = {"lease_token": uid("token"), "worker_id": "w", "started_at": T0, "woken_at": T0}
RUNNING = {**ATTEMPT, "status": "Running", "lease_expires_at": T1}
COMPLETED = {**ATTEMPT, "status": "Completed", "completed_at": T1}
FAILED = {**ATTEMPT, "status": "Failed", "completed_at": T1, "error_message": "boom", "fault": "job"}
CANCELED = {**ATTEMPT, "status": "Canceled", "completed_at": T1, "cancel_reason": "rollback"}

SOURCE = {
    "activation": "source",
    "source": '{"kind": "manual"}',
    "execution_strategy": None,
    "input_datasets": "{}",
}
RANGE = {"block_range": "[10,20)", "generation": uid("version a")}
BLOCKS = {"block_range": "[10,20)", "partition_key": "10-19"}
CURSOR = {"kind": "cursor", "cursor_value": 5}
PARTITION = {"kind": "partition", "partition_key": "10-19", "block_range": "[10,20)"}
ACTIVE = {"status": "Active", "active_from": T0}
RETIRING = {"status": "Retiring", "active_from": T0, "active_until": T1, "verify_until": T2}
TAKEN = {"status": "Processing", "taken_by": "d1", "taken_until": T1, "attempts": 1}
MANUAL = {"reason": "manual", "paused_by": uid("user a"), "cause_job_id": None, "threshold": None, "observed": None}
