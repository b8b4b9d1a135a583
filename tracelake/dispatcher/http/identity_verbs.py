"""The verbs of calls about organisations, users and roles."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tracelake.dispatcher.audit.show import list_audit, verify_audit
from tracelake.dispatcher.http.user_call import UserCall, Verb
from tracelake.dispatcher.identity.add_user import add_user
from tracelake.dispatcher.identity.create_org import create_org
from tracelake.dispatcher.identity.create_role import create_role
from tracelake.dispatcher.identity.delete_role import delete_role
from tracelake.dispatcher.identity.members import grant_role, list_role_members, revoke_role
from tracelake.dispatcher.identity.remove_user import remove_user
from tracelake.dispatcher.identity.secrets import list_secrets, remove_secret, set_secret
from tracelake.dispatcher.identity.service_tokens import (
    create_service_token,
    list_service_tokens,
    revoke_service_token,
)
from tracelake.dispatcher.identity.set_access import set_access, show_access
from tracelake.dispatcher.identity.set_user_role import set_user_role
from tracelake.dispatcher.identity.show_orgs import list_orgs, show_org
from tracelake.dispatcher.identity.show_roles import list_roles
from tracelake.dispatcher.identity.show_users import list_users, show_user
from tracelake.dispatcher.identity.tokens import create_token, list_tokens, revoke_token
from tracelake.dispatcher.limits.set_org_limits import set_org_limits
from tracelake.dispatcher.limits.show_org_limits import show_org_limits
from tracelake.dispatcher.limits.show_org_usage import show_org_usage
from tracelake.domain.access.seal import Seal
from tracelake.store.identity import User
from tracelake.wire.user.secrets import SecretKind


def _user(asked: UserCall) -> UUID:
    return UUID(asked.path["user"])


def _secret(asked: UserCall) -> tuple[Seal, User, SecretKind, str]:
    kind: SecretKind = "webhook" if asked.path["kind"] == "webhook" else "job"
    return asked.control.seal, asked.user, kind, asked.path["secret"]


IDENTITY_VERBS: Mapping[str, Verb] = {
    "list_users": lambda asked: list_users(asked.pool, asked.org, asked.query),
    "show_user": lambda asked: show_user(asked.pool, asked.org, _user(asked)),
    "add_user": lambda asked: add_user(asked.pool, asked.user, asked.body),
    "set_user_role": lambda asked: set_user_role(asked.pool, asked.user, _user(asked), asked.body.role),
    "remove_user": lambda asked: remove_user(asked.pool, asked.user, _user(asked)),
    "list_roles": lambda asked: list_roles(asked.pool, asked.org),
    "create_role": lambda asked: create_role(asked.pool, asked.user, asked.body),
    "delete_role": lambda asked: delete_role(asked.pool, asked.user, asked.path["role"], force=asked.query.force),
    "list_role_members": lambda asked: list_role_members(asked.pool, asked.org, asked.path["role"]),
    "grant_role": lambda asked: grant_role(asked.pool, asked.user, asked.path["role"], _user(asked)),
    "revoke_role": lambda asked: revoke_role(asked.pool, asked.user, asked.path["role"], _user(asked)),
    "show_access": lambda asked: show_access(asked.pool, asked.user, asked.path["dataset"]),
    "set_access": lambda asked: set_access(asked.pool, asked.user, asked.path["dataset"], asked.body),
    "list_tokens": lambda asked: list_tokens(asked.pool, asked.user),
    "create_token": lambda asked: create_token(asked.pool, asked.user, asked.body),
    "revoke_token": lambda asked: revoke_token(asked.pool, asked.user, asked.path["token"]),
    "list_audit": lambda asked: list_audit(asked.pool, asked.org, asked.query),
    "verify_audit": lambda asked: verify_audit(asked.pool, asked.org),
    "list_service_tokens": lambda asked: list_service_tokens(asked.pool),
    "create_service_token": lambda asked: create_service_token(
        asked.pool, asked.after.service_tokens, asked.control.runtimes, asked.body
    ),
    "revoke_service_token": lambda asked: revoke_service_token(
        asked.pool, asked.after.service_tokens, UUID(asked.path["service_token"])
    ),
    "list_secrets": lambda asked: list_secrets(asked.pool, asked.control.seal, asked.org),
    "set_secret": lambda asked: set_secret(asked.pool, *_secret(asked), value=asked.body.value),
    "remove_secret": lambda asked: remove_secret(asked.pool, *_secret(asked), force=asked.query.force),
    "list_orgs": lambda asked: list_orgs(asked.pool),
    "show_org": lambda asked: show_org(asked.pool, asked.path["org"]),
    "create_org": lambda asked: create_org(asked.pool, asked.body),
    "show_org_limits": lambda asked: show_org_limits(asked.pool, asked.path["org"]),
    "set_org_limits": lambda asked: set_org_limits(asked.pool, asked.after, asked.user, asked.path["org"], asked.body),
    "show_org_usage": lambda asked: show_org_usage(asked.pool, asked.user, asked.path["org"]),
}
