"""Run as a process: does something to the keys again and again, each time in a child that kills itself one step later.

A step is a call that leaves a trace outside the process: in the folder, or in the database. The child dies just before
it, by SIGKILL. After each death the survivor looks at what is left, and works with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.identity.tokens import CLAIMS, Clock
from tracelake.adapters.signer_pem import LOCK, PemSigner
from tracelake.capability.claims import encode
from tracelake.capability.verifier import Verifier
from tracelake.settings import TokenSettings
from tracelake.store.db import open_pool
from tracelake.store.signing_keys import maintain_keys, published

STEPS: tuple[tuple[Any, str, str], ...] = (
    (os, "open", "os.open"),
    (os, "fdopen", "os.fdopen"),
    (os, "fsync", "os.fsync"),
    (os, "replace", "os.replace"),
    (os, "unlink", "os.unlink"),
    (os, "close", "os.close"),
    (fcntl, "flock", "fcntl.flock"),
    (asyncpg.Connection, "execute", "sql"),
    (asyncpg.Connection, "fetch", "sql"),
    (asyncpg.Connection, "fetchval", "sql"),
    (asyncpg.Connection, "fetchrow", "sql"),
)
LONG_AGO = "40 days"
TOKENS = TokenSettings(overlap_seconds=60, rotation_days=30)


def killed_at(step: int, work: Callable[[], Awaitable[object]]) -> str | None:
    """The step before which a child that did this work died; None if it had no step so late."""
    reading, writing = os.pipe()
    _be_alone()
    child = os.fork()
    if child == 0:
        _die_at(step, writing)
        asyncio.run(_done(work))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        name = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return name
    assert os.waitstatus_to_exitcode(status) == 0
    return None


def _be_alone() -> None:
    """A thread that Python calls ended may still be on its way out, in OpenSSL, whose locks a child would find held."""
    while len(list(Path("/proc/self/task").iterdir())) > 1:
        time.sleep(0.001)


async def _done(work: Callable[[], Awaitable[object]]) -> None:
    await work()


def _die_at(step: int, pipe: int) -> None:
    count, write = 0, os.write

    def dying(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal count
            if count == step:
                write(pipe, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return real(*args, **named)

        return call

    for owner, attribute, name in STEPS:
        setattr(owner, attribute, dying(getattr(owner, attribute), name))


def rotate(folder: Path) -> None:
    """Each line: the step, and whether the key was there afterwards."""
    step = 0
    known: set[str] = set()
    while name := killed_at(step, partial(PemSigner(folder).rotate, known=known)):
        held = {key.kid for key in asyncio.run(PemSigner(folder).keys())}
        assert known <= held
        print(name, "whole" if held - known else "none")  # noqa: T201
        known = {*held, asyncio.run(PemSigner(folder).rotate()).kid}
        _check_files(folder, len(known))
        assert {path.name for path in folder.glob(".*")} == {LOCK}, "what the dead left is swept"
        step += 1


def beat(folder: Path, dsn: str) -> None:
    """A first start, a rotation that is due, a promotion, a retirement: each cut off at every step of its beat."""
    for situation in ("first", "due", "waiting", "ended"):
        step = 0
        asyncio.run(_look_after(folder, dsn, situation))
        while name := killed_at(step, lambda: _beat(folder, dsn)):
            print(situation, name)  # noqa: T201
            asyncio.run(_look_after(folder, dsn, situation))
            step += 1
        asyncio.run(_look_after(folder, dsn))


async def _beat(folder: Path, dsn: str) -> None:
    async with open_pool(dsn, name="killed", max_size=1) as pool:
        await maintain_keys(pool, PemSigner(folder), TOKENS)


async def _look_after(folder: Path, dsn: str, then: str | None = None) -> None:
    async with open_pool(dsn, name="survivor", max_size=1) as pool:
        await _recover(pool, folder)
        if then is not None:
            await _arrange(pool, folder, then)


async def _recover(pool: asyncpg.Pool, folder: Path) -> None:
    """One more beat by a new process, and its tokens hold."""
    signer = PemSigner(folder)
    await maintain_keys(pool, signer, TOKENS)
    clock = Clock()
    verifier = Verifier(lambda: published(pool), TOKENS, clock=clock, monotonic=clock)
    assert await verifier.verify(await signer.sign(encode(CLAIMS))) == CLAIMS
    kids = {key.kid for key in await signer.keys()}
    assert {key["kid"] for key in (await published(pool))["keys"]} == kids, "held and published are the same"
    assert len(kids) <= 2
    _check_files(folder, len(kids))


async def _arrange(pool: asyncpg.Pool, folder: Path, situation: str) -> None:
    """Let time pass, so that the next beat has this to do."""
    if situation == "first":
        await pool.execute("DELETE FROM signing_keys")
        _empty(folder)
        return
    await _leave_the_signing_key(pool, folder)
    if situation == "due":
        await _age(pool, LONG_AGO)
        return
    await PemSigner(folder).rotate()
    await maintain_keys(pool, PemSigner(folder), TOKENS)
    await _age(pool, "1 hour")
    if situation == "ended":
        await maintain_keys(pool, PemSigner(folder), TOKENS)
        await _age(pool, "26 hours")


async def _leave_the_signing_key(pool: asyncpg.Pool, folder: Path) -> None:
    for row in await pool.fetch("DELETE FROM signing_keys WHERE status <> 'Active' RETURNING kid"):
        (folder / f"task-{row['kid']}.pem").unlink(missing_ok=True)


async def _age(pool: asyncpg.Pool, by: str) -> None:
    await pool.execute(
        """UPDATE signing_keys
              SET created_at = created_at - $1::text::interval, active_from = active_from - $1::text::interval,
                  active_until = active_until - $1::text::interval, verify_until = verify_until - $1::text::interval""",
        by,
    )


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _check_files(folder: Path, keys: int) -> None:
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    assert len(names) == keys, names
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


if __name__ == "__main__":
    verb, folder, *rest = sys.argv[1:]
    rotate(Path(folder)) if verb == "rotate" else beat(Path(folder), *rest)
