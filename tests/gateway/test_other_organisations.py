"""What an organisation has is to another one as if it did not exist, by whatever part of a call it is named.

Generated from the calls: each part of a path, parameter or field of a body that can name an object is set to an object
of another organisation, and to one that nobody has, all else being the caller's own. Both must be answered alike.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import msgspec
import pytest

from tests.support.systems.gateway import System
from tests.support.systems.org_objects import DAG, Objects, make_objects
from tests.support.systems.whole_api import WholeApi, whole_api
from tracelake.wire.calls.user_calls import CALLS, Call

pytestmark = pytest.mark.anyio

ADMIN, RIVAL = "acme|admin", "rival|admin"

FIELDS: Final[Mapping[str, str]] = {
    "activate.dag_version_id": "version",
    "list_tasks.dag": "dag",
    "list_tasks.job": "job",
    "list_tasks.before": "task",
    "list_tasks.prefix": "task",
    "cancel_tasks.dag": "dag",
    "cancel_tasks.job": "job",
    "retry_tasks.dag": "dag",
    "retry_tasks.job": "job",
    "diff_dataset.release": "release",
    "invalidate.request_id": "request",
    "list_dead_batches.dataset": "dataset_name",
    "list_dead_batches.before": "publish",
    "announce_bundle.name": "bundle_name",
    "list_bundles.name": "bundle_name",
    "list_bundles.before": "bundle",
    "why.task": "task",
    "why.dataset": "dataset",
    "trigger.request_id": "request",
    "list_sources.dag": "dag",
    "fire_source.request_id": "request",
    "replay_delivery.request_id": "request",
    "gaps.of": "dataset",
    "start_backfill.job": "job",
    "create_alert.name": "alert",
    "create_alert.channels": "channel",
    "update_alert.channels": "channel",
    "create_channel.name": "channel",
    "list_deliveries.alert": "alert",
    "list_deliveries.channel": "channel",
    "list_deliveries.before": "delivery_of_alert",
    "list_users.subject": "subject",
    "create_role.role": "role",
    "set_access.set": "role",
    "set_access.add": "role",
    "set_access.remove": "role",
    "create_token.name": "token",
    "retry_outbox.ids": "outbox",
}
"""Parameters and fields that name an object, and what they name."""
NO_NAMES: Final = {
    *("dry_run", "status", "limit", "attempt", "first", "reason", "after", "rows", "a", "b", "key", "start", "end"),
    *("partition", "days", "batch", "kind", "sha256", "size_bytes", "when_ready", "force", "cursor", "downstream"),
    *("body", "below", "order", "tasks", "hours", "again", "requests", "bytes", "severity", "description", "enabled"),
    *("params", "max_age_seconds", "url", "secret", "email", "everyone", "nobody", "service", "runtimes", "value"),
    *("yaml", "dags", "plan"),  # the texts of DAGs are below
    *("set_user_role.role", "add_user.role", "create_token.role"),  # reader, writer or admin
    *("list_outbox.before", "list_audit.before"),  # places in lists, not ids of rows
    *("create_service_token.name", "create_role.name", "create_org.name", "create_org.org", "create_org.admin"),
    *("list_dead_messages.queue", "redrive_messages.queue", "redrive_messages.ids"),  # for platform admins
    "set_org_limits.limits",  # numbers by the names of limits
    "add_user.subject",  # a subject is of one organisation, so that it must be refused: see test_identity
}
"""Fields of bodies and parameters that name no object of an organisation."""
OF_THE_PLATFORM: Final = {call.name for call in CALLS.values() if call.platform}
OWN_NAMES: Final = {"deploy.dag", "set_secret.kind", "set_secret.secret", "remove_secret.kind"}
"""Parts of paths that name something new, or that are no names."""
BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "deploy": {"yaml": DAG.format(slug="rival")},
    "activate": {"dag_version_id": "version"},
    "cancel_task": {"reason": "x"},
    "cancel_tasks": {"reason": "x", "dry_run": True},
    "retry_tasks": {"dry_run": True},
    "invalidate": {"start": 0, "end": 1, "reason": "x"},
    "trigger": {"start": 20, "end": 29},
    "fire_source": {"body": {}},
    "replay_delivery": {},
    "start_backfill": {"start": 0, "end": 9, "dry_run": True},
    "announce_bundle": {"name": "other", "kind": "python", "sha256": "ab" * 32, "size_bytes": 9},
    "create_alert": {"name": "other", "severity": "info"},
    "update_alert": {"description": "x"},
    "create_channel": {"name": "other", "url": "https://example.org/"},
    "update_channel": {"url": "https://example.org/other"},
    "set_user_role": {"role": "writer"},
    "create_role": {"role": "other"},
    "set_access": {"everyone": True},
    "create_token": {"name": "other"},
    "set_secret": {"value": "hunter22"},
}
LONE: Final = {"set_access": {"everyone"}, "retry_outbox": set[str]()}
"""Fields that go with no other."""
WITHOUT_COMMITS: Final = {"diff_dataset"}
"""Not found if a dataset has no commit, as those here."""


@dataclass(frozen=True)
class Slot:
    """A place in a call that names an object."""

    call: Call
    place: str
    kind: str
    within: str
    """path, query or body"""

    @property
    def name(self) -> str:
        return f"{self.call.name}.{self.place}"


def slots() -> Iterator[Slot]:
    for call in CALLS.values():
        if call.name in OF_THE_PLATFORM:
            continue
        for part in re.findall(r"{(\w+)}", call.path):
            if f"{call.name}.{part}" not in OWN_NAMES:
                yield Slot(call, part, kind_of(call, part), "path")
        for within, message in (("query", call.query), ("body", call.body)):
            for field in msgspec.structs.fields(message) if message else ():
                if kind := FIELDS.get(f"{call.name}.{field.name}"):
                    yield Slot(call, field.name, kind, within)


def kind_of(call: Call, part: str) -> str:
    if part == "delivery":
        return "delivery_of_source" if "jobs" in call.path else "delivery_of_alert"
    if part == "job" and ("deliveries" in call.path or call.name == "fire_source"):
        return "hook"
    return part


def may_make(slot: Slot) -> tuple[bool, bool, bool]:
    """Those come last that make something of the name or id that they are given."""
    return slot.call.method != "GET", slot.within == "body", slot.call.name.startswith("create_")


SLOTS: Final = {slot.name: slot for slot in sorted(slots(), key=may_make)}


@pytest.fixture
async def api(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[WholeApi]:
    async with whole_api(state_db, queue_db, data_db, tmp_path) as made:
        yield made


def test_every_part_of_every_call_is_known_to_name_something_or_not() -> None:
    for call in CALLS.values():
        for message in (call.query, call.body):
            for field in msgspec.structs.fields(message) if message else ():
                known = {field.name, f"{call.name}.{field.name}"}
                names = f"{call.name}.{field.name}" in FIELDS
                assert names or known & NO_NAMES, f"does {call.name}.{field.name} name an object?"
    assert set(FIELDS) <= set(SLOTS)
    assert all(len(re.findall(r"{", call.path)) for call in CALLS.values() if f"{call.name}.x" in OWN_NAMES)


async def test_an_object_of_another_organisation_is_as_one_that_nobody_has(api: WholeApi) -> None:
    trace = api.trace
    theirs = await make_objects(trace, api.data, "acme")
    own = await make_objects(trace, api.data, "rival")
    before = await rows_of(api, theirs)
    for slot in SLOTS.values():
        foreign = await ask(trace, slot, own, await named_by(trace, theirs, slot))
        nothing = await ask(trace, slot, own, made_up(slot, theirs))
        assert foreign[0] == nothing[0], (slot.name, foreign, nothing)
        assert foreign[1] == nothing[1], slot.name
        if slot.within == "path" and slot.name not in OWN_NAMES:
            assert foreign[0] == httpx.codes.NOT_FOUND, (slot.name, foreign)
        assert await rows_of(api, theirs) == before, slot.name


async def test_the_objects_of_that_test_exist(api: WholeApi) -> None:
    """To their own organisation: else nothing of the test above would be shown."""
    own = await make_objects(api.trace, api.data, "acme")
    order = {"GET": 0, "POST": 1, "PUT": 2, "PATCH": 2, "DELETE": 3}
    for call in sorted(CALLS.values(), key=lambda call: (order[call.method], call.name)):
        if "{" not in call.path or call.name in OF_THE_PLATFORM | WITHOUT_COMMITS or call.method == "DELETE":
            continue
        path, query, body = request_of(call, own)
        answer = await api.trace.ask(ADMIN, call.method, path, params=query, **body)
        assert answer.status_code != httpx.codes.NOT_FOUND, (call.name, answer.text)


async def named_by(trace: System, objects: Objects, slot: Slot) -> Any:
    if slot.kind == "outbox":
        return await trace.control.pool.fetchval("SELECT min(id) FROM outbox WHERE org_id = $1", objects.org) or 1
    return objects.named[slot.kind]


def made_up(slot: Slot, like: Objects) -> Any:
    """An id or a name of nothing, as long as the real one; an id that says when it was made, of the same moment."""
    if slot.kind == "outbox":
        return 10**12
    real = like.named[slot.kind]
    if re.fullmatch(r"[0-9a-f-]{36}", real):
        return real[:14] + str(uuid4())[14:]
    return real.replace(like.slug, f"{like.slug[:-1]}o")  # as similar to the names that are proposed


async def ask(trace: System, slot: Slot, own: Objects, value: Any) -> tuple[int, str]:
    """Status and body of the answer, without what is new in each answer, and without the value itself."""
    path, query, body = request_of(slot.call, own, slot, value)
    answer = await trace.ask(f"{own.slug}|admin", slot.call.method, path, params=query, **body)
    assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR, (slot.name, answer.text)
    text = answer.text.replace(str(value), "THE VALUE")
    text = re.sub(r'"(trace_pat_)?[\w-]{43}"', '"A SECRET"', text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "AN ID", text)
    return answer.status_code, re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", "A TIME", text)


def request_of(
    call: Call, own: Objects, slot: Slot | None = None, value: Any = None
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    parts = {part: own.named.get(kind_of(call, part), "job") for part in re.findall(r"{(\w+)}", call.path)}
    query: dict[str, Any] = {"of": own.named["dataset"]} if call.name == "gaps" else {}
    body = dict(BODIES.get(call.name, {}))
    body = {name: own.named["version"] if item == "version" else item for name, item in body.items()}
    if slot is not None and slot.within == "path":
        parts[slot.place] = value
    elif slot is not None and slot.within == "query":
        query[slot.place] = value
    elif slot is not None:
        body = {name: item for name, item in body.items() if name not in LONE.get(call.name, set())}
        listed = slot.place in {"channels", "set", "add", "remove", "ids"}
        body[slot.place] = [value] if listed else value
    path = "/v1" + call.path.format_map(parts)
    return path, query, {"json": body} if call.body is not None and not (call.optional_body and not body) else {}


ROWS: Final = """
SELECT c.table_name FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
 WHERE c.table_schema = $1 AND c.column_name = 'org_id' AND t.table_type = 'BASE TABLE' ORDER BY 1
"""


async def rows_of(api: WholeApi, objects: Objects) -> dict[str, str]:
    """A hash of the rows that an organisation has in each table, but for its audit."""
    found = {}
    for pool, schema in ((api.trace.control.pool, "public"), (api.data, "alerts")):
        for table in await pool.fetch(ROWS, schema):
            name = f"{schema}.{table['table_name']}"
            sql = f"SELECT md5(coalesce(string_agg(r::text, '|' ORDER BY r::text), '')) FROM {name} r WHERE org_id = $1"  # noqa: S608
            found[name] = await pool.fetchval(sql, objects.org)
    return found
