"""Accepts deliveries to webhook sources: verified on the bytes received, stored once, fired. Next: step 3.

The Gateway forwards what anybody sends; only this process has the secrets. Deliveries that arrive together are one
statement (`runtime/coalesce.py`). A caller learns that a delivery was accepted when it is committed, and nothing about
why one was not: the log says that to the operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tracelake.dispatcher.identity.stored_secrets import Found, stored_secrets
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.operators import makes_task
from tracelake.domain.access.seal import Seal
from tracelake.domain.sources.signatures import MAX_ID, BadSignature, HookScheme, Signed, check_time, verify
from tracelake.errors import BodyTooLarge, InvalidRequest, ServiceUnavailable, Unauthenticated
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.settings.secrets.hooks import hook_variable, split_secrets
from tracelake.store.clock import DatabaseClock
from tracelake.store.queries import Connection, Row, fetch_rows, queries

log = structlog.get_logger()

REFUSED = "the call was not accepted"
RETRY_SECONDS = 30
KEPT_TIMES = 10
"""A key is kept for so many tolerances, and for a month at least: a sender may sign an old delivery anew."""
MONTH_SECONDS = 30 * 86_400


@dataclass(frozen=True, eq=False)
class HookCall:
    """A call as it was received."""

    org: str
    dag: str
    job: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes


class Hook(Row, frozen=True):
    """A webhook source; all None: there is no such one."""

    org_id: UUID | None
    dag_name: str | None
    job_name: str | None
    operator: str | None
    source: Any


class HookSource(msgspec.Struct, frozen=True):
    """`jobs.source` of a webhook source."""

    scheme: HookScheme
    secret: str
    max_bytes: int
    tolerance_seconds: int | None = None


class Stored(Row, frozen=True):
    place: int
    """In the batch."""
    id: UUID
    task_id: UUID | None
    is_new: bool
    held: bool
    """Its source is paused."""


@dataclass(frozen=True)
class HookDelivery:
    """A verified call, ready to be stored."""

    hook: Hook
    key: str
    body: Any
    size: int
    kept_seconds: int | None


@dataclass(frozen=True)
class Hooks:
    pool: asyncpg.Pool
    after: AfterCommit
    secrets: Mapping[str, Sequence[str]]
    """By name in lower case; several of one name while it is changed."""
    clock: DatabaseClock
    seal: Seal

    def batched(self) -> Coalesced[HookCall, UUID]:
        """Answers with the id of the delivery; a repeated one is answered as the first was."""
        return Coalesced(self._accept, key=lambda call: call, verb="accept_hook", metrics=self.after.metrics)

    async def _accept(self, calls: Sequence[HookCall]) -> Sequence[UUID | Exception]:
        hooks = await self._find(calls)
        stored_here = await self._stored(hooks)
        checked = [self._checked(call, hook, stored_here) for call, hook in zip(calls, hooks, strict=True)]
        deliveries = [item for item in checked if isinstance(item, HookDelivery)]
        ids = await self.store(deliveries) if deliveries else {}
        stored = iter([ids[place].id if place in ids else _later(1) for place in range(len(deliveries))])
        return [next(stored) if isinstance(item, HookDelivery) else item for item in checked]

    async def _find(self, calls: Sequence[HookCall]) -> list[Hook]:
        names = [call.org for call in calls], [call.dag for call in calls], [call.job for call in calls]
        return await fetch_rows(self.pool, queries("hooks")["find_hooks"], Hook, *names)

    async def _stored(self, hooks: Sequence[Hook]) -> Found:
        """Secrets that the organisations of these sources have stored."""
        wanted = [(hook.org_id, str(hook.source["secret"])) for hook in hooks if hook.org_id is not None]
        return await stored_secrets(self.pool, self.seal, "webhook", wanted) if wanted else {}

    def _checked(self, call: HookCall, hook: Hook, stored: Found) -> HookDelivery | Exception:
        try:
            return self._verified(call, hook, stored)
        except BadSignature as wrong:
            log.info("a webhook call was refused", org=call.org, dag=call.dag, job=call.job, because=str(wrong))
            return Unauthenticated(REFUSED, where="")
        except (InvalidRequest, BodyTooLarge, ServiceUnavailable) as refusal:
            return refusal

    def _verified(self, call: HookCall, hook: Hook, stored: Found) -> HookDelivery:
        if hook.org_id is None:
            raise BadSignature("there is no such webhook source")
        source = msgspec.convert(hook.source, HookSource, strict=False)
        if len(call.body) > source.max_bytes:
            raise BodyTooLarge(f"the body is larger than {source.max_bytes} bytes", where="")
        signed = verify(source.scheme, call.headers, call.body, self._secrets(source, call, hook.org_id, stored))
        check_time(signed, self.clock(), source.tolerance_seconds)
        body = _read_json(call.body)
        tolerance = source.tolerance_seconds
        kept = None if tolerance is None else max(KEPT_TIMES * tolerance, MONTH_SECONDS)
        return HookDelivery(hook, _key(source.scheme, signed, call.body, body), body, len(call.body), kept)

    def _secrets(self, source: HookSource, call: HookCall, org: UUID, stored: Found) -> Sequence[str]:
        """Those of the organisation; if it has stored none of this name, those of the settings."""
        name = source.secret.lower()
        own = (org, name) in stored
        secrets = split_secrets(stored[org, name] or "") if own else self.secrets.get(name, ())
        if reason := readiness({name: secrets} if own or secrets else {}, {"secret": source.secret}):
            named = {"org": call.org, "dag": call.dag, "job": call.job}
            log.warning("a webhook source has no secret", **named, because=reason)
            raise _later(RETRY_SECONDS)
        return secrets

    async def store(self, deliveries: Sequence[HookDelivery]) -> Mapping[int, Stored]:
        """By the place of the delivery; nothing for one whose source has just changed."""
        sql = queries("hooks")
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql["lock_orgs"], [item.hook.org_id for item in deliveries])
            found = await fetch_rows(connection, sql["accept_deliveries"], Stored, *_columns(deliveries))
            again = await self._repeated(connection, deliveries, [row.place for row in found if not row.is_new])
            crash_point("accept_hooks.before_commit")
        crash_point("accept_hooks.after_commit")
        if any(row.is_new for row in found):
            self.after.outbox.notify()
        return {**{row.place: row for row in found if row.is_new}, **again}

    async def _repeated(
        self, connection: Connection, deliveries: Sequence[HookDelivery], places: Sequence[int]
    ) -> Mapping[int, Stored]:
        if not places:
            return {}
        asked = [deliveries[place] for place in places]
        columns = (
            [item.hook.org_id for item in asked],
            [item.hook.dag_name for item in asked],
            [item.hook.job_name for item in asked],
            [item.key for item in asked],
        )
        rows = await fetch_rows(connection, queries("hooks")["find_deliveries"], Stored, *columns)
        return {places[row.place]: row for row in rows}


def readiness(secrets: Mapping[str, Sequence[str]], source: Mapping[str, Any]) -> str | None:
    """Why a webhook source cannot accept anything; None: it can.

    `secrets`: by name in lower case; an empty one is stored, and no key of the Dispatcher decrypts it.
    """
    name = str(source.get("secret", ""))
    command = f"`trace secret set {name.lower()} --kind webhook`"
    if secrets.get(name.lower()):
        return None
    if name.lower() in secrets:
        return f"the Dispatcher does not have the key that encrypted the secret {name}: add it, or {command}"
    return f"secret {name} is not set: {command}, or {hook_variable(name)} of the Dispatcher"


def live_secrets(given: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    return {name.lower(): split_secrets(value.get_secret_value()) for name, value in given.items()}


def _later(seconds: int) -> ServiceUnavailable:
    refusal = ServiceUnavailable("this cannot be accepted now")
    refusal.retry_after = seconds
    return refusal


def _key(scheme: HookScheme, signed: Signed, raw: bytes, body: Any) -> str:
    """Only what is signed can identify a delivery: a header that is not could be changed by anybody."""
    if signed.delivery is not None:
        return signed.delivery
    stripe = body.get("id") if scheme is HookScheme.STRIPE and isinstance(body, dict) else None
    if isinstance(stripe, str) and 0 < len(stripe) <= MAX_ID:
        return stripe
    return f"sha256:{sha256(raw).hexdigest()}"


def _read_json(body: bytes) -> Any:
    if b"\\u0000" in body:
        raise InvalidRequest("the body holds a NUL character, which cannot be stored", where="")
    try:
        value = msgspec.json.decode(body)
        msgspec.json.encode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise InvalidRequest(f"the body is not JSON: {wrong}", where="") from None
    return value


def _columns(deliveries: Sequence[HookDelivery]) -> tuple[list[Any], ...]:
    return (
        [item.hook.org_id for item in deliveries],
        [item.hook.dag_name for item in deliveries],
        [item.hook.job_name for item in deliveries],
        [item.hook.source for item in deliveries],
        [item.hook.operator for item in deliveries],
        [item.key for item in deliveries],
        # As text: the driver takes a list for another dimension of the array.
        [None if item.body is None else msgspec.json.encode(item.body).decode() for item in deliveries],
        [item.size for item in deliveries],
        [item.kept_seconds for item in deliveries],
        [makes_task(item.hook.operator or "") for item in deliveries],
    )
