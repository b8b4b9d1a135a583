"""Lists what jobs have not processed of their inputs: `planned` is `done`, `pending` and `failed`, without overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from tracelake.dispatcher.versions.compare import Read, UnitState, list_reads, states
from tracelake.dispatcher.versions.scope import JobsOfDag, find_scopes
from tracelake.dispatcher.versions.units import Unit
from tracelake.domain.ranges import Range, format_partition_key
from tracelake.store.identity import User
from tracelake.wire.user.backfills import Gap, Gaps, GapsQuery, InputGaps


@dataclass
class _Run:
    """Neighbouring units in one state."""

    state: UnitState
    units: int
    span: Range | None
    name: str

    @property
    def gap(self) -> Gap:
        scope = format_partition_key(self.span) if self.span else self.name
        return Gap(state=self.state, scope=scope, units=self.units)  # type: ignore[arg-type]


@dataclass
class _Summary:
    counts: Counter[UnitState] = field(default_factory=Counter)
    runs: list[_Run] = field(default_factory=list)

    def add(self, unit: Unit, state: UnitState) -> None:
        self.counts[state] += 1
        if state in {"done", "skipped"}:
            return
        last = self.runs[-1] if self.runs else None
        if last and last.state == state and last.span and unit.span and last.span.stop == unit.span.start:
            last.span, last.units = Range(last.span.start, unit.span.stop), last.units + 1
        else:
            self.runs.append(_Run(state, 1, unit.span, _name(unit)))


async def list_gaps(pool: asyncpg.Pool, user: User, query: GapsQuery) -> Gaps:
    checked = [
        await _input_gaps(pool, scope, read, query.limit)
        for scope in await find_scopes(pool, user, query.of)
        for read in await list_reads(pool, user.org_id, scope.dag, scope.job)
    ]
    found = [item for item in checked if item.pending or item.failed]
    return Gaps(of=query.of, complete=not found, inputs=found, checked=len(checked))


async def _input_gaps(pool: asyncpg.Pool, scope: JobsOfDag, read: Read, limit: int) -> InputGaps:
    summary = _Summary()
    async for page in states(pool, read):
        for unit, state in page:
            summary.add(unit, state)
    return _answer(scope, read, summary, summary.runs[:limit])


def _answer(scope: JobsOfDag, read: Read, summary: _Summary, shown: Sequence[_Run]) -> InputGaps:
    counts = summary.counts
    pending = counts["pending"] + counts["missing"]
    return InputGaps(
        dag=scope.dag,
        job=read.job_name,
        input=read.input,
        planned=counts["done"] + pending + counts["failed"],
        done=counts["done"],
        pending=pending,
        failed=counts["failed"],
        gaps=[run.gap for run in shown],
        more=len(summary.runs) - len(shown),
    )


def _name(unit: Unit) -> str:
    if unit.partition_key is not None:
        return unit.partition_key
    return "all" if unit.cursor_value is None else f"cursor {unit.cursor_value}"
