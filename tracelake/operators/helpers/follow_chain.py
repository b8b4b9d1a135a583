"""How `block_follower` follows: look at the chain, find where we part from it, write from there, tell what changed.

One step is one data transaction: rows of all tables, which blocks they cover, how far we are, and the entries of the
follower's outbox (`data/hot/follower_outbox.py`). They are sent afterwards; a kill in between means that they are sent
again, under the same id.

What was never told before is an event. What was, and was written anew, is an invalidation: readers have run for it
already, and an event of the same range would be known as the one they ran for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from tracelake.chain.fetch import Fetched, fetch_with
from tracelake.chain.rpc import RpcClient
from tracelake.chain.schemas import SCHEMAS
from tracelake.chain.tip import Heads, headers, heads
from tracelake.data.hot import follower_outbox, tables
from tracelake.data.hot.follower_outbox import Announcement, FollowerRun, Progress
from tracelake.data.hot.tables import HotTable
from tracelake.data.hot.writer import BlockMark, rewrite
from tracelake.errors import ProviderError, SnapshotMoved, TraceError
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outputs import Output
from tracelake.operators.helpers.chain_tables import KEYS, outputs_of, pool_of
from tracelake.runtime.crash_points import crash_point
from tracelake.wire.task_messages import EventBody, InvalidationBody

if TYPE_CHECKING:
    from tracelake.operators.block_follower import Config

log = structlog.get_logger()

LOOK_BACK: Final = 64
"""Blocks compared at once on the way back to a fork."""
OUTAGES: Final = (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)
AFTER_TROUBLE_SECONDS: Final = 1.0
LOOK_UP_SECONDS: Final = 0.1
"""How often it is seen whether it is to end."""


async def follow(ctx: TaskContext[Config]) -> None:
    """Until it is asked to stop, or the lease is lost. Outages of nodes and of the database are waited out."""
    async with RpcClient(pool_of(ctx.resources, ctx.config.rpc_pool)) as client:
        follower = Follower(ctx, client)
        following = asyncio.create_task(follower.go_on())
        try:
            while not _over(ctx) and not following.done():
                await asyncio.wait({following}, timeout=LOOK_UP_SECONDS)
            # It waits for a node, or for time to pass: a data transaction has no such moment in it and is never cut.
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        finally:
            follower.close()


def _over(ctx: TaskContext[Any]) -> bool:
    return ctx.api.lost.is_set() or ctx.api.asked_to_stop.is_set()


@dataclass
class Follower:
    ctx: TaskContext[Config]
    client: RpcClient
    connection: psycopg.Connection[Any] | None = None
    at: int = 0
    """The last block that was written, for people."""
    tables: Mapping[str, HotTable] = field(init=False)

    def __post_init__(self) -> None:
        self.tables = {
            table: HotTable(
                output.ref.dataset_uuid, output.ref.dataset_version, self.ctx.org_id, SCHEMAS[table], KEYS[table]
            )
            for table, output in outputs_of(self.ctx.config.tables, self.ctx.outputs).items()
        }

    @property
    def source(self) -> str:
        """By what it writes: the same across restarts, another one for another generation."""
        return f"follower:{self.ctx.outputs[0].ref.dataset_version}"

    @property
    def run(self) -> FollowerRun:
        return FollowerRun(self.ctx.task.task_id, self.ctx.task.attempt)

    @property
    def final_output(self) -> Output | None:
        more = self.ctx.outputs[len(self.tables) :]
        return more[0] if more else None

    async def go_on(self) -> None:
        while True:
            await self.step_or_wait()

    async def step_or_wait(self) -> None:
        try:
            wrote = await self.step()
        except (ProviderError, *OUTAGES, SnapshotMoved) as trouble:
            if isinstance(trouble, ProviderError) and not trouble.retryable:
                raise
            await self._wait_out(trouble)
            return
        if not wrote:
            await asyncio.sleep(self.ctx.config.poll_seconds)

    async def step(self) -> bool:
        """One batch of blocks; whether there was anything to do."""
        self.client.health.start_anywhere()
        connection = self._connected()
        self._tell(connection)
        wrote = await self._catch_up(connection, await heads(self.client))
        self._tell(connection)
        return wrote

    async def _catch_up(self, connection: psycopg.Connection[Any], tip: Heads) -> bool:
        latest = tip.latest.number
        ours = follower_outbox.followed(connection, self.source, latest, 1)
        common = await self._common(connection, ours, tip.by)
        first = self._start(connection, latest) if common is None else common[0] + 1
        if first > latest:  # all of it is there, or the node is behind us, maybe below where we began
            return self._settle(connection, tip)
        last = min(latest, first + self.ctx.config.batch - 1)
        fetched = await fetch_with(self.client, first, last, self.ctx.config.tables)
        if common is not None and common[1] != fetched.first_parent_hash:
            return True  # the chain moved while we looked: look again
        self._commit(connection, fetched, tip, reorg=bool(ours) and ours[0][0] >= first)
        return True

    def _commit(self, connection: psycopg.Connection[Any], fetched: Fetched, tip: Heads, *, reorg: bool) -> None:
        first, last = fetched.start, fetched.end
        crash_point("follow_chain.before_write")
        with self._alone(connection) as progress:
            told_to = first - 1 if progress.announced_to is None else progress.announced_to
            rewrite(
                connection,
                {self.tables[name]: rows for name, rows in fetched.tables.items()},
                _marks(fetched),
                replace_from=first,
            )
            follower_outbox.remember_followed(connection, self.source, first, fetched.hashes)
            follower_outbox.advance(connection, self.source, Progress(max(told_to, last), progress.finalized_to))
            # A reorg takes back everything above the fork, also what has not come again yet.
            again_to = told_to if reorg else min(told_to, last)
            if first <= again_to:
                cause = f"block {last} is now {fetched.last_hash.hex()}"
                self._announce(connection, "invalidation", (first, again_to), cause)
            for span in self._cut(max(first, told_to + 1), last):
                self._announce(connection, "event", span)
            self._announce_final(connection, tip)
            crash_point("follow_chain.before_commit")
        crash_point("follow_chain.after_commit")
        self.at = last
        self.ctx.progress(last, tip.latest.number, "reorg" if reorg else "follows the tip")

    def _settle(self, connection: psycopg.Connection[Any], tip: Heads) -> bool:
        """Nothing to write; what has become final is told."""
        with self._alone(connection):
            return self._announce_final(connection, tip)

    def _announce_final(self, connection: psycopg.Connection[Any], tip: Heads) -> bool:
        """Ranges that no reorg can touch: what the chain calls final, as far as our own blocks are that chain's."""
        if self.final_output is None:
            return False
        progress = follower_outbox.lock_source(connection, self.source, self.run)
        if progress.announced_to is None:
            return False
        number = self._final_number(connection, tip)
        before = progress.finalized_to
        start = follower_outbox.first_followed(connection, self.source) if before is None else before + 1
        if number is None or start is None or number < start:
            return False
        follower_outbox.advance(connection, self.source, Progress(progress.announced_to, number))
        self._announce(connection, "final", (start, number))
        return True

    def _final_number(self, connection: psycopg.Connection[Any], tip: Heads) -> int | None:
        by_depth = tip.latest.number - self.ctx.config.confirmations
        limit = by_depth if tip.finalized is None else tip.finalized.number
        there = follower_outbox.followed(connection, self.source, limit, 1) if limit >= 0 else []
        if not there:
            return None
        number, block_hash = there[0]
        if tip.finalized is not None and number == limit and block_hash != tip.finalized.hash:
            return None  # our blocks are of another fork: the next step writes them anew
        return number

    async def _common(
        self, connection: psycopg.Connection[Any], ours: Sequence[tuple[int, bytes]], by: int
    ) -> tuple[int, bytes] | None:
        """The highest block that we have in common with the node that told the head; None if there is none.

        Another node may be on another fork: the blocks that it shares with us say nothing about the way to that head.
        """
        while ours:
            theirs = await headers(self.client, [number for number, _ in ours], by)
            for path, header in zip(ours, theirs, strict=True):
                if path[1] == header.hash:
                    return path
            ours = follower_outbox.followed(connection, self.source, ours[-1][0] - 1, LOOK_BACK)
        return None

    def _start(self, connection: psycopg.Connection[Any], latest: int) -> int:
        """Where it once began, however deep a reorg is: from anywhere else there would be a hole, or another chain."""
        began = follower_outbox.first_followed(connection, self.source)
        if began is not None:
            return began
        start = self.ctx.config.start_block
        return latest if start == "latest" else start

    def _announce(
        self, connection: psycopg.Connection[Any], kind: follower_outbox.Kind, span: tuple[int, int], cause: str = ""
    ) -> None:
        start, end = span
        follower_outbox.announce(connection, self.source, kind, start=start, stop=end + 1, cause=cause)

    def _cut(self, first: int, last: int) -> list[tuple[int, int]]:
        if first > last:
            return []
        if self.ctx.config.emit_strategy == "per_block":
            return [(number, number) for number in range(first, last + 1)]
        return [(first, last)]

    def _tell(self, connection: psycopg.Connection[Any]) -> None:
        """Everything owed, the oldest first. Each is forgotten once the Dispatcher has stored it."""
        while owed := follower_outbox.untold(connection, self.source):
            now = follower_outbox.lock_source(connection, self.source, self.run).finalized_to
            finals = follower_outbox.final_before(connection, self.source, now, owed)
            events = [event for item in owed for event in self._events(item)]
            retracted = [body for item, final in finals for body in self._invalidations(item, final)]
            crash_point("follow_chain.before_tell")
            self.ctx.api.tell(events, retracted, None)
            crash_point("follow_chain.told")
            with self._alone(connection):
                follower_outbox.told(connection, self.source, owed)

    def _events(self, announcement: Announcement) -> list[EventBody]:
        if announcement.kind == "invalidation":
            return []
        final = self.final_output
        told = ([final] if final else []) if announcement.kind == "final" else self.ctx.outputs[: len(self.tables)]
        return [
            EventBody(
                dataset_uuid=output.ref.dataset_uuid,
                dataset_version=output.ref.dataset_version,
                start=announcement.start,
                end=announcement.stop - 1,
            )
            for output in told
        ]

    def _invalidations(self, announcement: Announcement, final_to: int | None) -> list[InvalidationBody]:
        if announcement.kind != "invalidation":
            return []
        spans = dict.fromkeys(range(len(self.tables)), announcement.stop - 1)
        if self.final_output is not None and final_to is not None and announcement.start <= final_to:
            spans[len(self.tables)] = min(final_to, announcement.stop - 1)
        return [
            InvalidationBody(
                dataset_uuid=self.ctx.outputs[index].ref.dataset_uuid,
                dataset_version=self.ctx.outputs[index].ref.dataset_version,
                start=announcement.start,
                end=end,
                reason=f"a reorg: {announcement.cause}",
                cause=f"announcement {announcement.id} of {self.source}",
            )
            for index, end in spans.items()
        ]

    async def _wait_out(self, trouble: Exception) -> None:
        said = trouble.message if isinstance(trouble, TraceError) else "the data database does not answer"
        log.warning("follower waits", because=said)
        self.ctx.progress(self.at, None, f"waits: {said}")
        if isinstance(trouble, OUTAGES):
            self.close()
        await asyncio.sleep(AFTER_TROUBLE_SECONDS)

    def _connected(self) -> psycopg.Connection[Any]:
        if self.connection is None:
            self.connection = psycopg.connect(self.ctx.resources.data_dsn, autocommit=True, connect_timeout=10)
            follower_outbox.bound_idleness(self.connection)
            self._prepare(self.connection)
        return self.connection

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Tables as they must be; empty, if the version says so and no attempt of this run has begun before."""
        asked = self.ctx.task.bootstrap
        with connection.transaction():
            begun = follower_outbox.begin(connection, self.source, self.run)
            if asked is not None and asked.reset_outputs and not begun:
                follower_outbox.delete_source(connection, self.source)
                for table in self.tables.values():
                    tables.drop(connection, table)
            for table in self.tables.values():
                tables.ensure(connection, table)

    @contextmanager
    def _alone(self, connection: psycopg.Connection[Any]) -> Iterator[Progress]:
        """A transaction that only the latest run of this source gets: one that was frozen may have lost its lease."""
        with connection.transaction():
            yield follower_outbox.lock_source(connection, self.source, self.run)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def _marks(fetched: Fetched) -> list[BlockMark]:
    parents = [fetched.first_parent_hash, *fetched.hashes[:-1]]
    numbers = range(fetched.start, fetched.end + 1)
    return [BlockMark(*item) for item in zip(numbers, fetched.hashes, parents, strict=True)]
