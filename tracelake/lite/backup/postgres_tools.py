"""Runs pg_dump and pg_restore, which come with the embedded server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from psycopg.conninfo import make_conninfo

from tracelake.errors import DatabaseUnavailable, DiskFull
from tracelake.lite.backup.progress import BackupProgress, Canceled
from tracelake.lite.postgres import binaries
from tracelake.store.migrate import address, parameters

LOOK_SECONDS: Final = 0.2
FULL: Final = "No space left on device"


def dump_database(dsn: str, snapshot: str, target: Path, progress: BackupProgress) -> None:
    """Writes all of a database, as it was in an exported snapshot, but for tables that the sink uses for a moment."""
    options = ["--format=custom", "--compress=gzip:1", f"--snapshot={snapshot}", "--exclude-table=staging.*"]
    _run("pg_dump", [*options, f"--file={target}"], dsn, progress)


def load_database(dsn: str, source: Path, *, owned: bool) -> None:
    """Loads a dump into an empty database, all of it or nothing. `owned`: with the owners and rights of its objects."""
    options = ["--single-transaction", "--exit-on-error"] + ([] if owned else ["--no-owner", "--no-privileges"])
    _run("pg_restore", [*options, str(source)], dsn, None)


def _run(program: str, arguments: Sequence[str], dsn: str, progress: BackupProgress | None) -> None:
    parts = parameters(dsn)
    password = str(parts.pop("password", ""))
    with _password_file(password) as number:
        argv = [str(binaries() / program), "--no-password", f"--dbname={make_conninfo('', **parts)}", *arguments]
        env = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PGPASSFILE": f"/dev/fd/{number}"}
        with subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[number],
        ) as process:
            errors = _wait(process, progress)
    if process.returncode != 0:
        raise _failure(program, errors, dsn, arguments)


def _wait(process: subprocess.Popen[bytes], progress: BackupProgress | None) -> str:
    while True:
        try:
            return process.communicate(timeout=LOOK_SECONDS)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            if progress is not None and progress.canceled.is_set():
                process.kill()
                process.communicate()
                raise Canceled from None


def _failure(program: str, errors: str, dsn: str, arguments: Sequence[str]) -> DatabaseUnavailable | DiskFull:
    lines = [line for line in errors.splitlines() if "error:" in line] or errors.splitlines() or ["no reason given"]
    if FULL in errors:
        return DiskFull.of("the backup" if program == "pg_dump" else "the database", arguments[-1])
    return DatabaseUnavailable(
        f"{program} failed: {lines[0].partition('error: ')[2] or lines[0]}",
        where=address(dsn),
        hint="look for the reason in the log of the server, and try again",
    )


@contextmanager
def _password_file(password: str) -> Iterator[int]:
    """A password file in memory: other processes see arguments, the environment and files, but not this."""
    number = os.memfd_create("pgpass")
    try:
        os.fchmod(number, 0o600)
        os.write(number, f"*:*:*:*:{password.replace(chr(92), chr(92) * 2).replace(':', chr(92) + ':')}\n".encode())
        yield number
    finally:
        os.close(number)
