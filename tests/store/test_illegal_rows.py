"""The state database cannot hold a row that makes no sense.

Each case is a entry. It names a legal row, which must be accepted, and the smallest change that breaks the entry,
which must be refused by the constraint that stands for it. The last test sees to it that none is without a case.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support.postgres import RunningServer
from tracelake.store.migrate import Database

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


@dataclass(frozen=True)
class Case:
    rule: str
    constraint: str
    table: str
    broken: Row
    """What makes the legal row illegal."""
    legal: Row = field(default_factory=dict)
    """What makes the legal row of the table the legal one of this case."""
    beside: tuple[str, Row] | None = None
    """A row that is there already."""


def of(table: str, *rules: tuple[Any, ...]) -> list[Case]:
    """Cases of one table: rule, constraint (without the table's name), illegal row, legal row, rows beside it."""
    return [
        Case(rule, name if name.startswith("idx_") else f"{table}_{name}", table, *given)
        for rule, name, *given in rules
    ]


OTHER_TOKEN = {"name": "other", "token_hash": b"1" * 32}

CASES = [
    *of(
        "orgs",
        ("two orgs never share a slug", "slug_once", {"slug": "org_a"}),
        ("an org's slug is lower snake case", "slug_is_snake", {"slug": "Not-Snake"}),
        ("a slug has at most 128 characters", "slug_is_snake", {"slug": LONG}, {"slug": LONG[1:]}),
        ("an org has a name", "name_says_something", {"name": ""}),
        ("settings of an org are an object", "settings_is_object", {"settings": "[]"}),
    ),
    *of(
        "users",
        ("a user belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("a subject is one user, in one org", "external_id_once", {"external_id": "user b"}),
        ("a user has a subject", "external_id_says_something", {"external_id": ""}),
        (
            "subjects differ in more than case and form",
            "subject_key_once",
            {"subject_key": "ana"},
            {"subject_key": "bob"},
            a("users", external_id="Ana", subject_key="ana"),
        ),
        ("who is removed has no rights", "removed_has_no_platform", {"removed_at": T0, "platform_admin": True}),
    ),
    *of("restores", ("epochs are counted from 1", "count_from_one", {"epoch": 0})),
    *of(
        "user_tokens",
        ("a token is of a user of its org", "user_of_same_org", {"user_id": uid("user b")}),
        ("a token is one user's", "hash_once", {"token_hash": HASH}, OTHER_TOKEN, a("user_tokens")),
        ("a user's tokens have different names", "name_once", {"name": "new"}, OTHER_TOKEN, a("user_tokens")),
        ("a token's name is lower snake case", "name_is_snake", {"name": "Not-Snake"}),
        ("a token is stored as a hash", "hash_is_sha256", {"token_hash": b"short"}),
        ("a token ends after it begins", "expire_after_creation", {"expires_at": T0}),
    ),
    *of(
        "query_audit",
        ("a query belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("a query is by a user or a task", "user_or_task", {"task_id": uid("task a"), "attempt": 1}),
        ("a task that queried has an attempt", "task_has_attempt", {"attempt": 1}),
        ("a query is known by its hash", "hash_is_sha256", {"sql_sha256": b"short"}),
        ("an answer has no negative size", "sizes_are_not_negative", {"row_count": -1}),
    ),
    *of(
        "org_roles",
        ("a role belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("an org's roles have different slugs", "slug_once", {"slug": "seed"}),
        ("a role's slug is lower snake case", "slug_is_snake", {"slug": "Finance"}),
    ),
    *of(
        "org_role_memberships",
        ("no user gets a role of another org", "role_of_same_org", {"role_id": uid("role b")}),
        ("a role never takes a user of another org", "user_of_same_org", {"user_id": uid("user b")}),
    ),
    *of(
        "audit_entries",
        ("an entry belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("a place in a chain is taken once", "place_once", {"seq": 1}, {"seq": 2}, a("audit_entries")),
        ("an entry has an outcome that is known", "known_outcome", {"outcome": "perhaps"}),
        ("a refusal has a code", "code_of_refusals", {"outcome": "refused"}),
        ("what was done has no code of a refusal", "code_of_refusals", {"outcome": "done", "code": "forbidden"}),
        ("a place in a chain has a hash", "linked_whole", {"hash": None}),
        ("the hash of an entry is a SHA-256", "hash_is_sha256", {"hash": b"short"}),
    ),
    *of(
        "audit_chains",
        ("a chain belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("no chain is cut behind its end", "pruned_is_past", {"pruned_seq": 6}),
    ),
    *of(
        "org_secrets",
        ("a secret belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        (
            "an org has a secret of a kind and name once",
            "pkey",
            {"kind": "job"},
            {"kind": "webhook"},
            a("org_secrets"),
        ),
        ("a secret is of a known kind", "known_kind", {"kind": "user"}),
        ("a secret has a plain name", "name_is_snake", {"name": "My Key"}),
        ("a secret is stored whole", "sealed_is_whole", {"sealed": b"short"}),
    ),
    *of(
        "org_limits",
        ("a limit is of an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("an org has a limit once", "are_set_once", {"name": "tasks"}, {"name": "queries"}, a("org_limits")),
        ("a limit is a known one", "name_is_known", {"name": "moons"}),
        ("a limit allows something", "allow_one", {"most": 0}),
        ("a default is a number", "default_is_a_number", {"org_id": None, "set_by": None, "most": None}),
        ("who set a limit of an org is known", "of_one_has_an_author", {"set_by": None}),
    ),
    *of(
        "org_storage",
        ("what is stored belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("an org is measured once", "pkey", {"org_id": uid("org a")}, OTHER_ORG, a("org_storage")),
        ("what is stored is a size", "is_a_size", {"bytes": -1}),
    ),
    *of(
        "sandboxed_runtimes",
        ("a runtime is listed once", "pkey", {"runtime": "mine"}, {"runtime": "other"}, a("sandboxed_runtimes")),
    ),
    *of(
        "service_tokens",
        (
            "a service names its tokens differently",
            "name_once",
            {"name": "new"},
            {"name": "other"},
            a("service_tokens"),
        ),
        ("a service's token has a plain name", "name_is_snake", {"name": "My Worker"}),
        ("a worker's token says whose tasks it claims", "runtimes_of_claimers", {"service": "worker"}),
        ("it claims for a runtime at least", "runtimes_of_claimers", {"service": "runner", "runtimes": []}),
        ("no other service claims", "runtimes_of_claimers", {"runtimes": ["ecs_platform"]}),
        (
            "a service's token does not expire before it is made",
            "expire_after_creation",
            {"expires_at": T0},
            {"created_at": T1, "expires_at": T2},
        ),
    ),
    *of(
        "service_token_hashes",
        (
            "a service's token is stored once",
            "hash_once",
            {"token_hash": HASH},
            {"token_hash": b"1" * 32},
            a("service_token_hashes", listener="any"),
        ),
        ("the hash belongs to a token", "token_id_fkey", {"token_id": uid("missing")}),
        ("a hash is of a listener", "of_a_listener", {"listener": "elsewhere"}),
        (
            "a service's token is stored as a hash, never as itself",
            "hash_is_sha256",
            {"token_hash": b"the token itself"},
        ),
    ),
    *of(
        "signing_keys",
        ("a key id can be no path and no SQL", "kid_is_plain", {"kid": "../keys/1"}),
        ("keys are ES256", "are_es256", {"public_jwk": '{"kty": "oct", "k": "AA"}'}),
        ("a key has its point", "are_es256", {"public_jwk": '{"kty": "EC", "crv": "P-256"}'}),
        (
            "a private key never comes near the database",
            "hold_no_private_part",
            {"public_jwk": ES256.replace("}", ', "d": "AA"}')},
        ),
        ("a pending key has not signed", "pending_never_signed", {"active_from": T0}),
        ("an active key has begun", "pending_never_signed", {"active_from": None}, ACTIVE),
        ("an active key has no end", "active_has_no_end", {"verify_until": T2}, ACTIVE),
        ("a retiring key knows when it may go", "retiring_knows_its_end", {"verify_until": None}, RETIRING),
        ("a key verifies for as long as it signed", "retiring_knows_its_end", {"verify_until": T0}, RETIRING),
        (
            "one key signs at a time",
            "one_active",
            {"purpose": "task"},
            {**ACTIVE, "purpose": "user"},
            a("signing_keys", kid="old", **ACTIVE),
        ),
    ),
    *of(
        "udf_bundles",
        ("a bundle belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("the same code is one bundle", "content_once", {"sha256": "1" * 64}),
        ("a bundle's author is of its org", "author_of_same_org", {"created_by": uid("user b")}),
        ("a bundle has a plain name", "name_is_snake", {"name": "../x"}),
        ("a bundle is known by a SHA-256", "hash_is_sha256", {"sha256": "abc"}),
        ("an empty bundle does not exist", "size_is_positive", {"size_bytes": 0}),
        (
            "a ready bundle was checked at some time",
            "finalized_when_checked",
            {"finalized_at": None},
            {"status": "Ready", "finalized_at": T0},
        ),
        (
            "a refused bundle says why",
            "refusal_says_why",
            {"error_message": None},
            {"status": "Refused", "finalized_at": T0, "error_message": "zip bomb"},
        ),
    ),
    *of(
        "dag_versions",
        ("a version belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("the same YAML is one version", "content_once", {"dag_name": "dag"}),
        ("a deploy is by a user of the org", "author_of_same_org", {"deployed_by": uid("user b")}),
        ("a DAG's name is lower snake case", "dag_name_is_snake", {"dag_name": "My DAG"}),
        ("a version has a hash", "hash_says_something", {"yaml_hash": ""}),
    ),
    *of(
        "dag_current_versions",
        ("a DAG never serves another DAG's version", "version_of_same_dag", {"dag_name": "other"}),
        ("a DAG never serves another org's version", "version_of_same_dag", {"dag_version_id": uid("dag b")}),
    ),
    *of(
        "jobs",
        ("a version's jobs have different names", "name_once", {"name": "seed"}),
        ("a job is of a version of its own DAG", "version_of_same_dag", {"dag_name": "other"}),
        ("a job is of a version of its own org", "version_of_same_dag", {"dag_version_id": uid("dag b")}),
        (
            "a job never runs another org's code",
            "bundle_of_same_org",
            {"udf_bundle_id": uid("bundle b")},
            {"udf_bundle_id": uid("bundle a")},
        ),
        (
            "a handler is of a bundle",
            "handler_within_a_bundle",
            {"udf_bundle_id": None},
            {"udf_bundle_id": uid("bundle a"), "udf_handler": "main.handler"},
        ),
        ("a job's name is lower snake case", "name_is_snake", {"name": "Ingest"}),
        ("a runtime has a plain name", "runtime_is_snake", {"runtime": "ECS"}),
        ("an operator has a plain name", "operator_is_snake", {"operator": "os.system"}),
        ("a job's config is an object", "config_is_object", {"config": "[]"}),
        ("a job has a config hash", "config_hash_says_something", {"config_hash": ""}),
        ("a source is of a known kind", "source_has_a_kind", {"source": '{"kind": "magic"}'}, SOURCE),
        ("a source has a kind", "source_has_a_kind", {"source": "{}"}, SOURCE),
        ("a source job says what starts it", "source_shape", {"source": None}, SOURCE),
        ("a source job reads nothing", "source_shape", {"input_datasets": [uid("data a")]}, SOURCE),
        ("a source job has no strategy", "source_shape", {"execution_strategy": "PerUpdate"}, SOURCE),
        ("a source job has no idle timeout", "source_shape", {"idle_timeout": "5m"}, SOURCE),
        ("a reactive job has a strategy", "reactive_shape", {"execution_strategy": None}),
        ("a reactive job reads something", "reactive_shape", {"input_datasets": "{}"}),
        ("a reactive job is no source", "reactive_shape", {"source": '{"kind": "cron"}'}),
        ("a reactive job is not bootstrapped", "reactive_shape", {"bootstrap": "{}"}),
        (
            "only a bootstrap can have been done",
            "only_bootstrap_is_done",
            {"bootstrap": None},
            {**SOURCE, "bootstrap": "{}", "bootstrapped_at": "2026-01-01"},
        ),
        ("bootstrap is an object", "bootstrap_is_object", {"bootstrap": "true"}, {**SOURCE, "bootstrap": "{}"}),
        ("idle timeout is a duration", "idle_timeout_is_a_duration", {"idle_timeout": "soon"}, {"idle_timeout": "5m"}),
        (
            "append needs a unique key",
            "append_has_unique_key",
            {"unique_key": None},
            {"update_strategy": "append", "unique_key": ["id"]},
        ),
        ("a unique key has columns", "unique_key_names_columns", {"unique_key": "{}"}, {"unique_key": ["id"]}),
        ("a unique key has no gap", "unique_key_names_columns", {"unique_key": ["id", None]}, {"unique_key": ["id"]}),
        (
            "user code never gets a secret",
            "untrusted_code_gets_no_secrets",
            {"secrets": ["rpc_key"]},
            {"udf_bundle_id": uid("bundle a")},
        ),
        ("scaling is an object", "scaling_is_object", {"scaling": "20"}, {"scaling": "{}"}),
        (
            "a job may run at least once at a time",
            "max_concurrency_is_positive",
            {"scaling": '{"max_concurrency": 0}'},
            {"scaling": '{"max_concurrency": 1}'},
        ),
        ("a queue may hold a task", "max_queue_depth_is_positive", {"max_queue_depth": 0}, {"max_queue_depth": 1}),
        ("a queue may be a moment old", "max_queue_age_is_positive", {"max_queue_age": "0"}, {"max_queue_age": "1 s"}),
        (
            "producers resume at or below the limit that pauses them",
            "resume_depth_below_max",
            {"max_queue_depth": 5, "resume_queue_depth": 6},
            {"max_queue_depth": 5, "resume_queue_depth": 5},
        ),
        (
            "producers resume at or below the age that pauses them",
            "resume_age_below_max",
            {"max_queue_age": "1 h", "resume_queue_age": "2 h"},
            {"max_queue_age": "1 h", "resume_queue_age": "1 h"},
        ),
        ("a job has time to run", "timeout_is_positive", {"timeout_seconds": 0}, {"timeout_seconds": 1}),
        ("a heartbeat comes before it is missed", "heartbeat_fits_its_timeout", {"heartbeat_timeout_seconds": 30}),
        (
            "a limit of platform failures is not negative",
            "max_platform_failures_is_not_negative",
            {"max_platform_failures": -1},
            {"max_platform_failures": 0},
        ),
        ("a job is tried at least once", "max_attempts_is_positive", {"max_attempts": 0}, {"max_attempts": 1}),
        ("backoff starts below its limit", "backoff_rises", {"retry_backoff_seconds": 601}),
    ),
    *of(
        "datasets",
        ("a dataset belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        (
            "a published name is unique in its org",
            "name_once",
            {"org_id": uid("org a")},
            {**OTHER_ORG, "name": "blocks", "visibility": "org"},
            a("datasets", name="blocks", visibility="org", producer_output_index=1),
        ),
        ("an output is one dataset", "one_producer", {"producer_job_name": "seed"}),
        ("an output is a job's", "output_of_a_job", {"producer_job_name": None}),
        (
            "a published name is lower snake case",
            "name_is_snake",
            {"name": "My Blocks"},
            {"name": "blocks", "visibility": "org"},
        ),
        (
            "a published name has at most 128 characters",
            "name_is_snake",
            {"name": LONG},
            {"name": LONG[1:], "visibility": "org"},
        ),
        ("an unpublished output has no name", "published_has_a_name", {"name": "blocks"}),
        ("what users see has a name", "published_has_a_name", {"visibility": "org"}),
        (
            "only a dataset for roles names roles",
            "roles_when_by_role",
            {"visibility": "org"},
            {"name": "blocks", "visibility": "roles", "read_roles": ["finance"]},
        ),
        ("a dataset has a producer", "producer_is_named", {"producer_job_name": ""}),
        ("outputs count from 0", "output_index_from_zero", {"producer_output_index": -1}),
        ("storage is an object", "storage_is_object", {"storage": "[]"}),
    ),
    *of(
        "dataset_access",
        ("access is to a dataset of the same org", "dataset_of_same_org", {"dataset_uuid": uid("data b")}),
        ("access is decided by a user of the same org", "user_of_same_org", {"set_by": uid("user b")}),
        ("no user reads what is not published", "is_of_published", {"visibility": "internal"}),
        ("only access for roles names roles", "roles_when_by_role", {"read_roles": ["role:finance"]}),
    ),
    *of(
        "dataset_versions",
        ("a generation is of a dataset of its org", "dataset_of_same_org", {"dataset_uuid": uid("data b2")}),
        ("one config is one generation (S8)", "content_once", {"config_hash": "seed"}),
        (
            "a range of one config is published once",
            "content_once",
            {"block_range": "[10,20)"},
            {**RANGE, "block_range": "[20,30)"},
            a("dataset_versions", **RANGE),
        ),
        ("a published range names its generation", "range_names_its_generation", {"generation": None}, RANGE),
        ("a generation is of none other", "range_names_its_generation", {"block_range": None}, RANGE),
        (
            "a range is of a generation of the same dataset",
            "generation_of_same_dataset",
            {"generation": uid("version b")},
            RANGE,
        ),
        (
            "a range is not its own generation",
            "not_its_own_generation",
            {"generation": uid("new")},
            {**RANGE, "id": uid("new")},
        ),
        ("a range is not empty", "range_is_finite", {"block_range": "[10,10)"}, RANGE),
        ("a range has an end", "range_is_finite", {"block_range": "[10,)"}, RANGE),
        ("a range starts at block 0 or later", "range_is_finite", {"block_range": "[-1,10)"}, RANGE),
        ("a generation lies somewhere", "location_says_something", {"storage_location": ""}),
        ("a prefix ends in a slash (S13)", "prefix_ends_in_slash", {"storage_location": "s3://cold/foo"}),
        (
            "a glob stays inside its prefix",
            "glob_stays_in_prefix",
            {"storage_glob": "../*.parquet"},
            {"storage_glob": "*.parquet"},
        ),
        ("a generation has a config hash", "hash_says_something", {"config_hash": ""}),
    ),
    *of(
        "dag_version_datasets",
        ("a DAG points only at generations of its org", "dag_of_same_org", {"dag_version_id": uid("dag b")}),
        (
            "a pointer names a generation of that dataset",
            "version_of_same_dataset",
            {"dataset_version": uid("version b")},
        ),
    ),
    *of(
        "job_inputs",
        ("an edge is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("a job never reads another org's dataset", "dataset_of_same_org", {"dataset_uuid": uid("data b")}),
        ("inputs count from 0", "position_from_zero", {"position": -1}),
        (
            "a filter is a tree, never SQL (S3)",
            "where_is_a_tree",
            {"where_tree": '"severity = 1; DROP TABLE x"'},
            {"where_tree": '{"op": "="}'},
        ),
    ),
    *of(
        "column_lineage",
        ("lineage is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("lineage never leads into another org", "output_of_same_org", {"output_dataset_uuid": uid("data b")}),
        ("lineage never leads out of another org", "input_of_same_org", {"input_dataset_uuid": uid("data b")}),
    ),
    *of(
        "tasks",
        ("a task is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("attempts count from 1", "attempt_within_max", {"attempt": 0}),
        ("a task has not sent fewer requests than none", "use_not_negative", {"node_requests": -1}),
        ("no attempt beyond the last", "attempt_within_max", {"attempt": 4}, {"attempt": 3}),
        (
            "an attempt beyond the last is one that the platform ended",
            "attempt_within_max",
            {"platform_failures": 1},
            {"attempt": 5, "platform_failures": 2},
        ),
        (
            "only attempts are platform failures",
            "platform_failures_were_attempts",
            {"platform_failures": 2},
            {"platform_failures": 1},
        ),
        ("lost workers are counted", "lost_alone_is_not_negative", {"lost_alone": -1}, {"lost_alone": 1}),
        ("skipped attempts are counted", "skipped_attempts_are_not_negative", {"skipped_attempts": -1}),
        ("a task has time to run", "timeout_is_positive", {"timeout_seconds": 0}, {"timeout_seconds": 1}),
        ("a dedupe key says something", "dedupe_key_says_something", {"dedupe_key": ""}, {"dedupe_key": "k"}),
        (
            "a unit of work is one task of a job",
            "idx_tasks_job_dedupe",
            {"job_id": uid("job a")},
            {"job_id": uid("job a2"), "dedupe_key": "k"},
            a("tasks", dedupe_key="k", **COMPLETED),
        ),
        ("a queued task has no lease", "queued_holds_nothing", ATTEMPT),
        ("a queued task has no heartbeat", "queued_holds_nothing", {"last_heartbeat": T0}),
        ("a queued task has no progress", "queued_holds_nothing", {"progress": "{}"}),
        ("a queued task has no lease expiry", "only_running_has_a_lease", {"lease_expires_at": T1}),
        ("a queued task has not ended", "ended_says_when", {"completed_at": T1}),
        ("a queued task waits for no retry", "only_failed_is_retried", {"next_retry_at": T1}),
        ("a queued task has no error", "only_failed_has_an_error", {"error_message": "boom"}),
        ("a running task has a lease expiry", "running_is_leased", {"lease_expires_at": None}, RUNNING),
        (
            "a running task has a lease token, a worker and a start",
            "running_is_leased",
            {"lease_token": None, "worker_id": None, "started_at": None},
            RUNNING,
        ),
        ("a running task was woken", "running_was_woken", {"woken_at": None}, RUNNING),
        ("a running task has not ended", "ended_says_when", {"completed_at": T1}, RUNNING),
        ("a running task has no outputs", "only_completed_has_outputs", {"outputs": "[]"}, RUNNING),
        ("a running task has no completion", "completion_ends_an_attempt", {"completion_hash": HASH}, RUNNING),
        ("an attempt is known whole or not at all", "attempt_is_known_whole", {"worker_id": None}, FAILED),
        (
            "no heartbeat carries a lease past the timeout",
            "lease_within_timeout",
            {"lease_expires_at": T2},
            {**RUNNING, "timeout_seconds": 60},
        ),
        ("a completed task says when", "ended_says_when", {"completed_at": None}, COMPLETED),
        ("a completed task holds no lease", "only_running_has_a_lease", {"lease_expires_at": T1}, COMPLETED),
        ("a completed task is not retried", "only_failed_is_retried", {"next_retry_at": T2}, COMPLETED),
        ("a completed task has no error", "only_failed_has_an_error", {"error_message": "boom"}, COMPLETED),
        (
            "a completed task was leased",
            "completed_was_leased",
            dict.fromkeys(("lease_token", "worker_id", "started_at")),
            COMPLETED,
        ),
        (
            "a task with files of another one has a memo key",
            "memoized_has_a_key",
            {"memo_key": None},
            {**COMPLETED, "memo_key": HASH, "memoized_from": uid("task a")},
        ),
        ("a failed task says why", "only_failed_has_an_error", {"error_message": None}, FAILED),
        ("an error says something", "error_says_something", {"error_message": ""}, FAILED),
        ("a failed task says whose fault it was", "only_failed_has_a_fault", {"fault": None}, FAILED),
        ("only a failed task has a fault", "only_failed_has_a_fault", {"fault": "platform"}, COMPLETED),
        ("a failed task says when", "ended_says_when", {"completed_at": None}, FAILED),
        ("a failed task holds no lease", "only_running_has_a_lease", {"lease_expires_at": T1}, FAILED),
        ("a failed task has no outputs", "only_completed_has_outputs", {"outputs": "[]"}, FAILED),
        (
            "the last attempt waits for no retry (S11)",
            "only_failed_is_retried",
            {"attempt": 3},
            {**FAILED, "attempt": 2, "next_retry_at": T2},
        ),
        ("a canceled task says why", "only_canceled_has_a_reason", {"cancel_reason": None}, CANCELED),
        (
            "only a canceled task was superseded",
            "only_canceled_is_superseded",
            {"superseded_by": uid("task b")},
            COMPLETED,
        ),
        ("only a canceled task was canceled", "only_canceled_has_a_reason", {"cancel_reason": "x"}, COMPLETED),
        ("a canceled task is not retried", "only_failed_is_retried", {"next_retry_at": T2}, CANCELED),
        (
            "a completion is kept by its SHA-256",
            "completion_hash_is_sha256",
            {"completion_hash": b"short"},
            {**COMPLETED, "completion_hash": HASH},
        ),
        (
            "an answer is to a completion",
            "answer_is_to_a_completion",
            {"completion_hash": None},
            {**COMPLETED, "completion_hash": HASH, "completion_answer": "{}"},
        ),
        ("a memo key is a SHA-256", "memo_key_is_sha256", {"memo_key": b"short"}, {"memo_key": HASH}),
    ),
    *of(
        "task_attempts",
        ("an attempt is of a task that exists", "task_id_fkey", {"task_id": uid("missing")}),
        ("an attempt has a number from 1", "count_from_one", {"attempt": 0}),
        ("an ended attempt has an outcome", "ended_has_an_outcome", {"ended_at": T1}),
        (
            "a failed attempt says why",
            "failure_says_why",
            {"error_message": None},
            {"ended_at": T1, "outcome": "LeaseExpired", "error_message": "no heartbeat for 120 s", "fault": "platform"},
        ),
        (
            "a failed attempt says whose fault it was",
            "failure_has_a_fault",
            {"fault": None},
            {"ended_at": T1, "outcome": "LeaseExpired", "error_message": "no heartbeat for 120 s", "fault": "platform"},
        ),
        (
            "an attempt that did not fail has no fault",
            "failure_has_a_fault",
            {"fault": "job"},
            {"ended_at": T1, "outcome": "Completed"},
        ),
        ("only a reply can be late", "only_an_end_is_late", {"late": True}),
    ),
    *of(
        "task_logs",
        ("a line is of a task that exists", "task_id_fkey", {"task_id": uid("missing")}),
        ("lines count from 0", "count_from_zero", {"n": -1}),
    ),
    *of(
        "operator_state",
        ("operator state is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
    ),
    *of(
        "dataset_heads",
        ("a head is of a dataset of its org", "dataset_of_same_org", {"dataset_uuid": uid("data b2")}),
        ("a head counts from 1", "count_from_one", {"last_commit": 0}),
    ),
    *of(
        "deleted_versions",
        ("a deleted version is of its org", "version_of_same_org", {"dag_version_id": uid("dag b")}),
        ("a version is deleted by a user of its org", "user_of_same_org", {"deleted_by": uid("user b")}),
    ),
    *of(
        "removed_generations",
        ("a removed generation is of its dataset", "of_same_dataset", {"dataset_version": uid("version b")}),
    ),
    *of(
        "commits",
        ("a task's effect on a dataset counts once", "effect_once", {"scope": "1"}),
        ("a commit number is used once", "pkey", {"number": 1}),
        ("a commit has all of its hashes or none", "hashed_whole", {"hash": b"h"}),
        ("only a commit with a hash is linked to another", "previous_of_a_hashed", {"previous_hash": b"h"}),
        ("a commit is by a task that exists", "task_id_fkey", {"task_id": uid("missing")}),
        (
            "a commit is to a generation of its dataset",
            "version_of_same_dataset",
            {"dataset_version": uid("version b")},
        ),
        ("commits count from 1", "count_from_one", {"number": 0}),
        ("a commit is by an attempt", "attempt_from_one", {"attempt": 0}),
        ("a commit's sizes are not negative", "sizes_are_not_negative", {"row_count": -1}, {"row_count": 0}),
        ("a commit counts what it left unchanged", "unchanged_is_not_negative", {"unchanged": -1}, {"unchanged": 1}),
    ),
    *of(
        "partition_versions",
        (
            "a partition is of a generation of its dataset",
            "version_of_same_dataset",
            {"dataset_version": uid("version b")},
        ),
        ("a partition comes from a commit", "from_a_commit", {"valid_from": 7}),
        ("a partition ends with a commit", "to_a_commit", {"valid_to": 7}, {"valid_to": 2}),
        ("a partition ends after it began", "end_after_start", {"valid_from": 2}, {"valid_to": 2}),
        ("a partition's range is not empty", "range_is_finite", {"block_range": "empty"}, BLOCKS),
        (
            "a range partition is named by its inclusive range (S6)",
            "key_is_the_range",
            {"partition_key": "10-20"},
            BLOCKS,
        ),
        ("files are a list", "files_is_a_list", {"files": "{}"}),
        ("a partition's sizes are not negative", "sizes_are_not_negative", {"bytes": -1}, {"bytes": 0}),
        ("a partition's content is known by a SHA-256", "content_is_sha256", {"content_hash": b"short"}),
        ("hashes of columns are by their names", "column_hashes_is_a_map", {"column_hashes": "[]"}),
        ("a summary of addresses has a power of two of bytes", "addresses_is_a_summary", {"addresses": b"abc"}),
        ("a content is older than the commit that wrote it again", "content_is_older", {"content_since": 1}),
        ("current partitions keep their files", "only_replaced_lose_files", {"files_removed_at": T2}),
        (
            "current partitions do not overlap",
            "ranges_do_not_overlap",
            {"block_range": "[19,30)", "partition_key": "19-29"},
            {"block_range": "[20,30)", "partition_key": "20-29"},
            a("partition_versions", **BLOCKS),
        ),
        (
            "partitions did not overlap as of any former commit",
            "ranges_do_not_overlap",
            {"valid_from": 1},
            {"block_range": "[15,30)", "partition_key": "15-29", "valid_from": 2},
            a("partition_versions", **BLOCKS, valid_to=2),
        ),
        (
            "a partition has one current version",
            "one_at_a_time",
            {"partition_key": "daily"},
            {"partition_key": "weekly", "valid_from": 2},
            a("partition_versions"),
        ),
    ),
    *of(
        "task_inputs",
        ("an input is of a task that exists", "task_id_fkey", {"task_id": uid("missing")}),
        (
            "a task never reads another org's generation",
            "version_of_same_dataset",
            {"input_dataset_version": uid("version b")},
        ),
        ("a pinned commit exists", "commit_of_same_dataset", {"input_commit": 7}, {"input_commit": 2}),
        ("an input is of an attempt", "attempt_from_one", {"attempt": 0}),
    ),
    *of(
        "processed_inputs",
        ("a commit that was read is a number from 1", "commit_from_one", {"commit_number": 0}, {"commit_number": 1}),
        ("a cursor that was read starts at 0 or later", "cursor_from_zero", {"cursor_value": -1}, {"cursor_value": 0}),
    ),
    *of(
        "backfills",
        ("a backfill is of an org", "org_id_fkey", {"org_id": uid("missing")}),
        ("a backfill is by a user of its org", "user_of_same_org", {"created_by": uid("user b")}),
        (
            "a backfill covers a range with both ends",
            "range_is_finite",
            {"block_range": "[5,)"},
            {"block_range": "[5,9)"},
        ),
        ("a budget is of one task at least", "budget_is_positive", {"budget_tasks": 0}, {"budget_tasks": 1}),
        ("a backfill has not created fewer tasks than none", "counts_are_not_negative", {"created": -1}),
        ("the place of a backfill is an object", "place_is_object", {"place": "[]"}, {"place": "{}"}),
        (
            "an ended backfill says when",
            "ended_says_when",
            {"ended_at": None, "ended_because": None},
            {"status": "Done", "ended_at": T1, "ended_because": "complete"},
        ),
        ("an ended backfill says why", "ended_says_why", {"ended_because": "complete"}),
        ("a budget of requests allows one", "use_budgets_are_positive", {"budget_requests": 0}, {"budget_requests": 1}),
        ("a budget of bytes allows one", "use_budgets_are_positive", {"budget_bytes": 0}, {"budget_bytes": 1}),
        (
            "a backfill whose budget is used up is paused",
            "stopped_are_paused",
            {"status": "Running"},
            {"status": "Paused", "stopped_because": "requests"},
        ),
    ),
    *of(
        "dag_activations",
        ("an activation is of a version of the DAG", "version_of_same_dag", {"dag_name": "other"}),
        ("an activation ends after it began", "end_after_they_begin", {"until": "2000-01-01Z"}, {"until": T1}),
        (
            "one version is active at a time",
            "idx_dag_activations_active",
            {"until": None},
            {"until": T1},
            a("dag_activations"),
        ),
    ),
    *of(
        "releases",
        ("a release is by a user of its org", "author_of_same_org", {"created_by": uid("user b")}),
        (
            "a release that serves was promoted",
            "serve_after_promotion",
            {"promoted_at": None},
            {"state": "Serving", "promoted_at": T1},
        ),
    ),
    *of(
        "release_members",
        ("a version is in a release of its org", "release_of_same_org", {"release_id": uid("release b")}),
        ("a member is a version of its DAG", "version_of_same_dag", {"dag_version_id": uid("dag b")}),
        ("what a member replaces is of its DAG", "former_of_same_dag", {"former_version_id": uid("dag b")}),
        (
            "one release builds a DAG at a time",
            "idx_release_members_builds",
            {"builds": True},
            {"builds": False},
            a("release_members", release_id=uid("release a2")),
        ),
    ),
    *of(
        "release_comparisons",
        ("a comparison is of a release of its org", "release_of_same_org", {"release_id": uid("release b")}),
        ("side A is of the dataset", "former_of_same_dataset", {"former_version": uid("version b")}),
        ("side B is of the dataset", "version_of_same_dataset", {"dataset_version": uid("version b")}),
        ("limits are by name", "limits_is_a_map", {"limits": "[]"}),
        (
            "what is to be compared is due",
            "open_is_due",
            {"due_at": None},
            {"state": "Waiting", "requested_at": T0, "due_at": T1},
        ),
        (
            "what is being compared is leased",
            "running_has_lease",
            {"lease_token": None},
            {"state": "Running", "requested_at": T0, "due_at": T1, "taken_at": T0, "lease_token": uid("token")},
        ),
        ("what was compared has figures", "done_has_result", {"result": None}, {"state": "Done", "result": "{}"}),
        ("what failed has a reason", "failed_has_error", {"error": None}, {"state": "Failed", "error": "no"}),
    ),
    *of(
        "catch_ups",
        ("a comparison is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("a comparison is of a dataset of its org", "dataset_of_same_org", {"dataset_uuid": uid("data b")}),
        ("a comparison is at a known stage", "stage_is_known", {"stage": "lost"}, {"stage": "events"}),
        ("a comparison has not created fewer tasks than none", "tasks_are_not_negative", {"tasks": -1}),
    ),
    *of(
        "events",
        ("an event is stored once", "once", {"scope": "seed"}),
        (
            "an event is of a generation of its dataset",
            "version_of_same_dataset",
            {"dataset_version": uid("version b")},
        ),
        ("an event is of a dataset of its org", "version_of_same_dataset", OTHER_ORG),
        ("a producing task has an attempt", "producer_has_an_attempt", {"producer_attempt": None}),
        (
            "an event of a task names the task",
            "of_tasks_name_the_task",
            {"origin": "task"},
            {"origin": "manual", "producer_task_id": None, "producer_attempt": None},
        ),
        ("an event is by an attempt", "attempt_from_one", {"producer_attempt": 0}),
        ("an event has a scope", "scope_says_something", {"scope": ""}),
        ("a cursor event has its cursor", "cursor_shape", {"cursor_value": None}, CURSOR),
        ("only a cursor event has a cursor", "cursor_shape", {"cursor_value": 5}, PARTITION),
        ("a partition event has its key", "partition_shape", {"partition_key": None, "block_range": None}, PARTITION),
        ("only a partition event has a key", "partition_shape", {"partition_key": "x"}, CURSOR),
        ("only a partition has a range", "range_is_of_a_partition", {"block_range": "[0,1)"}, CURSOR),
        ("an event's range has an end", "range_is_finite", {"block_range": "[10,)"}, PARTITION),
        ("a partition key is the inclusive range (S6)", "key_is_the_range", {"block_range": "[10,19)"}, PARTITION),
        ("an event's cursor starts at 0", "cursor_from_zero", {"cursor_value": -1}, CURSOR),
        (
            "an event that is not routed says why",
            "audit_says_why",
            {"audit_reason": None},
            {"disposition": "AuditOnly", "audit_reason": "old generation"},
        ),
        (
            "an event kept for the record was not routed",
            "audit_only_is_not_routed",
            {"routed_at": T0},
            {"disposition": "AuditOnly", "audit_reason": "old generation"},
        ),
    ),
    *of(
        "held_events",
        ("a held event exists", "event_id_fkey", {"event_id": uid("missing")}),
        ("an event is held for a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        (
            "an event is held once for a job",
            "once",
            {"event_id": uid("event a"), "invalidation_id": None},
            {"event_id": None, "invalidation_id": uid("invalidation a")},
            a("held_events", seq=2),
        ),
        (
            "a held invalidation exists",
            "invalidation_id_fkey",
            {"event_id": None, "invalidation_id": uid("missing")},
        ),
        (
            "an invalidation is held once for a job",
            "invalidation_once",
            {"event_id": None, "invalidation_id": uid("invalidation a")},
            {},
            a("held_events", seq=2, event_id=None, invalidation_id=uid("invalidation a")),
        ),
        ("an event or an invalidation is held", "are_one_thing", {"event_id": None}),
    ),
    *of(
        "data_invalidations",
        (
            "an invalidation is of a generation of its dataset",
            "version_of_same_dataset",
            {"dataset_version": uid("version b")},
        ),
        (
            "an invalidation follows from a commit that exists",
            "commit_of_same_dataset",
            {"follows_commit": 7},
            {"follows_commit": 2},
        ),
        ("an invalidation is by a task that exists", "producer_task_id_fkey", {"producer_task_id": uid("missing")}),
        (
            "an invalidation is asked for by a user of the org",
            "user_of_same_org",
            {"requested_by": uid("user b")},
            {"producer_task_id": None, "producer_attempt": None, "requested_by": uid("user a")},
        ),
        ("an invalidated range has the key of its blocks", "key_is_the_range", {"partition_key": "daily"}),
        ("an invalidated range has an end", "range_is_finite", {"block_range": "[0,)"}),
        (
            "an invalidation names a partition",
            "partition_is_named",
            {"partition_key": ""},
            {"block_range": None, "partition_key": "daily"},
        ),
        ("an invalidation says why", "reason_says_something", {"reason": ""}),
        (
            "an invalidation comes from a task or a user",
            "come_from_someone",
            {"producer_task_id": None, "producer_attempt": None},
        ),
        ("an invalidating task has an attempt", "producer_has_an_attempt", {"producer_attempt": None}),
        (
            "an invalidation that is not routed says why",
            "audit_says_why",
            {"audit_reason": None},
            {"disposition": "AuditOnly", "audit_reason": "old generation"},
        ),
        (
            "an invalidation kept for the record was not routed",
            "audit_only_is_not_routed",
            {"routed_at": T0},
            {"disposition": "AuditOnly", "audit_reason": "old generation"},
        ),
    ),
    *of(
        "data_invalidation_jobs",
        (
            "a share is of an invalidation of its org",
            "invalidation_of_same_org",
            {"invalidation_id": uid("invalidation b")},
        ),
        ("a share is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("a share is done by a task that exists", "task_id_fkey", {"task_id": uid("missing")}),
    ),
    *of(
        "buffer_publishes",
        (
            "a batch is published once per attempt (S2)",
            "once",
            {"batch_uri": "s3://scratch/old.jsonl"},
            {},
            a("buffer_publishes", batch_uri="s3://scratch/old.jsonl"),
        ),
        ("a batch is by a task that exists", "task_id_fkey", {"task_id": uid("missing")}),
        (
            "a batch never goes to another org's dataset",
            "version_of_same_dataset",
            {"dataset_uuid": uid("data b"), "dataset_version": uid("version b")},
        ),
        ("a batch is by an attempt", "attempt_from_one", {"attempt": 0}),
        ("a batch lies somewhere", "uri_says_something", {"batch_uri": ""}),
        ("a batch's sizes are not negative", "sizes_are_not_negative", {"record_count": -1}),
        ("a batch's contents are known by a SHA-256", "hash_is_sha256", {"content_hash": b""}),
        (
            "a committed batch says when",
            "settled_says_when",
            {"settled_at": None},
            {"status": "Committed", "settled_at": T0, "seq": 1},
        ),
        (
            "a committed batch has its place among those of its table",
            "committed_has_a_seq",
            {"seq": None},
            {"status": "Committed", "settled_at": T0, "seq": 1},
        ),
        ("a batch that is not committed has none", "committed_has_a_seq", {"seq": 1}),
        (
            "only a committed batch leaves the store",
            "only_committed_is_removed",
            {"status": "Dead", "seq": None, "error_message": "line 3: not JSON"},
            {"status": "Committed", "settled_at": T0, "seq": 1, "removed_at": T1},
        ),
        (
            "a line is that of a death, from 1",
            "line_of_a_death",
            {"error_line": 0},
            {"status": "Dead", "settled_at": T0, "error_message": "not JSON", "error_line": 1},
        ),
        (
            "a dead batch says why",
            "death_says_why",
            {"error_message": None},
            {"status": "Dead", "settled_at": T0, "error_message": "line 3: not JSON"},
        ),
    ),
    *of(
        "buffered_datasets",
        (
            "a declaration is of a dataset of its org",
            "version_of_same_dataset",
            {"dataset_uuid": uid("data b"), "dataset_version": uid("version b")},
        ),
        ("a declaration is whole", "declaration_is_whole", {"declaration": "{}"}),
    ),
    *of(
        "alert_channels",
        ("a channel belongs to an org", "org_id_fkey", {"org_id": uid("missing"), "created_by": None}),
        ("an org's channels have different names", "name_once", {"name": "seed"}),
        ("a channel is of its org's user", "author_of_same_org", {"created_by": uid("user b")}),
        ("a channel's name is lower snake case", "name_is_snake", {"name": "Ops"}),
        ("a channel leads to the web", "url_is_of_the_web", {"url": "ftp://example.org/"}),
        ("a channel's secret cannot be guessed", "secret_is_long", {"secret": "s" * 15}),
    ),
    *of(
        "alert_definitions",
        ("an alert belongs to an org", "org_id_fkey", {"org_id": uid("missing"), "created_by": None}),
        ("an org's alerts have different names", "name_once", {"name": "seed"}),
        ("an alert is of its org's user", "author_of_same_org", {"created_by": uid("user b")}),
        ("an alert's name is lower snake case", "name_is_snake", {"name": "Whales"}),
        ("an alert's parameters are an object", "params_are_an_object", {"params": "[]"}),
        ("an alert's greatest age is positive", "max_age_is_positive", {"max_age_seconds": 0}),
    ),
    *of(
        "alert_definition_channels",
        (
            "an alert goes to channels of its own org",
            "channel_of_same_org",
            {"channel_id": uid("channel b")},
        ),
        (
            "a channel is used by alerts of its own org",
            "definition_of_same_org",
            {"alert_definition_id": uid("alert b")},
        ),
    ),
    *of(
        "outbox",
        ("a payload is an object", "payload_is_object", {"payload": "[]"}),
        ("attempts are not negative", "attempts_are_not_negative", {"attempts": -1}),
        ("a pending row is not taken (S7)", "only_processing_is_taken", {"taken_until": T1, "taken_by": "d1"}),
        ("a taken row says until when (S7)", "only_processing_is_taken", {"taken_until": None}, TAKEN),
        ("a taken row says by whom (S7)", "only_processing_is_taken", {"taken_by": None}, TAKEN),
        ("taking a row is an attempt", "taken_counts_as_attempt", {"attempts": 0}, TAKEN),
        ("a done row says when", "ended_says_when", {"processed_at": None}, {"status": "Done", "processed_at": T1}),
        ("a pending row is not done", "ended_says_when", {"processed_at": T1}),
        (
            "a dead row says why",
            "failed_says_why",
            {"last_error": None},
            {"status": "Failed", "processed_at": T1, "last_error": "queue says no"},
        ),
        (
            "an entry is pending once",
            "open_once",
            {"status": "Pending", "processed_at": None},
            {"dedupe_key": "k", "status": "Done", "processed_at": T1},
            a("outbox", dedupe_key="k"),
        ),
    ),
    *of("reconcile_marks", ("the watch has one row", "has_one_row", {"only_one": False})),
    *of("orphan_file_marks", ("the deletion of orphan files has one mark", "has_one_row", {"only_one": False})),
    *of(
        "source_drains",
        ("a drain has one row", "has_one_row", {"only_one": False}),
        ("a drain ends after its start", "end_after_their_start", {"until": "-infinity"}),
    ),
    *of(
        "sources",
        ("a source is a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        (
            "a source's task exists",
            "task_id_fkey",
            {"task_id": uid("missing")},
            {"state": "Running", "task_id": uid("task a")},
        ),
        (
            "a running source has a task",
            "running_has_a_task",
            {"task_id": None},
            {"state": "Running", "task_id": uid("task a")},
        ),
        ("a dead source says why", "dead_says_why", {"last_error": None}, {"state": "Dead", "last_error": "x"}),
        (
            "a draining source says why",
            "draining_says_why",
            {"drain_reason": None},
            {"state": "Draining", "task_id": uid("task a"), "drain_reason": "shutdown"},
        ),
        ("restarts are not negative", "restarts_are_not_negative", {"restarts": -1}),
    ),
    *of(
        "pauses",
        ("a pause is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("a pause is caused by a queue of its org", "cause_of_same_org", {"cause_job_id": uid("job b")}),
        ("a manual pause is by a user of the org", "user_of_same_org", {"paused_by": uid("user b")}, MANUAL),
        ("pressure says which queue", "pressure_says_why", {"cause_job_id": None}),
        ("pressure says which threshold", "pressure_says_why", {"threshold": None}),
        ("a manual pause says who", "by_hand_say_who", {"paused_by": None}, MANUAL),
        ("a manual pause has no queue", "by_hand_have_no_queue", {"threshold": 5}, MANUAL),
        ("no job pauses itself", "no_job_pauses_itself", {"cause_job_id": uid("job a")}),
        ("a threshold is positive", "threshold_is_positive", {"threshold": 0}),
        (
            "a pause after a failure names the task",
            "after_failure_name_the_task",
            {"cause_task_id": None},
            {**MANUAL, "reason": "failure", "paused_by": None, "cause_task_id": uid("task a")},
        ),
        ("a pause is active once per cause", "one_per_cause", {"until": None}, {"until": T1}, a("pauses")),
    ),
    *of(
        "in_flight_limits",
        ("a limit is of an operator or a runtime", "kind_is_known", {"kind": "job"}),
        ("the name of a limit is one that jobs can have", "name_is_snake", {"name": "No-op"}),
        ("a limit allows one task", "allow_one", {"max_in_flight": 0}),
    ),
    *of(
        "rpc_shares",
        ("a share is not less than nothing", "counts_not_negative", {"in_flight": -1}, {"in_flight": 0}),
        ("a pool's limit allows one request", "have_a_limit", {"limit_in_flight": 0}),
    ),
    *of(
        "source_schedules",
        ("a schedule is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
    ),
    *of(
        "source_slots",
        ("a slot is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("only a slot that fired has a task", "only_a_fire_has_a_task", {"reason": "missed"}),
    ),
    *of(
        "source_deliveries",
        ("a delivery is of a job of its org", "job_of_same_org", {"job_id": uid("job b")}),
        ("a delivery has a key", "key_says_something", {"delivery_key": ""}),
        ("a delivery has no negative size", "size_is_not_negative", {"size_bytes": -1}),
        ("a held delivery has no task", "held_has_no_task", {"held": True}),
        (
            "a delivery is stored once",
            "once",
            {"delivery_key": "one"},
            {"id": uid("other"), "delivery_key": "other"},
            a("source_deliveries"),
        ),
    ),
]


@dataclass(frozen=True)
class Change:
    """A rule about changes of a row: one change is accepted, the other refused."""

    rule: str
    constraint: str
    table: str
    legal: Row
    illegal: Row
    row: Row


CHANGES = [
    Change(
        "a chain of the audit only grows",
        "audit_chains_only_grow",
        "audit_chains",
        {"seq": 6},
        {"seq": 4},
        {},
    ),
    Change(
        "an audit row never changes",
        "query_audit_never_changes",
        "query_audit",
        {"verdict": "answered"},
        {"verdict": "refused"},
        {},
    ),
    Change(
        "a head only rises",
        "dataset_heads_only_rise",
        "dataset_heads",
        {"last_commit": 6},
        {"last_commit": 4},
        {"last_commit": 5},
    ),
    Change(
        "a partition version only ends",
        "partition_versions_only_end",
        "partition_versions",
        {"valid_to": 2},
        {"location": "x"},
        {},
    ),
    Change(
        "a partition version ends once",
        "partition_versions_only_end",
        "partition_versions",
        {"valid_to": 2},
        {"valid_to": None},
        {"valid_from": 1},
    ),
    Change(
        "files that are gone do not come back",
        "partition_versions_only_end",
        "partition_versions",
        {"files_removed_at": T2},
        {"files_removed_at": None},
        {"valid_from": 1, "valid_to": 2},
    ),
    Change("a commit never changes", "commits_never_change", "commits", {"attempt": 1}, {"row_count": 5}, {}),
    Change(
        "a DAG version never changes", "dag_versions_never_change", "dag_versions", {"yaml": "y"}, {"yaml": "z"}, {}
    ),
]

# Unique only so that others can name the row together with its org; the primary key already says so.
IMPLIED = ("_id_within_org", "_id_within_dag", "_id_within_dataset")


@pytest.fixture(scope="module")
def seeded(postgres: RunningServer, template: Callable[[Database], str]) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres.create_database("illegal_rows", template("state"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        with connection.transaction():
            for table, row in SEED:
                insert(connection, table, row)
        yield connection
    postgres.drop_database("illegal_rows")


@pytest.fixture
def state(seeded: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """What a test does to the seeded database is undone after it."""
    with seeded.transaction(force_rollback=True):
        yield seeded


@pytest.mark.parametrize("table", LEGAL)
def test_a_legal_row_is_accepted(state: psycopg.Connection[Any], table: str) -> None:
    insert(state, table, LEGAL[table])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.replace(" ", "_"))
def test_the_row_is_refused_and_its_legal_counterpart_is_not(state: psycopg.Connection[Any], case: Case) -> None:
    if case.beside:
        insert(state, *case.beside)
    legal = {**LEGAL[case.table], **case.legal}
    with state.transaction(force_rollback=True):
        insert(state, case.table, legal)
    assert refusal(state, lambda: insert(state, case.table, {**legal, **case.broken})) == case.constraint


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.rule.replace(" ", "_"))
def test_the_change_is_refused_and_its_legal_counterpart_is_not(state: psycopg.Connection[Any], change: Change) -> None:
    insert(state, change.table, {**LEGAL[change.table], **change.row})
    update(state, change.table, change.legal)
    assert refusal(state, lambda: update(state, change.table, change.illegal)) == change.constraint


@pytest.mark.parametrize(
    "tried",
    [COMPLETED, FAILED, {**FAILED, "next_retry_at": T2}, CANCELED, RUNNING, {}],
    ids=["completed", "failed_for_good", "failed_and_waiting", "canceled", "running", "queued"],
)
def test_every_state_of_a_task_has_a_legal_row(state: psycopg.Connection[Any], tried: Row) -> None:
    insert(state, "tasks", {**LEGAL["tasks"], **tried})


def test_a_failed_task_keeps_attempt_and_token_until_the_retry_drops_them(state: psycopg.Connection[Any]) -> None:
    """S10: an expired lease keeps what identifies a late reply; the retry removes it."""
    insert(state, "tasks", {**LEGAL["tasks"], **RUNNING, "id": uid("late")})
    ended = {"status": "Failed", "completed_at": T1, "lease_expires_at": None}
    expire = {**ended, "error_message": "x", "fault": "platform", "platform_failures": 1, "next_retry_at": T2}
    late = {"status": "Completed", "error_message": None, "fault": None, "next_retry_at": None, "outputs": "[]"}
    dropped = ("lease_token", "worker_id", "started_at", "completed_at", "error_message", "fault", "next_retry_at")
    retry = {
        **dict.fromkeys(dropped),
        "status": "Queued",
        "attempt": 2,
    }
    update(state, "tasks", expire, "late")
    for next_step in (late, retry):
        with state.transaction(force_rollback=True):
            update(state, "tasks", next_step, "late")


def test_one_statement_can_replace_a_partition(state: psycopg.Connection[Any]) -> None:
    insert(state, "partition_versions", {**LEGAL["partition_versions"], **BLOCKS})
    columns = "dataset_version, partition_key, org_id, dataset_uuid, block_range, location"
    replace = f"""
        WITH ended AS (UPDATE partition_versions SET valid_to = 2 WHERE valid_to IS NULL RETURNING *)
        INSERT INTO partition_versions ({columns}, valid_from) SELECT {columns}, 2 FROM ended"""  # noqa: S608
    state.execute(replace.encode())
    as_of = "SELECT array_agg(valid_from) FROM partition_versions WHERE commits @> %s::bigint"
    assert [state.execute(as_of, (commit,)).fetchone() for commit in (1, 2, 3)] == [([1],), ([2],), ([2],)]


def test_unpublished_outputs_need_no_name(state: psycopg.Connection[Any]) -> None:
    for index in (0, 1):
        insert(state, "datasets", {**LEGAL["datasets"], "producer_output_index": index})


def test_edges_are_live_while_their_dag_version_is_active(state: psycopg.Connection[Any]) -> None:
    newer = {"id": uid("newer"), "yaml_hash": "h2", "dag_name": "dag"}
    insert(state, "dag_versions", {**LEGAL["dag_versions"], **newer})
    insert(state, "jobs", {**LEGAL["jobs"], "id": uid("newer job"), "dag_version_id": uid("newer")})
    insert(state, "job_inputs", LEGAL["job_inputs"])
    insert(state, "job_inputs", {**LEGAL["job_inputs"], "job_id": uid("newer job")})

    def live() -> set[uuid.UUID]:
        return {job for (job,) in state.execute("SELECT job_id FROM job_inputs WHERE live")}

    assert live() == set()
    insert(state, "dag_current_versions", LEGAL["dag_current_versions"])
    assert live() == {uid("job a")}
    state.execute("UPDATE dag_current_versions SET dag_version_id = %s", (uid("newer"),))
    assert live() == {uid("newer job")}
    state.execute("DELETE FROM dag_current_versions")
    assert live() == set()


def test_ranges_are_written_half_open_and_shown_inclusive(state: psycopg.Connection[Any]) -> None:
    insert(state, "dataset_versions", {**LEGAL["dataset_versions"], **RANGE, "id": uid("ranged")})
    shown = state.execute("SELECT range_start, range_end FROM dataset_versions WHERE id = %s", (uid("ranged"),))
    assert shown.fetchone() == (10, 19)


HOT_TABLE = {
    "dataset_uuid": uid("data a"),
    "dataset_version": uid("version a"),
    "org_id": uid("org a"),
    "table_name": "blocks",
    "columns": '[{"name": "number", "type": "bigint"}]',
    "unique_key": ["number"],
}


@pytest.mark.parametrize(
    ("constraint", "broken"),
    [
        ("dataset_tables_pkey", {"table_name": "other"}),
        ("dataset_tables_table_once", {"dataset_version": uid("version b")}),
        ("dataset_tables_name_is_snake", {"dataset_version": uid("version b"), "table_name": "Blocks"}),
        ("dataset_tables_columns_are_listed", {"dataset_version": uid("version b"), "columns": "[]"}),
        ("dataset_tables_key_names_columns", {"dataset_version": uid("version b"), "unique_key": "{}"}),
    ],
)
def test_the_register_of_hot_tables_refuses_what_makes_no_sense(data_db: str, constraint: str, broken: Row) -> None:
    with psycopg.connect(data_db, options="-c search_path=trace_meta") as connection:
        insert(connection, "dataset_tables", HOT_TABLE)
        act = {**HOT_TABLE, **broken}
        assert refusal(connection, lambda: insert(connection, "dataset_tables", act)) == constraint


DELIVERY = {
    "id": uid("delivery"),
    "org_id": uid("org a"),
    "alert_definition_id": uid("alert a"),
    "alert_name": "whales",
    "dedupe_key": "k",
    "channel": "ops",
    "severity": "info",
    "event_time": T0,
    "event": "{}",
    "producer_task_id": uid("task a"),
}


@pytest.mark.parametrize(
    ("constraint", "broken"),
    [
        ("deliveries_pkey", {"dedupe_key": "other"}),
        ("deliveries_once", {"id": uid("other")}),
        ("deliveries_event_is_an_object", {"id": uid("other"), "event": "[]"}),
        ("deliveries_attempts_are_counted", {"id": uid("other"), "attempts": -1}),
        ("deliveries_settled_when_ended", {"id": uid("other"), "status": "Sent"}),
        (
            "deliveries_only_pending_is_leased",
            {"id": uid("other"), "status": "Sent", "settled_at": T0, "lease_token": uid("lease")},
        ),
    ],
)
def test_work_items_of_deliveries_refuse_what_makes_no_sense(data_db: str, constraint: str, broken: Row) -> None:
    with psycopg.connect(data_db, options="-c search_path=alerts") as connection:
        insert(connection, "deliveries", DELIVERY)
        act = {**DELIVERY, **broken}
        assert refusal(connection, lambda: insert(connection, "deliveries", act)) == constraint


def test_no_constraint_is_without_a_case(state: psycopg.Connection[Any]) -> None:
    there = state.execute("""
        SELECT conname FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f', 'u', 'x')
        UNION SELECT tgname FROM pg_trigger WHERE tgfoid = 'refuse_change'::regproc
        UNION SELECT indexrelid::regclass::text FROM pg_index
        WHERE indisunique AND indpred IS NOT NULL AND indrelid::regclass::text !~ '^pg_'""")
    names = {name for (name,) in there if not name.endswith(IMPLIED)}
    tested = {case.constraint for case in CASES} | {change.constraint for change in CHANGES}
    assert names - tested == set()


def insert(connection: psycopg.Connection[Any], table: str, row: Row) -> None:
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(sql.Placeholder() * len(row)),
    )
    connection.execute(statement, list(row.values()))


def update(connection: psycopg.Connection[Any], table: str, changes: Row, only: str | None = None) -> None:
    sets = [sql.SQL("{} = %s").format(sql.Identifier(column)) for column in changes]
    statement = sql.SQL("UPDATE {} SET {}").format(sql.Identifier(table), sql.SQL(", ").join(sets))
    if only:
        statement += sql.SQL(" WHERE id = {}").format(sql.Literal(str(uid(only))))
    assert connection.execute(statement, list(changes.values())).rowcount > 0


def refusal(connection: psycopg.Connection[Any], act: Callable[[], None]) -> str | None:
    """The name of the constraint that refused, so that a refusal for another reason does not pass."""
    with pytest.raises(psycopg.IntegrityError) as refused, connection.transaction():
        act()
    return refused.value.diag.constraint_name
