"""Attacks as each process of a running `trace up`, with what it was given: it reaches what its row says and no more.

The row is that of the table in `docs/concepts/security.md`, and of `docs/reference/services.md`. The attacker has the
process's settings, from its standard input, and its token: not the files of others, which all processes of one machine
can read (the page says so).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support import ROOT
from tests.support.systems.trace_up import SHORT_RUN, TraceUp, new_folder
from tests.support.tls import trusting
from tests.support.waiting import SECONDS, wait_until
from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.service_tokens import LISTENERS, TokenListener, derive_token, prove_user
from tracelake.errors import TraceError
from tracelake.runtime.process import PROCESSES
from tracelake.settings import CredentialSettings, ObjectSettings
from tracelake.wire.calls.user_calls import CALLS, USER
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.service.calls import SERVICE_CALLS, ServiceCall
from tracelake.wire.service.headers import PROOF, SERVICE_TOKEN
from tracelake.wiring import s3_objects

TAKEN_OVER: Final = [name for name in PROCESSES if name != "dispatcher"]
ADMIN: Final = "local|admin"
PAGE: Final = ROOT / "docs" / "concepts" / "security.md"
DAG: Final = """
name: shop
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: work, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
publish:
  orders: {job: work}
"""
SECRET: Final = "the secret of the channel"


@dataclass(frozen=True)
class Loot:
    """Of one process."""

    name: str
    given: Mapping[str, Any]
    """Its settings, secrets included."""
    others: Mapping[str, Any]
    """Where the other processes listen and are: an attacker knows the network, and not their secrets."""
    http: httpx.Client

    @property
    def token(self) -> str:
        return Path(self.given["identity"]["service_token_file"]).read_text().strip()

    @property
    def dsns(self) -> list[str]:
        return [text for text in texts(self.given) if text.startswith("postgresql://")]

    @property
    def objects(self) -> ObjectSettings:
        return ObjectSettings.model_validate(self.given["objects"])

    def proof(self, call: ServiceCall, *, force: bool = False) -> dict[str, str]:
        """What the Gateway sends with a call for a user; of another process, what it can compute in its place."""
        listener = next((name for name in LISTENERS if name == call.listener), None)
        if listener is None or (self.name != "gateway" and not force):
            return {}
        acting: TokenListener = "query" if listener == "dispatcher" else listener  # for which a proof would count
        return {PROOF: prove_user(self.token, ADMIN, acting, time.time())} if force or acting == listener else {}

    def url(self, listener: str) -> str:
        found = self.others["dispatcher"]["udf"]["invoke_url"] if listener == "runner" else None
        kind = "query_internal" if listener == "query" else f"{listener}_internal"
        return str(found or self.others["dispatcher"]["endpoints"][kind])

    def call(self, call: ServiceCall, headers: Mapping[str, str]) -> httpx.Response:
        """With a body that no call accepts: who may not make the call is refused before that."""
        path = re.sub(r"{(\w+)}", _part, call.path)
        body = b'{"surprise": 1}' if call.method in {"POST", "PUT", "PATCH"} else b""
        return self.http.request(call.method, self.url(call.listener) + path, content=body, headers=headers)


def texts(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    for item in given.values() if isinstance(given, dict) else given if isinstance(given, list) else ():
        yield from texts(item)


def _part(found: re.Match[str]) -> str:
    """Of a path: a name or an id of nothing."""
    return "job" if found[1] == "kind" else str(uuid4())


@pytest.fixture(scope="module")
def system() -> Iterator[TraceUp]:
    """With an S3 server, so that each process has keys of its own; without those that have no listener."""
    for folder in new_folder():
        env = {**SHORT_RUN, "TRACE_OBJECTS__BACKEND": "seaweedfs", "RECORDED_UP_FILE": str(folder / "given.json")}
        options = ("--without", "worker,sink,scheduler")
        package = "tests.support.programs.recorded_up"
        made = TraceUp(folder / "home", *options, env=env, package=package, ready_file=folder / "ready.json")
        with made.running():
            yield made


@pytest.fixture(scope="module")
def given(system: TraceUp) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(system.env["RECORDED_UP_FILE"]).read_text())
    return found


@pytest.fixture(params=TAKEN_OVER)
def loot(request: pytest.FixtureRequest, system: TraceUp, given: dict[str, Any]) -> Iterator[Loot]:
    with client(system) as http:
        yield Loot(request.param, given[request.param], given, http)


def client(system: TraceUp) -> httpx.Client:
    return httpx.Client(verify=trusting(system.ready()["ca_file"]), timeout=SECONDS)


@pytest.fixture(scope="module")
def world(system: TraceUp) -> dict[str, Any]:
    """A task that waits for a worker, and a channel with a secret."""
    (system.home / "shop.yaml").write_text(DAG)
    deployed = system.trace("dag", "deploy", str(system.home / "shop.yaml"), "--activate")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    with system.client() as admin:

        def made(path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = admin.post(path, json=body)
            assert answer.is_success, answer.text
            found: dict[str, Any] = answer.json()
            return found

        made("/v1/alerts/channels", {"name": "ops", "url": "https://example.com/hook", "secret": SECRET})
        alert = made("/v1/alerts/definitions", {"name": "whales", "severity": "info", "channels": ["ops"]})
        made("/v1/dags/shop/jobs/ask/trigger", {"cursor": 1})

        def waiting() -> list[dict[str, Any]]:
            tasks: list[dict[str, Any]] = admin.get("/v1/tasks", params={"status": "Queued"}).json()["tasks"]
            return tasks

        wait_until(lambda: bool(waiting()), "a task waits for a worker")
        return {
            "task": waiting()[0]["id"],
            "target": {
                "org_id": admin.get("/v1/me").json()["org_id"],
                "alert_definition_id": alert["alert_definition_id"],
                "channel": "ops",
            },
        }


def test_its_secrets_are_those_that_its_row_names(loot: Loot) -> None:
    """By the words of the page: roles of databases, and keys of the object store."""
    rows = dict(re.findall(r"^\| `trace (\w+)` \| [^|]* \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    row = rows["worker" if loot.name == "sink" else loot.name]
    assert {str(conninfo_to_dict(dsn)["user"]) for dsn in loot.dsns} == set(re.findall(r"\(role `(\w+)`", row))
    assert (loot.objects.access_key_id is not None) == ("object store" in row)


@pytest.mark.parametrize("whole", [False, True], ids=["sent", "token"])
def test_it_opens_exactly_the_calls_of_its_row(loot: Loot, whole: bool) -> None:
    """With what it sends to a listener, and with its token itself; it names an admin as the user, as best it can."""
    for call in SERVICE_CALLS.values():
        listener = next((name for name in LISTENERS if name == call.listener), None)
        shown = derive_token(loot.token, listener) if listener and not whole else loot.token
        answer = loot.call(call, {SERVICE_TOKEN: shown, USER: ADMIN, **loot.proof(call)})
        assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR, (call, answer.text)
        opens = answer.status_code not in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
        may = not call.services or (loot.name in call.services and loot.name not in call.proven)
        # A user whom it names without a proof is nobody, and a call that needs one may say so in any other way.
        assert opens == may or (loot.name in call.proven and answer.status_code == httpx.codes.BAD_REQUEST), (
            call,
            answer.text,
        )


def test_it_acts_for_nobody_but_the_gateway_acts_for_users(loot: Loot) -> None:
    """Also with a proof that it computes from what it has, and with none."""
    for call in CALLS.values():
        known = SERVICE_CALLS[call.service, call.method, f"/internal/v1{call.path}"]
        shown = {SERVICE_TOKEN: loot.token, USER: ADMIN}
        if loot.name != "gateway":
            assert loot.call(known, shown).status_code == httpx.codes.FORBIDDEN, call.name
        answer = loot.call(known, shown | loot.proof(known, force=True))
        assert (answer.status_code == httpx.codes.FORBIDDEN) == (loot.name != "gateway"), (call.name, answer.text)


def test_its_token_is_no_token_of_a_user_or_a_task(loot: Loot, system: TraceUp, world: dict[str, Any]) -> None:
    public, fence = system.ready()["endpoints"]["gateway"], {"task_id": world["task"], "attempt": 1}
    for path in ("/v1/me", "/v1/users", "/v1/datasets", "/v1/audit"):
        for headers in ({"authorization": f"Bearer {loot.token}"}, {SERVICE_TOKEN: loot.token, USER: ADMIN}):
            assert loot.http.get(public + path, headers=headers).status_code == httpx.codes.UNAUTHORIZED, path
    body = {**fence, "lease_token": str(uuid4()), "status": "Completed"}
    endpoints = loot.others["dispatcher"]["endpoints"]
    calls = [("dispatcher_task", f"/v1/task/{verb}") for verb in ("heartbeat", "complete", "events", "credentials")]
    for listener, path in [*calls, ("query_task", "/v1/task/query")]:
        for headers in ({CAPABILITY_HEADER: loot.token}, {SERVICE_TOKEN: loot.token}):
            answer = loot.http.post(endpoints[listener] + path, json=body, headers=headers)
            assert answer.status_code in {httpx.codes.BAD_REQUEST, httpx.codes.UNAUTHORIZED}, (path, answer.text)


def test_only_a_worker_gets_a_task_of_workers(loot: Loot, world: dict[str, Any]) -> None:
    """The runner's token names sandboxes only: to it, the task does not exist."""
    claim = {"task_id": world["task"], "worker_id": "attacker", "claim_id": str(UUID(int=7))}
    url, headers = loot.url("dispatcher"), {SERVICE_TOKEN: derive_token(loot.token, "dispatcher")}
    answer = loot.http.post(f"{url}/internal/task-claim", json=claim, headers=headers)
    if loot.name == "runner":
        assert answer.json() == {"status": "NotClaimed", "reason": "NotFound"}
    elif loot.name == "worker":
        assert answer.json()["status"] == "Claimed", answer.text
    else:
        assert answer.status_code == httpx.codes.FORBIDDEN


def test_only_delivery_reads_the_secret_of_a_channel(loot: Loot, world: dict[str, Any]) -> None:
    headers = {SERVICE_TOKEN: derive_token(loot.token, "dispatcher")}
    url = f"{loot.url('dispatcher')}/internal/alerts/targets"
    answer = loot.http.post(url, json={"targets": [world["target"]]}, headers=headers)
    assert (SECRET in answer.text) == (loot.name == "delivery"), answer.text


def test_only_the_dispatcher_makes_the_runner_run_code(loot: Loot) -> None:
    """The runner has the secret of its own listener, and could run code anyway."""
    path, own = "/2015-03-31/functions/udf/invocations", loot.given["udf"].get("invoke_token")
    for shown in {loot.token, derive_token(loot.token, "dispatcher"), str(own)}:
        for headers in ({SERVICE_TOKEN: shown}, {"authorization": f"Bearer {shown}"}):
            answer = loot.http.post(loot.url("runner") + path, content=b"{}", headers=headers)
            refused = answer.status_code == httpx.codes.UNAUTHORIZED
            assert refused or (loot.name == "runner" and shown == own), (headers, answer.text)


DATABASES: Final = ("state", "data", "queue", "postgres", "template1")
CONNECTS: Final = {"worker": "data", "query": "data", "delivery": "data", "queue": "queue"}
"""The database of each role."""


def test_its_passwords_open_only_the_databases_of_its_roles(loot: Loot, given: dict[str, Any]) -> None:
    """At both servers."""
    servers = [conninfo_to_dict(given["dispatcher"]["state"]["dsn"]), conninfo_to_dict(given["worker"]["data"]["dsn"])]
    for dsn in loot.dsns:
        role, opened = str(conninfo_to_dict(dsn)["user"]), []
        for server, at in zip(("state", "data"), servers, strict=True):
            for database in DATABASES:
                try:
                    psycopg.connect(make_conninfo(dsn, host=at["host"], port=at["port"], dbname=database)).close()
                except psycopg.OperationalError:
                    continue
                opened.append((server, database))
        assert opened == [("data", CONNECTS[role])], role


TABLES: Final = """
SELECT n.nspname AS schema, c.relname AS name, string_agg(p.may, ' ' ORDER BY p.may) AS may
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname !~ '^pg_|^information_schema$'
  JOIN unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS p (may)
    ON CASE WHEN p.may IN ('DELETE', 'TRUNCATE', 'TRIGGER') THEN has_table_privilege(c.oid, p.may)
            ELSE has_any_column_privilege(c.oid, p.may) END
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND has_schema_privilege(n.oid, 'USAGE')
 GROUP BY 1, 2
"""
ALL: Final = "DELETE INSERT SELECT UPDATE"
TABLES_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "worker": {"trace_meta": ALL, "hot": ALL, "buffered": ALL, "alerts": "INSERT", "trace_migrations": "SELECT"},
    "query": {"trace_meta": "SELECT", "hot": "SELECT", "buffered": "SELECT", "trace_migrations": "SELECT"},
    "delivery": {"alerts": "SELECT UPDATE", "trace_migrations": "SELECT"},
    "queue": {},
}
"""By role and schema: what it may do with every table there."""
CREATES: Final = {"worker": {"hot", "buffered", "staging"}}
"""Schemas in which a role may create tables."""
POWERS: Final = """
SELECT array_agg(rolname) FROM pg_roles
 WHERE pg_has_role(rolname, 'MEMBER') AND rolname <> current_user OR rolname = current_user AND (
       rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)
"""
SCHEMAS: Final = "SELECT nspname FROM pg_namespace WHERE has_schema_privilege(oid, 'CREATE')"


def test_its_roles_have_exactly_the_rights_of_its_row(loot: Loot) -> None:
    for dsn in loot.dsns:
        role = str(conninfo_to_dict(dsn)["user"])
        with psycopg.connect(dsn, autocommit=True) as attacker:
            attacker.execute("SET default_transaction_read_only = off")
            rights = attacker.execute(TABLES).fetchall()
            assert {schema: may for schema, _, may in rights} == {
                schema: may
                for schema, may in TABLES_OF[role].items()
                if schema in {row[0] for row in rights} or schema not in {"hot", "buffered"}  # which are empty here
            }, role
            assert {may for schema, _, may in rights if schema == "trace_meta"} <= {TABLES_OF[role].get("trace_meta")}
            assert {row[0] for row in attacker.execute(SCHEMAS)} == CREATES.get(role, set())
            assert attacker.execute(POWERS).fetchone() == (None,)


def test_its_keys_of_the_object_store_do_what_its_row_says(loot: Loot) -> None:
    """Those of the Query service write no dataset; nobody's open the rights of a task; the others have none."""
    data, scratch = Folder("trace", ("attack",)), Folder("trace-scratch", ("attack",))
    if loot.objects.access_key_id is None:
        assert not [text for text in texts(loot.given) if text.startswith("TRACE") and len(text) == 21]
        return
    store, mine = s3_objects(loot.objects), data.object(loot.name)
    store.put(scratch.object(loot.name), b"x")
    if loot.name == "query":
        with pytest.raises(TraceError):
            store.put(mine, b"x")
    else:
        store.put(mine, b"x")
        assert store.get(mine) == b"x"
    assert CredentialSettings.model_validate(loot.given["credentials"]).access_key_id is None
