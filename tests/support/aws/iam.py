"""IAM's decision over policies as text: identity, resource and session policies, with the conditions that they use.

A denial in any policy counts. Within an account an allowance by the identity's policies or by the resource's is enough;
a session policy limits both. What is not understood allows nothing, and keeps no denial from holding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    action: str
    resource: str
    principal: str = ""
    """The ARN of the role, or the name of the service that calls."""
    context: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    def values(self, key: str) -> list[str] | None:
        """Of a condition key; None: the request has no such key."""
        found = next((value for name, value in self.context.items() if name.lower() == key.lower()), None)
        if key.lower() == "aws:principalarn" and found is None:
            found = self.principal
        return None if found is None else list(several(found))


def is_allowed(
    request: Request,
    identity: Iterable[Policy],
    *,
    resource: Policy | None = None,
    session: Policy | None = None,
) -> bool:
    """`session` is None where the caller is no session with a policy of its own."""
    by_identity = effects(request, identity)
    by_resource = effects(request, [resource] if resource else [], by_principal=True)
    by_session = effects(request, [session]) if session is not None else {"Allow"}
    if "Deny" in by_identity | by_resource | by_session:
        return False
    return "Allow" in by_identity | by_resource and "Allow" in by_session


def effects(request: Request, policies: Iterable[Policy], *, by_principal: bool = False) -> set[str]:
    """Those of the statements that apply."""
    statements = [statement for policy in policies for statement in statements_of(policy)]
    return {item["Effect"] for item in statements if _applies(item, request, by_principal=by_principal)}


def statements_of(policy: Policy) -> Iterator[Mapping[str, Any]]:
    found = policy["Statement"]
    yield from [found] if isinstance(found, Mapping) else found


def several(value: Any) -> Iterator[str]:
    yield from [value] if isinstance(value, str) else value or []


def matches(pattern: str, text: str, *, any_case: bool = False) -> bool:
    """As IAM does: `*` is anything, slashes included, and `?` is one character."""
    parts = (".*" if part == "*" else "." if part == "?" else re.escape(part) for part in re.split(r"([*?])", pattern))
    flags = re.DOTALL | (re.IGNORECASE if any_case else 0)
    return re.fullmatch("".join(parts), text, flags) is not None


def _applies(statement: Mapping[str, Any], request: Request, *, by_principal: bool) -> bool:
    # A trust policy names no resource: it is attached to the one that it is about.
    of_itself = by_principal and not {"Resource", "NotResource"} & statement.keys()
    return (
        _concerns(statement, "Action", request.action, any_case=True)
        and (of_itself or _concerns(statement, "Resource", request.resource))
        and (not by_principal or _is_principal(statement.get("Principal"), request.principal))
        and _conditions_hold(statement, request)
    )


def _concerns(statement: Mapping[str, Any], element: str, text: str, *, any_case: bool = False) -> bool:
    if f"Not{element}" in statement:
        return not any(matches(item, text, any_case=any_case) for item in several(statement[f"Not{element}"]))
    return any(matches(item, text, any_case=any_case) for item in several(statement.get(element)))


def _is_principal(named: Any, principal: str) -> bool:
    if named == "*":
        return True
    found = [item for kind in (named or {}).values() for item in several(kind)]
    return "*" in found or any(item == principal or _is_account(item, principal) for item in found)


def _is_account(named: str, principal: str) -> bool:
    """An account's root in a policy stands for every principal of it."""
    return named.endswith(":root") and principal.startswith("arn:") and named.split(":")[4] == principal.split(":")[4]


def _conditions_hold(statement: Mapping[str, Any], request: Request) -> bool:
    conditions = statement.get("Condition") or {}
    unclear = statement["Effect"] == "Deny"
    results = [
        _holds(operator, list(several(wanted)), request.values(key))
        for operator, keys in conditions.items()
        for key, wanted in keys.items()
    ]
    return all(unclear if result is None else result for result in results)


def _holds(operator: str, wanted: list[str], found: list[str] | None) -> bool | None:
    """None: an operator that is not known here."""
    name = operator.removeprefix("ForAnyValue:")
    if name == "Null":
        return (found is None) == (wanted[0] == "true")
    if name.endswith("IfExists"):
        if found is None:
            return True
        name = name.removesuffix("IfExists")
    compare: Mapping[str, Callable[[str, str], bool]] = {
        "StringEquals": _equals,
        "ArnEquals": matches,
        "StringLike": matches,
        "ArnLike": matches,
        "Bool": _equals,
    }
    positive = name.replace("Not", "", 1)
    if positive not in compare or operator.startswith("ForAllValues:"):
        return None
    hit = any(compare[positive](pattern, text) for pattern in wanted for text in found or [])
    return hit != (positive != name)


def _equals(wanted: str, found: str) -> bool:
    return wanted == found
