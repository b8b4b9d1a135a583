"""The first admin of a system, and the users and datasets of one that is upgraded."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.postgres import RunningServer
from tracelake.store import migrate as module
from tracelake.store.first_start import FIRST_ADMIN, ensure_first_rows
from tracelake.store.migrate import migrate


@pytest.fixture
def empty(postgres: RunningServer) -> Iterator[str]:
    name = f"first_users_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


def rows(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement.encode()).fetchall()


def test_the_first_admin_is_the_platform_admin_and_a_later_start_gives_back_no_rights(state_db: str) -> None:
    ensure_first_rows(state_db, ())
    found = "SELECT external_id, role::text, platform_admin, removed_at IS NULL FROM users"
    assert rows(state_db, found) == [(FIRST_ADMIN, "admin", True, True)]
    with psycopg.connect(state_db) as connection:
        connection.execute("UPDATE users SET role = 'reader', platform_admin = false, removed_at = now()")
    ensure_first_rows(state_db, ())
    assert rows(state_db, found) == [(FIRST_ADMIN, "reader", False, False)]


def test_an_upgrade_keeps_users_and_who_reads_what(empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = tmp_path / "state"
    shutil.copytree(module.MIGRATIONS / "state", former)
    (first,) = former.glob("*_users.sql")
    for file in [file for file in former.iterdir() if file.name >= first.name]:
        file.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(module, "MIGRATIONS", tmp_path)
        migrate(empty, "state")
    with psycopg.connect(empty) as connection:
        ((org,),) = connection.execute("INSERT INTO orgs (name, slug) VALUES ('a', 'a') RETURNING id").fetchall()
        for subject in (FIRST_ADMIN, "Ana", "ana", "\uff42ob"):
            connection.execute("INSERT INTO users (org_id, external_id, role) VALUES (%s, %s, 'admin')", (org, subject))
        for job, name, visibility, roles in (
            ("x", "open", "org", []),
            ("y", "pay", "roles", ["role:finance"]),
            ("z", None, "internal", []),
        ):
            connection.execute(
                "INSERT INTO datasets (org_id, name, visibility, read_roles, producer_dag_name, producer_job_name,"
                " producer_output_index) VALUES (%s, %s, %s::dataset_visibility, %s::text[], 'd', %s, 0)",
                (org, name, visibility, roles, job),
            )
    migrate(empty, "state")
    users = rows(empty, "SELECT external_id, platform_admin, subject_key FROM users WHERE external_id NOT ILIKE 'ana'")
    assert sorted(users) == [(FIRST_ADMIN, True, FIRST_ADMIN), ("\uff42ob", False, "bob")]
    assert rows(empty, "SELECT subject_key FROM users WHERE external_id ILIKE 'ana' ORDER BY 1") == [("ana",), (None,)]
    access = "SELECT name, visibility::text, read_roles, set_by FROM dataset_access ORDER BY name"
    assert rows(empty, access) == [("open", "org", [], None), ("pay", "roles", ["role:finance"], None)]
