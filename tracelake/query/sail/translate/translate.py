"""Writes a checked query for Sail, so that it gives the rows that Spark gives, or fails.

Every table, subquery and expression gets its type by Spark's rules. Where Sail would compute another value or another
type, the expression is written in other words (`rewrites.py`). What has no known type, and what Sail is not known to
run the same way, is `NotOnSail`: Spark runs it. `tests/query/sail/test_parity.py` compares the engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tracelake.domain.sql.functions import AGGREGATES
from tracelake.domain.sql.gate import CheckedSql
from tracelake.query.checked_query import Relation
from tracelake.query.sail.translate.expressions import KEYS, Expressions
from tracelake.query.sail.translate.nesting import refuse_nested
from tracelake.query.sail.translate.places import refuse_merged_lists
from tracelake.query.sail.translate.scopes import QueryScope, TypedColumns
from tracelake.query.sail.translate.types import WHOLES, NotOnSail, family, wider

SELECT_PARTS: Final = frozenset({
    *("with_", "kind", "expressions", "distinct", "from_", "joins", "where", "group", "having", "order", "limit"),
    *("offset", "operation_modifiers", "qualify", "windows"),
})  # fmt: skip
KEPT: Final = "_qualified"
NAMED: Final = frozenset({"count", "max", "min", "sum", "avg"})
"""Functions that are often asked for without an AS."""
ONE_SIDED: Final = frozenset({"SEMI", "ANTI"})


@dataclass(frozen=True)
class ForSail:
    """A query for Sail, and the types of the columns that Spark would return."""

    checked: CheckedSql
    types: list[str] | None
    """None: not known, and not compared."""


def translated(checked: CheckedSql, relations: Mapping[str, Relation]) -> ForSail:
    """Return the query for Sail; raises `NotOnSail` for what Spark runs."""
    try:
        return _translated(checked, relations)
    except (RecursionError, SqlglotError) as error:
        if not is_too_deep(error):
            raise
        raise NotOnSail("syntax", "deep") from None


def is_too_deep(error: Exception) -> bool:
    """Whether Python's stack was too small for a query. Some of sqlglot's functions raise an error of their own."""
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _translated(checked: CheckedSql, relations: Mapping[str, Relation]) -> ForSail:
    tables = {
        name.casefold(): [(item.name, item.type) for item in relation.columns] for name, relation in relations.items()
    }
    tree: Any = checked.tree.copy()
    columns = _query(tree, QueryScope(tables))
    if any(not name for name, _ in columns):
        raise NotOnSail("names", "a column without a name")
    if any(type_ == "void" for _, type_ in columns):
        raise NotOnSail("types", "void")
    _refuse_one_name_for_two(tree)
    refuse_merged_lists(tree)
    refuse_nested(tree)
    return ForSail(replace(checked, tree=tree), [type_ for _, type_ in columns])


def _refuse_one_name_for_two(tree: Any) -> None:
    """Refuse two windows or aggregates that differ in a CAST only: Sail names them without it, and mixes them up."""
    names: dict[str, str] = {}
    for node in tree.find_all(exp.Window, exp.Anonymous) if tree.find(exp.Cast) else ():
        if isinstance(node, exp.Window) or str(node.this).casefold() in AGGREGATES:
            full = node.sql("spark")
            name = _without_casts(node).sql("spark") if node.find(exp.Cast) else full
            if names.setdefault(name, full) != full:
                raise NotOnSail("syntax", "differs in a cast")


def _without_casts(node: Any) -> Any:
    copy = node.copy()
    for cast in list(copy.find_all(exp.Cast)):
        cast.replace(cast.this.unnest())
    return copy


def _query(tree: Any, scope: QueryScope) -> TypedColumns:
    """Rewrite a query, and return its columns."""
    if tree.args.get("with_") is not None:
        scope = _with(tree.args["with_"], scope)
    if isinstance(tree, exp.Subquery):
        _only(tree, {"this", "alias", "with_"})
        return _query(tree.this, scope)
    if isinstance(tree, exp.SetOperation):
        return _combined(tree, scope)
    if isinstance(tree, exp.Select):
        return _select(tree, QueryScope(scope.ctes, scope.outer, scope.budget))
    raise NotOnSail("syntax", type(tree).__name__)


def _with(given: exp.With, scope: QueryScope) -> QueryScope:
    for cte in given.expressions:
        columns = _renamed(_query(cte.this, scope), cte.args.get("alias"))
        scope = replace(scope, ctes={**scope.ctes, cte.alias.casefold(): columns})
    return scope


def _combined(tree: exp.SetOperation, scope: QueryScope) -> TypedColumns:
    """Both arms of a UNION, INTERSECT or EXCEPT have the same types."""
    _only(tree, {"with_", "this", "expression", "distinct", "order", "limit", "offset"})
    left, right = _query(tree.left, scope), _query(tree.right, scope)
    if len(left) != len(right):
        raise NotOnSail("types", "arms")
    columns = [(name, _shared(first, second)) for (name, first), (_, second) in zip(left, right, strict=True)]
    if not isinstance(tree, exp.Union) and not tree.args.get("distinct"):
        raise NotOnSail("syntax", "all")  # Sail returns other numbers of equal rows
    if tree.args.get("distinct"):
        _refuse_others_as_keys(columns)
    inner = Expressions(QueryScope(scope.ctes, budget=scope.budget, sources=[("", columns)]), _inner)
    _order(tree, inner)
    return columns


def _shared(first: str, second: str) -> str:
    if first == second or {first, second} <= set(WHOLES):
        return wider((first, second))
    raise NotOnSail("types", "arms")


def _select(tree: exp.Select, scope: QueryScope) -> TypedColumns:
    _only(tree, SELECT_PARTS)
    _write_windows(tree)
    inner = Expressions(scope, _inner)
    _from(tree, inner)
    _set_condition(tree, "where", inner)
    columns = _outputs(tree, inner)
    if tree.args.get("distinct"):
        _only(tree.args["distinct"], set())
        _refuse_others_as_keys(columns)
    scope.after = True
    _set_condition(tree, "qualify", inner)
    scope.inline = False
    _group(tree, inner, columns)
    _set_condition(tree, "having", inner)
    _order(tree, inner)
    if tree.args.get("qualify") is not None:
        _write_qualify(tree, columns)
    return columns


def _write_windows(tree: exp.Select) -> None:
    """Write each window that has a name where it is used."""
    for window in tree.args.get("windows") or ():
        for use in tree.find_all(exp.Window):
            if use is not window and use.args.get("alias") and use.args["alias"].name == window.name:
                use.set("alias", None)
                for part in ("partition_by", "order", "spec"):
                    given = window.args.get(part)
                    use.set(
                        part, [item.copy() for item in given] if isinstance(given, list) else given and given.copy()
                    )
    tree.set("windows", None)


def _write_qualify(tree: exp.Select, columns: TypedColumns) -> None:
    """Write a QUALIFY, which Sail has not, as a column of a subquery and a WHERE around it."""
    names = [name for name, _ in columns]
    if not all(names) or len({name.casefold() for name in names}) < len(names) or tree.args.get("distinct"):
        raise NotOnSail("syntax", "qualify")
    condition = tree.args["qualify"].this
    tree.set("qualify", None)
    outside = {part: tree.args.get(part) for part in ("with_", "order", "limit", "offset")}
    within = exp.Select(**{key: value for key, value in tree.args.items() if key not in outside})
    within.append("expressions", exp.alias_(condition, KEPT, quoted=True))
    for part in list(tree.args):
        tree.set(part, outside.get(part))
    tree.set("expressions", [exp.column(name, quoted=True) for name in names])
    tree.set("from_", exp.From(this=exp.Subquery(this=within, alias=exp.TableAlias(this=exp.to_identifier(KEPT)))))
    tree.set("where", exp.Where(this=exp.column(KEPT, table=KEPT, quoted=True)))


def _inner(tree: Any, scope: QueryScope) -> tuple[Any, list[str]]:
    """Rewrite a query inside of an expression."""
    columns = _query(tree, QueryScope(scope.ctes, scope, scope.budget))
    return tree, [type_ for _, type_ in columns]


def _from(tree: exp.Select, inner: Expressions) -> None:
    parts = [tree.args["from_"].this] if tree.args.get("from_") else []
    for part in parts:
        inner.scope.sources.append(_source(part, inner.scope))
    for join in tree.args.get("joins") or ():
        _join(join, inner)


def _join(join: exp.Join, inner: Expressions) -> None:
    _only(join, {"this", "side", "kind", "on", "using"})
    scope = inner.scope
    source = _source(join.this, scope)
    hidden = str(join.args.get("kind") or "").upper() in ONE_SIDED
    (scope.hidden if hidden else scope.sources).append(source)
    for name in join.args.get("using") or ():
        scope.using.add(name.name.casefold())
        inner.key(exp.column(name.name))
    if join.args.get("on") is not None:
        join.set("on", inner.condition(join.args["on"]))


def _source(part: Any, scope: QueryScope) -> tuple[str, TypedColumns]:
    """Return the name and columns of what is in a FROM."""
    if isinstance(part, exp.Table):
        _only(part, {"this", "alias"})
        columns = scope.ctes.get(part.name.casefold())
        if columns is None:
            raise NotOnSail("names", part.name)
        return part.alias_or_name.casefold(), _renamed(columns, part.args.get("alias"))
    if isinstance(part, exp.Subquery) and not isinstance(part.this, exp.Table):
        fresh = QueryScope(scope.ctes, budget=scope.budget)
        return part.alias.casefold(), _renamed(_query(part, fresh), part.args.get("alias"))
    raise NotOnSail("syntax", type(part).__name__)


def _renamed(columns: TypedColumns, alias: Any) -> TypedColumns:
    names = [column.name for column in alias.columns] if alias is not None else []
    if not names:
        return columns
    if len(names) != len(columns):
        raise NotOnSail("names", "alias")
    return [(name, type_) for name, (_, type_) in zip(names, columns, strict=True)]


def _outputs(tree: exp.Select, inner: Expressions) -> TypedColumns:
    columns: list[tuple[str, str]] = []
    outputs: list[Any] = []
    for output in tree.expressions:
        if output.is_star:
            columns += _starred(output, inner.scope, outputs)
            continue
        value, type_ = inner.of(output.this if isinstance(output, exp.Alias) else output)
        name = _name(output)
        outputs.append(_named(output, value, name))
        columns.append((name, type_))
        if isinstance(output, exp.Alias) and not _is_column(output.this, output.alias):
            inner.scope.aliases[output.alias.casefold()] = value, type_
    tree.set("expressions", outputs)
    return columns


def _starred(output: Any, scope: QueryScope, outputs: list[Any]) -> list[tuple[str, str]]:
    """Return the columns of a star. With an EXCEPT they are written down, since Sail has no such thing."""
    star = output.this if isinstance(output, exp.Column) else output
    columns = scope.all_columns(output.table.casefold() if isinstance(output, exp.Column) else "")
    without = {column.name.casefold() for column in star.args.get("except_") or ()}
    if not without:
        outputs.append(output)
        return [(name, type_) for _, name, type_ in columns]
    kept = [column for column in columns if column[1].casefold() not in without]
    outputs += [exp.column(name, table=source, quoted=True) for source, name, _ in kept]
    return [(name, type_) for _, name, type_ in kept]


def _named(output: Any, value: Any, name: str) -> Any:
    if isinstance(output, exp.Alias):
        output.set("this", value)
        return output
    return value if isinstance(output, exp.Column) or not name else exp.alias_(value, name, quoted=True)


def _name(output: Any) -> str:
    """Return the name of a column. Without an AS, that is its expression in Spark's words: known for the plainest."""
    if isinstance(output, exp.Alias | exp.Column):
        return str(output.alias_or_name)
    argument = output.expressions[0] if isinstance(output, exp.Anonymous) and len(output.expressions) == 1 else None
    named = "1" if isinstance(argument, exp.Star) else argument.name if isinstance(argument, exp.Column) else ""
    function = str(output.this).casefold() if named else ""
    return f"{function}({named})" if function in NAMED else ""


def _is_column(value: Any, name: str) -> bool:
    return isinstance(value, exp.Column) and value.name.casefold() == name.casefold()


def _group(tree: exp.Select, inner: Expressions, columns: TypedColumns) -> None:
    group = tree.args.get("group")
    if group is None:
        return
    _only(group, {"expressions"})
    group.set("expressions", [_key(item, inner, columns) for item in group.expressions])


def _key(item: Any, inner: Expressions, columns: TypedColumns) -> Any:
    """Return what is grouped by: an expression, the place of an output, or several sets of these.

    ROLLUP and CUBE have the empty set, for which Sail returns a row although there are none.
    """
    if isinstance(item, exp.GroupingSets | exp.Tuple) and item.expressions:
        item.set("expressions", [_key(part, inner, ()) for part in item.expressions])
        return item
    if not isinstance(item, exp.Literal) or item.is_string:
        return inner.key(item)[0]
    if not item.is_int or not 1 <= int(item.name) <= len(columns) or family(columns[int(item.name) - 1][1]) not in KEYS:
        raise NotOnSail("types", "group")
    return item


def _order(tree: Any, inner: Expressions) -> None:
    order = tree.args.get("order")
    if order is None:
        return
    _only(order, {"expressions"})
    inner.scope.after = True
    order.set("expressions", inner.ordered(order.expressions))


def _set_condition(tree: exp.Select, clause: str, inner: Expressions) -> None:
    if (condition := tree.args.get(clause)) is not None:
        condition.set("this", inner.condition(condition.this))


def _refuse_others_as_keys(columns: Iterable[tuple[str, str]]) -> None:
    if any(family(type_) not in KEYS for _, type_ in columns):
        raise NotOnSail("types", "distinct")


def _only(node: Any, parts: Iterable[str]) -> None:
    """Refuse parts of a clause that are not known here."""
    if others := {name for name, value in node.args.items() if value} - set(parts):
        raise NotOnSail("syntax", ", ".join(sorted(others)))
