"""The calls of the user API about plans and releases."""

from __future__ import annotations

from typing import Final

from tracelake.wire.calls.call import LARGE_DAG_SECONDS, Call
from tracelake.wire.user.releases import (
    Plan,
    PlanRequest,
    PromoteRequest,
    ReleaseAnswer,
    ReleaseDetail,
    ReleaseList,
    ReleaseRequest,
    ReleaseRow,
    SwitchAnswer,
)

RELEASE_CALLS: Final = (
    Call(
        "plan",
        "POST",
        "/plans",
        "writer",
        "What a change of DAGs would rebuild, why, and who reads it; changes nothing",
        Plan,
        body=PlanRequest,
        seconds=LARGE_DAG_SECONDS,
    ),
    Call(
        "start_release",
        "POST",
        "/releases",
        "writer",
        "Deploy DAGs, with all that read what changes, and build them beside the active versions",
        ReleaseAnswer,
        body=ReleaseRequest,
        seconds=LARGE_DAG_SECONDS,
        adds_files=True,
    ),
    Call("list_releases", "GET", "/releases", "reader", "The newest releases", ReleaseList),
    Call("show_release", "GET", "/releases/{release}", "reader", "A release, and how far it is built", ReleaseDetail),
    Call(
        "compare_release",
        "POST",
        "/releases/{release}/compare",
        "reader",
        "Have the Query service compare what a release has built with what serves, where that has not been done",
        ReleaseDetail,
    ),
    Call(
        "promote_release",
        "POST",
        "/releases/{release}/promote",
        "writer",
        "Make all versions of a release that is ready the active ones, in one transaction",
        SwitchAnswer,
        body=PromoteRequest,
        optional_body=True,
        seconds=LARGE_DAG_SECONDS,
    ),
    Call(
        "rollback_release",
        "POST",
        "/releases/{release}/rollback",
        "writer",
        "Make the versions that a release replaced the active ones again, in one transaction",
        SwitchAnswer,
        seconds=LARGE_DAG_SECONDS,
    ),
    Call(
        "abandon_release",
        "POST",
        "/releases/{release}/abandon",
        "writer",
        "End a release that is being built or ready",
        ReleaseRow,
        seconds=LARGE_DAG_SECONDS,
    ),
)
