"""Makes the subject of a verified token a user at the first login, if a rule of `login_rules` says so.

Never changes a user that exists or was removed: what an admin has decided stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from tracelake.domain.access.subjects import compare_key, why_no_email, why_no_subject
from tracelake.errors import InvitationExpired
from tracelake.settings import LoginRule
from tracelake.store.identity import find_user
from tracelake.store.login_rules import unusable_rules, why_unusable
from tracelake.store.queries import Connection, queries
from tracelake.wire.internal.identity import LoginClaim, UserLoginAnswer, UserLoginRequest

log = structlog.get_logger()

NO_RULE: Final = "no rule of this system for a first login matches the token"
TAKEN: Final = "an admin has removed this user, or the subject resembles that of another user"
UNUSABLE: Final = "the rule for this login names an organisation or a role that does not exist"
ACTION: Final = "first_login"


async def log_in(pool: asyncpg.Pool, rules: Mapping[str, LoginRule], request: UserLoginRequest) -> UserLoginAnswer:
    try:
        if await find_user(pool, request.subject) is not None:
            return UserLoginAnswer()
    except InvitationExpired:
        return UserLoginAnswer()  # what an admin has decided stands: the call itself is refused
    name = matching_rule(rules, request.claims)
    if name is None:
        return UserLoginAnswer(refused=NO_RULE)
    if reason := why_no_subject(request.subject):
        return UserLoginAnswer(refused=f"the subject of the token cannot be that of a user: {reason}")
    if await _add(pool, name, rules[name], request) or await find_user(pool, request.subject) is not None:
        return UserLoginAnswer()
    return UserLoginAnswer(refused=await _why_not(pool, name, rules[name]))


def matching_rule(rules: Mapping[str, LoginRule], claims: tuple[LoginClaim, ...]) -> str | None:
    """The first in the order of their names."""
    shown = {(claim.claim, claim.value) for claim in claims}
    return next((name for name, rule in sorted(rules.items()) if (rule.claim, rule.value) in shown), None)


async def warn_of_unusable_rules(pool: asyncpg.Pool, rules: Mapping[str, LoginRule]) -> None:
    """At the start. It goes on: an admin who deletes a role must not keep the whole system from starting."""
    for reason in await unusable_rules(pool, rules):
        log.error("login_rule_unusable", reason=reason, hint="create what is missing, or change the setting")


async def _add(pool: asyncpg.Pool, name: str, rule: LoginRule, request: UserLoginRequest) -> bool:
    """Whether the user is new. The entry of the audit is committed with the user, or neither is."""
    sql, email = queries("login_rules"), request.email
    stored = email if email is not None and why_no_email(email) is None else None
    values = request.subject, compare_key(request.subject), stored, rule.role, sorted(set(rule.org_roles))
    async with pool.acquire() as connection, connection.transaction():
        await connection.fetchval(sql["lock_org"], rule.org)
        added: UUID | None = await connection.fetchval(sql["add_user"], rule.org, *values)
        if added is not None:
            await _record(connection, added, name, rule, request.origin)
    return added is not None


async def _record(connection: Connection, user: UUID, name: str, rule: LoginRule, origin: str) -> None:
    sql, roles = queries("audit"), " ".join(f"org_role={role}" for role in sorted(set(rule.org_roles)))
    target = f"rule={name} role={rule.role} {roles}".strip()
    entry = await connection.fetchval(sql["begin_entry"], user, ACTION, target, origin)
    await connection.execute(sql["end_entry"], entry, "done", None)


async def _why_not(pool: asyncpg.Pool, name: str, rule: LoginRule) -> str:
    reason = await why_unusable(pool, name, rule)
    if reason is None:
        return TAKEN
    log.error("login_rule_unusable", reason=reason, hint="create what is missing, or change the setting")
    return UNUSABLE
