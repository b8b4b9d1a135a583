"""Builds what is sent to Sail beside the text of a query: relations and conditions of Spark Connect.

They are built as messages, from known parts, and never from text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

SailPlan = Any
"""A `proto.Relation`."""
Condition = Any
"""A `proto.Expression`."""


def parquet(paths: Sequence[str], ddl: str) -> SailPlan:
    from pyspark.sql.connect import proto

    source = proto.Read.DataSource(format="parquet", paths=paths, schema=ddl)
    return proto.Relation(read=proto.Read(data_source=source))


def sql(text: str, tables: Mapping[str, SailPlan]) -> SailPlan:
    """A query, and what its names of tables mean. Sail finds a reference by a number, which each must have."""
    from pyspark.sql.connect import proto

    query = proto.Relation(sql=proto.SQL(query=text))
    if not tables:
        return query
    named = [
        proto.Relation(
            common=proto.RelationCommon(plan_id=number),
            subquery_alias=proto.SubqueryAlias(input=rows, alias=name),
        )
        for number, (name, rows) in enumerate(tables.items())
    ]
    return proto.Relation(with_relations=proto.WithRelations(root=query, references=named))


def limited(rows: SailPlan, limit: int) -> SailPlan:
    from pyspark.sql.connect import proto

    return proto.Relation(limit=proto.Limit(input=rows, limit=limit))


def where(rows: SailPlan, condition: Condition) -> SailPlan:
    from pyspark.sql.connect import proto

    return proto.Relation(filter=proto.Filter(input=rows, condition=condition))


def selected(rows: SailPlan, names: Sequence[str]) -> SailPlan:
    from pyspark.sql.connect import proto

    return proto.Relation(project=proto.Project(input=rows, expressions=[column(name) for name in names]))


def union(parts: Sequence[SailPlan]) -> SailPlan:
    """All rows of all of them, which have the same columns in the same order."""
    return reduce(_union, parts)


def column(name: str) -> Condition:
    from pyspark.sql.connect import proto

    quoted = f"`{name.replace('`', '``')}`"
    return proto.Expression(unresolved_attribute=proto.Expression.UnresolvedAttribute(unparsed_identifier=quoted))


def call(name: str, *arguments: Condition) -> Condition:
    from pyspark.sql.connect import proto

    function = proto.Expression.UnresolvedFunction(function_name=name, arguments=arguments)
    return proto.Expression(unresolved_function=function)


def joined(word: str, parts: Sequence[Condition]) -> Condition:
    """Join conditions by "and" or "or", as a tree of little depth: messages may be nested 100 times."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return call(word, joined(word, parts[:middle]), joined(word, parts[middle:]))


def literal(**value: Any) -> Condition:
    """`long=1`, `string='a'`: a value of the type with this name in the protocol."""
    from pyspark.sql.connect import proto

    return proto.Expression(literal=proto.Expression.Literal(**value))


def decimal(value: Decimal, precision: int, scale: int) -> Condition:
    from pyspark.sql.connect import proto

    number = proto.Expression.Literal.Decimal(value=format(value, "f"), precision=precision, scale=scale)
    return literal(decimal=number)


def _union(left: SailPlan, right: SailPlan) -> SailPlan:
    from pyspark.sql.connect import proto

    kind = proto.SetOperation.SET_OP_TYPE_UNION
    return proto.Relation(set_op=proto.SetOperation(left_input=left, right_input=right, set_op_type=kind, is_all=True))
