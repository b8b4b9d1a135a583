"""A test system for queries: Dispatcher, worker, Query service and Gateway, each behind its real listener with TLS.

Organisation `acme` has datasets made by a worker; `rival` has one of the same name with other rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from tests.support.dispatcher.control import Org, an_org, deployed_and_active
from tests.support.identity.service_tokens import TOKENS, AsGateway, as_service
from tests.support.operators import registered
from tests.support.systems.balancer import Balancer, balancing
from tests.support.systems.operators import Numbers, OperatorSystem, operator, operator_system
from tests.support.systems.walk import working
from tests.support.tls import https
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.domain.dag.catalog import OperatorSpec, checked_by, every_input
from tracelake.domain.dag.model import Storage
from tracelake.gateway.process import public_api
from tracelake.lite.home import public_pem
from tracelake.lite.user_token import mint_user_token
from tracelake.operators.api.outcome import OperatorConfig as NoConfig
from tracelake.query.process import serving
from tracelake.query.spark.jvm import QuerySpark
from tracelake.query.spark.sessions import Sessions
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.runtime.metrics import Metrics
from tracelake.settings import DataSettings, IdentitySettings, Settings, TlsSettings, load_settings
from tracelake.store.db import open_pool
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.queries import ARROW
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.task.lifecycle import Claimed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20
MEGABYTES = 8
"""The size limit of a result: the session's limit and the service's are one setting in a real process."""
DAG = """
name: shop
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask_make, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: ask_hide, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: ask_feed, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: ask_keep, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: make, operator: numbers, inputs: [{{from: {{job: ask_make}}}}]}}
  - {{name: hide, operator: numbers, inputs: [{{from: {{job: ask_hide}}}}]}}
  - {{name: feed, operator: numbers, inputs: [{{from: {{job: ask_feed}}}}]}}
  - {{name: keep, operator: numbers, inputs: [{{from: {{job: ask_keep}}}}]}}
  - name: think
    operator: hands
    runtime: ecs_udf
    heartbeat_timeout_seconds: 3600s
    inputs: [{{from: {{job: feed}}}}, {{from: {{job: hide}}, trigger: false, where: "block_number < 15"}}]
publish:
  {orders}: {{job: make}}
  feed: {{job: feed}}
  thought: {{job: think}}
  {secret}: {{job: keep, read_roles: [finance]}}
"""


class SharedSpark(QuerySpark):
    """The tests' one Spark session, in place of the Query service's own."""

    def __init__(self, spark: SparkSession, kept: int = 16) -> None:
        self.pool = Sessions(spark, kept)

    async def sessions(self) -> Sessions:
        return self.pool

    async def give_up(self, stuck: Sessions) -> bool:
        del stuck
        raise AssertionError("a query could not be interrupted")


@dataclass(frozen=True)
class QuerySystem:
    operators: OperatorSystem
    settings: Settings
    key: ec.EllipticCurvePrivateKey
    gateway: httpx.AsyncClient
    task_api: httpx.AsyncClient
    query_internal: httpx.AsyncClient
    spark: SharedSpark
    rival: Org
    unused: Iterator[int] = field(default_factory=lambda: count(1000, 1000))
    """Where ranges begin that no test has made; another service over the same datasets goes on with them."""

    def token(self, user: str) -> str:
        return mint_user_token(self.key, self.settings.identity, user)

    async def ask(self, user: str, sql: str, *, accept: str = "application/json", **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token(user)}", "accept": accept}
        return await self.gateway.post("/v1/query", json={"sql": sql, **more}, headers=headers)

    async def rows(self, user: str, sql: str, **more: Any) -> list[list[Any]]:
        answer = await self.ask(user, sql, **more)
        assert answer.status_code == 200, answer.text
        found: list[list[Any]] = answer.json()["rows"]
        return found

    async def refused(self, user: str, sql: str, **more: Any) -> tuple[int, str]:
        answer = await self.ask(user, sql, **more)
        assert answer.is_error, answer.text
        return answer.status_code, answer.json()["error"]["code"]

    async def until_nothing_runs(self) -> None:
        """The task of a canceled job may run forever, so cores are counted, not jobs."""
        await until(lambda: not self.runs_tasks(), "Spark runs no task")

    def runs_tasks(self) -> bool:
        """Whether Spark works for any query."""
        context: Any = self.operators.spark.sparkContext
        return any(info.numRunningTasks() for info in context._jsc.sc().statusTracker().getExecutorInfos())

    async def ask_as(self, claimed: Claimed, sql: str, **more: Any) -> httpx.Response:
        """Query with a task's capability; `more` replaces fields of the request."""
        fence = {
            "task_id": str(claimed.task.task_id),
            "attempt": claimed.attempt,
            "lease_token": str(claimed.lease_token),
        }
        headers = {CAPABILITY_HEADER: more.pop("token", claimed.capability_token)} | more.pop("headers", {})
        return await self.task_api.post("/v1/task/query", json={**fence, "sql": sql, **more}, headers=headers)

    async def claimed(self, job: str = "think", org: Org | None = None) -> Claimed:
        """Claim the first unclaimed task of this job."""
        await self.operators.walk.until_outbox_is_empty()
        task = await self.pool.fetchval(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE j.name = $1 AND t.org_id = $2 AND t.status = 'Queued' ORDER BY t.id LIMIT 1",
            job,
            (org or self.operators.walk.org).id,
        )
        answer = (await self.operators.walk.dispatcher.claim_batch([task], "hands"))[0]
        assert isinstance(answer, Claimed), answer
        return answer

    async def add(self, job: str, rows: int = 2, *, org: Org | None = None) -> int:
        """Make rows of blocks that no other test makes, committed; return the first of these blocks."""
        first = next(self.unused)
        await self.make(job, first, first + rows - 1, org=org)
        return first

    async def make(self, job: str, start: int, end: int, *, org: Org | None = None) -> None:
        """Make rows of blocks `start` to `end`, committed: for what all tests share, and by `add`."""
        whose = org or self.operators.walk.org
        async with working(replace(self.operators.worker(), concurrency=2)):
            await trigger(
                self.operators.walk.control, whose.id, "shop", f"ask_{job}", start=start, end=end, request_id=uuid4()
            )
            await self.operators.until(
                "SELECT NOT EXISTS (SELECT FROM outbox WHERE status <> 'Done') AND NOT EXISTS (SELECT FROM tasks t"
                " JOIN jobs j ON j.id = t.job_id WHERE t.status IN ('Queued', 'Running') AND j.operator = 'numbers')"
            )
        failed = await self.operators.fetch(
            "SELECT t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE t.status = 'Failed' AND j.operator = 'numbers'"
        )
        assert not failed, failed

    async def counters(self) -> dict[tuple[str, str], float]:
        """The value of each metric, of all organisations, by its name and the values of its other labels."""
        answer = await self.query_internal.get("/metrics", headers=as_service("monitor"))
        values: Counter[tuple[str, str]] = Counter()
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                others = [value for label, value in sample.labels.items() if label != "org"]
                values[sample.name, " ".join(others)] += sample.value  # type: ignore[assignment]
        return dict(values)

    async def audit(self) -> list[dict[str, Any]]:
        rows = await self.pool.fetch("SELECT *, verdict::text AS verdict FROM query_audit ORDER BY asked_at")
        return [dict(row) for row in rows]

    async def audited(self, query_id: str) -> dict[str, Any]:
        await self.operators.until("SELECT EXISTS (SELECT FROM query_audit WHERE id = $1)", UUID(query_id))
        return next(row for row in await self.audit() if str(row["id"]) == query_id)

    @property
    def pool(self) -> Any:
        return self.operators.walk.control.pool


@asynccontextmanager
async def started_system(
    dsns: dict[str, str], folder: Path, spark: SparkSession, **query: Any
) -> AsyncIterator[QuerySystem]:
    async with operator_system(dsns["state"], dsns["queue"], folder, spark) as operators:
        key = ec.generate_private_key(ec.SECP256R1())
        settings = _settings(operators, dsns["data"], folder, key, query)
        rival = await an_org(operators.walk.control.pool, "rival")
        await _people(operators.walk.control.pool, operators.walk.org)
        async with _query_service(operators, settings, key, SharedSpark(spark), rival) as system:
            yield system


@asynccontextmanager
async def another_service(system: QuerySystem, **query: Any) -> AsyncIterator[QuerySystem]:
    """A second Query service and Gateway over the same Dispatcher and datasets, with other settings of queries."""
    home = system.settings.home.with_name(f"home-{uuid4()}")  # the audit's folder belongs to one service
    home.mkdir()
    changed = {"query": system.settings.query.model_copy(update=query), "home": home}
    settings = system.settings.model_copy(update=changed)
    async with _query_service(system.operators, settings, system.key, system.spark, system.rival) as other:
        yield replace(other, unused=system.unused)


@asynccontextmanager
async def behind_one_address(*systems: QuerySystem) -> AsyncIterator[tuple[QuerySystem, Balancer]]:
    """A Gateway that reaches the Query services of these systems by one address, on a new connection for each call."""
    first, walk = systems[0], systems[0].operators.walk
    ports = [system.query_internal.base_url.port for system in systems]
    async with (
        balancing(*(port for port in ports if port is not None)) as balancer,
        https(
            f"https://127.0.0.1:{balancer.port}",
            walk.ca,
            auth=AsGateway("query"),
            limits=httpx.Limits(max_keepalive_connections=0),
        ) as inside,
        _gateway(first.settings, walk.dispatcher, inside) as url,
        https(url, walk.ca) as gateway,
    ):
        yield replace(first, gateway=gateway, query_internal=inside), balancer


@asynccontextmanager
async def _query_service(
    operators: OperatorSystem, settings: Settings, key: ec.EllipticCurvePrivateKey, spark: SharedSpark, rival: Org
) -> AsyncIterator[QuerySystem]:
    walk = operators.walk
    assert settings.data.query_dsn is not None
    async with (
        open_pool(settings.data.query_dsn.get_secret_value(), name="query", max_size=2) as pool,
        https(walk.listeners["dispatcher_internal"], walk.ca, headers=as_service("query")) as dispatcher,
        serving(
            settings, pool, DispatcherClient(dispatcher), spark, walk.control.objects, metrics=Metrics()
        ) as listeners,
        https(listeners["query_internal"], walk.ca, auth=AsGateway("query")) as inside,
        https(listeners["query_task"], walk.ca) as task_api,
        _gateway(settings, walk.dispatcher, inside) as url,
        https(url, walk.ca) as gateway,
    ):
        yield QuerySystem(operators, settings, key, gateway, task_api, inside, spark, rival)


@asynccontextmanager
async def with_rows(system: QuerySystem) -> AsyncIterator[QuerySystem]:
    """With rows: acme's `orders` has 20 of value 10 n, rival's 5 of value -n; one shared by role, one not published."""
    value = {system.operators.walk.org.id: lambda n: n * 10, system.rival.id: lambda n: -n}

    def numbers(ctx: Any) -> None:
        Numbers(value[ctx.org_id])(ctx)

    # No worker waits on this runtime's queue: the tests claim these tasks themselves.
    hands = OperatorSpec(checked_by(NoConfig), frozenset({"ecs_udf"}), storages=(Storage.PARQUET,), narrows=every_input)
    await system.pool.execute("INSERT INTO org_roles (org_id, slug, name) VALUES ($1, 'finance', 'f')", system.rival.id)
    with operator("numbers", numbers), registered(hands=hands):
        await deployed_and_active(
            system.operators.walk.control, system.operators.walk.org, DAG.format(orders="orders", secret="pay")
        )
        await deployed_and_active(
            system.operators.walk.control, system.rival, DAG.format(orders="orders", secret="theirs")
        )
        for job in ("hide", "keep"):
            await system.make(job, 0, ROWS - 1)
        await system.make("make", 0, 4, org=system.rival)
        await system.make("make", 0, ROWS - 1)
        yield system


def _settings(
    operators: OperatorSystem, data: str, folder: Path, key: ec.EllipticCurvePrivateKey, query: dict[str, Any]
) -> Settings:
    identity = IdentitySettings(user_public_key=public_pem(key), service_token=SecretStr(TOKENS["gateway"]))
    base = load_settings({}, home=folder / "query-home")
    tls = TlsSettings(
        ca=operators.walk.ca, cert=operators.walk.ca.parent / "server.pem", key=operators.walk.ca.parent / "server.pem"
    )
    return base.model_copy(
        update={
            "tls": tls,
            "identity": identity,
            "data": DataSettings(query_dsn=SecretStr(data)),
            "query": base.query.model_copy(update=query),
        }
    )


@asynccontextmanager
async def _gateway(settings: Settings, dispatcher: DispatcherClient, inside: httpx.AsyncClient) -> AsyncIterator[str]:
    app = public_api(dispatcher, settings.identity, settings.tls, inside)
    async with open_listeners([Listener("gateway", "127.0.0.1", 0, app)], settings.tls) as addresses:
        yield addresses["gateway"]


async def _people(pool: Any, org: Org) -> None:
    """`reader` and `clerk`, readers of acme; the clerk is in finance."""
    for name in ("reader", "clerk"):
        await pool.execute("INSERT INTO users (org_id, external_id, role) VALUES ($1, $2, 'reader')", org.id, name)
    role = await pool.fetchval(
        "INSERT INTO org_roles (org_id, slug, name) VALUES ($1, 'finance', 'f') RETURNING id", org.id
    )
    await pool.execute(
        "INSERT INTO org_role_memberships (org_id, user_id, role_id)"
        " SELECT $1, id, $2 FROM users WHERE external_id = 'clerk'",
        org.id,
        role,
    )


def arrow_of(answer: httpx.Response) -> tuple[pa.Table, dict[str, Any]]:
    assert answer.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer.content).read_all()
    return table, msgspec.json.decode(table.schema.metadata[b"trace"])


GROUPS = "SELECT row_number() OVER (PARTITION BY a.value, b.value ORDER BY a.value) AS r FROM orders a, orders b"
FOREVER = f"SELECT sum(g.r) AS n FROM ({GROUPS}) g, " + ", ".join(f"orders t{n}" for n in range(6))  # noqa: S608 - a query of a test
"""Hours of nested loops; between two groups of the window Spark checks for an interrupt."""
