"""`fetch_range`: an inclusive range of blocks -> checked Arrow tables, or an error; never a part.

The range is cut into pieces of one batch each; a few are under way at once, on whichever endpoints are well, and each
is checked before it counts (`read_blocks.py`). Pieces must then link by parent hash. If they do not, because one
endpoint follows another fork, or do not become rows, each endpoint is asked for the whole range alone, in turn. At the
end a second endpoint, where there is one, must have the same last block (`chain/cross_check.py`).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from tracelake.chain.columns import TooLarge
from tracelake.chain.cross_check import confirm
from tracelake.chain.hex import as_data
from tracelake.chain.nodes.rpc import RpcClient, run
from tracelake.chain.nodes.rpc_pool import RpcPool
from tracelake.chain.read_blocks import Wants, read_blocks
from tracelake.chain.schemas import SCHEMAS
from tracelake.chain.tables import BATCHES, CheckedBlock
from tracelake.chain.tip import finalized_number, heads
from tracelake.errors import (
    ChainMoved,
    InvalidRequest,
    ProviderError,
    ProviderLied,
    SizeRefused,
    ValueTooLarge,
)

ALL_TABLES = frozenset(SCHEMAS)
_BUILD_EVERY = 1000
"""Blocks that become one record batch: enough that a column's fixed cost vanishes, few enough to let memory go."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Blocks `start` to `end`, both included, of one chain."""

    start: int
    end: int
    tables: dict[str, pa.Table]
    hashes: tuple[bytes, ...]
    """Of every block, in order."""
    first_parent_hash: bytes
    """What the block before `start` must have as its hash."""
    first_by: int
    """The index in the pool of the endpoint that returned the first block."""
    last_by: int
    """The same of the last one."""
    finalized: int | None = None
    """The chain's last final block after all of it was fetched, if that was asked and is known."""

    @property
    def last_hash(self) -> bytes:
        return self.hashes[-1]


def fetch_range_sync(
    pool: RpcPool, start: int, end: int, tables: Iterable[str] = ALL_TABLES, *, ask_finalized: bool = False
) -> Fetched:
    """For executors of Spark: in an event loop of its own."""
    with _no_search_for_cycles():
        return run(fetch_range(pool, start, end, tables, ask_finalized=ask_finalized))


def last_final_sync(pool: RpcPool) -> int | None:
    """The number of the last final block; None: the chain does not say. In an event loop of its own."""
    return run(_last_final(pool))


async def _last_final(pool: RpcPool) -> int | None:
    async with RpcClient(pool) as client:
        found = (await heads(client)).finalized
    return None if found is None else found.number


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Responses have no cycles: the garbage collector would take a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def fetch_range(
    pool: RpcPool, start: int, end: int, tables: Iterable[str] = ALL_TABLES, *, ask_finalized: bool = False
) -> Fetched:
    """With `ask_finalized` comes one call more."""
    async with RpcClient(pool) as client:
        fetched = await fetch_with(client, start, end, tables)
        return replace(fetched, finalized=await finalized_number(client)) if ask_finalized else fetched


async def fetch_with(client: RpcClient, start: int, end: int, tables: Iterable[str] = ALL_TABLES) -> Fetched:
    """With a client that is open already, and remembers which endpoints are well."""
    wants = Wants(_known_tables(start, end, tables), client.pool.verify_roots)
    fetched = await _from_any(client, range(start, end + 1), wants)
    await confirm(client, wants, end, as_data(fetched.last_hash), fetched.last_by)
    return fetched


async def _from_any(client: RpcClient, numbers: range, wants: Wants) -> Fetched:
    try:
        return await _fetch(client, numbers, wants, None)
    except (ChainMoved, ProviderLied, ValueTooLarge):
        if len(client.pool.endpoints) == 1:
            raise
    for place, _ in enumerate(client.pool.endpoints[:-1]):
        try:
            return await _fetch(client, numbers, wants, place)
        except ProviderError:
            continue
    return await _fetch(client, numbers, wants, len(client.pool.endpoints) - 1)


def _known_tables(start: int, end: int, tables: Iterable[str]) -> frozenset[str]:
    wanted = frozenset(tables)
    if not wanted or wanted - ALL_TABLES:
        raise InvalidRequest(f"tables are some of {sorted(ALL_TABLES)}", where="tables")
    if not 0 <= start <= end:
        raise InvalidRequest(f"{start} to {end} is not a range of blocks", where="range")
    return wanted


async def _fetch(client: RpcClient, numbers: range, wants: Wants, only: int | None) -> Fetched:
    pieces = _pieces(numbers, max(1, client.pool.batch_size // wants.calls_per_block))
    collected = _Collected(wants, client.pool)
    queue = iter(enumerate(pieces))

    async def lane() -> None:
        for index, piece in queue:
            collected.add(index, await _piece(client, piece, wants, only))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(client.pool.max_concurrency):
                group.create_task(lane())
    except ExceptionGroup as error:
        raise _first(error) from None
    return collected.done(numbers)


async def _piece(client: RpcClient, numbers: range, wants: Wants, only: int | None) -> list[CheckedBlock]:
    """Fetches one piece; in halves if it is too large for the endpoint."""
    try:
        return await client.work(lambda lane: read_blocks(lane, numbers, wants), splittable=len(numbers) > 1, only=only)
    except SizeRefused:
        if len(numbers) == 1:
            raise
    half = len(numbers) // 2
    first = await _piece(client, numbers[:half], wants, only)
    return first + await _piece(client, numbers[half:], wants, only)


def _pieces(numbers: range, size: int) -> Iterator[range]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error; the other lanes were only stopped."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _Collected:
    """Pieces in any order go in; linked blocks become record batches as soon as there are enough in a row."""

    def __init__(self, wants: Wants, pool: RpcPool) -> None:
        self._wants, self._pool = wants, pool
        self._waiting: dict[int, list[CheckedBlock]] = {}
        self._next = 0
        self._row: list[CheckedBlock] = []
        self._batches: dict[str, list[pa.RecordBatch]] = {table: [] for table in sorted(wants.tables)}
        self._hashes: list[str] = []
        self._by: list[int] = []
        self._first_parent = ""

    def add(self, index: int, piece: list[CheckedBlock]) -> None:
        self._waiting[index] = piece
        while (following := self._waiting.pop(self._next, None)) is not None:
            self._next += 1
            self._append(following)
        if len(self._row) >= _BUILD_EVERY:
            self._build()

    def _append(self, piece: list[CheckedBlock]) -> None:
        parent = piece[0].block.parent_hash
        if self._hashes and parent != self._hashes[-1]:
            number = int(piece[0].block.number or "0x0", 16)
            before, after = (self._pool.endpoints[place].label for place in (self._by[-1], piece[0].by))
            message = (
                f"block {number} of {after} does not follow block {number - 1} of {before}: they are on other forks"
            )
            raise ChainMoved(message, where=before if before == after else f"{before}, {after}")
        self._first_parent = self._first_parent or parent
        self._hashes += [known.block.hash or "" for known in piece]
        self._by += [known.by for known in piece]
        self._row += piece

    def _build(self) -> None:
        try:
            made = self._made(self._row)
        except ValueError:
            raise self._culprit() from None
        for table, batch in made.items():
            self._batches[table].append(batch)
        self._row = []

    def _made(self, row: list[CheckedBlock]) -> dict[str, pa.RecordBatch]:
        return {table: BATCHES[table](row, self._pool.chain_id) for table in self._batches}

    def _culprit(self) -> ProviderError:
        """Finds the block that cannot be converted, one by one: slow, but only after an error."""
        for known in self._row:
            try:
                self._made([known])
            except ValueError as error:
                label, number = self._pool.endpoints[known.by].label, int(known.block.number or "0x0", 16)
                kind = ValueTooLarge if isinstance(error, TooLarge) else ProviderLied
                return kind(f"{label}: block {number}: {error}", where=label)
        raise AssertionError("unreachable: blocks that are good one by one are good together")

    def done(self, numbers: range) -> Fetched:
        if self._row:
            self._build()
        return Fetched(
            start=numbers[0],
            end=numbers[-1],
            tables={name: pa.Table.from_batches(made, SCHEMAS[name]) for name, made in self._batches.items()},
            hashes=tuple(bytes.fromhex(text[2:]) for text in self._hashes),
            first_parent_hash=bytes.fromhex(self._first_parent[2:]),
            first_by=self._by[0],
            last_by=self._by[-1],
        )
