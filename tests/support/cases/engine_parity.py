"""Expressions on which engines are compared: every function that Sail may run, with arguments of its families."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from tracelake.domain.sql.functions import AGGREGATES, WINDOWS

VALUES: Final = {
    "int": ("i", "l"),
    "decimal": ("dec", "big"),
    "text": ("t", "u"),
    "bytes": ("b",),
    "date": ("dt",),
    "time": ("ts",),
    "bool": ("ok",),
    "*": ("*",),
}
LATER: Final = {**VALUES, "int": ("0", "1", "3", "-2"), "text": ("'a'", "','", "''", "u")}
"""For arguments after the first."""
SAME_TYPE: Final = {"coalesce", "ifnull", "nvl", "nullif", "greatest", "least", "equal_null", "if"}
"""Functions whose arguments are of one family, so that columns are compared with columns too."""
MOST: Final = 12
OVER: Final = "OVER (PARTITION BY g ORDER BY id)"
ROW: Final = "SELECT {columns} FROM {table} ORDER BY id"
GROUP: Final = "SELECT {columns} FROM {table} GROUP BY g ORDER BY g"
WHOLE: Final = "SELECT {columns} FROM {table}"
WINDOW: Final = "SELECT {columns}, id FROM {table} ORDER BY id"


def expressions(signature: str) -> list[str]:
    """Calls of one function; an aggregate is not yet in a group or a window."""
    name, given = re.fullmatch(r"(\w+)\((.*)\)", signature).groups()  # type: ignore[union-attr]
    calls = [f"{name}({', '.join(arguments)})" for arguments in _arguments(name, given.split())]
    return calls[:: max(1, len(calls) // MOST)][:MOST]


def _arguments(name: str, families: Sequence[str]) -> Iterator[tuple[str, ...]]:
    pools = [
        (family,) if "'" in family else (VALUES if not at or name in SAME_TYPE else LATER)[family]
        for at, family in enumerate(families)
    ]
    return product(*pools)


def uses(signature: str) -> list[str]:
    """The ways in which the function is used, as SELECTs with places for columns and a table."""
    name = signature.partition("(")[0]
    if name in WINDOWS:
        return [WINDOW]
    return [GROUP, WHOLE, WINDOW] if name in AGGREGATES else [ROW]


def statement(use: str, table: str, calls: Sequence[str]) -> str:
    over = f" {OVER}" if use == WINDOW else ""
    columns = ", ".join(f"{call}{over} AS c{at}" for at, call in enumerate(calls))
    return use.format(columns=columns, table=table)


SYNTAX: Final = [
    "SELECT * FROM plain ORDER BY id",
    "SELECT * FROM extreme WHERE id <> 1 ORDER BY id",
    "SELECT * FROM nothing",
    "SELECT id, i, l FROM extreme ORDER BY i, l DESC",
    "SELECT id, i FROM extreme ORDER BY i DESC",
    "SELECT id, i FROM extreme ORDER BY i NULLS LAST, id",
    "SELECT id, i FROM extreme ORDER BY i DESC NULLS FIRST, id",
    "SELECT id FROM extreme ORDER BY big, id",
    "SELECT id FROM extreme ORDER BY dec DESC, id",
    "SELECT id FROM extreme ORDER BY t, id",
    "SELECT id FROM extreme ORDER BY u DESC, id",
    "SELECT id FROM extreme ORDER BY b, id",
    "SELECT id FROM extreme ORDER BY dt, id",
    "SELECT id FROM extreme ORDER BY ts DESC, id",
    "SELECT id FROM extreme ORDER BY ok, id",
    "SELECT DISTINCT g FROM extreme ORDER BY g",
    "SELECT DISTINCT ok FROM extreme ORDER BY ok",
    "SELECT DISTINCT i, l FROM plain ORDER BY i, l",
    "SELECT id FROM plain ORDER BY id LIMIT 2 OFFSET 1",
    "SELECT g, count(*) AS n FROM plain GROUP BY g HAVING count(*) > 1 ORDER BY g",
    "SELECT g, ok, count(*) AS n FROM extreme GROUP BY g, ok ORDER BY g, ok",
    "SELECT t, count(*) AS n FROM extreme GROUP BY t ORDER BY t",
    "SELECT b, count(*) AS n FROM extreme GROUP BY b ORDER BY b",
    "SELECT big, count(*) AS n FROM extreme GROUP BY big ORDER BY big",
    "SELECT dt, count(*) AS n FROM extreme GROUP BY 1 ORDER BY 1",
    "SELECT count(*) AS n, count(DISTINCT g) AS d, count(DISTINCT i, l) AS dd FROM extreme",
    "SELECT count(*) FILTER (WHERE ok) AS n, max(i) FILTER (WHERE l > 0) AS m FROM extreme",
    "SELECT count(*) AS n, max(i) AS m FROM nothing",
    "SELECT g, max(i) AS m FROM nothing GROUP BY g",
    "SELECT a.id, b.id AS other FROM plain a JOIN extreme b ON a.id = b.id ORDER BY 1",
    "SELECT a.id, b.l AS other FROM plain a LEFT JOIN extreme b ON a.g = b.g AND b.ok ORDER BY 1, 2",
    "SELECT a.id, b.id AS other FROM plain a FULL OUTER JOIN extreme b ON a.i = b.i ORDER BY 1, 2",
    "SELECT a.id, b.id AS other FROM plain a RIGHT JOIN extreme b ON a.l = b.i ORDER BY 2, 1",
    "SELECT a.id, b.id AS other FROM plain a CROSS JOIN plain b ORDER BY 1, 2",
    "SELECT id FROM plain LEFT SEMI JOIN extreme USING (id) ORDER BY id",
    "SELECT id FROM extreme LEFT ANTI JOIN plain USING (id) ORDER BY id",
    "SELECT a.id FROM plain a JOIN extreme b USING (g) ORDER BY a.id",
    "SELECT id, a.t AS x, b.t AS y FROM plain a JOIN extreme b USING (id) ORDER BY id",
    "SELECT id FROM plain UNION ALL SELECT id FROM extreme ORDER BY id",
    "SELECT g FROM plain UNION SELECT g FROM extreme ORDER BY g",
    "SELECT i FROM plain INTERSECT SELECT i FROM extreme",
    "SELECT id FROM extreme EXCEPT SELECT id FROM plain ORDER BY id",
    "SELECT i AS x FROM plain UNION ALL SELECT l AS x FROM plain ORDER BY x",
    "SELECT t FROM extreme UNION SELECT u FROM extreme ORDER BY t",
    "WITH few AS (SELECT id, i FROM extreme WHERE i > 0) SELECT few.id, few.i FROM few ORDER BY id",
    "WITH a AS (SELECT g, max(l) AS m FROM plain GROUP BY g) SELECT p.id FROM plain p JOIN a ON p.l = a.m ORDER BY 1",
    "SELECT x.n FROM (SELECT g AS n, count(*) AS c FROM extreme GROUP BY g) x WHERE x.c > 1 ORDER BY n",
    "SELECT id FROM plain WHERE l = (SELECT max(l) FROM plain) ORDER BY id",
    "SELECT id FROM extreme WHERE g IN (SELECT g FROM plain) ORDER BY id",
    "SELECT id FROM extreme WHERE i NOT IN (SELECT i FROM extreme WHERE i > 0) ORDER BY id",
    "SELECT id FROM extreme WHERE id NOT IN (SELECT id FROM plain) ORDER BY id",
    "SELECT id FROM plain p WHERE EXISTS (SELECT 1 AS x FROM extreme e WHERE e.i = p.i) ORDER BY id",
    "SELECT id FROM plain p WHERE NOT EXISTS (SELECT 1 AS x FROM extreme e WHERE e.g = p.g) ORDER BY id",
    "SELECT id FROM extreme WHERE i = 1 OR i IS NULL ORDER BY id",
    "SELECT id FROM extreme WHERE NOT (i = 1) ORDER BY id",
    "SELECT id FROM extreme WHERE ok ORDER BY id",
    "SELECT id FROM extreme WHERE NOT ok ORDER BY id",
    "SELECT id FROM extreme WHERE ok IS NOT TRUE ORDER BY id",
    "SELECT id FROM extreme WHERE ok = TRUE AND t IS NOT NULL ORDER BY id",
    "SELECT id FROM extreme WHERE i <=> NULL ORDER BY id",
    "SELECT id FROM extreme WHERE t <=> u ORDER BY id",
    "SELECT id FROM extreme WHERE i BETWEEN -1 AND 1 ORDER BY id",
    "SELECT id FROM extreme WHERE t BETWEEN 'A' AND 'z' ORDER BY id",
    "SELECT id FROM extreme WHERE l IN (1, -1, 9223372036854775807) ORDER BY id",
    "SELECT id FROM plain WHERE t IN ('apple', 'a,b,c') ORDER BY id",
    "SELECT id FROM plain WHERE t LIKE 'a%' ORDER BY id",
    "SELECT id FROM plain WHERE t LIKE '_pple' ORDER BY id",
    "SELECT id FROM extreme WHERE t LIKE '%\\\\_%' ORDER BY id",
    "SELECT id FROM extreme WHERE t NOT LIKE '%x%' ORDER BY id",
    "SELECT id FROM extreme WHERE t = '' ORDER BY id",
    "SELECT id FROM plain WHERE t > 'a' ORDER BY id",
    "SELECT id FROM extreme WHERE b = X'' ORDER BY id",
    "SELECT id FROM extreme WHERE b > X'00' ORDER BY id",
    "SELECT id FROM extreme WHERE l > i ORDER BY id",
    "SELECT id FROM extreme WHERE big = dec ORDER BY id",
    "SELECT id FROM extreme WHERE dec > 0.5 ORDER BY id",
    "SELECT id FROM extreme WHERE dec = 1.0 ORDER BY id",
    "SELECT id FROM extreme WHERE dec IN (1.0, 0.0001) ORDER BY id",
    "SELECT id, CASE WHEN i > 0 THEN 'up' WHEN i < 0 THEN 'down' END AS way FROM extreme ORDER BY id",
    "SELECT id, CASE i WHEN 1 THEN l ELSE 0 END AS x FROM extreme ORDER BY id",
    "SELECT id, CASE WHEN ok THEN big ELSE big END AS x FROM extreme ORDER BY id",
    "SELECT id, CASE WHEN ok THEN i ELSE l END AS x FROM extreme ORDER BY id",
    "SELECT id, CASE WHEN ok THEN dec ELSE big END AS x FROM plain ORDER BY id",
    "SELECT id, t || u AS x FROM extreme ORDER BY id",
    "SELECT id, t || '-' || u AS x FROM plain ORDER BY id",
    "SELECT id, i > 0 AND ok AS x, i > 0 OR ok AS y, NOT ok AS z FROM extreme ORDER BY id",
    "SELECT id, 1 AS one, 'x' AS x, TRUE AS yes, 1.50 AS d, X'FF' AS h, 3000000000 AS l FROM plain ORDER BY id",
    "SELECT id, -5 AS a, -1.50 AS b, -3000000000 AS c, -2147483647 AS d FROM plain ORDER BY id",
    "SELECT id, -9223372036854775807 AS e FROM plain ORDER BY id",
    "SELECT id FROM extreme WHERE i > -2 AND l <> -1 AND dec > -1.5 ORDER BY id",
    "SELECT id, 99999999999999999999 AS huge FROM plain ORDER BY id",
    "SELECT id, row_number() OVER (ORDER BY t DESC) AS n FROM plain ORDER BY id",
    "SELECT id, rank() OVER (ORDER BY g) AS r, dense_rank() OVER (ORDER BY g DESC) AS d FROM extreme ORDER BY id",
    "SELECT id, max(l) OVER (PARTITION BY g) AS m FROM extreme ORDER BY id",
    "SELECT id, max(l) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS m FROM extreme ORDER BY id",
    "SELECT id, count(*) OVER (ORDER BY g) AS m FROM extreme ORDER BY id",
    "SELECT id, count(*) OVER () AS m FROM extreme ORDER BY id",
    "SELECT id, lag(t) OVER (PARTITION BY g ORDER BY i) AS p FROM extreme ORDER BY id",
    "SELECT id, lead(i, 2) OVER (ORDER BY id) AS q FROM extreme ORDER BY id",
    "SELECT id, min(ts) OVER (PARTITION BY ok ORDER BY id) AS m FROM extreme ORDER BY id",
    "SELECT to_date(ts) AS d, count(*) AS n FROM extreme GROUP BY to_date(ts) ORDER BY d",
    "SELECT date_trunc('day', ts) AS d, count(*) AS n FROM plain GROUP BY date_trunc('day', ts) ORDER BY d",
    "SELECT date_trunc('month', ts) AS d, max(l) AS n FROM plain GROUP BY 1 ORDER BY 1",
    "SELECT upper(t) AS x, count(*) AS n FROM plain GROUP BY upper(t) ORDER BY x",
    "SELECT min(t) AS a, max(t) AS b, min(ts) AS c, max(dt) AS d, min(big) AS e, max(dec) AS f FROM extreme",
]
"""What is no function: clauses, joins, comparisons, NULLs, orders. Sail need not run all of it."""
