"""Rows about organisations, users, tokens and keys that make no sense."""

from __future__ import annotations

from tests.support.cases.illegal_rows.case import of
from tests.support.cases.illegal_rows.rows import ACTIVE, ES256, HASH, LONG, OTHER_ORG, RETIRING, T0, T1, T2, a, uid

OTHER_TOKEN = {"name": "other", "token_hash": b"1" * 32}

IDENTITY = [
    *of(
        "orgs",
        ("two orgs never share a slug", "slug_once", {"slug": "org_a"}),
        ("an org's slug is lower snake case", "slug_is_snake", {"slug": "Not-Snake"}),
        ("a slug has at most 128 characters", "slug_is_snake", {"slug": LONG}, {"slug": LONG[1:]}),
        ("an org has a name", "name_says_something", {"name": ""}),
        ("settings of an org are an object", "settings_is_object", {"settings": "[]"}),
    ),
    *of(
        "users",
        ("a user belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("a subject is one user, in one org", "external_id_once", {"external_id": "user b"}),
        ("a user has a subject", "external_id_says_something", {"external_id": ""}),
        (
            "subjects differ in more than case and form",
            "subject_key_once",
            {"subject_key": "ana"},
            {"subject_key": "bob"},
            a("users", external_id="Ana", subject_key="ana"),
        ),
        ("who is removed has no rights", "removed_has_no_platform", {"removed_at": T0, "platform_admin": True}),
    ),
    *of("restores", ("epochs are counted from 1", "count_from_one", {"epoch": 0})),
    *of(
        "user_tokens",
        ("a token is of a user of its org", "user_of_same_org", {"user_id": uid("user b")}),
        ("a token is one user's", "hash_once", {"token_hash": HASH}, OTHER_TOKEN, a("user_tokens")),
        ("a user's tokens have different names", "name_once", {"name": "new"}, OTHER_TOKEN, a("user_tokens")),
        ("a token's name is lower snake case", "name_is_snake", {"name": "Not-Snake"}),
        ("a token is stored as a hash", "hash_is_sha256", {"token_hash": b"short"}),
        ("a token ends after it begins", "expire_after_creation", {"expires_at": T0}),
    ),
    *of(
        "query_audit",
        ("a query belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("a query is by a user or a task", "user_or_task", {"task_id": uid("task a"), "attempt": 1}),
        ("a task that queried has an attempt", "task_has_attempt", {"attempt": 1}),
        ("a query is known by its hash", "hash_is_sha256", {"sql_sha256": b"short"}),
        ("an answer has no negative size", "sizes_are_not_negative", {"row_count": -1}),
    ),
    *of(
        "org_roles",
        ("a role belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("an org's roles have different slugs", "slug_once", {"slug": "seed"}),
        ("a role's slug is lower snake case", "slug_is_snake", {"slug": "Finance"}),
    ),
    *of(
        "org_role_memberships",
        ("no user gets a role of another org", "role_of_same_org", {"role_id": uid("role b")}),
        ("a role never takes a user of another org", "user_of_same_org", {"user_id": uid("user b")}),
    ),
    *of(
        "audit_entries",
        ("an entry belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("a place in a chain is taken once", "place_once", {"seq": 1}, {"seq": 2}, a("audit_entries")),
        ("an entry has an outcome that is known", "known_outcome", {"outcome": "perhaps"}),
        ("a refusal has a code", "code_of_refusals", {"outcome": "refused"}),
        ("what was done has no code of a refusal", "code_of_refusals", {"outcome": "done", "code": "forbidden"}),
        ("a place in a chain has a hash", "linked_whole", {"hash": None}),
        ("the hash of an entry is a SHA-256", "hash_is_sha256", {"hash": b"short"}),
    ),
    *of(
        "audit_chains",
        ("a chain belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("no chain is cut behind its end", "pruned_is_past", {"pruned_seq": 6}),
    ),
    *of(
        "org_secrets",
        ("a secret belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        (
            "an org has a secret of a kind and name once",
            "pkey",
            {"kind": "job"},
            {"kind": "webhook"},
            a("org_secrets"),
        ),
        ("a secret is of a known kind", "known_kind", {"kind": "user"}),
        ("a secret has a plain name", "name_is_snake", {"name": "My Key"}),
        ("a secret is stored whole", "sealed_is_whole", {"sealed": b"short"}),
    ),
    *of(
        "org_limits",
        ("a limit is of an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("an org has a limit once", "are_set_once", {"name": "tasks"}, {"name": "queries"}, a("org_limits")),
        ("a limit is a known one", "name_is_known", {"name": "moons"}),
        ("a limit allows something", "allow_one", {"most": 0}),
        ("a default is a number", "default_is_a_number", {"org_id": None, "set_by": None, "most": None}),
        ("who set a limit of an org is known", "of_one_has_an_author", {"set_by": None}),
    ),
    *of(
        "org_storage",
        ("what is stored belongs to an org that exists", "org_id_fkey", {"org_id": uid("missing")}),
        ("an org is measured once", "pkey", {"org_id": uid("org a")}, OTHER_ORG, a("org_storage")),
        ("what is stored is a size", "is_a_size", {"bytes": -1}),
    ),
    *of(
        "sandboxed_runtimes",
        ("a runtime is listed once", "pkey", {"runtime": "mine"}, {"runtime": "other"}, a("sandboxed_runtimes")),
    ),
    *of(
        "service_tokens",
        (
            "a service names its tokens differently",
            "name_once",
            {"name": "new"},
            {"name": "other"},
            a("service_tokens"),
        ),
        ("a service's token has a plain name", "name_is_snake", {"name": "My Worker"}),
        ("a worker's token says whose tasks it claims", "runtimes_of_claimers", {"service": "worker"}),
        ("it claims for a runtime at least", "runtimes_of_claimers", {"service": "runner", "runtimes": []}),
        ("no other service claims", "runtimes_of_claimers", {"runtimes": ["ecs_platform"]}),
        (
            "a service's token does not expire before it is made",
            "expire_after_creation",
            {"expires_at": T0},
            {"created_at": T1, "expires_at": T2},
        ),
    ),
    *of(
        "service_token_hashes",
        (
            "a service's token is stored once",
            "hash_once",
            {"token_hash": HASH},
            {"token_hash": b"1" * 32},
            a("service_token_hashes", listener="any"),
        ),
        ("the hash belongs to a token", "token_id_fkey", {"token_id": uid("missing")}),
        ("a hash is of a listener", "of_a_listener", {"listener": "elsewhere"}),
        (
            "a service's token is stored as a hash, never as itself",
            "hash_is_sha256",
            {"token_hash": b"the token itself"},
        ),
    ),
    *of(
        "signing_keys",
        ("a key id can be no path and no SQL", "kid_is_plain", {"kid": "../keys/1"}),
        ("keys are ES256", "are_es256", {"public_jwk": '{"kty": "oct", "k": "AA"}'}),
        ("a key has its point", "are_es256", {"public_jwk": '{"kty": "EC", "crv": "P-256"}'}),
        (
            "a private key never comes near the database",
            "hold_no_private_part",
            {"public_jwk": ES256.replace("}", ', "d": "AA"}')},
        ),
        ("a pending key has not signed", "pending_never_signed", {"active_from": T0}),
        ("an active key has begun", "pending_never_signed", {"active_from": None}, ACTIVE),
        ("an active key has no end", "active_has_no_end", {"verify_until": T2}, ACTIVE),
        ("a retiring key knows when it may go", "retiring_knows_its_end", {"verify_until": None}, RETIRING),
        ("a key verifies for as long as it signed", "retiring_knows_its_end", {"verify_until": T0}, RETIRING),
        (
            "one key signs at a time",
            "one_active",
            {"purpose": "task"},
            {**ACTIVE, "purpose": "user"},
            a("signing_keys", kid="old", **ACTIVE),
        ),
    ),
]
