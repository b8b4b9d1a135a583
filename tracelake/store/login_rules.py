"""Whether the organisation and the roles of a rule of `login_rules` exist."""

from __future__ import annotations

from collections.abc import Mapping

from tracelake.settings import LoginRule
from tracelake.store.queries import Queryable, Row, fetch_row, queries


class Unknown(Row, frozen=True):
    org_known: bool
    unknown_roles: list[str]


async def unusable_rules(database: Queryable, rules: Mapping[str, LoginRule]) -> list[str]:
    """A sentence for each rule that makes no user, because what it names does not exist."""
    found = [await why_unusable(database, name, rule) for name, rule in sorted(rules.items())]
    return [reason for reason in found if reason is not None]


async def why_unusable(database: Queryable, name: str, rule: LoginRule) -> str | None:
    found = await fetch_row(database, queries("login_rules")["list_unknown"], Unknown, rule.org, rule.org_roles)
    if not found.org_known:
        return f"login_rules.{name}: there is no organisation {rule.org!r}"
    if found.unknown_roles:
        return f"login_rules.{name}: the organisation {rule.org!r} has no role {found.unknown_roles[0]!r}"
    return None
