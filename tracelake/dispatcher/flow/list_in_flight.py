"""Lists how many tasks of an organisation are in flight, by operator and runtime, and what pools of nodes are used."""

from __future__ import annotations

from uuid import UUID

import asyncpg
from msgspec.structs import asdict

from tracelake.dispatcher.datasets.list_behind import list_behind
from tracelake.domain.flow.org_limits import LimitName
from tracelake.store.queries import Row, fetch_row, fetch_rows, queries
from tracelake.wire.user.dags import CatchingUp, InFlight, InFlightList, RpcPoolUse
from tracelake.wire.user.limits import LimitUse


class InFlightRow(Row, frozen=True):
    operator: str
    runtime: str
    woken: int
    running: int
    waiting: int
    operator_limit: int | None
    runtime_limit: int | None


class PoolRow(Row, frozen=True):
    pool: str
    workers: int
    used: int
    leased: int
    limit: int
    leased_rate: float | None
    limit_rate: float | None


class JobStates(Row, frozen=True):
    running: int
    idle: int


class UsedLimit(Row, frozen=True):
    limit: LimitName
    most: int
    used: int
    waiting: int


async def list_in_flight(pool: asyncpg.Pool, org_id: UUID) -> InFlightList:
    rows = await fetch_rows(pool, queries("flow")["list_in_flight"], InFlightRow, org_id)
    limits = await fetch_rows(pool, queries("org_limits")["list_used_limits"], UsedLimit, org_id)
    pools = await fetch_rows(pool, queries("rpc_shares")["list_pools"], PoolRow)
    states = await fetch_row(pool, queries("flow")["count_job_states"], JobStates, org_id)
    return InFlightList(
        in_flight=[InFlight(**{name: getattr(row, name) for name in InFlight.__struct_fields__}) for row in rows],
        rpc_pools=[RpcPoolUse(**asdict(row)) for row in pools],
        jobs_running=states.running,
        jobs_idle=states.idle,
        org_limits=[LimitUse(**asdict(row)) for row in limits],
        catching_up=[CatchingUp(**asdict(row)) for row in await list_behind(pool, org_id)],
    )
