"""Shared by the chain operators: the tables of a chain, one output each, and the pool of nodes of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from tracelake.domain.dag.catalog import Columns, ConfigProblem, Wired
from tracelake.errors import InvalidRequest
from tracelake.operators.api.outcome import OperatorConfig

if TYPE_CHECKING:
    from tracelake.chain.nodes.rpc_pool import RpcPool
    from tracelake.operators.api.context import Resources
    from tracelake.operators.api.outputs import Output

Table = Literal["blocks", "transactions", "logs"]
ALL: tuple[Table, ...] = ("blocks", "transactions", "logs")
KEYS: dict[str, tuple[str, ...]] = {
    "blocks": ("block_number",),
    "transactions": ("block_number", "transaction_index"),
    "logs": ("block_number", "log_index"),
}
"""The key of each table, by which rows are sorted too."""


def _names(text: str) -> Columns:
    return tuple(text.split())


COLUMNS: dict[str, Columns] = {
    "blocks": _names("""
        block_hash author block_number gas_used extra_data timestamp base_fee_per_gas chain_id parent_hash state_root
        transactions_root receipts_root withdrawals_root gas_limit blob_gas_used excess_blob_gas
    """),
    "transactions": _names("""
        block_number transaction_index transaction_hash nonce from_address to_address value_binary value_string
        value_f64 input gas_limit gas_used gas_price transaction_type max_priority_fee_per_gas max_fee_per_gas
        success n_input_bytes n_input_zero_bytes n_input_nonzero_bytes chain_id block_hash timestamp
    """),
    "logs": _names("""
        block_number transaction_index log_index transaction_hash address topic0 topic1 topic2 topic3 data
        n_data_bytes chain_id block_hash timestamp
    """),
}
"""The names of `chain.schemas`, which the Dispatcher does not load because it needs Arrow. A test compares them."""


_POOL_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_A_NAME = "small letters and digits, words joined by one underscore"


class Tables(OperatorConfig):
    tables: tuple[Table, ...] = Field(ALL, min_length=1)
    """One output each, in this order."""

    @field_validator("rpc_pool", mode="after", check_fields=False)
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        """For operators that call nodes. An address may contain a key, so it is neither stored nor repeated."""
        if not _POOL_NAME.fullmatch(value):
            raise ValueError(f"this is not the name of a pool: {_A_NAME}; addresses and keys belong in the settings")
        return value

    @field_validator("tables", mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("tables")
    @classmethod
    def _once_each(cls, value: tuple[Table, ...]) -> tuple[Table, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a table is named once")
        return value


def table_columns(config: Mapping[str, Any], _wired: Wired) -> Sequence[Columns | None]:
    """Check the outputs of an operator that writes these tables."""
    return [COLUMNS[table] for table in config.get("tables") or ALL]


def table_keys(config: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    return [KEYS[table] for table in config.get("tables") or ALL]


def check_tables(config: Mapping[str, Any], wired: Wired, *, more: int = 0) -> Iterator[ConfigProblem]:
    """Check at deploy that there is one output for each table, in their order, and at most `more` others."""
    tables = tuple(config.get("tables") or ALL)
    outputs = wired.outputs
    if not len(tables) <= len(outputs) <= len(tables) + more:
        besides = f", or {len(tables) + more}" if more else ""
        yield ConfigProblem(
            ("tables",),
            f"{_counted(len(tables), 'table')} ({', '.join(tables)}) need as many outputs{besides},"
            f" and the job has {len(outputs)}",
            f"outputs: [{', '.join(tables)}]",
            "bad_count",
        )
        return
    for table, output in zip(tables, outputs, strict=False):
        if output != table and output in ALL:
            yield ConfigProblem(
                ("tables",),
                f"output {output!r} would hold the {table}: outputs must be in the order of tables",
                f"outputs: [{', '.join(tables)}]",
                "bad_order",
            )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def outputs_of(tables: Sequence[str], outputs: Sequence[Output]) -> dict[str, Output]:
    """Return the output of each table."""
    if len(outputs) < len(tables):
        raise InvalidRequest(
            f"the job has {len(outputs)} outputs, and {len(tables)} tables to write",
            where="/outputs",
            hint="name one output for each of config.tables, in the same order",
        )
    return dict(zip(tables, outputs, strict=False))


def pool_of(resources: Resources, name: str) -> RpcPool:
    pool: RpcPool | None = resources.rpc_pools.get(name)
    if pool is None:
        known = ", ".join(sorted(resources.rpc_pools)) or "there is none"
        called = f"no pool of nodes is called {name!r}" if _POOL_NAME.fullmatch(name) else "rpc_pool is no pool's name"
        raise InvalidRequest(called, where="/config/rpc_pool", hint=f"settings rpc_pools; known: {known}")
    return pool
