"""The port of the engines that run checked queries: Spark, and Sail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from tracelake.errors import QueryTimeout
from tracelake.query.checked_query import CheckedQuery
from tracelake.wire.internal.queries import EngineName, Exported, ResultColumn

if TYPE_CHECKING:
    import pyarrow as pa


InProgress = Literal["running", "waiting"]


@dataclass(frozen=True)
class QueryResult:
    """The result of a query: rows, or files."""

    columns: list[ResultColumn]
    table: pa.Table | None
    truncated: bool = False
    exported: Exported | None = None
    engine: EngineName = "spark"

    @property
    def rows(self) -> int:
        return self.exported.rows if self.exported else self.table.num_rows if self.table is not None else 0

    @property
    def bytes(self) -> int:
        return self.exported.bytes if self.exported else self.table.nbytes if self.table is not None else 0


class QueryEngine(Protocol):
    """Runs checked queries.

    The contract:

    - The rows are those of the query's relations, as of their commits, and the same whichever engine runs it: rows,
      order where the query asks for one, and types. An engine that cannot keep this does not run the query
      (`CannotRun`), and another does.
    - It reads no other file, and returns at most the query's rows and bytes.
    - It returns, or raises, at most a second after the query's time. A query that has ended, or whose caller has left,
      uses no core and holds no slot.
    - A query during which the engine ends is run once more in the time that is left. If it ends again, the error is
      retryable.
    """

    async def run(self, query: CheckedQuery) -> QueryResult: ...

    def in_progress(self, state: InProgress) -> int:
        """How many queries run in it, or wait for a slot."""
        ...


class CannotRun(Exception):
    """An engine does not run a query. `reason` is a word for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def query_timeout(query: CheckedQuery) -> QueryTimeout:
    return QueryTimeout(
        f"it took longer than {query.seconds:g} s, and was ended",
        hint="read less, export the rows, or retry when fewer queries run",
    )
