"""Messages about organisations, their users and their roles."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.domain.access.subjects import Role
from tracelake.wire.calls.call import Service
from tracelake.wire.message import Message
from tracelake.wire.user.fields import Name

# Longer than any that is accepted: the verb says what is wrong with it.
AnyText = Annotated[str, Meta(max_length=1000, pattern="^[^\\x00]*$")]


class UsersQuery(Message, frozen=True):
    subject: AnyText | None = None
    """Only the user with this subject."""


class UserRequest(Message, frozen=True):
    subject: AnyText
    """The `sub` of the tokens that the identity provider issues."""
    email: AnyText | None = None
    role: Role = "reader"
    days: Annotated[int, Meta(ge=1, le=365)] | None = None
    """The invitation expires unless the user calls within so many days; left out, it does not."""


class UserRoleRequest(Message, frozen=True):
    role: Role


class UserRow(Message, frozen=True):
    id: UUID
    subject: str
    email: str | None
    role: Role
    platform_admin: bool
    org_roles: list[str]
    created_at: datetime
    invited_until: datetime | None = None
    """The user has not called yet, and may until then. None: has called, or was invited without a limit."""


class UserList(Message, frozen=True):
    users: list[UserRow]


class UserRemoved(Message, frozen=True):
    id: UUID
    subject: str


class RoleRequest(Message, frozen=True):
    role: Name
    name: AnyText | None = None
    """How it is shown; none: as it is written in DAGs."""


class RoleRow(Message, frozen=True):
    role: str
    name: str
    members: int
    datasets: list[str]
    """Datasets that its members may read because of it."""
    created_at: datetime


class RoleList(Message, frozen=True):
    roles: list[RoleRow]


class DeleteRoleQuery(Message, frozen=True):
    force: bool = False
    """Also if datasets are shared with it: they are no longer."""


class RoleDeleted(Message, frozen=True):
    role: str
    members: int
    """How many had it."""
    datasets: list[str]
    """Datasets that were shared with it."""


class MemberRow(Message, frozen=True):
    id: UUID
    subject: str
    email: str | None
    since: datetime


class MemberList(Message, frozen=True):
    role: str
    members: list[MemberRow]


class MembershipAnswer(Message, frozen=True):
    role: str
    user: UUID
    changed: bool


class OrgRequest(Message, frozen=True):
    org: Name
    admin: AnyText
    """The subject of its first admin."""
    name: AnyText | None = None
    """How it is shown; none: as it is written in paths."""
    email: AnyText | None = None
    """Of the first admin."""


class OrgRow(Message, frozen=True):
    id: UUID
    org: str
    name: str
    users: int
    admins: list[str]
    """Subjects."""
    created_at: datetime


class OrgList(Message, frozen=True):
    orgs: list[OrgRow]


Roles = Annotated[list[Name], Meta(min_length=1, max_length=200)]


class AccessChange(Message, frozen=True):
    """One of `everyone`, `nobody` and `set`; or `add` and `remove`, which change the roles that there are."""

    everyone: bool = False
    """Every user of the organisation."""
    nobody: bool = False
    """Only admins."""
    set: Roles | None = None
    add: Roles | None = None
    remove: Roles | None = None


class AccessAnswer(Message, frozen=True):
    dataset_uuid: UUID
    name: str | None
    readers: Literal["everyone", "roles", "nobody", "unpublished"]
    """Besides admins, who read every published dataset; no user reads one that is not published."""
    roles: list[str]
    set_by: str | None
    """The admin who decided it; none: as the DAG proposed it."""
    set_at: datetime | None


MAX_TOKEN_DAYS = 366


class TokenRequest(Message, frozen=True):
    name: Name
    role: Role = "reader"
    """The most that it allows; no more than your own role."""
    days: Annotated[int, Meta(ge=1, le=MAX_TOKEN_DAYS)] = 30
    """How long it holds."""


class TokenRow(Message, frozen=True):
    name: str
    role: Role
    created_at: datetime
    expires_at: datetime
    expired: bool
    last_used_at: datetime | None
    """Within a minute."""


class TokenMade(TokenRow, frozen=True, kw_only=True):
    token: str
    """It is not shown again."""


class TokenList(Message, frozen=True):
    tokens: list[TokenRow]


class TokenRevoked(Message, frozen=True):
    name: str


class ServiceTokenRequest(Message, frozen=True):
    service: Service
    name: Name
    runtimes: Annotated[list[Name], Meta(max_length=100)] = []
    """Whose tasks it may claim: needed by a worker and a runner, and by no other."""
    days: Annotated[int, Meta(ge=1, le=3660)] | None = None
    """How long it holds; none: until it is revoked."""


class ServiceTokenRow(Message, frozen=True):
    id: UUID
    service: Service
    name: str
    runtimes: list[str]
    created_at: datetime
    expires_at: datetime | None
    expired: bool
    last_used_at: datetime | None
    """Within a minute or so."""


class ServiceTokenMade(ServiceTokenRow, frozen=True, kw_only=True):
    token: str
    """It is not shown again."""


class ServiceTokenList(Message, frozen=True):
    tokens: list[ServiceTokenRow]


class ServiceTokenRevoked(Message, frozen=True):
    id: UUID
    service: Service
    name: str
