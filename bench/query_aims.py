"""What `bench.query` measures beside queries in turn: a restart, memory, processor time; and its aims."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import psutil

from tracelake.domain.sql.gate import _check, _parsed, check_sql

FLOOR_MS: Final = 15.0
FIRST_MS: Final = 1000.0
RESTART_MS: Final = 1000.0
PER_SECOND: Final = 40.0
MEMORY_MB: Final = 800.0
WITHIN_NEXT: Final = 10**7
"""Where the numbers of texts begin that nobody else asks."""
Ask = Callable[..., Awaitable[None]]


def aims(
    new_text: dict[str, float],
    together: dict[str, float],
    *,
    first_ms: float,
    restart_ms: float | None,
    memory_mb: float,
    with_spark_mb: float,
) -> dict[str, Any]:
    """By name: what was reached, the aim, and whether it was met; without DuckDB its aim is not known."""
    found = {
        "first_ms": (first_ms, FIRST_MS),
        "memory_mb": (memory_mb, MEMORY_MB),
        "memory_with_spark_mb": (with_spark_mb, MEMORY_MB),
    }
    if restart_ms is not None:
        found["restart_ms"] = (restart_ms, RESTART_MS)
    if "duckdb_p50_ms" in new_text:
        found["new_text_ms"] = (new_text["p50_ms"], round(3 * new_text["duckdb_p50_ms"] + FLOOR_MS, 2))
    least = {"per_second": (together["per_second"], PER_SECOND)}
    return {name: {"is": value, "at_most": aim, "met": value <= aim} for name, (value, aim) in found.items()} | {
        name: {"is": value, "at_least": aim, "met": value >= aim} for name, (value, aim) in least.items()
    }


async def restarted(ask: Ask, text: str) -> float:
    """A query whose organisation's engine was killed, with the start of another."""
    engines = [child for child in psutil.Process().children(recursive=True) if "pysail" in child.cmdline()]
    for engine in engines:
        engine.kill()
    began = time.perf_counter()
    await ask(text)
    return round(1000 * (time.perf_counter() - began), 2)


async def three_organisations(ask: Ask, text: str) -> dict[str, float]:
    """The memory of the service with their engines, in MB."""
    for user in ("bench", "second", "third"):
        for turn in range(5):
            await ask(text.replace("{turn}", str(-(10**6) - turn)), user)
    us = psutil.Process()
    children = us.children(recursive=True)
    java = [child for child in children if child.name() == "java"]
    others = [child for child in children if child not in java]
    sizes = {"service": [us], "engines": others, "spark": java}
    found = {name: round(sum(map(_proportional, items)) / 2**20, 1) for name, items in sizes.items()}
    return {**found, "all": round(sum(found.values()), 1)}


def _proportional(process: psutil.Process) -> int:
    """Pages that several processes share are divided among them."""
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


async def processor_ms(ask: Ask, text: str, size: int) -> dict[str, float]:
    """Of one new text, in this process (the service, its Dispatcher and the client) and in those below it.

    Other work on the machine changes it little, so it can be compared where times cannot.
    """
    us = psutil.Process()
    below = us.children(recursive=True)
    before = _seconds(us), sum(map(_seconds, below))
    for turn in range(size):
        await ask(text.replace("{turn}", str(WITHIN_NEXT + turn)))
    after = _seconds(us), sum(map(_seconds, below))
    names = "service", "engines"
    return {name: round(1000 * (b - a) / size, 2) for name, a, b in zip(names, before, after, strict=True)}


def gate_ms(text: str) -> float:
    """Of a query that was never seen before."""
    times = []
    for number in range(50):
        _check.cache_clear()
        _parsed.cache_clear()
        began = time.perf_counter()
        check_sql(f"{text} LIMIT {number}", {"events"}, deterministic=False)
        times.append(time.perf_counter() - began)
    return round(1000 * statistics.median(times), 2)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
