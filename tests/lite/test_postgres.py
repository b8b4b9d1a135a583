"""The embedded server keeps its data and its secrets, however it is killed and wherever it lies."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import QUICK, RunningServer, running
from tracelake.errors import PostgresFailed
from tracelake.lite.network_ports import free_port
from tracelake.lite.postgres import Cluster, prepare, reset_password


@pytest.fixture
def folder() -> Iterator[Path]:
    """Closed to other users, as a home below /root is."""
    made = Path(tempfile.mkdtemp(prefix="trace-test-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def sockets() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="trace-s-"))
    made.chmod(0o711)
    yield made / "s"
    shutil.rmtree(made)


@pytest.fixture
def cluster(folder: Path, sockets: Path) -> Cluster:
    return Cluster("test", folder / "a folder" / "data", sockets, free_port(), settings=QUICK)


def with_a_row(server: RunningServer) -> None:
    with psycopg.connect(server.dsn("postgres")) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (42)")


def rows(server: RunningServer) -> list[tuple[int]]:
    with psycopg.connect(server.dsn("postgres")) as connection:
        return connection.execute("SELECT n FROM kept").fetchall()


def test_data_is_kept_across_a_clean_stop_in_a_folder_closed_to_the_server_user(cluster: Cluster) -> None:
    with running(cluster) as server:
        with_a_row(server)
    assert server.process is not None
    assert server.process.returncode == 0
    with running(cluster) as again:
        assert rows(again) == [(42,)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGQUIT])
def test_data_is_kept_when_the_postmaster_is_killed(cluster: Cluster, how: signal.Signals) -> None:
    with running(cluster) as server:
        with_a_row(server)
        server.stop(how)
        server.start()
        assert rows(server) == [(42,)]


def test_a_start_right_after_kill_9_with_busy_backends_succeeds(cluster: Cluster) -> None:
    with running(cluster) as server:
        with_a_row(server)
        busy = [psycopg.connect(server.dsn("postgres")) for _ in range(5)]
        for connection in busy:
            connection.execute("BEGIN")
        server.stop(signal.SIGKILL)
        server.start()
        assert rows(server) == [(42,)]
        for connection in busy:
            connection.close()


def test_a_stale_pid_file_that_names_another_living_process_does_not_stop_a_start(cluster: Cluster) -> None:
    with running(cluster) as server:
        with_a_row(server)
    stale = f"{os.getpid()}\n{cluster.directory}\n0\n{cluster.port}\n\n\n0 0\n"
    (cluster.directory / "postmaster.pid").write_text(stale)
    with running(cluster) as again:
        assert rows(again) == [(42,)]


def test_every_connection_needs_the_password(cluster: Cluster) -> None:
    with running(cluster) as server:
        for host in (str(cluster.socket_dir), "127.0.0.1"):
            right = {"host": host, "port": cluster.port, "user": "trace", "dbname": "postgres"}
            psycopg.connect(**right, password=server.password).close()  # type: ignore[arg-type]
            for wrong in ("", "wrong", "trace"):
                with pytest.raises(psycopg.OperationalError, match=r"password|fe_sendauth"):
                    psycopg.connect(**right, password=wrong)  # type: ignore[arg-type]


def test_the_password_is_new_at_each_start_and_in_no_file(cluster: Cluster) -> None:
    with running(cluster) as server:
        first = server.password
    with running(cluster) as again:
        assert again.password != first
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(cluster.dsn("postgres", "trace", first))
        for path in cluster.directory.parent.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert first.encode() not in content, path
                assert again.password.encode() not in content, path


def test_a_first_start_killed_in_initdb_leaves_nothing_half_made(cluster: Cluster) -> None:
    half = cluster.directory.parent / ".test-interrupted"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with running(cluster) as server:
        with_a_row(server)


def test_a_folder_of_another_major_version_is_refused_and_left_alone(cluster: Cluster) -> None:
    with running(cluster):
        pass
    (cluster.directory / "PG_VERSION").write_text("9\n")
    with pytest.raises(PostgresFailed, match="made by Postgres 9"):
        prepare(cluster)


def test_a_damaged_folder_is_reported_in_one_sentence(cluster: Cluster) -> None:
    with running(cluster):
        pass
    (cluster.directory / "global" / "pg_control").write_bytes(b"\0" * 8192)
    with pytest.raises(PostgresFailed, match="could not be opened") as refused:
        reset_password(cluster)
    assert "\n" not in refused.value.message


def test_it_runs_as_an_ordinary_user_too(folder: Path, sockets: Path) -> None:
    """Run by root, the test becomes user `nobody` in a child; run by a user, it is unprivileged already."""

    def as_a_user() -> None:
        cluster = Cluster("user", folder / "data", sockets, free_port(), settings=QUICK)
        with running(cluster) as server:
            with_a_row(server)
            assert rows(server) == [(42,)]
            owner = (folder / "data").stat().st_uid
            assert owner == os.geteuid() != 0

    assert in_child_as_user(as_a_user, [folder, sockets.parent]) == 0


def in_child_as_user(work: object, folders: list[Path]) -> int:
    account = pwd.getpwnam("nobody")
    if os.geteuid() == 0:
        for made in folders:
            os.chown(made, account.pw_uid, account.pw_gid)
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
            work()  # type: ignore[operator]
        except BaseException:  # noqa: BLE001 - a child of a test says everything
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
