"""Follows a chain for `block_follower`: finds the fork, writes from there, and sends what changed.

A step is one data transaction: rows of all tables, the blocks they cover, the progress, and the entries of the
follower's outbox (`data/hot/follower_outbox.py`). They are sent afterwards; a kill in between means that they are sent
again, under the same id.

A range that was never sent is an event. One that was sent, and was written again, is an invalidation: readers have run
for it already, and a repeated event of the range would be ignored.
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
from tracelake.chain.nodes.rpc import RpcClient
from tracelake.chain.schemas import SCHEMAS
from tracelake.chain.tip import Heads, headers, heads
from tracelake.data.hot import follower_outbox, tables
from tracelake.data.hot.follower_outbox import Announcement, FollowerProgress, FollowerRun
from tracelake.data.hot.tables import HotTable
from tracelake.data.hot.writer import BlockMark, rewrite
from tracelake.errors import ProviderError, SnapshotMoved, TraceError
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outputs import Output
from tracelake.operators.helpers.chain_tables import KEYS, outputs_of, pool_of
from tracelake.runtime.crash_points import crash_point
from tracelake.wire.task.outputs import EventBody, InvalidationBody

if TYPE_CHECKING:
    from tracelake.operators.block_follower import Config

log = structlog.get_logger()

LOOK_BACK: Final = 64
"""Blocks compared at once in the search for a fork."""
OUTAGES: Final = (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)
AFTER_TROUBLE_SECONDS: Final = 1.0
LOOK_UP_SECONDS: Final = 0.1
"""How often the requests to end are checked."""


async def follow(ctx: TaskContext[Config]) -> None:
    """Follow until the task should stop or its lease is lost. Retries during outages of nodes and of the database."""
    async with RpcClient(pool_of(ctx.resources, ctx.config.rpc_pool)) as client:
        follower = Follower(ctx, client)
        following = asyncio.create_task(follower.go_on())
        try:
            while not _over(ctx) and not following.done():
                await asyncio.wait({following}, timeout=LOOK_UP_SECONDS)
            # It is cancelled only while it waits for a node or sleeps: a data transaction has no await and is never
            # cut.
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        finally:
            follower.close()


def _over(ctx: TaskContext[Any]) -> bool:
    return ctx.api.lost.is_set() or ctx.api.stop_requested.is_set()


@dataclass
class Follower:
    ctx: TaskContext[Config]
    client: RpcClient
    connection: psycopg.Connection[Any] | None = None
    at: int = 0
    """The last block that was written, for users."""
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
        """Identified by its outputs: the same across restarts, another one for another generation."""
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
        """Write one batch of blocks; return whether there was anything to do."""
        self.client.health.start_anywhere()
        connection = self._connected()
        self._send_entries(connection)
        wrote = await self._catch_up(connection, await heads(self.client))
        self._send_entries(connection)
        return wrote

    async def _catch_up(self, connection: psycopg.Connection[Any], tip: Heads) -> bool:
        latest = tip.latest.number
        ours = follower_outbox.followed(connection, self.source, latest, 1)
        common = await self._common(connection, ours, tip.by)
        first = self._start(connection, latest) if common is None else common[0] + 1
        if first > latest:  # all is written, or the node is behind us, maybe below our first block
            return self._settle(connection, tip)
        last = min(latest, first + self.ctx.config.batch - 1)
        fetched = await fetch_with(self.client, first, last, self.ctx.config.tables)
        if common is not None and common[1] != fetched.first_parent_hash:
            return True  # the chain moved in the meantime: try again
        self._commit(connection, fetched, tip, reorg=bool(ours) and ours[0][0] >= first)
        return True

    def _commit(self, connection: psycopg.Connection[Any], fetched: Fetched, tip: Heads, *, reorg: bool) -> None:
        first, last = fetched.start, fetched.end
        crash_point("follow_chain.before_write")
        with self._alone(connection) as progress:
            announced_to = first - 1 if progress.announced_to is None else progress.announced_to
            rewrite(
                connection,
                {self.tables[name]: rows for name, rows in fetched.tables.items()},
                _marks(fetched),
                replace_from=first,
            )
            follower_outbox.remember_followed(connection, self.source, first, fetched.hashes)
            follower_outbox.advance(
                connection, self.source, FollowerProgress(max(announced_to, last), progress.finalized_to)
            )
            # A reorg invalidates everything above the fork, including blocks that do not exist again yet.
            again_to = announced_to if reorg else min(announced_to, last)
            if first <= again_to:
                cause = f"block {last} is now {fetched.last_hash.hex()}"
                self._announce(connection, "invalidation", (first, again_to), cause)
            for span in self._cut(max(first, announced_to + 1), last):
                self._announce(connection, "event", span)
            self._announce_final(connection, tip)
            crash_point("follow_chain.before_commit")
        crash_point("follow_chain.after_commit")
        self.at = last
        self.ctx.progress(last, tip.latest.number, "reorg" if reorg else "follows the tip")

    def _settle(self, connection: psycopg.Connection[Any], tip: Heads) -> bool:
        """Nothing to write; send what has become final."""
        with self._alone(connection):
            return self._announce_final(connection, tip)

    def _announce_final(self, connection: psycopg.Connection[Any], tip: Heads) -> bool:
        """Return ranges that no reorg can change: the chain's final blocks, as far as our blocks are of that chain."""
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
        follower_outbox.advance(connection, self.source, FollowerProgress(progress.announced_to, number))
        self._announce(connection, "final", (start, number))
        return True

    def _final_number(self, connection: psycopg.Connection[Any], tip: Heads) -> int | None:
        by_depth = tip.latest.number - self.ctx.config.confirmations
        limit = by_depth if tip.finalized is None else tip.finalized.number
        followed = follower_outbox.followed(connection, self.source, limit, 1) if limit >= 0 else []
        if not followed:
            return None
        number, block_hash = followed[0]
        if tip.finalized is not None and number == limit and block_hash != tip.finalized.hash:
            return None  # our blocks are of another fork: the next step replaces them
        return number

    async def _common(
        self, connection: psycopg.Connection[Any], ours: Sequence[tuple[int, bytes]], by: int
    ) -> tuple[int, bytes] | None:
        """Return the highest block that we share with the node that reported the head; None if there is none.

        Another node may be on another fork: the blocks that it shares with us do not lead to that head.
        """
        while ours:
            theirs = await headers(self.client, [number for number, _ in ours], by)
            for path, header in zip(ours, theirs, strict=True):
                if path[1] == header.hash:
                    return path
            ours = follower_outbox.followed(connection, self.source, ours[-1][0] - 1, LOOK_BACK)
        return None

    def _start(self, connection: psycopg.Connection[Any], latest: int) -> int:
        """Return its first block, however deep a reorg is: any other would leave a gap, or mix chains."""
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

    def _send_entries(self, connection: psycopg.Connection[Any]) -> None:
        """Send all outbox entries, the oldest first. Each is marked once the Dispatcher has stored it."""
        while unsent := follower_outbox.unsent_entries(connection, self.source):
            now = follower_outbox.lock_source(connection, self.source, self.run).finalized_to
            finals = follower_outbox.final_before(connection, self.source, now, unsent)
            events = [event for announcement in unsent for event in self._events(announcement)]
            retracted = [body for announcement, final in finals for body in self._invalidations(announcement, final)]
            crash_point("follow_chain.before_send")
            self.ctx.api.send_events(events, retracted, None)
            crash_point("follow_chain.sent")
            with self._alone(connection):
                follower_outbox.mark_sent(connection, self.source, unsent)

    def _events(self, announcement: Announcement) -> list[EventBody]:
        if announcement.kind == "invalidation":
            return []
        final = self.final_output
        outputs = ([final] if final else []) if announcement.kind == "final" else self.ctx.outputs[: len(self.tables)]
        return [
            EventBody(
                dataset_uuid=output.ref.dataset_uuid,
                dataset_version=output.ref.dataset_version,
                start=announcement.start,
                end=announcement.stop - 1,
            )
            for output in outputs
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
        message = trouble.message if isinstance(trouble, TraceError) else "the data database does not answer"
        log.warning("follower waits", because=message)
        self.ctx.progress(self.at, None, f"waits: {message}")
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
        """Make the tables; empty, if the version says so and no attempt of this run has begun before."""
        bootstrap = self.ctx.task.bootstrap
        with connection.transaction():
            begun = follower_outbox.begin(connection, self.source, self.run)
            if bootstrap is not None and bootstrap.reset_outputs and not begun:
                follower_outbox.delete_source(connection, self.source)
                for table in self.tables.values():
                    tables.drop(connection, table)
            for table in self.tables.values():
                tables.ensure(connection, table)

    @contextmanager
    def _alone(self, connection: psycopg.Connection[Any]) -> Iterator[FollowerProgress]:
        """A transaction that only the latest run of this source gets: another may have lost its lease."""
        with connection.transaction():
            yield follower_outbox.lock_source(connection, self.source, self.run)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def _marks(fetched: Fetched) -> list[BlockMark]:
    parents = [fetched.first_parent_hash, *fetched.hashes[:-1]]
    numbers = range(fetched.start, fetched.end + 1)
    return [BlockMark(*announcement) for announcement in zip(numbers, fetched.hashes, parents, strict=True)]
