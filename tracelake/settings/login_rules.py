"""Settings of the first login: which claims of a token make its subject a user, of which organisation."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import StringConstraints

from tracelake.domain.access.subjects import Role
from tracelake.settings.base import Group, setting

SLUG: Final = r"^[a-z][a-z0-9_]{0,127}$"


class LoginRule(Group):
    """Who becomes a user at the first login. The first rule that matches counts, in the order of their names."""

    issuer: str = setting("", "The issuer of the tokens: the same as identity.user_issuer.")
    claim: str = setting(
        "groups", "The claim to look at, by its whole name: a text, or a list of texts.", min_length=1, max_length=256
    )
    value: str = setting(
        "", "The text that the claim is, or that its list holds.", min_length=1, max_length=256, validate_default=True
    )
    org: str = setting("default", "The organisation of the new user, as `trace org list` lists it.", pattern=SLUG)
    role: Role = setting("reader", "The role of the new user.")
    org_roles: list[Annotated[str, StringConstraints(pattern=SLUG)]] = setting(
        [], "Roles of the organisation that the new user has too, as `trace role list` lists them.", unit="JSON list"
    )
