"""Users query by SQL through the Gateway: they can read granted datasets, and no others exist for them."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from tests.support.systems.query import ROWS, QuerySystem, another_service, arrow_of
from tests.support.tls import https
from tracelake.domain.access.object_names import Folder
from tracelake.errors import SetupError
from tracelake.query.sail import pool as pool_module
from tracelake.sandbox.bubblewrap import Isolation
from tracelake.settings import QuerySettings
from tracelake.wire.internal.queries import ARROW

pytestmark = pytest.mark.anyio
ADMIN = "test|acme"
RIVAL = "test|rival"
ALL = "SELECT block_number, value FROM orders ORDER BY block_number"


async def test_a_select_of_a_user_over_files_returns_json(either: QuerySystem) -> None:
    answer = await either.ask(ADMIN, "SELECT count(*) AS n, sum(value) AS s FROM orders")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["rows"] == [[ROWS, sum(range(ROWS)) * 10]]
    assert body["columns"] == [{"name": "n", "type": "bigint"}, {"name": "s", "type": "bigint"}]
    assert [(item["name"], item["hot"]) for item in body["datasets"]] == [("orders", False)]
    assert (body["row_count"], body["truncated"], body["exported"]) == (1, False, None)


LEGAL = {
    "SELECT value AS v FROM orders QUALIFY row_number() OVER (ORDER BY value DESC) = 1": [[10 * (ROWS - 1)]],
    "SELECT window.start AS w, count(*) AS n FROM orders GROUP BY window(timestamp_seconds(value * 0), '1 hour')": [
        ["1970-01-01T00:00:00+00:00", ROWS]
    ],
    "SELECT timestampdiff(SECOND, timestamp_seconds(min(value)), timestamp_seconds(max(value))) AS s FROM orders": [
        [10 * (ROWS - 1)]
    ],
    "SELECT /*+ BROADCAST(b) */ count(*) AS n FROM orders a JOIN orders b ON a.value = b.value": [[ROWS]],
    "SELECT * FROM (SELECT block_number AS b, value FROM orders) PIVOT (sum(value) FOR b IN (0 AS zero, 1 AS one))": [
        [0, 10]
    ],
    "SELECT count(*) AS n FROM orders WHERE 'it''s' = concat('it', chr(39), 's')": [[ROWS]],
}


@pytest.mark.parametrize("sql", LEGAL)
async def test_what_analysts_write_beyond_plain_sql_is_answered(either: QuerySystem, sql: str) -> None:
    assert await either.rows("reader", sql) == LEGAL[sql]


async def test_arrow_is_returned_if_accepted_with_the_same_rows_and_statistics(either: QuerySystem) -> None:
    table, body = arrow_of(await either.ask(ADMIN, ALL, accept=f"{ARROW}, */*"))
    assert [list(row.values()) for row in table.to_pylist()] == await either.rows(ADMIN, ALL)
    assert table.schema.field("value").type == pa.int64()
    assert (body["row_count"], body["rows"]) == (ROWS, [])


async def test_one_name_means_different_datasets_in_different_organisations(either: QuerySystem) -> None:
    assert await either.rows(RIVAL, ALL) == [[number, -number] for number in range(5)]
    assert await either.rows("reader", ALL) == [[number, number * 10] for number in range(ROWS)]


@pytest.mark.parametrize("name", ["theirs", "make", "hide", "never_there", "datasets", "pg_class"])
async def test_foreign_and_unpublished_datasets_are_refused_as_unknown(either: QuerySystem, name: str) -> None:
    answer = await either.ask(ADMIN, f"SELECT * FROM {name}")  # noqa: S608 - a query of a test
    refusal = answer.json()["error"]
    assert (answer.status_code, refusal["code"]) == (400, "invalid_sql")
    assert refusal["message"] == f"there is no table named '{name}'"
    assert "theirs" not in str(refusal["hint"])


async def test_a_misspelt_name_gets_a_suggestion_from_the_readable_datasets(
    either: QuerySystem,
) -> None:
    error = (await either.ask("reader", "SELECT * FROM order")).json()["error"]
    assert (error["message"], error["hint"]) == ("there is no table named 'order'", "did you mean orders?")
    assert "pay" not in str((await either.ask("reader", "SELECT * FROM pays")).json()["error"]["hint"])
    for user in ("clerk", ADMIN):
        assert (await either.ask(user, "SELECT * FROM pays")).json()["error"]["hint"] == "did you mean pay?"


async def test_a_dataset_shared_by_role_is_readable_with_the_role_and_for_admins(either: QuerySystem) -> None:
    assert await either.refused("reader", "SELECT count(*) AS n FROM pay") == (400, "invalid_sql")
    assert await either.refused(RIVAL, "SELECT count(*) AS n FROM pay") == (400, "invalid_sql")
    for user in ("clerk", ADMIN):
        assert await either.rows(user, "SELECT min(block_number) AS n FROM pay") == [[0]]


async def test_a_revoked_role_does_not_count_for_the_next_query(system: QuerySystem) -> None:
    pool, org = system.pool, system.operators.walk.org.id
    user = await pool.fetchval(
        "INSERT INTO users (org_id, external_id, role) VALUES ($1, 'leaver', 'reader') RETURNING id", org
    )
    await pool.execute(
        "INSERT INTO org_role_memberships (org_id, user_id, role_id) SELECT $1, $2, id FROM org_roles"
        " WHERE org_id = $1",
        org,
        user,
    )
    assert await system.rows("leaver", "SELECT count(*) > 0 AS some FROM pay") == [[True]]
    await pool.execute("DELETE FROM org_role_memberships WHERE user_id = $1", user)
    assert await system.refused("leaver", "SELECT count(*) > 0 AS some FROM pay") == (400, "invalid_sql")


async def test_more_rows_than_the_limit_are_cut_and_marked_as_truncated(either: QuerySystem) -> None:
    body = (await either.ask(ADMIN, ALL, limit=3)).json()
    assert (body["rows"], body["truncated"]) == ([[0, 0], [1, 10], [2, 20]], True)
    body = (await either.ask(ADMIN, f"{ALL} LIMIT 3", limit=3)).json()
    assert (body["row_count"], body["truncated"]) == (3, False)


async def test_a_dataset_is_read_as_of_an_existing_commit_or_time(system: QuerySystem) -> None:
    count = "SELECT count(*) AS n FROM feed"
    await system.add("feed")
    before = (await system.ask(ADMIN, count)).json()["datasets"][0]["commit"]
    then = datetime.now(UTC).isoformat()
    rows = (await system.rows(ADMIN, count))[0][0]
    await system.add("feed", 10)
    assert await system.rows(ADMIN, count) == [[rows + 10]]
    assert await system.rows(ADMIN, count, as_of={"feed": before}) == [[rows]]
    assert await system.rows(ADMIN, count, as_of={"feed": then}) == [[rows]]
    assert await system.refused(ADMIN, count, as_of={"feed": before + 2}) == (400, "invalid_request")
    assert await system.refused(ADMIN, count, as_of={"feed": 0}) == (404, "not_found")
    assert await system.refused(ADMIN, count, as_of={"feed": "2001-01-01T00:00:00Z"}) == (404, "not_found")
    assert await system.refused(ADMIN, count, as_of={"orders": 1}) == (400, "invalid_request")


async def test_an_export_is_parquet_in_the_organisations_folder_and_complete_when_reported(either: QuerySystem) -> None:
    body = (await either.ask(ADMIN, ALL, export={"files": 2})).json()
    done = body["exported"]
    folder = Folder.parse(done["location"])
    assert str(folder).startswith(f"s3://trace/exports/{either.operators.walk.org.id}/{body['query_id']}/")
    objects = either.operators.walk.control.objects
    assert objects.head(folder.object("_SUCCESS")) is not None
    tables = [pq.read_table(pa.BufferReader(objects.get(folder.object(name)))) for name in done["files"]]
    found = sorted(tuple(row.values()) for table in tables for row in table.to_pylist())
    assert found == [(number, number * 10) for number in range(ROWS)]
    assert (done["rows"], body["rows"]) == (ROWS, [])
    assert await either.refused(ADMIN, ALL, export={"to": "s3://trace/datasets/x/"}) == (400, "invalid_request")


async def test_every_type_has_one_json_encoding(either: QuerySystem) -> None:
    query = """
        SELECT X'00ff' AS b, cast('1.50' AS decimal(38,2)) AS d, timestamp '2026-01-02 03:04:05' AS t,
               date '2026-01-02' AS day, array(1, null) AS a, map('k', X'01') AS m, named_struct('x', 1.5D) AS s,
               cast('NaN' AS double) AS nan, cast(null AS int) AS nothing, true AS yes, 9007199254740993 AS large
    """
    (row,) = await either.rows(ADMIN, query)
    head = ["0x00ff", "1.50", "2026-01-02T03:04:05+00:00", "2026-01-02", [1, None]]
    assert row[:5] == head
    assert row[6:] == [{"x": 1.5}, "nan", None, True, 9007199254740993]
    assert row[5] in ({"k": "0x01"}, [["k", "0x01"]])


async def test_two_columns_with_the_same_name_are_both_returned(either: QuerySystem) -> None:
    query = (
        "SELECT a.value, b.value FROM orders a JOIN orders b ON a.block_number = b.block_number + 1 WHERE b.value = 0"
    )
    assert await either.rows(ADMIN, query) == [[10, 0]]


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
async def test_a_refusal_is_typed_and_shows_no_internals(
    either: QuerySystem, query: str, status: int, code: str
) -> None:
    answer = await either.ask(ADMIN, query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    for inside in ("v_", "file:", "JVM", "\n", "at org."):
        assert inside not in answer.json()["error"]["message"]


async def test_the_error_for_a_damaged_file_does_not_show_its_content(system: QuerySystem) -> None:
    body = (await system.ask(ADMIN, "SELECT count(*) AS n FROM orders")).json()
    version = body["datasets"][0]["dataset_version"]
    root = system.operators.walk.control.objects.root  # type: ignore[attr-defined]
    (file,) = (path for path in root.rglob("*.parquet") if version in str(path) and "queries" not in str(path))
    whole = file.read_bytes()
    try:
        file.write_bytes(b"private secret bytes" * 10)
        answer = await system.ask("clerk", "SELECT sum(value) AS s FROM orders")
    finally:
        file.write_bytes(whole)
    assert answer.status_code == 503, answer.text
    assert "secret" not in answer.text
    assert str(root) not in answer.text
    assert "s3://" not in answer.text


async def test_queries_are_audited_without_their_text(either: QuerySystem) -> None:
    query = "SELECT count(*) AS a_telling_name FROM orders"
    body = (await either.ask("reader", query)).json()
    row = await either.audited(body["query_id"])
    assert row["sql_sha256"] == hashlib.sha256(query.encode()).digest()
    assert [str(item) for item in row["datasets"]] == [body["datasets"][0]["dataset_uuid"]]
    assert (row["verdict"], row["row_count"], row["code"], row["task_id"]) == ("answered", 1, None, None)
    assert row["user_id"] == await either.pool.fetchval("SELECT id FROM users WHERE external_id = 'reader'")
    before = len([item for item in await either.audit() if item["verdict"] == "refused"])
    await either.ask("reader", "SELECT * FROM parquet.`/etc/passwd`")
    await either.operators.until("SELECT count(*) > $1 FROM query_audit WHERE verdict = 'refused'", before)
    assert "telling" not in str(await either.audit())
    assert "passwd" not in str(await either.audit())


async def test_the_gateway_accepts_only_user_tokens_and_the_service_only_the_gateway(either: QuerySystem) -> None:
    body = {"sql": "SELECT 1 AS x"}
    assert (await either.gateway.post("/v1/query", json=body)).status_code == 401
    unknown = {"authorization": f"Bearer {either.token('unknown')}"}
    assert (await either.gateway.post("/v1/query", json=body, headers=unknown)).status_code == 401
    url = str(either.query_internal.base_url)
    async with https(url, either.operators.walk.ca) as bare:
        for headers in ({}, {"X-Trace-User": "reader"}, unknown, {"X-Trace-Worker-Token": "x", "X-Trace-User": "r"}):
            assert (await bare.post("/v1/query", json=body, headers=headers)).status_code == 401
    assert (await either.query_internal.post("/v1/query", json=body)).status_code == 401  # and without a user
    for path in ("/v1/task/query", "/internal/query/relations", "/internal/query/audit"):
        assert (await either.gateway.post(path, json=body, headers=unknown)).status_code == 404


async def test_eight_concurrent_queries_each_get_their_own_rows(either: QuerySystem) -> None:
    async def count_orders(number: int) -> list[list[int]]:
        user = (ADMIN, "reader", "clerk", RIVAL)[number % 4]
        return await either.rows(user, f"SELECT count(*) + {number} AS n FROM orders")  # noqa: S608 - a query of a test

    found = await asyncio.gather(*(count_orders(number) for number in range(8)))
    assert found == [[[(5 if number % 4 == 3 else ROWS) + number]] for number in range(8)]


async def test_a_session_serves_one_grant_during_its_life(system: QuerySystem) -> None:
    for user in (ADMIN, "reader", RIVAL, ADMIN):
        await system.rows(user, "SELECT count(*) AS n FROM orders")
    idle = system.spark.pool._idle
    grants = {item.grant for item in idle}
    assert len(grants) >= 3
    mine = next(item for item in idle if item.grant == idle[-1].grant)
    others = [name for item in idle if item.grant != mine.grant for name, _ in item.views.values()]
    seen = {table.name for table in mine.spark.catalog.listTables()}
    assert others
    assert not seen & set(others), "a temporary view belongs to its session"
    assert system.spark.pool.take(("another", "new")) not in idle


async def test_with_auto_sail_runs_what_it_runs_the_same_way_and_spark_the_rest(
    system: QuerySystem, auto_system: QuerySystem
) -> None:
    same, other = "SELECT count(*) AS n FROM orders", "SELECT sum(double(value)) AS s FROM orders"
    engines = [
        (chosen["engine"], chosen["rows"])
        for asked in (system, auto_system)
        for chosen in [(await asked.ask(ADMIN, sql)).json() for sql in (same, other)]
    ]
    assert [engine for engine, _ in engines] == ["spark", "spark", "sail", "spark"]
    assert engines[0][1] == engines[2][1] == [[ROWS]]
    assert engines[1][1] == engines[3][1]
    assert QuerySettings().engine == auto_system.settings.query.engine == "auto"


async def test_without_a_sandbox_everything_is_answered_by_spark(
    system: QuerySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Isolation:
        raise SetupError("untrusted code cannot be isolated on this machine", where="udf.unsafe")

    monkeypatch.setattr(pool_module, "choose_isolation", missing)
    with capture_logs() as logs:
        async with another_service(system, engine="auto") as bare:
            answers = [(await bare.ask(ADMIN, "SELECT count(*) AS n FROM orders")).json() for _ in range(2)]
    assert [(answer["engine"], answer["rows"]) for answer in answers] == [("spark", [[ROWS]])] * 2
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "Sail cannot run queries; Spark runs all of them"
    ]


async def test_queries_through_commits_see_one_commit_each(auto_system: QuerySystem) -> None:
    await auto_system.add("feed", 1)
    first = (await auto_system.rows(ADMIN, "SELECT count(*) AS n FROM feed"))[0][0]
    committing = asyncio.create_task(auto_system.add("feed", 10))
    seen: list[tuple[int, int]] = []
    while not committing.done() or not seen:
        answer = (await auto_system.ask(ADMIN, "SELECT count(*) AS n FROM feed")).json()
        assert answer["engine"] == "sail"
        seen.append((answer["datasets"][0]["commit"], answer["rows"][0][0]))
    await committing
    last = (await auto_system.rows(ADMIN, "SELECT count(*) AS n FROM feed"))[0][0]
    assert last == first + 10
    assert len(dict(seen)) == len(set(seen)), "one count a commit"
    assert {count for _, count in seen} <= {*range(first, last + 1)}
