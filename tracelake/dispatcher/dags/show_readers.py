"""Who may read a dataset, in words."""

from __future__ import annotations

from collections.abc import Iterable


def show_readers(visibility: str, read_roles: Iterable[str]) -> str:
    if visibility == "org":
        return "everyone"
    roles = sorted(role.removeprefix("role:") for role in read_roles)
    return f"who has {' or '.join(roles)}" if roles else "nobody but admins"
