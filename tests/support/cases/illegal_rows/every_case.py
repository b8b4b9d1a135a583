"""Every illegal row, and every illegal change of a row."""

from __future__ import annotations

from tests.support.cases.illegal_rows.case import Change
from tests.support.cases.illegal_rows.dags import DAGS
from tests.support.cases.illegal_rows.events import EVENTS
from tests.support.cases.illegal_rows.identity import IDENTITY
from tests.support.cases.illegal_rows.rows import T2
from tests.support.cases.illegal_rows.sources import SOURCES
from tests.support.cases.illegal_rows.tasks import TASKS

CASES = [*IDENTITY, *DAGS, *TASKS, *EVENTS, *SOURCES]


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
