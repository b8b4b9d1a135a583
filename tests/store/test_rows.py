"""A typed row has the columns of the statement that it is read from, in their order."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import asyncpg
import pytest

import tracelake
from tracelake.store.db import open_pool
from tracelake.store.queries import Row, fetch_row, fetch_rows, find_row, queries

PACKAGE = Path(tracelake.__file__).parent
READS = {"fetch_rows", "find_row", "fetch_row"}
Functions = ast.FunctionDef | ast.AsyncFunctionDef
Statement = tuple[str, ...]
"""The file of a statement, and its name."""


class Pair(Row, frozen=True):
    left: int
    right: int


def test_every_typed_row_has_the_columns_of_its_statement(state_db: str) -> None:
    rows = {row for path in PACKAGE.rglob("*.py") if path != PACKAGE / "store/queries.py" for row in rows_read(path)}
    assert len(rows) > 20

    async def differences() -> dict[str, tuple[list[str], tuple[str, ...]]]:
        connection = await asyncpg.connect(state_db)
        wrong = {}
        for (file, name), row in rows:
            prepared = await connection.prepare(queries(file)[name])
            columns = [attribute.name for attribute in prepared.get_attributes()]
            if columns != list(row.__struct_fields__):
                wrong[f"{file}.{name}"] = (columns, row.__struct_fields__)
        await connection.close()
        return wrong

    assert asyncio.run(differences()) == {}


def test_a_row_whose_fields_are_not_the_columns_is_refused(state_db: str) -> None:
    async def read() -> None:
        async with open_pool(state_db, name="rows", max_size=1) as pool:
            assert await fetch_rows(pool, "SELECT 1 AS left, 2 AS right", Pair) == [Pair(1, 2)]
            assert await find_row(pool, "SELECT 1 AS left, 2 AS right WHERE false", Pair) is None
            with pytest.raises(LookupError):
                await fetch_row(pool, "SELECT 1 AS left, 2 AS right WHERE false", Pair)
            with pytest.raises(TypeError, match=r"'right', 'left'.*Pair"):
                await fetch_row(pool, "SELECT 1 AS right, 2 AS left", Pair)

    asyncio.run(read())


def rows_read(path: Path) -> Iterator[tuple[tuple[str, str], type[Row]]]:
    """Statement and row of every typed read in a module."""
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, Functions):
            names = dict(assignments(function))
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in READS:
                    file, name = statement(call.args[1], names)
                    yield (file, name), getattr(import_module(module), ast.unparse(call.args[2]))


def assignments(function: Functions) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(map(ast.unparse, target.elts), value.elts, strict=True)
            else:
                yield ast.unparse(target), value


def statement(node: ast.expr, names: dict[str, ast.expr]) -> Statement:
    """Follows `queries("file")["name"]` through local names."""
    match node:
        case ast.Name(id=name):
            return statement(names[name], names)
        case ast.Subscript(value=file, slice=ast.Constant(value=str() as name)):
            return (*statement(file, names), name)
        case ast.Call(func=ast.Name(id="queries"), args=[ast.Constant(value=str() as file_name)]):
            return (file_name,)
    raise AssertionError(f"no named statement: {ast.unparse(node)}")
