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
from tests.support.indexes import IN_DATA
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


def test_every_typed_row_has_the_columns_of_its_statement(state_db: str, data_db: str) -> None:
    rows = {row for path in PACKAGE.rglob("*.py") if path != PACKAGE / "store/queries.py" for row in rows_read(path)}
    assert len(rows) > 20

    async def differences() -> dict[str, tuple[list[str], tuple[str, ...]]]:
        connections = {dsn: await asyncpg.connect(dsn) for dsn in (state_db, data_db)}
        wrong = {}
        for (file, name), row in rows:
            prepared = await connections[data_db if file in IN_DATA else state_db].prepare(queries(file)[name])
            columns = [attribute.name for attribute in prepared.get_attributes()]
            if columns != list(row.__struct_fields__):
                wrong[f"{file}.{name}"] = (columns, row.__struct_fields__)
        for connection in connections.values():
            await connection.close()
        return wrong

    assert asyncio.run(differences()) == {}


def test_no_column_of_a_record_is_read_by_its_name() -> None:
    """Of what asyncpg returns: a name that no statement has would be found when it runs, a wrong type never."""
    found = [f"{path.relative_to(PACKAGE)}: {text}" for path in PACKAGE.rglob("*.py") for text in names_read(path)]
    assert found == []


def test_no_record_is_taken_apart_by_position() -> None:
    """But for gauges: their columns are labels and a value."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "read_gauges.py"]
    assert [f"{path.relative_to(PACKAGE)}: {text}" for path in modules for text in unpacked(path)] == []


def test_a_record_that_is_taken_apart_is_found(tmp_path: Path) -> None:
    module = tmp_path / "verb.py"
    module.write_text(
        "async def verb(pool):\n"
        "    [(one, two)] = await pool.fetch('SELECT')\n"
        "    found = await pool.fetch('SELECT')\n"
        "    for a, b in found: pass\n"
        "    return [c for c, *d in await pool.fetch('SELECT')], [e for e in found]"
    )
    assert sorted(unpacked(module)) == ["[(one, two)]", "a, b", "c, *d"]


def test_a_column_that_is_read_by_its_name_is_found(tmp_path: Path) -> None:
    module = tmp_path / "verb.py"
    module.write_text(
        "async def verb(pool):\n"
        "    found, one = await pool.fetch('SELECT'), await pool.fetchrow('SELECT')\n"
        "    listed = [row['a'] for row in found] + [row['c'] for row in await pool.fetch('SELECT')]\n"
        "    return listed, one['b'], found[0]['d']"
    )
    assert sorted(names_read(module)) == ["found[0]['d']", "one['b']", "row['a']", "row['c']"]


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


def names_read(path: Path) -> Iterator[str]:
    """Each `record["name"]` in a module, of a record that is read there."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, Functions):
            records = {name for name, value in assignments(function) if is_fetch(value)}
            for node in ast.walk(function):
                if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                    records |= {ast.unparse(node.target)} if is_fetch(node.iter) or is_of(node.iter, records) else set()
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Subscript)
                    and isinstance(node.slice, ast.Constant)
                    and is_of(node.value, records)
                ):
                    yield from [ast.unparse(node)] * isinstance(node.slice.value, str)


def unpacked(path: Path) -> Iterator[str]:
    """Each place of a module that names the columns of a record by their order."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, Functions):
            records = {name for name, value in assignments(function) if is_fetch(value)}
            for node in ast.walk(function):
                match node:
                    case (
                        ast.For(target=ast.Tuple() as target, iter=rows)
                        | ast.comprehension(target=ast.Tuple() as target, iter=rows)
                    ) if is_fetch(rows) or is_of(rows, records):
                        yield ast.unparse(target).strip("()")
                    case ast.Assign(targets=[ast.List(elts=[ast.Tuple()]) as target], value=rows) if is_fetch(rows):
                        yield ast.unparse(target)


def is_fetch(node: ast.expr) -> bool:
    match node:
        case ast.Await(value=ast.Call(func=ast.Attribute(attr="fetch" | "fetchrow"))):
            return True
        case ast.BoolOp(values=values) | ast.Tuple(elts=values):
            return any(map(is_fetch, values))
        case ast.IfExp(body=body, orelse=other):
            return is_fetch(body) or is_fetch(other)
    return False


def is_of(node: ast.expr, records: set[str]) -> bool:
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node) in records
