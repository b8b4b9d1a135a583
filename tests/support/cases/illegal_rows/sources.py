"""Rows about alerts, the outbox, sources and limits that make no sense."""

from __future__ import annotations

from tests.support.cases.illegal_rows.case import of
from tests.support.cases.illegal_rows.rows import MANUAL, T1, TAKEN, a, uid

SOURCES = [
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
