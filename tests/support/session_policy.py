"""What a store makes of a session policy: whether an action would pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tracelake.domain.access.session_policy import LIST, _prefixes, _read, _several


def allows(policy: str, action: str, bucket: str, key: str = "", *, prefix: str | None = None) -> bool:
    """Whether a store would let an action pass: some statement allows it and none denies it."""
    found = [item["Effect"] for item in _read(policy) if _applies(item, action, bucket, key, prefix)]
    return "Allow" in found and "Deny" not in found


def _applies(statement: Mapping[str, Any], action: str, bucket: str, key: str, prefix: str | None) -> bool:
    name = bucket if action == LIST else f"{bucket}/{key}"
    condition, denies = statement.get("Condition"), statement["Effect"] == "Deny"
    if condition is None:
        fits = True
    elif (prefixes := _prefixes(condition)) is None:
        fits = denies  # not understood: it must not open anything, nor keep a denial from holding
    else:
        fits = prefix is not None and any(_matches(pattern, prefix) for pattern in prefixes)
    resources = (_without_arn(item) for item in _several(statement.get("Resource")))
    return (
        fits
        and any(_matches(pattern, action) for pattern in _several(statement.get("Action")))
        and any(_matches(pattern, name) for pattern in resources)
    )


def _without_arn(resource: str) -> str:
    return re.sub(r"^arn:aws[a-z-]*:s3:::", "", resource)


def _matches(pattern: str, text: str) -> bool:
    """As IAM does: `*` is anything, slashes included, and `?` is one character."""
    parts = (".*" if part == "*" else "." if part == "?" else re.escape(part) for part in re.split(r"([*?])", pattern))
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None
