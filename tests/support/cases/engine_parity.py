"""Expressions on which engines are compared: every function that Sail may run, with arguments of its families."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from tracelake.domain.sql.functions import AGGREGATES, WINDOWS
from tracelake.query.sail.translate.calls import FORMATS, PARTS, TRUNCATED
from tracelake.query.sail.translate.same_functions import ANY, IN_ORDER

VALUES: Final = {
    "whole": ("i", "l"),
    "int": ("i", "s"),
    "decimal": ("dec", "big"),
    "double": ("d",),
    "text": ("t", "u"),
    "bytes": ("b",),
    "date": ("dt",),
    "time": ("ts",),
    "bool": ("ok",),
    "array": ("a",),
    "n": ("3",),
}
LATER: Final = {
    **VALUES,
    "int": ("0", "1", "3", "-2"),
    "n": ("0", "1", "3", "70"),
    "-n": ("-1", "-2"),
    "text": ("'a'", "','", "''", "u"),
    "whole": ("id", "i"),
}
"""For arguments after the first."""
MOST: Final = 8
ROW: Final = "SELECT {columns} FROM {table} ORDER BY id"
GROUP: Final = "SELECT {columns} FROM {table} GROUP BY g ORDER BY g"
FILTERED: Final = "SELECT {columns}, g FROM {table} GROUP BY g ORDER BY g"
WHOLE: Final = "SELECT {columns} FROM {table}"
FILTER: Final = "FILTER (WHERE i > 0)"
OVER: Final = "OVER (PARTITION BY g ORDER BY id)"
WINDOW: Final = "SELECT {columns}, id FROM {table} ORDER BY id"


def expressions(signature: str) -> list[str]:
    """Calls of one function; an aggregate is not yet in a group or a window."""
    name, given = re.fullmatch(r"(\w+)\((.*)\)", signature).groups()  # type: ignore[union-attr]
    calls = [f"{name}({', '.join(arguments)})" for arguments in _arguments(given.split())]
    return random.Random(1).sample(calls, min(MOST, len(calls)))  # noqa: S311 - the same each time


def _arguments(families: Sequence[str]) -> Iterator[tuple[str, ...]]:
    pools = [(VALUES if not at else LATER).get(family, (family,)) for at, family in enumerate(families)]
    return product(*pools)


def uses(signature: str) -> list[str]:
    """The ways in which the function is used, as SELECTs with places for columns and a table."""
    name = signature.partition("(")[0]
    if name in WINDOWS or name in IN_ORDER:
        return [WINDOW]
    return [GROUP, WHOLE, WINDOW, FILTERED] if name in AGGREGATES else [ROW]


REWRITTEN: Final = (
    *(f"{name}({kind})" for name in ("sum", "avg", "mean") for kind in ("whole", "decimal", "int")),
    *(f"{name}({kind})" for name in ("min", "max") for kind in ("whole", "decimal", "double", "text", "date", "time")),
    *("unix_seconds(time)", "unix_timestamp(time)", "unix_millis(time)", "bigint(time)"),
    *("count_if(bool)", "abs(whole)", "abs(decimal)", "abs(double)", "floor(whole)", "floor(decimal)", "ceil(decimal)"),
    *("ceiling(decimal)", "pow(10 int)", "date_diff(date date)", "datepart('month' time)", "tinyint(bool)"),
    "smallint(bool)",
    *("round(decimal 2)", "round(decimal)", "power(10 int)", "try_divide(whole int)", "try_divide(decimal int)"),
    *("try_divide(double double)", "mod(whole 7)", "pmod(whole 7)", "datediff(date date)", "timestamp_seconds(int)"),
    *(f"timestampdiff({unit} time ts)" for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK")),
    *(f"timestampadd({unit} -3 time)" for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK")),
    *(f"date_format(time '{form}')" for form in sorted(FORMATS) if " " not in form),
    *(f"date_format(date '{form}')" for form in sorted(FORMATS) if "H" not in form),
    *(f"date_part('{part}' time)" for part in PARTS),
    *(f"date_trunc('{part}' time)" for part in TRUNCATED),
    *(f"{name}({kind} {kind})" for name in ("coalesce", "ifnull", "nvl") for kind in ("double", *ANY)),
    *(f"{name}({kind} {kind})" for name in ("nullif", "equal_null") for kind in ANY),
    *(f"{name}({kind} {kind})" for name in ("greatest", "least") for kind in ANY if kind not in {"bytes", "bool"}),
    *(f"{name}({kind}{more})" for name in ("lag", "lead") for kind in ("whole", "decimal", "double", "text", "time")
      for more in ("", " 1", " 2")),
    *("lag(whole 1 -1)", "lead(text 1 'none')", "bigint(int)", "int(bool)", "double(whole)", "double(decimal)"),
    *("string(whole)", "string(decimal)", "string(bool)", "string(date)", "string(time)", "decimal(int)"),
    *("boolean(whole)", "nvl2(text int int)"),
)  # fmt: skip
"""Functions that are written in other words for Sail, as signatures."""

STATEMENTS: Final = [
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
    "SELECT id FROM plain WHERE ts > '2024-01-01' AND dt < '2030-12-31' ORDER BY id",
    "SELECT p.id FROM plain p WHERE i > (SELECT avg(i) FROM plain q WHERE q.g = p.g) ORDER BY 1",
    "SELECT count(DISTINCT dec) AS n, count(DISTINCT t, g) AS m FROM many",
    "SELECT id, avg(l) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS x FROM many ORDER BY id",
    "SELECT id, sum(dec) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS x FROM many ORDER BY id",
    "SELECT id, sum(i) OVER (ORDER BY g) AS x, count(*) OVER (ORDER BY g DESC) AS y FROM many ORDER BY id",
    "SELECT id, max(d) OVER (PARTITION BY g ORDER BY id ROWS 2 PRECEDING) AS x FROM many ORDER BY id",
    "SELECT id, min(d) OVER (PARTITION BY g ORDER BY id ROWS 2 PRECEDING) AS x FROM extreme ORDER BY id",
    "SELECT id, first_value(t) OVER w AS a, max(i) OVER w AS b FROM many WINDOW w AS (PARTITION BY g ORDER BY id)",
    "SELECT g, sum(i) AS s FROM many GROUP BY CUBE (g) ORDER BY s",
    "SELECT g % 2 AS h, ok, avg(dec) AS a FROM many GROUP BY ROLLUP (g % 2, ok) ORDER BY 1, 2",
    "SELECT g, ok, sum(l) AS s FROM many GROUP BY GROUPING SETS ((g), (ok), ()) ORDER BY 1, 2, 3",
    "SELECT g, sum(l) AS s FROM many GROUP BY g WITH ROLLUP ORDER BY g NULLS LAST",
    "SELECT a.id, b.s FROM many a JOIN (SELECT g, sum(l) AS s FROM many GROUP BY g) b ON a.g = b.g + 1 ORDER BY a.id",
    "SELECT x FROM (SELECT i + l AS x FROM many UNION ALL SELECT id FROM plain) WHERE x % 2 = 0",
    "SELECT g, i FROM many QUALIFY row_number() OVER (PARTITION BY g ORDER BY id DESC) <= 2 ORDER BY g, i",
    "SELECT *, i - lag(i) OVER (ORDER BY id) AS step FROM many QUALIFY step > 0 AND g > 1",
    "SELECT g, sum(l) AS s FROM many GROUP BY g QUALIFY rank() OVER (ORDER BY s DESC) <= 2 ORDER BY s DESC LIMIT 1",
    "SELECT * EXCEPT (a, d) FROM many ORDER BY id",
    "SELECT m.* EXCEPT (a), p.id AS other FROM many m JOIN plain p ON p.i = m.g ORDER BY m.id, other",
    "SELECT i + 1 AS x, x * 2 AS y, y / 3 AS z FROM plain ORDER BY x, id",
    "SELECT id FROM extreme WHERE d > 0e0 OR d = 0e0 ORDER BY id",
    "SELECT a.id, b.id AS other FROM extreme a JOIN extreme b ON a.d = b.d ORDER BY 1, 2",
    "SELECT a.id, b.id AS other FROM extreme a JOIN extreme b ON a.d <=> b.d ORDER BY 1, 2",
    "SELECT id FROM extreme ORDER BY d, id",
    "SELECT id FROM extreme ORDER BY d DESC NULLS FIRST, id DESC",
    "SELECT id FROM many WHERE dec * 2 > big OR s % 7 = 3 ORDER BY id",
    "SELECT id, CASE WHEN ok THEN dec ELSE 0 END AS x, if(g > 1, i, 2.5) AS y FROM many ORDER BY id",
    "SELECT sum(l) AS s FROM extreme",
    "SELECT sum(big) AS s, avg(big) AS a FROM extreme",
    "SELECT sum(i) AS s, avg(i) AS a, sum(dec) AS t, avg(dec) AS b, sum(small) AS u, avg(small) AS c FROM nothing",
    "SELECT g, sum(i) FILTER (WHERE ok) AS s, count_if(ok) FILTER (WHERE i > 0) AS n FROM many GROUP BY g ORDER BY g",
    "SELECT id, ts - INTERVAL 1 DAY AS a, dt + INTERVAL 2 WEEKS AS b, dt - 3 AS c FROM many ORDER BY id",
    "SELECT id, extract(YEAR FROM ts) AS y, extract(WEEK FROM dt) AS w FROM many ORDER BY id",
    "SELECT id, trim(LEADING '0' FROM t) AS a, trim(BOTH 'x' FROM t) AS b, ~i AS c, l << 3 AS e, l >> 2 AS f FROM many",
    "SELECT id, a[0] AS first, size(a) AS n FROM many WHERE a IS NOT NULL ORDER BY id",
    "SELECT g FROM many INTERSECT ALL SELECT g FROM plain",
    "SELECT g FROM many EXCEPT ALL SELECT g FROM plain",
    "SELECT id FROM plain WHERE t LIKE 'a\\\\pple' ORDER BY id",
    "SELECT string(timestamp_micros(9000000000000000000)) AS x FROM plain",
    "SELECT string(ts) AS x, string(dt) AS y, date_format(ts, 'yyyy-MM-dd HH:mm:ss') AS z FROM many ORDER BY id",
    "SELECT id, a.t AS x, b.t AS y FROM plain a FULL OUTER JOIN extreme b USING (id) ORDER BY id",
    "SELECT id, (SELECT count(*) FROM many q WHERE q.g = p.g AND q.i > 99999999) AS x FROM plain p ORDER BY id",
    "SELECT id, (SELECT i FROM plain) AS x FROM plain",
    "SELECT '\\u0041' AS a, '\\101' AS b, '\\n' AS c, '\\0' AS d, '\\Z' AS e, '\\%' AS f, '\\q' AS g FROM plain",
    "SELECT lower('ΟΔΥΣΣΕΥΣ') AS a, upper('ǆ') AS b, lower('İI') AS c, upper('ŉ ß ﬃ') AS d FROM plain",
    "SELECT id, sum(dec) OVER (ORDER BY id) AS a, sum(CAST(dec AS INT)) OVER (ORDER BY id) AS b FROM many ORDER BY id",
    "SELECT id FROM extreme WHERE i NOT IN (SELECT i FROM extreme) OR ok ORDER BY id",
    "SELECT id, i IN (SELECT i FROM extreme WHERE i > 0) AS x FROM extreme ORDER BY id",
    "SELECT id FROM extreme WHERE NOT (i IN (SELECT i FROM extreme)) ORDER BY id",
    "SELECT id FROM extreme WHERE (i IN (SELECT i FROM many) AND id > 0) OR ok ORDER BY id",
    "SELECT g, count(*) AS n FROM nothing GROUP BY ROLLUP (g)",
    "SELECT g, count(*) AS n FROM nothing GROUP BY GROUPING SETS ((g), ())",
    "SELECT g, ok, count(*) AS n FROM many GROUP BY GROUPING SETS ((g), (ok)) ORDER BY 1, 2, 3",
    "SELECT date_trunc('week', timestamp_micros(-9223372036854775807)) AS x FROM plain",
    "SELECT count(*), Count(I), MAX(p.i), min(T), sum(g), avg(s) FROM plain p",
    "SELECT id, st, m, ss, f, ntz, a, y, fine FROM extreme ORDER BY id",
    "SELECT count(*) AS n FROM plain GROUP BY 1.0",
    "SELECT count(*) AS n FROM plain GROUP BY 'x'",
    "SELECT count(*) AS n FROM plain GROUP BY TRUE, g",
    "SELECT id FROM plain ORDER BY 1.5, id",
    "SELECT id FROM extreme WHERE i + 1 > 5 ORDER BY id",
    "SELECT id, l + 1 > 5 AS x FROM extreme ORDER BY id",
    "SELECT id FROM extreme WHERE l * 2 IN (2, 4) ORDER BY id",
    "SELECT id FROM extreme WHERE timestamp_seconds(l) > TIMESTAMP '2001-01-01 00:00:00'",
    "SELECT id FROM many WHERE CAST(fine AS DECIMAL(10, 2)) = 1.5 ORDER BY id",
    "SELECT id FROM many WHERE i + 1 > 5 AND l * 2 <> 6 AND dec / 3 > 0.1 ORDER BY id",
    "SELECT id, i ^ i AS a, l ^ l AS b, nvl2(s ^ s, 1, 2) AS c FROM extreme ORDER BY id",
    "SELECT id, i IN (1) AND i IN (2) AS x FROM extreme ORDER BY id",
    "SELECT id FROM extreme WHERE NOT (i IN (1, 2) AND i IN (3)) ORDER BY id",
    "SELECT id FROM extreme WHERE NOT ((i = 1 OR i = 2) AND (i = 3 OR i = 4)) ORDER BY id",
    "SELECT id FROM extreme WHERE i NOT IN (1, 2) OR i NOT IN (3, 4) ORDER BY id",
    "SELECT id FROM extreme WHERE i NOT IN (1, 2) AND i NOT IN (3, 4) AND i <> 0 ORDER BY id",
    "SELECT id FROM extreme WHERE i IN (1, 2) AND (i IN (1, 3) OR i = 0) ORDER BY id",
    "SELECT a.ID, B.l FROM plain a JOIN many b ON a.Id = b.ID WHERE a.T <> b.t ORDER BY a.id",
]
"""What is no function: clauses, joins, comparisons, NULLs, orders. Sail need not run all of it."""

UNDEFINED_ORDER: Final = {"balances over time"}
"""Queries of analysts whose rows depend on which of two equal rows comes first."""
