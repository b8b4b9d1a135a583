"""A dataset that is not published does not exist to readers, by whatever call; writers and admins of it see it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import httpx
import pytest

from tests.support.systems.gateway import DAG, System
from tests.support.systems.whole_api import WholeApi, whole_api
from tracelake.wire.calls.user_calls import CALLS, ROLES, Call

pytestmark = pytest.mark.anyio

READER, WRITER, ADMIN = "acme|reader", "acme|writer", "acme|admin"
UNPUBLISHED: Final = DAG.replace("  shop_clean: {job: clean}\n", "")
"""`shop.clean` has an output, and no name for it."""
BODIES: Final[dict[str, Any]] = {
    "invalidate": {"start": 0, "end": 1, "reason": "x"},
    "set_access": {"everyone": True},
}
NAMED: Final = {"why": "dataset", "gaps": "of"}
"""Calls with a parameter that may be a dataset."""
TAKING: Final = [call for call in CALLS.values() if "{dataset}" in call.path or call.name in NAMED]

LINEAGE: Final = """
INSERT INTO column_lineage (org_id, job_id, output_dataset_uuid, output_column, input_dataset_uuid, input_column)
SELECT j.org_id, j.id, $1, 'price', $2, 'price' FROM jobs j WHERE j.name = 'clean'
"""


@pytest.fixture
async def api(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[WholeApi]:
    async with whole_api(state_db, queue_db, data_db, tmp_path) as made:
        yield made


@pytest.fixture
async def trace(api: WholeApi) -> System:
    return api.trace


async def listed(trace: System, user: str) -> set[str]:
    """By name, or by job if a dataset has none."""
    rows = (await trace.got(user, "GET", "/v1/datasets"))["datasets"]
    return {row["name"] or f"{row['job']}[{row['output_index']}]" for row in rows}


async def uuid_of(trace: System, job: str) -> str:
    rows = (await trace.got(ADMIN, "GET", "/v1/datasets"))["datasets"]
    return next(str(row["dataset_uuid"]) for row in rows if row["job"] == job)


async def asked(trace: System, user: str, call: Call, dataset: str) -> tuple[int, str]:
    """Status and body of the answer, without the dataset's own name in it."""
    query = {NAMED[call.name]: dataset} if call.name in NAMED else {}
    body = {"json": BODIES[call.name]} if call.name in BODIES else {}
    path = "/v1" + call.path.format(dataset=dataset)
    answer = await trace.ask(user, call.method, path, params=query, **body)
    assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR, (call.name, answer.text)
    return answer.status_code, answer.text.replace(dataset, "THE DATASET")


async def test_every_call_answers_readers_about_an_unpublished_dataset_as_about_none(trace: System) -> None:
    await trace.deploy("shop", UNPUBLISHED)
    dataset = await uuid_of(trace, "clean")
    assert {"show_dataset", "list_ledger", "diff_dataset", "verify_dataset", "why", "gaps"} <= {c.name for c in TAKING}
    for call in TAKING:
        found = await asked(trace, READER, call, dataset)
        assert found == await asked(trace, READER, call, str(uuid4())), call.name
        assert found[0] == (404 if call.role == "reader" else 403), call.name


@pytest.mark.parametrize("role", ["writer", "admin"])
async def test_every_call_finds_an_unpublished_dataset_for_writers_and_admins(trace: System, role: str) -> None:
    await trace.deploy("shop", UNPUBLISHED)
    dataset = await uuid_of(trace, "clean")
    for call in (call for call in TAKING if ROLES.index(call.role) <= ROLES.index(role)):
        found = await asked(trace, f"acme|{role}", call, dataset)
        assert found != await asked(trace, f"acme|{role}", call, str(uuid4())), call.name


async def test_readers_are_listed_published_datasets_alone(trace: System) -> None:
    await trace.deploy("shop", UNPUBLISHED)
    assert await listed(trace, READER) == {"shop_orders"}
    assert await listed(trace, WRITER) == await listed(trace, ADMIN) == {"shop_orders", "clean[0]"}


async def test_a_token_of_an_admin_that_is_limited_to_readers_sees_what_readers_see(trace: System) -> None:
    await trace.deploy("shop", UNPUBLISHED)
    dataset = await uuid_of(trace, "clean")
    token = (await trace.got(ADMIN, "POST", "/v1/tokens", json={"name": "limited", "role": "reader"}))["token"]
    headers = {"authorization": f"Bearer {token}"}
    assert (await trace.gateway.get(f"/v1/datasets/{dataset}", headers=headers)).status_code == 404
    rows = (await trace.gateway.get("/v1/datasets", headers=headers)).json()["datasets"]
    assert [row["name"] for row in rows] == ["shop_orders"]


async def test_a_deployed_version_shows_readers_nothing_until_it_is_activated(trace: System) -> None:
    await trace.got(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": DAG})
    assert await listed(trace, READER) == set()
    await trace.deploy("shop", DAG)
    assert await listed(trace, READER) == {"shop_orders", "shop_clean"}


async def test_a_dataset_is_there_with_the_activation_that_publishes_it_and_gone_with_that_which_does_not(
    trace: System,
) -> None:
    await trace.deploy("shop", UNPUBLISHED)
    dataset = await uuid_of(trace, "clean")
    await trace.deploy("shop", DAG)
    assert (await trace.got(READER, "GET", f"/v1/datasets/{dataset}"))["name"] == "shop_clean"
    await trace.deploy("shop", UNPUBLISHED)
    for named in (dataset, "shop_clean"):
        assert await trace.refused(READER, "GET", f"/v1/datasets/{named}") == (404, "not_found")
    assert (await trace.got(WRITER, "GET", f"/v1/datasets/{dataset}"))["name"] is None
    await trace.got(WRITER, "DELETE", "/v1/dags/shop/active")
    assert await listed(trace, READER) == set()


async def test_an_admin_shares_a_dataset_with_a_role_and_neither_gaps_nor_names_proposed_show_it_to_others(
    trace: System,
) -> None:
    await trace.deploy("shop", DAG)
    await trace.got(ADMIN, "PUT", "/v1/datasets/shop_clean/access", json={"nobody": True})
    answer = await trace.ask(READER, "GET", "/v1/gaps", params={"of": "shop_clean"})
    assert (answer.status_code, "shop_clean'" in answer.text) == (404, True)
    near = await trace.ask(READER, "GET", "/v1/gaps", params={"of": "shop_cleam"})
    assert (near.status_code, "shop_clean" in near.text) == (404, False)
    assert "shop_clean" in (await trace.ask(ADMIN, "GET", "/v1/gaps", params={"of": "shop_cleam"})).text


async def test_lineage_names_readers_no_input_that_is_not_published(trace: System) -> None:
    await trace.deploy("shop", DAG.replace("  shop_orders: {job: fetch}\n", ""))
    await trace.control.pool.execute(LINEAGE, *[UUID(await uuid_of(trace, job)) for job in ("clean", "fetch")])
    seen = {user: (await trace.got(user, "GET", "/v1/datasets/shop_clean"))["lineage"] for user in (READER, WRITER)}
    assert (seen[READER], [item["input"] for item in seen[WRITER]]) == ([], ["shop.fetch"])


async def test_a_release_shows_readers_the_comparisons_of_published_datasets_alone(trace: System) -> None:
    await trace.deploy("shop", UNPUBLISHED)
    changed = UNPUBLISHED.replace("operator: work", "operator: work\n    config: {n: 2}")
    release = (await trace.got(WRITER, "POST", "/v1/releases", json={"dags": [changed]}))["release"]["id"]
    seen = {
        user: {item["dataset"] for item in (await trace.got(user, "GET", f"/v1/releases/{release}"))["comparisons"]}
        for user in (READER, WRITER)
    }
    assert seen == {READER: set(), WRITER: {"clean[0]"}}
