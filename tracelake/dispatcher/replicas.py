"""Who of the Dispatchers on this machine is no more: nobody need wait for what they held to run out."""

from __future__ import annotations

import os
from pathlib import Path

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries


def host_of(replica: str) -> str:
    return replica.rpartition(":")[0]


def is_alive(name: str) -> bool:
    """Of a replica of this machine, by the process id its name ends with; not us, who have only just begun."""
    pid = name.rpartition(":")[2]
    return pid.isdecimal() and int(pid) != os.getpid() and Path(f"/proc/{pid}").exists()


async def take_over(control: Control) -> int:
    """At the start: entries that a process of this machine had taken which is no more can be taken at once.

    If it lives all the same (in a container of its own, say, with our name), its wake-ups are sent twice: harmless.
    """
    sql = queries("outbox")
    takers = [row["taken_by"] for row in await control.pool.fetch(sql["takers"], f"{host_of(control.replica)}:")]
    dead = [taker for taker in takers if not is_alive(taker)]
    return int(await control.pool.fetchval(sql["let_go"], dead)) if dead else 0
