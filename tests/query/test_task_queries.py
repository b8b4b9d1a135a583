"""Tasks query with their capability: its datasets, as of the pinned commit, while their lease holds."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest

from tests.support.identity.service_tokens import TOKENS, as_gateway
from tests.support.systems.query import QuerySystem
from tests.support.verbs import cancel_task
from tracelake.domain.access.object_names import Folder
from tracelake.wire.task.outputs import CompleteRequest

pytestmark = pytest.mark.anyio
COUNT = "SELECT count(*) AS n FROM feed"


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_task_reads_the_datasets_of_its_token_as_of_the_commit_of_its_claim(system: QuerySystem) -> None:
    for _ in range(2):
        await system.add("feed", 10)
    claimed = await system.claimed()
    before = (await system.ask_as(claimed, COUNT)).json()
    await system.add("feed", 5)
    after = (await system.ask_as(claimed, COUNT)).json()
    assert before["rows"] == after["rows"]
    assert before["datasets"] == after["datasets"]
    pinned = before["datasets"][0]["commit"]
    later = await system.ask_as(claimed, COUNT, as_of={"feed": pinned + 1})
    assert error_of(later) == (400, "invalid_request")
    earlier = await system.ask_as(claimed, COUNT, as_of={"feed": pinned - 1})
    assert earlier.json()["rows"][0][0] == before["rows"][0][0] - 10
    # A dataset that is not granted is refused like one that does not exist.
    for name in ("orders", "pay", "theirs", "never_there"):
        refused = await system.ask_as(claimed, f"SELECT * FROM {name}")  # noqa: S608 - a query of a test
        assert error_of(refused) == (400, "invalid_sql")
        assert refused.json()["error"]["message"] == f"there is no table named '{name}'"
    # By the DAG's name, and narrowed by the DAG's filter.
    narrowed = await system.ask_as(claimed, "SELECT count(*) AS n, max(block_number) AS m FROM hide")
    assert narrowed.json()["rows"] == [[15, 14]]
    row = await system.audited(before["query_id"])
    assert (row["task_id"], row["attempt"], row["user_id"]) == (claimed.task.task_id, claimed.attempt, None)


async def test_sail_shows_a_task_the_rows_that_the_dag_lets_it_see(auto_system: QuerySystem) -> None:
    await auto_system.add("feed")
    claimed = await auto_system.claimed()
    answer = (await auto_system.ask_as(claimed, "SELECT count(*) AS n, max(block_number) AS m FROM hide")).json()
    assert (answer["rows"], answer["engine"]) == ([[15, 14]], "sail")
    none = (await auto_system.ask_as(claimed, "SELECT count(*) AS n FROM hide WHERE block_number >= 15")).json()
    assert (none["rows"], none["engine"]) == ([[0]], "sail")


async def test_a_task_of_another_organisation_reads_its_own_rows(system: QuerySystem) -> None:
    first = await system.add("feed", org=system.rival)
    theirs = await system.claimed(org=system.rival)
    answer = await system.ask_as(theirs, "SELECT max(value) AS m, count(*) AS n FROM feed")
    assert answer.json()["rows"] == [[-first, 2]]
    assert error_of(await system.ask_as(theirs, "SELECT * FROM pay")) == (400, "invalid_sql")


async def test_a_token_is_valid_only_for_its_own_attempt_and_without_another_identity(system: QuerySystem) -> None:
    for _ in range(2):
        await system.add("feed")
    first, second = await system.claimed(), await system.claimed()
    assert error_of(await system.ask_as(first, COUNT, token=second.capability_token)) == (403, "forbidden")
    assert error_of(await system.ask_as(first, COUNT, task_id=str(second.task.task_id))) == (403, "forbidden")
    assert error_of(await system.ask_as(first, COUNT, attempt=first.attempt + 1)) == (403, "forbidden")
    assert error_of(await system.ask_as(first, COUNT, lease_token=str(second.lease_token))) == (409, "lease_lost")
    assert error_of(await system.ask_as(first, COUNT, lease_token=str(uuid4()))) == (409, "lease_lost")
    for token in ("", "x.y.z", TOKENS["gateway"], system.token("test|acme")):
        assert (await system.ask_as(first, COUNT, token=token)).status_code == 401
    worker = {**as_gateway("reader", "query"), "authorization": f"Bearer {TOKENS['gateway']}"}
    assert (await system.ask_as(first, COUNT, token="", headers=worker)).status_code == 401
    assert (await system.task_api.post("/v1/query", json={"sql": COUNT}, headers=worker)).status_code == 404
    assert (await system.ask_as(first, COUNT)).status_code == 200


async def test_queries_of_an_ended_attempt_are_refused(system: QuerySystem) -> None:
    for _ in range(2):
        await system.add("feed")
    canceled, failed = await system.claimed(), await system.claimed()
    control, org = system.operators.walk.control, system.operators.walk.org.id
    await cancel_task(control, org, canceled.task.task_id, "a test")
    request = CompleteRequest(
        task_id=failed.task.task_id,
        attempt=failed.attempt,
        lease_token=failed.lease_token,
        status="Failed",
        error_message="a test",
        retryable=False,
    )
    await system.operators.walk.tasks.complete(failed.capability_token, request)
    for ended in (canceled, failed):
        assert error_of(await system.ask_as(ended, COUNT)) == (409, "lease_lost")


async def test_a_task_exports_only_into_folders_that_its_token_grants(system: QuerySystem) -> None:
    await system.add("feed")
    claimed = await system.claimed()
    body = (await system.ask_as(claimed, COUNT, export={})).json()
    folder = Folder.parse(body["exported"]["location"])
    assert str(folder).startswith(
        f"s3://trace-scratch/scratch/{system.operators.walk.org.id}/{claimed.task.task_id}/{claimed.attempt}/"
    )
    assert system.operators.walk.control.objects.head(folder.object("_SUCCESS")) is not None
    inside = f"{folder}more/"
    assert (await system.ask_as(claimed, COUNT, export={"to": inside})).json()["exported"]["location"] == inside
    segments = str(folder).split("/")
    foreign = "/".join([*segments[:5], str(uuid4()), *segments[6:]])
    for place, answer in {
        foreign: (403, "forbidden"),
        str(folder).replace("queries/", "queries/../../"): (400, "invalid_request"),
        "s3://trace/exports/": (403, "forbidden"),
        str(folder).removesuffix("/"): (400, "invalid_request"),
        "file:///tmp/x/": (400, "invalid_request"),
        "s3://elsewhere/x/": (403, "forbidden"),
    }.items():
        assert error_of(await system.ask_as(claimed, COUNT, export={"to": place})) == answer, place
    again = await system.ask_as(claimed, COUNT, export={"to": inside})
    assert again.is_error, "what is there is never written over"
