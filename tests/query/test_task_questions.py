"""Tasks ask with their capability: what it names, as of the pinned commit, while their lease holds."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest

from tests.query.house import House
from tests.walk.walking import TOKEN
from tracelake.dispatcher.tasks.cancel import cancel_task
from tracelake.domain.object_names import Folder
from tracelake.wire.task_messages import CompleteRequest

pytestmark = pytest.mark.anyio
COUNT = "SELECT count(*) AS n FROM feed"


def said(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_task_reads_what_its_token_names_as_of_the_commit_of_its_claim(house: House) -> None:
    await house.make("feed", 900, 909)
    await house.make("feed", 1000, 1009)
    claimed = await house.claimed()
    before = (await house.ask_as(claimed, COUNT)).json()
    await house.make("feed", 1010, 1014)
    after = (await house.ask_as(claimed, COUNT)).json()
    assert before["rows"] == after["rows"]
    assert before["datasets"] == after["datasets"]
    pinned = before["datasets"][0]["commit"]
    later = await house.ask_as(claimed, COUNT, as_of={"feed": pinned + 1})
    assert said(later) == (400, "invalid_request")
    earlier = await house.ask_as(claimed, COUNT, as_of={"feed": pinned - 1})
    assert earlier.json()["rows"][0][0] == before["rows"][0][0] - 10
    # What it has no business with does not exist, whether it does or not.
    for name in ("orders", "pay", "theirs", "never_there"):
        refused = await house.ask_as(claimed, f"SELECT * FROM {name}")  # noqa: S608 - a query of a test
        assert said(refused) == (400, "invalid_sql")
        assert refused.json()["error"]["message"] == f"there is no table named '{name}'"
    # By the DAG's name, and narrowed by the DAG's filter.
    hidden = await house.ask_as(claimed, "SELECT count(*) AS n, max(block_number) AS m FROM hide")
    assert hidden.json()["rows"] == [[15, 14]]
    row = await house.audited(before["query_id"])
    assert (row["task_id"], row["attempt"], row["user_id"]) == (claimed.task.task_id, claimed.attempt, None)


async def test_a_task_of_another_organisation_reads_its_own_rows(house: House) -> None:
    await house.make("feed", 5, 6, org=house.rival)
    theirs = await house.claimed(org=house.rival)
    answer = await house.ask_as(theirs, "SELECT max(value) AS m, count(*) AS n FROM feed")
    assert answer.json()["rows"] == [[-5, 2]]
    assert said(await house.ask_as(theirs, "SELECT * FROM pay")) == (400, "invalid_sql")


async def test_a_token_speaks_for_its_own_attempt_and_no_other_identity_for_it(house: House) -> None:
    await house.make("feed", 1100, 1101)
    await house.make("feed", 1102, 1103)
    one, two = await house.claimed(), await house.claimed()
    assert said(await house.ask_as(one, COUNT, token=two.capability_token)) == (403, "forbidden")
    assert said(await house.ask_as(one, COUNT, task_id=str(two.task.task_id))) == (403, "forbidden")
    assert said(await house.ask_as(one, COUNT, attempt=one.attempt + 1)) == (403, "forbidden")
    assert said(await house.ask_as(one, COUNT, lease_token=str(two.lease_token))) == (409, "lease_lost")
    assert said(await house.ask_as(one, COUNT, lease_token=str(uuid4()))) == (409, "lease_lost")
    for token in ("", "x.y.z", TOKEN, house.token("test|acme")):
        assert (await house.ask_as(one, COUNT, token=token)).status_code == 401
    worker = {"X-Trace-Worker-Token": TOKEN, "X-Trace-User": "reader", "authorization": f"Bearer {TOKEN}"}
    assert (await house.ask_as(one, COUNT, token="", headers=worker)).status_code == 401
    assert (await house.task_api.post("/v1/query", json={"sql": COUNT}, headers=worker)).status_code == 404
    assert (await house.ask_as(one, COUNT)).status_code == 200


async def test_an_attempt_that_has_ended_asks_in_vain(house: House) -> None:
    await house.make("feed", 1200, 1201)
    await house.make("feed", 1202, 1203)
    canceled, failed = await house.claimed(), await house.claimed()
    control, org = house.rig.walk.control, house.rig.walk.org.id
    await cancel_task(control, org, canceled.task.task_id, "a test")
    request = CompleteRequest(
        task_id=failed.task.task_id,
        attempt=failed.attempt,
        lease_token=failed.lease_token,
        status="Failed",
        error_message="a test",
        retryable=False,
    )
    await house.rig.walk.tasks.complete(failed.capability_token, request)
    for ended in (canceled, failed):
        assert said(await house.ask_as(ended, COUNT)) == (409, "lease_lost")


async def test_a_task_exports_into_what_its_token_lets_it_write_and_nowhere_else(house: House) -> None:
    await house.make("feed", 1300, 1301)
    claimed = await house.claimed()
    told = (await house.ask_as(claimed, COUNT, export={})).json()
    folder = Folder.parse(told["exported"]["location"])
    assert str(folder).startswith(
        f"s3://trace-scratch/scratch/{house.rig.walk.org.id}/{claimed.task.task_id}/{claimed.attempt}/"
    )
    assert house.rig.walk.control.objects.head(folder.object("_SUCCESS")) is not None
    inside = f"{folder}more/"
    assert (await house.ask_as(claimed, COUNT, export={"to": inside})).json()["exported"]["location"] == inside
    parts = str(folder).split("/")
    foreign = "/".join([*parts[:5], str(uuid4()), *parts[6:]])
    for place, answer in {
        foreign: (403, "forbidden"),
        str(folder).replace("queries/", "queries/../../"): (400, "invalid_request"),
        "s3://trace/exports/": (403, "forbidden"),
        str(folder).removesuffix("/"): (400, "invalid_request"),
        "file:///tmp/x/": (400, "invalid_request"),
        "s3://elsewhere/x/": (403, "forbidden"),
    }.items():
        assert said(await house.ask_as(claimed, COUNT, export={"to": place})) == answer, place
    again = await house.ask_as(claimed, COUNT, export={"to": inside})
    assert again.is_error, "what is there is never written over"
