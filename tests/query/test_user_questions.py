"""Users ask by SQL, through the Gateway: they read what they may, and nothing else exists for them."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.house import ROWS, House, arrow_of
from tracelake.domain.object_names import Folder
from tracelake.wire.query_messages import ARROW

pytestmark = pytest.mark.anyio
ADMIN = "test|acme"
RIVAL = "test|rival"
ALL = "SELECT block_number, value FROM orders ORDER BY block_number"


async def test_a_users_select_over_files_comes_back_as_json(house: House) -> None:
    answer = await house.ask(ADMIN, "SELECT count(*) AS n, sum(value) AS s FROM orders")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["rows"] == [[ROWS, sum(range(ROWS)) * 10]]
    assert told["columns"] == [{"name": "n", "type": "bigint"}, {"name": "s", "type": "bigint"}]
    assert [(item["name"], item["hot"]) for item in told["datasets"]] == [("orders", False)]
    assert (told["row_count"], told["truncated"], told["exported"]) == (1, False, None)


async def test_arrow_comes_back_to_who_accepts_it_with_the_same_rows_and_figures(house: House) -> None:
    table, told = arrow_of(await house.ask(ADMIN, ALL, accept=f"{ARROW}, */*"))
    assert [list(row.values()) for row in table.to_pylist()] == await house.rows(ADMIN, ALL)
    assert table.schema.field("value").type == pa.int64()
    assert (told["row_count"], told["rows"]) == (ROWS, [])


async def test_one_name_is_another_dataset_in_another_organisation(house: House) -> None:
    assert await house.rows(RIVAL, ALL) == [[number, -number] for number in range(5)]
    assert await house.rows("reader", ALL) == [[number, number * 10] for number in range(ROWS)]


@pytest.mark.parametrize("name", ["theirs", "make", "hide", "never_there", "datasets", "pg_class"])
async def test_what_is_not_ours_or_not_published_is_refused_as_if_it_did_not_exist(house: House, name: str) -> None:
    answer = await house.ask(ADMIN, f"SELECT * FROM {name}")  # noqa: S608 - a query of a test
    refusal = answer.json()["error"]
    assert (answer.status_code, refusal["code"]) == (400, "invalid_sql")
    assert refusal["message"] == f"there is no table named '{name}'"
    assert "theirs" not in str(refusal["hint"])


async def test_a_name_that_is_nearly_right_gets_the_right_one_among_those_that_the_user_may_read(house: House) -> None:
    said = (await house.ask("reader", "SELECT * FROM order")).json()["error"]
    assert (said["message"], said["hint"]) == ("there is no table named 'order'", "did you mean orders?")
    assert "pay" not in str((await house.ask("reader", "SELECT * FROM pays")).json()["error"]["hint"])
    for user in ("clerk", ADMIN):
        assert (await house.ask(user, "SELECT * FROM pays")).json()["error"]["hint"] == "did you mean pay?"


async def test_a_dataset_shared_by_role_is_there_for_who_has_the_role_and_for_admins(house: House) -> None:
    assert await house.refused("reader", "SELECT count(*) AS n FROM pay") == (400, "invalid_sql")
    assert await house.refused(RIVAL, "SELECT count(*) AS n FROM pay") == (400, "invalid_sql")
    for user in ("clerk", ADMIN):
        assert await house.rows(user, "SELECT min(block_number) AS n FROM pay") == [[0]]


async def test_a_role_that_was_taken_away_is_gone_with_the_next_question(house: House) -> None:
    pool, org = house.pool, house.rig.walk.org.id
    user = await pool.fetchval(
        "INSERT INTO users (org_id, external_id, role) VALUES ($1, 'leaver', 'reader') RETURNING id", org
    )
    await pool.execute(
        "INSERT INTO org_role_memberships (org_id, user_id, role_id) SELECT $1, $2, id FROM org_roles"
        " WHERE org_id = $1",
        org,
        user,
    )
    assert await house.rows("leaver", "SELECT count(*) > 0 AS some FROM pay") == [[True]]
    await pool.execute("DELETE FROM org_role_memberships WHERE user_id = $1", user)
    assert await house.refused("leaver", "SELECT count(*) > 0 AS some FROM pay") == (400, "invalid_sql")


async def test_more_rows_than_the_limit_are_cut_and_said_to_be(house: House) -> None:
    told = (await house.ask(ADMIN, ALL, limit=3)).json()
    assert (told["rows"], told["truncated"]) == ([[0, 0], [1, 10], [2, 20]], True)
    told = (await house.ask(ADMIN, f"{ALL} LIMIT 3", limit=3)).json()
    assert (told["row_count"], told["truncated"]) == (3, False)


async def test_a_dataset_is_read_as_of_a_commit_or_a_time_and_never_of_what_is_not_there(house: House) -> None:
    count = "SELECT count(*) AS n FROM pay"
    before = (await house.ask(ADMIN, count)).json()["datasets"][0]["commit"]
    then = datetime.now(UTC).isoformat()
    rows = (await house.rows(ADMIN, count))[0][0]
    await house.make("keep", 100, 109)
    assert await house.rows(ADMIN, count) == [[rows + 10]]
    assert await house.rows(ADMIN, count, as_of={"pay": before}) == [[rows]]
    assert await house.rows(ADMIN, count, as_of={"pay": then}) == [[rows]]
    assert await house.refused(ADMIN, count, as_of={"pay": before + 2}) == (400, "invalid_request")
    assert await house.refused(ADMIN, count, as_of={"pay": 0}) == (404, "not_found")
    assert await house.refused(ADMIN, count, as_of={"pay": "2001-01-01T00:00:00Z"}) == (404, "not_found")
    assert await house.refused(ADMIN, count, as_of={"orders": 1}) == (400, "invalid_request")


async def test_an_export_is_parquet_in_the_organisations_folder_and_whole_when_it_is_told(house: House) -> None:
    told = (await house.ask(ADMIN, ALL, export={"files": 2})).json()
    done = told["exported"]
    folder = Folder.parse(done["location"])
    assert str(folder).startswith(f"s3://trace/exports/{house.rig.walk.org.id}/{told['query_id']}/")
    objects = house.rig.walk.control.objects
    assert objects.head(folder.object("_SUCCESS")) is not None
    tables = [pq.read_table(pa.BufferReader(objects.get(folder.object(name)))) for name in done["files"]]
    found = sorted(tuple(row.values()) for table in tables for row in table.to_pylist())
    assert found == [(number, number * 10) for number in range(ROWS)]
    assert (done["rows"], told["rows"]) == (ROWS, [])
    assert await house.refused(ADMIN, ALL, export={"to": "s3://trace/datasets/x/"}) == (400, "invalid_request")


async def test_every_type_has_one_plain_spelling_in_json(house: House) -> None:
    query = """
        SELECT X'00ff' AS b, cast('1.50' AS decimal(38,2)) AS d, timestamp '2026-01-02 03:04:05' AS t,
               date '2026-01-02' AS day, array(1, null) AS a, map('k', X'01') AS m, named_struct('x', 1.5D) AS s,
               cast('NaN' AS double) AS nan, cast(null AS int) AS nothing, true AS yes, 9007199254740993 AS large
    """
    (row,) = await house.rows(ADMIN, query)
    head = ["0x00ff", "1.50", "2026-01-02T03:04:05+00:00", "2026-01-02", [1, None]]
    assert row[:5] == head
    assert row[6:] == [{"x": 1.5}, "nan", None, True, 9007199254740993]
    assert row[5] in ({"k": "0x01"}, [["k", "0x01"]])


async def test_two_columns_of_one_name_are_two_columns(house: House) -> None:
    query = (
        "SELECT a.value, b.value FROM orders a JOIN orders b ON a.block_number = b.block_number + 1 WHERE b.value = 0"
    )
    assert await house.rows(ADMIN, query) == [[10, 0]]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("SELECT 1 / (value - value) AS x FROM orders", 422, "query_failed"),
        ("SELECT cast('abc' AS int) AS x", 422, "query_failed"),
        ("SELECT nope FROM orders", 400, "invalid_sql"),
        ("SELECT value FROM orders GROUP BY block_number", 400, "invalid_sql"),
        ("not sql at all", 400, "invalid_sql"),
        ("", 400, "invalid_request"),
    ],
)
async def test_a_refusal_is_typed_and_shows_nothing_of_the_inside(
    house: House, query: str, status: int, code: str
) -> None:
    answer = await house.ask(ADMIN, query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    for inside in ("v_", "file:", "JVM", "\n", "at org."):
        assert inside not in answer.json()["error"]["message"]


async def test_a_damaged_file_is_never_repeated_in_the_error(house: House) -> None:
    told = (await house.ask(ADMIN, "SELECT count(*) AS n FROM orders")).json()
    version = told["datasets"][0]["dataset_version"]
    root = house.rig.walk.control.objects.root  # type: ignore[attr-defined]
    (file,) = (path for path in root.rglob("*.parquet") if version in str(path) and "queries" not in str(path))
    whole = file.read_bytes()
    try:
        file.write_bytes(b"somebody's secret bytes" * 10)
        answer = await house.ask("clerk", "SELECT sum(value) AS s FROM orders")
    finally:
        file.write_bytes(whole)
    assert answer.status_code == 503, answer.text
    assert "secret" not in answer.text
    assert str(root) not in answer.text
    assert "s3://" not in answer.text


async def test_what_was_asked_is_audited_without_its_text(house: House) -> None:
    query = "SELECT count(*) AS a_telling_name FROM orders"
    told = (await house.ask("reader", query)).json()
    row = await house.audited(told["query_id"])
    assert row["sql_sha256"] == hashlib.sha256(query.encode()).digest()
    assert [str(item) for item in row["datasets"]] == [told["datasets"][0]["dataset_uuid"]]
    assert (row["verdict"], row["row_count"], row["code"], row["task_id"]) == ("answered", 1, None, None)
    assert row["user_id"] == await house.pool.fetchval("SELECT id FROM users WHERE external_id = 'reader'")
    before = len([item for item in await house.audit() if item["verdict"] == "refused"])
    await house.ask("reader", "SELECT * FROM parquet.`/etc/passwd`")
    await house.rig.until("SELECT count(*) > $1 FROM query_audit WHERE verdict = 'refused'", before)
    assert "telling" not in str(await house.audit())
    assert "passwd" not in str(await house.audit())


async def test_only_a_users_token_asks_at_the_gateway_and_only_the_gateway_behind_it(house: House) -> None:
    body = {"sql": "SELECT 1 AS x"}
    assert (await house.gateway.post("/v1/query", json=body)).status_code == 401
    stranger = {"authorization": f"Bearer {house.token('nobody we know')}"}
    assert (await house.gateway.post("/v1/query", json=body, headers=stranger)).status_code == 401
    url = str(house.query_internal.base_url)
    async with httpx.AsyncClient(base_url=url, verify=house.context) as bare:
        for headers in ({}, {"X-Trace-User": "reader"}, stranger, {"X-Trace-Worker-Token": "x", "X-Trace-User": "r"}):
            assert (await bare.post("/v1/query", json=body, headers=headers)).status_code == 401
    assert (await house.query_internal.post("/v1/query", json=body)).status_code == 401  # and no user named
    for path in ("/v1/task/query", "/internal/query/relations", "/internal/query/audit"):
        assert (await house.gateway.post(path, json=body, headers=stranger)).status_code == 404


async def test_eight_ask_at_once_and_each_gets_his_own_answer(house: House) -> None:
    async def one(number: int) -> list[list[int]]:
        user = (ADMIN, "reader", "clerk", RIVAL)[number % 4]
        return await house.rows(user, f"SELECT count(*) + {number} AS n FROM orders")  # noqa: S608 - a query of a test

    found = await asyncio.gather(*(one(number) for number in range(8)))
    assert found == [[[(5 if number % 4 == 3 else ROWS) + number]] for number in range(8)]


async def test_a_session_serves_one_grant_for_as_long_as_it_lives(house: House) -> None:
    for user in (ADMIN, "reader", RIVAL, ADMIN):
        await house.rows(user, "SELECT count(*) AS n FROM orders")
    idle = house.spark.pool._idle
    grants = {item.grant for item in idle}
    assert len(grants) >= 3
    mine = next(item for item in idle if item.grant == idle[-1].grant)
    others = [name for item in idle if item.grant != mine.grant for name, _ in item.views.values()]
    seen = {table.name for table in mine.spark.catalog.listTables()}
    assert others
    assert not seen & set(others), "a temporary view belongs to its session"
    assert house.spark.pool.take(("somebody", "new")) not in idle
