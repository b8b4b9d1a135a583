"""A database is brought to the code's schema once, in order, whole, and never past what the code knows."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import psycopg
import pytest

from tests.support.postgres import RunningServer
from tracelake.errors import DatabaseUnavailable, SchemaMismatch, SettingsError, TraceError
from tracelake.store import migrate as module
from tracelake.store.migrate import Database, check, migrate, pending


@pytest.fixture
def empty(postgres: RunningServer) -> Iterator[str]:
    name = f"migrate_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Migrations of our own, in a folder whose name would be a pattern, were it not taken as it is."""
    own = tmp_path / "a [b] *"
    (own / "state").mkdir(parents=True)
    monkeypatch.setattr(module, "MIGRATIONS", own)
    write(own, "0001_first", "CREATE TABLE first (x int);")
    write(own, "0002_second", "CREATE TABLE second (x int);")
    return own / "state"


def write(own: Path, name: str, text: str) -> None:
    (own / "state" / f"{name}.sql").write_text(text)


@pytest.mark.parametrize("database", get_args(Database))
def test_all_of_a_databases_migrations_are_applied_once(empty: str, database: Database) -> None:
    waiting = pending(empty, database)
    assert waiting == sorted(path.stem for path in (module.MIGRATIONS / database).glob("*.sql"))
    assert migrate(empty, database) == waiting
    assert migrate(empty, database) == []
    assert pending(empty, database) == []
    check(empty, database)


def test_migrating_says_nothing(
    empty: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    migrate(empty, "state")
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_looking_changes_nothing(empty: str) -> None:
    pending(empty, "state")
    with pytest.raises(SchemaMismatch):
        check(empty, "state")
    assert scalar(empty, "SELECT count(*) FROM pg_namespace WHERE nspname = 'trace_migrations'") == 0


@pytest.mark.usefixtures("folder")
def test_a_database_behind_the_code_is_refused_by_check(empty: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"lacks migration 0001_first and 1 more") as refused:
        check(empty, "state")
    assert refused.value.hint == "run `trace db migrate`; `trace up` does so by itself"
    migrate(empty, "state")
    check(empty, "state")


@pytest.mark.parametrize("verb", [migrate, check])
def test_a_file_changed_after_it_was_applied_is_refused(
    empty: str, folder: Path, verb: Callable[[str, Database], object]
) -> None:
    migrate(empty, "state")
    (folder / "0001_first.sql").write_text("CREATE TABLE first (x int); -- harmless")
    with pytest.raises(SchemaMismatch, match="0001_first of the state database changed after it was applied"):
        verb(empty, "state")


@pytest.mark.parametrize("verb", [migrate, check])
def test_a_database_newer_than_the_code_is_refused_and_not_touched(
    empty: str, folder: Path, verb: Callable[[str, Database], object]
) -> None:
    migrate(empty, "state")
    (folder / "0002_second.sql").unlink()
    (folder / "0003_third.sql").write_text("CREATE TABLE third (x int);")
    with pytest.raises(SchemaMismatch, match="newer than this code: it has migration 0002_second"):
        verb(empty, "state")
    assert scalar(empty, "SELECT to_regclass('third')::text") is None


def test_a_failing_migration_leaves_nothing_of_itself_and_all_before_it(empty: str, folder: Path) -> None:
    (folder / "0002_second.sql").write_text("CREATE TABLE second (x int); SELECT 1 / 0;")
    with pytest.raises(SchemaMismatch, match="0002_second of the state database failed: division by zero"):
        migrate(empty, "state")
    assert scalar(empty, "SELECT to_regclass('second')::text") is None
    assert pending(empty, "state") == ["0002_second"]
    (folder / "0002_second.sql").write_text("CREATE TABLE second (x int);")
    assert migrate(empty, "state") == ["0002_second"]


def test_a_new_file_is_applied_to_a_migrated_database(empty: str, folder: Path) -> None:
    migrate(empty, "state")
    (folder / "0003_third.sql").write_text("CREATE TABLE third (x int);")
    assert pending(empty, "state") == ["0003_third"]
    assert migrate(empty, "state") == ["0003_third"]


def test_two_at_once_apply_each_migration_once(empty: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(lambda _: migrate(empty, "state"), range(4)))
    everything = sorted(path.stem for path in (module.MIGRATIONS / "state").glob("*.sql"))
    assert sorted(applied, key=len) == [[], [], [], everything]


def test_a_migration_that_waits_too_long_for_another_fails_with_a_message(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT_SECONDS", 0.05)
    with psycopg.connect(empty) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (module.LOCK,))
        with pytest.raises(DatabaseUnavailable, match="another process"):
            migrate(empty, "state")
    assert migrate(empty, "data")


def test_a_file_may_contain_functions_and_semicolons_in_comments(empty: str, folder: Path) -> None:
    body = "DECLARE n int; BEGIN IF true THEN n := 1; END IF; FOR i IN 1..2 LOOP n := n + i; END LOOP; RETURN n; END"
    (folder / "0003_third.sql").write_text(
        f"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ {body} $$;\n"
        "CREATE TABLE third (x int CHECK (CASE WHEN x > 0 THEN true ELSE false END)); -- a ; here\n"
        f"CREATE FUNCTION g() RETURNS int LANGUAGE plpgsql AS $body$ {body} $body$;"
    )
    migrate(empty, "state")
    assert scalar(empty, "SELECT f() + g()") == 8


def test_the_records_are_apart_from_the_tables_of_trace(state_db: str) -> None:
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename ~ 'applied|migration'"
    assert scalar(state_db, tables) == 0


@pytest.mark.parametrize("verb", [migrate, pending, check])
@pytest.mark.parametrize(
    ("dsn", "kind"),
    [
        ("postgresql://trace:s3cret@127.0.0.1:1/state", DatabaseUnavailable),
        ("postgresql://trace:s3cret@/state?host=/nowhere", DatabaseUnavailable),
        ("postgresql://trace:s3cret@127.0.0.1:port/state", DatabaseUnavailable),
        ("host=127.0.0.1 password=s3cret nonsense", SettingsError),
        ("postgresql://trace:s3cret%ZZ@127.0.0.1/state", SettingsError),
    ],
)
def test_an_unreachable_database_is_one_sentence_without_the_password(
    verb: Callable[[str, Database], object], dsn: str, kind: type[TraceError]
) -> None:
    with pytest.raises(kind) as refused:
        verb(dsn, "state")
    assert "s3cret" not in repr(refused.value.as_dict())
    assert "\n" not in refused.value.message
    assert refused.value.hint
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_a_wrong_password_is_said_without_it(postgres: RunningServer) -> None:
    dsn = postgres.cluster.dsn("postgres", "trace", "s3cret")
    with pytest.raises(DatabaseUnavailable, match="password authentication failed") as refused:
        check(dsn, "state")
    assert "s3cret" not in repr(refused.value.as_dict())


def test_every_migration_is_plain_ascii_numbered_without_gap_and_one_transaction() -> None:
    """The library reads files in the encoding of the machine, and allows a file without a transaction."""
    for database in get_args(Database):
        files = sorted((module.MIGRATIONS / database).glob("*"))
        assert files, database
        assert [path.name[:5] for path in files] == [f"{n:04}_" for n in range(1, len(files) + 1)]
        for path in files:
            text = path.read_bytes()
            assert text.isascii(), path
            assert b"-- transactional" not in text, path


def test_migrations_are_found_wherever_the_package_lies(
    empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "with space [and] brackets"
    shutil.copytree(module.MIGRATIONS, moved)
    monkeypatch.setattr(module, "MIGRATIONS", moved)
    assert len(migrate(empty, "state")) > 1


def scalar(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]
