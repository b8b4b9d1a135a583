"""Which indexes hold finished rows too."""

from __future__ import annotations

# What must be found among finished rows too: a row by its id, a duplicate by its key, what a backfill has used.
IN_DATA = {"applied_batches", "deliveries"}
"""Files of statements about data Postgres."""
OVER_HISTORY = {
    "tasks_pkey",
    "idx_tasks_job_dedupe",
    "idx_tasks_memo",
    "idx_tasks_history_use",
    "task_attempts_pkey",
    "idx_task_attempts_begun",
    "events_pkey",
    "events_once",
    "idx_events_made",
    "idx_events_dataset",
    "outbox_pkey",
}
