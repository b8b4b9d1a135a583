"""Users, roles, access and organisations through the user API: who may what, what is refused, what a deploy changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.systems.gateway import DAG, System, system

pytestmark = pytest.mark.anyio

READER, WRITER, ADMIN, RIVAL = "acme|reader", "acme|writer", "acme|admin", "rival|admin"
SHARED = DAG.replace("{job: clean}", "{job: clean, read_roles: [finance]}")


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


async def id_of(trace: System, subject: str, admin: str = ADMIN) -> str:
    (user,) = (await trace.got(admin, "GET", "/v1/users", params={"subject": subject}))["users"]
    found: str = user["id"]
    return found


async def add(trace: System, subject: str, role: str = "reader") -> Any:
    return await trace.got(ADMIN, "POST", "/v1/users", json={"subject": subject, "role": role})


async def set_access(trace: System, dataset: str, **change: Any) -> Any:
    return await trace.got(ADMIN, "PUT", f"/v1/datasets/{dataset}/access", json=change)


async def test_a_second_user_is_added_promoted_and_removed_and_each_counts_with_the_next_call(trace: System) -> None:
    ana = "oidc|ana/1"
    assert await trace.refused(ana, "GET", "/v1/tasks") == (401, "unauthenticated")
    made = await trace.got(ADMIN, "POST", "/v1/users", json={"subject": ana, "email": "ana@example.org"})
    assert (made["role"], made["email"], made["platform_admin"]) == ("reader", "ana@example.org", False)
    assert (await trace.got(ana, "GET", "/v1/tasks"))["tasks"] == []
    assert await trace.refused(ana, "GET", "/v1/users") == (403, "forbidden")
    await trace.got(ADMIN, "PUT", f"/v1/users/{made['id']}/role", json={"role": "admin"})
    assert len((await trace.got(ana, "GET", "/v1/users"))["users"]) == 4
    await trace.got(ADMIN, "DELETE", f"/v1/users/{made['id']}")
    assert await trace.refused(ana, "GET", "/v1/tasks") == (401, "unauthenticated")
    assert await trace.refused(ADMIN, "GET", f"/v1/users/{made['id']}") == (404, "not_found")
    again = await add(trace, ana)
    assert (again["id"] != made["id"], again["role"]) == (True, "reader")


async def test_the_author_of_a_deploy_can_be_removed_and_stays_its_author(trace: System) -> None:
    await trace.deploy("shop", DAG)
    await trace.got(ADMIN, "DELETE", f"/v1/users/{await id_of(trace, WRITER)}")
    (version,) = (await trace.got(READER, "GET", "/v1/dags/shop/versions"))["versions"]
    assert version["deployed_by"] == WRITER


async def test_two_admins_who_demote_or_remove_each_other_at_once_leave_one(trace: System) -> None:
    for round_ in range(4):
        other = f"acme|other{round_}"
        await add(trace, other, "admin")
        first, second = await id_of(trace, ADMIN), await id_of(trace, other)
        answers = await asyncio.gather(
            trace.ask(ADMIN, "PUT", f"/v1/users/{second}/role", json={"role": "reader"}),
            trace.ask(other, "DELETE", f"/v1/users/{first}"),
        )
        assert sorted(answer.status_code for answer in answers) in ([200, 401], [200, 403]), round_
        left = await trace.control.pool.fetch(
            "SELECT external_id FROM users u JOIN orgs o ON o.id = u.org_id"
            " WHERE slug = 'acme' AND role = 'admin' AND removed_at IS NULL"
        )
        assert len(left) == 1, round_
        if left[0]["external_id"] != ADMIN:
            await trace.got(other, "POST", "/v1/users", json={"subject": ADMIN, "role": "admin"})
            await trace.got(ADMIN, "DELETE", f"/v1/users/{second}")


async def test_the_last_admin_stays_one(trace: System) -> None:
    own = await id_of(trace, ADMIN)
    assert await trace.refused(ADMIN, "PUT", f"/v1/users/{own}/role", json={"role": "writer"}) == (409, "conflict")
    assert await trace.refused(ADMIN, "DELETE", f"/v1/users/{own}") == (409, "conflict")
    await trace.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", ADMIN)
    await add(trace, "acme|other", "admin")
    assert await trace.refused("acme|other", "DELETE", f"/v1/users/{own}") == (409, "conflict")
    assert await trace.refused("acme|other", "PUT", f"/v1/users/{own}/role", json={"role": "reader"}) == (
        409,
        "conflict",
    )


BAD_SUBJECTS = [
    ("", 400),
    ("a" * 256, 400),
    (" ana", 400),
    ("a\nb", 400),
    ("a\u200bb", 400),
    ("a\u202eb", 400),
    ("\u0430na", 400),  # a Cyrillic letter among Latin ones
    ("ANA", 409),
    ("\uff41na", 409),  # a full-width letter
    ("STRASSE", 409),
    ("ana", 409),
    ("Rival|Admin", 409),
    ("\u0440\u0430\u0441\u0435", 409),  # all Cyrillic, and looks like `pace`
    ("\u0412\u041e\u0412", 409),  # looks like `BOB` in capitals
    ("\u03bf\u03c1\u03b1", 409),  # Greek, like `opa`
]


async def test_a_subject_that_is_not_shown_or_resembles_another_is_refused(trace: System) -> None:
    for known in ("ana", "stra\u00dfe", "pace", "bob", "opa"):
        await add(trace, known)
    await trace.control.pool.execute("UPDATE users SET subject_key = lower(external_id) WHERE external_id = $1", RIVAL)
    before = await trace.got(ADMIN, "GET", "/v1/users")
    for subject, status in BAD_SUBJECTS:
        answer = await trace.ask(ADMIN, "POST", "/v1/users", json={"subject": subject})
        assert (answer.status_code, answer.json()["error"]["where"]) == (status, "/subject"), subject
    assert await trace.got(ADMIN, "GET", "/v1/users") == before


async def test_ids_of_another_organisation_are_not_found_by_any_call(trace: System) -> None:
    await trace.deploy("shop", DAG)
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.got(RIVAL, "POST", "/v1/roles", json={"role": "theirs"})
    user, own = await id_of(trace, READER), await id_of(trace, RIVAL, RIVAL)
    dataset = (await trace.got(READER, "GET", "/v1/datasets"))["datasets"][0]["dataset_uuid"]
    before = await trace.control.pool.fetch("SELECT * FROM users ORDER BY id")
    requests: list[tuple[str, str, Any]] = [
        ("GET", f"/v1/users/{user}", None),
        ("PUT", f"/v1/users/{user}/role", {"role": "admin"}),
        ("DELETE", f"/v1/users/{user}", None),
        ("DELETE", "/v1/roles/finance", None),
        ("GET", "/v1/roles/finance/members", None),
        ("PUT", f"/v1/roles/finance/members/{own}", None),
        ("PUT", f"/v1/roles/theirs/members/{user}", None),
        ("DELETE", f"/v1/roles/theirs/members/{user}", None),
        ("GET", f"/v1/datasets/{dataset}/access", None),
        ("PUT", f"/v1/datasets/{dataset}/access", {"nobody": True}),
        ("PUT", "/v1/datasets/shop_orders/access", {"everyone": True}),
    ]
    for method, path, body in requests:
        assert await trace.refused(RIVAL, method, path, json=body or {}) == (404, "not_found"), path
    assert await trace.control.pool.fetch("SELECT * FROM users ORDER BY id") == before
    assert await trace.control.pool.fetchval("SELECT count(*) FROM org_role_memberships") == 0
    assert await trace.control.pool.fetchval("SELECT count(*) FROM datasets WHERE visibility = 'roles'") == 0
    assert READER not in str(await trace.got(RIVAL, "GET", "/v1/users"))
    assert await trace.refused(RIVAL, "GET", "/v1/users", params={"subject": "a\0"}) == (400, "invalid_request")
    assert (await trace.got(RIVAL, "GET", "/v1/users", params={"subject": READER}))["users"] == []


async def test_members_of_a_role_see_what_is_shared_with_it_and_no_longer_when_it_is_revoked(trace: System) -> None:
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance", "name": "Finance"})
    await trace.deploy("shop", SHARED)
    reader = await id_of(trace, READER)
    assert await trace.refused(READER, "GET", "/v1/datasets/shop_clean") == (404, "not_found")
    for changed in (True, False):
        answer = await trace.got(ADMIN, "PUT", f"/v1/roles/finance/members/{reader}")
        assert answer["changed"] is changed
    await trace.got(READER, "GET", "/v1/datasets/shop_clean")
    (member,) = (await trace.got(ADMIN, "GET", "/v1/roles/finance/members"))["members"]
    assert member["subject"] == READER
    (role,) = (await trace.got(WRITER, "GET", "/v1/roles"))["roles"]
    assert (role["name"], role["members"], role["datasets"]) == ("Finance", 1, ["shop_clean"])
    assert (await trace.got(ADMIN, "GET", f"/v1/users/{reader}"))["org_roles"] == ["finance"]
    await trace.got(ADMIN, "DELETE", f"/v1/roles/finance/members/{reader}")
    assert await trace.refused(READER, "GET", "/v1/datasets/shop_clean") == (404, "not_found")


async def test_a_role_in_use_is_deleted_by_force_only_and_its_datasets_are_left_to_admins(trace: System) -> None:
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.deploy("shop", SHARED)
    await trace.got(ADMIN, "PUT", f"/v1/roles/finance/members/{await id_of(trace, READER)}")
    assert await trace.refused(ADMIN, "DELETE", "/v1/roles/finance") == (409, "conflict")
    gone = await trace.got(ADMIN, "DELETE", "/v1/roles/finance", params={"force": "true"})
    assert gone == {"role": "finance", "members": 1, "datasets": ["shop_clean"]}
    assert await trace.refused(READER, "GET", "/v1/datasets/shop_clean") == (404, "not_found")
    assert (await trace.got(ADMIN, "GET", "/v1/datasets/shop_clean/access"))["readers"] == "nobody"
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    assert (await trace.got(ADMIN, "GET", "/v1/roles"))["roles"][0]["datasets"] == []
    assert await trace.refused(ADMIN, "DELETE", "/v1/roles/nothing") == (404, "not_found")


async def test_names_of_roles_that_resemble_each_other_are_refused(trace: System) -> None:
    for name in ("Finance", "Space"):
        await trace.got(ADMIN, "POST", "/v1/roles", json={"role": name.lower(), "name": name})
    for body, code in (
        ({"role": "finance"}, "conflict"),
        ({"role": "money", "name": "FINANCE"}, "conflict"),
        ({"role": "money", "name": "\uff26inance"}, "conflict"),
        ({"role": "money", "name": "Fin\u0430nce"}, "invalid_request"),
        ({"role": "money", "name": "\u0405\u0440\u0430\u0441\u0435"}, "conflict"),
        ({"role": "Money"}, "invalid_request"),
        ({"role": "money", "name": ""}, "invalid_request"),
    ):
        assert (await trace.refused(ADMIN, "POST", "/v1/roles", json=body))[1] == code, body


async def test_no_deploy_changes_what_an_admin_decided_and_each_that_proposes_otherwise_says_so(trace: System) -> None:
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "sales"})
    await trace.deploy("shop", SHARED)
    decided = await set_access(trace, "shop_clean", set=["sales"])
    assert (decided["readers"], decided["roles"], decided["set_by"]) == ("roles", ["sales"], ADMIN)

    attacks = [
        SHARED.replace("operator: work", "operator: work\n    max_attempts: 2"),
        DAG,
        DAG.replace("shop_clean: {job: clean}", "other_name: {job: clean}"),  # the same rows under a new name
        SHARED.replace("clean", "wash").replace("shop_wash", "shop_clean"),  # another job under its name
        DAG.replace("name: clean", "name: wash").replace("{job: clean}", "{job: wash}"),
    ]
    for text in attacks:
        await trace.got(WRITER, "DELETE", "/v1/dags/shop/active")
        await trace.deploy("shop", text)
        rows = await trace.control.pool.fetch(
            "SELECT read_roles FROM datasets WHERE name IN ('shop_clean', 'other_name')"
        )
        assert [row["read_roles"] for row in rows] == [["role:sales"]], text

    done = await trace.got(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": SHARED})
    (warning,) = done["warnings"]
    assert (warning["code"], warning["line"], warning["field"]) == ("access_is_decided", 13, "publish.shop_clean")
    assert "who has finance" in warning["reason"]
    plan = await trace.got(WRITER, "POST", "/v1/plans", json={"dags": [SHARED]})
    assert any("shop.shop_clean: proposed is that who has finance" in text for text in plan["warnings"])
    listed = re.sub(r"  (shop_\w+): {", r"  - {name: \1, ", SHARED)
    done = await trace.got(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": listed})
    assert [(item["line"], item["field"]) for item in done["warnings"]] == [(13, "publish[1]")]
    done = await trace.got(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": DAG})
    assert done["warnings"] == []


async def test_a_first_proposal_counts_and_a_later_one_does_not_widen_it(trace: System) -> None:
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.deploy("shop", SHARED)
    done = await trace.got(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": DAG})
    assert ["decided is who has finance" in item["reason"] for item in done["warnings"]] == [True]
    await trace.deploy("shop", DAG)
    shown = await trace.got(ADMIN, "GET", "/v1/datasets/shop_clean/access")
    assert (shown["roles"], shown["set_by"], shown["set_at"]) == (["finance"], None, None)


async def test_access_is_set_added_removed_opened_and_closed_and_counts_with_the_next_call(trace: System) -> None:
    for role in ("finance", "sales"):
        await trace.got(ADMIN, "POST", "/v1/roles", json={"role": role})
    await trace.deploy("shop", DAG)
    assert (await trace.got(READER, "GET", "/v1/datasets/shop_clean/access"))["readers"] == "everyone"
    path = "/v1/datasets/shop_clean/access"
    assert await trace.refused(ADMIN, "PUT", path, json={"add": ["sales"]}) == (409, "conflict")
    assert (await set_access(trace, "shop_clean", set=["finance"]))["roles"] == ["finance"]
    assert await trace.refused(READER, "GET", path) == (404, "not_found")
    changed = await set_access(trace, "shop_clean", add=["sales"], remove=["finance"])
    assert changed["roles"] == ["sales"]
    assert (await set_access(trace, "shop_clean", remove=["sales"]))["readers"] == "nobody"
    assert (await set_access(trace, "shop_clean", everyone=True))["readers"] == "everyone"
    await trace.got(READER, "GET", path)
    assert (await set_access(trace, "shop_clean", nobody=True))["readers"] == "nobody"
    for body, code in (
        ({}, "invalid_request"),
        ({"everyone": True, "nobody": True}, "invalid_request"),
        ({"set": []}, "invalid_request"),
        ({"set": ["finance"], "add": ["sales"]}, "invalid_request"),
        ({"set": ["finanec"]}, "not_found"),
        ({"add": ["theirs"]}, "not_found"),
    ):
        assert (await trace.refused(ADMIN, "PUT", path, json=body))[1] == code, body
    assert await trace.refused(WRITER, "PUT", path, json={"everyone": True}) == (403, "forbidden")
    await trace.got(WRITER, "DELETE", "/v1/dags/shop/active")
    dataset = (await trace.got(ADMIN, "GET", "/v1/datasets"))["datasets"][0]["dataset_uuid"]
    assert await trace.refused(ADMIN, "PUT", f"/v1/datasets/{dataset}/access", json={"everyone": True}) == (
        409,
        "conflict",
    )


async def test_only_a_platform_admin_creates_organisations_and_each_comes_with_its_admin(trace: System) -> None:
    body = {"org": "bakery", "admin": "bakery|ana", "name": "Bakery", "email": "ana@example.org"}
    for user in (ADMIN, RIVAL):
        assert await trace.refused(user, "POST", "/v1/orgs", json=body) == (403, "forbidden")
    await trace.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", ADMIN)
    made = await trace.got(ADMIN, "POST", "/v1/orgs", json=body)
    assert (made["admins"], made["users"]) == (["bakery|ana"], 1)
    assert [user["subject"] for user in (await trace.got("bakery|ana", "GET", "/v1/users"))["users"]] == ["bakery|ana"]
    assert (await trace.got(ADMIN, "GET", "/v1/orgs/bakery")) == made
    for user in ("bakery|ana", RIVAL):
        assert await trace.refused(user, "GET", "/v1/orgs/bakery") == (403, "forbidden")
    for wrong, code in (
        (body, "conflict"),
        (body | {"org": "other"}, "conflict"),
        (body | {"org": "other", "name": "BAKERY"}, "conflict"),
        (body | {"org": "other", "name": "Other", "admin": "Bakery|Ana"}, "conflict"),
        (body | {"org": "Other"}, "invalid_request"),
        (body | {"org": "other", "name": "Other", "admin": "x\u200b"}, "invalid_request"),
        (body | {"org": "other", "name": "Other", "admin": "x", "email": "x"}, "invalid_request"),
    ):
        assert (await trace.refused(ADMIN, "POST", "/v1/orgs", json=wrong))[1] == code, wrong
    assert [org["org"] for org in (await trace.got(ADMIN, "GET", "/v1/orgs"))["orgs"]] == ["acme", "bakery", "rival"]
    assert await trace.refused(ADMIN, "GET", "/v1/orgs/nothing") == (404, "not_found")
    assert await trace.refused(ADMIN, "GET", f"/v1/users/{uuid4()}") == (404, "not_found")
