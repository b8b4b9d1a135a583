"""Queries with huge results from small inputs, written and generated: each is refused, with the limit that it exceeds.

Numbers are chosen so that some are far too large, some near the limits, and some harmless.
"""

# ruff: noqa: E501, S608 - queries of tests, each on one line

from __future__ import annotations

from random import Random
from typing import Final


def doubled(start: str, step: str, times: int, end: str) -> str:
    """A chain of WITH parts c0, c1, ..., each made of the one before; `{before}` stands for its name."""
    parts = [f"c0 AS ({start})"]
    parts += [f"c{n} AS ({step.replace('{before}', f'c{n - 1}')})" for n in range(1, times + 1)]
    return f"WITH {', '.join(parts)} {end.replace('{last}', f'c{times}')}"


BOMBS: dict[str, str] = {
    # texts
    "repeat": "SELECT repeat('x', 1000000000) AS x",
    "repeat of repeat": "SELECT length(repeat(repeat('x', 10000), 10000)) AS n",
    "repeat by a product": "SELECT repeat('x', 1000 * 1000 * 1000) AS x",
    "repeat by a column": "SELECT repeat('x', id * 1000000) AS x FROM granted",
    "repeat of a column, often": "SELECT repeat(repeat(name, 10000), 10000) AS x FROM granted",
    "space": "SELECT space(1000000000) AS x",
    "lpad": "SELECT lpad('x', 1000000000, 'y') AS x",
    "rpad by a column": "SELECT rpad('x', id * 1000000, 'y') AS x FROM granted",
    "replace": "SELECT replace(repeat('x', 10000), 'x', repeat('y', 10000)) AS x",
    "replace of replace": "SELECT replace(replace(replace(repeat('x', 900), 'x', repeat('x', 900)), 'x', repeat('x', 900)), 'x', 'xx') AS x",
    "regexp_replace between letters": "SELECT regexp_replace(repeat('x', 10000), '', repeat('y', 10000)) AS x",
    "regexp_replace by looking ahead": "SELECT regexp_replace(repeat('x', 100000), '(?=(x*))', '$1$1') AS x",
    "format_string": "SELECT format_string('%1000000000d', id) AS x FROM granted",
    "printf of a column": "SELECT printf(name, id) AS x FROM granted",
    "format_number": "SELECT format_number(id, 1000000000) AS x FROM granted",
    "round": "SELECT round(cast(id AS double), 1000000000) AS x FROM granted",
    "concat by a WITH": doubled("SELECT repeat('x', 1000) AS s", "SELECT concat(s, s) AS s FROM {before}", 30, "SELECT length(s) AS n FROM {last}"),
    "|| by a WITH": doubled("SELECT name AS s FROM granted", "SELECT s || s AS s FROM {before}", 30, "SELECT length(s) AS n FROM {last}"),
    "concat by aliases": "SELECT repeat('x', 1000) AS s0, " + ", ".join(f"concat(s{n}, s{n}) AS s{n + 1}" for n in range(30)),
    "concat by subqueries": "SELECT length(s) AS n FROM " + "(SELECT concat(s, s, s, s) AS s FROM " * 15 + "(SELECT repeat('x', 1000) AS s)" + ")" * 15,
    "hex of hex": "SELECT " + "hex(" * 24 + "'x'" + ")" * 24 + " AS x",
    "json of json": "SELECT " + "to_json(struct(" * 12 + "'\"'" + "))" * 12 + " AS x",
    "join of an array": "SELECT array_join(array_repeat(repeat('x', 10000), 10000), repeat('y', 10000)) AS x",
    "concat_ws": "SELECT concat_ws(repeat('y', 10000), array_repeat('x', 100000)) AS x",
    "levenshtein": "SELECT levenshtein(repeat('x', 1000000), repeat('y', 1000000)) AS x",
    "many large columns": "SELECT " + ", ".join(f"repeat('{n}', 2000000) AS c{n}" for n in range(20)),
    # arrays and lambdas
    "array_repeat": "SELECT array_repeat(1, 1000000000) AS x",
    "array_repeat of array_repeat": "SELECT array_repeat(array_repeat(1, 10000), 10000) AS x",
    "array_insert": "SELECT array_insert(array(1), 1000000000, 2) AS x",
    "sequence": "SELECT size(sequence(1, 900000000000)) AS x",
    "sequence of columns": "SELECT sequence(id, id * 1000000) AS x FROM granted",
    "sequence of microseconds": "SELECT sequence(TIMESTAMP '2024-01-01', TIMESTAMP '2024-12-31', INTERVAL 1 MICROSECOND) AS x",
    "sequence since the year 1": "SELECT sequence(DATE '0001-01-01', current_date(), INTERVAL 1 DAY) AS x",
    "transform in transform": "SELECT transform(sequence(1, 10000), x -> transform(sequence(1, 10000), y -> x * y)) AS x",
    "three transforms": "SELECT size(transform(sequence(1, 1000), x -> size(transform(sequence(1, 1000), y -> size(transform(sequence(1, 1000), z -> z)))))) AS x",
    "transform of columns, four deep": "SELECT transform(a, x -> transform(a, y -> transform(a, z -> transform(a, w -> w)))) AS x FROM granted",
    "aggregate that doubles": "SELECT length(aggregate(sequence(1, 40), 'x', (s, n) -> concat(s, s))) AS n",
    "aggregate that doubles an array": "SELECT size(reduce(sequence(1, 40), array(1), (s, n) -> concat(s, s))) AS n",
    "aggregate in aggregate": "SELECT aggregate(sequence(1, 10000), 0, (s, x) -> s + aggregate(sequence(1, 10000), 0, (t, y) -> t + y)) AS n",
    "aggregates inside of aggregates": "SELECT " + "aggregate(array(1), 0, (s, x) -> s + " * 20 + "1" + ")" * 20 + " AS n",
    "filter in filter": "SELECT size(filter(sequence(1, 10000), x -> exists(sequence(1, 10000), y -> y = x + 20000))) AS n",
    "array_sort with a slow order": "SELECT array_sort(sequence(1, 100000), (a, b) -> size(sequence(1, 1000)) + b - a) AS x",
    "array of arrays by a WITH": doubled("SELECT array(1) AS a", "SELECT array(a, a) AS a FROM {before}", 40, "SELECT a FROM {last}"),
    "concat of arrays by a WITH": doubled("SELECT sequence(1, 100) AS a", "SELECT concat(a, a) AS a FROM {before}", 30, "SELECT size(a) AS n FROM {last}"),
    "zip_with": "SELECT zip_with(sequence(1, 10000), sequence(1, 10000), (a, b) -> repeat('x', 10000)) AS x",
    "list of constants": "SELECT length(array_join(collect_list(s), '')) AS n FROM (SELECT repeat('x', 10000) AS s, explode(sequence(1, 100000)) AS n)",
    # functions that grow in ways of their own
    "format of a time": "SELECT repeat(date_format(now(), repeat('M', 1000000)), 1000) AS x",
    "found by looking ahead": "SELECT regexp_extract_all(repeat('x', 100000), '(?=(x*))', 1) AS x",
    "structs of a schema": "SELECT from_json(repeat('{},', 300000), concat('array<struct<', '" + ", ".join(f"c{n}: int" for n in range(500)) + "', '>>')) AS x",
    "zip of one long array": "SELECT arrays_zip(sequence(1, 90000)" + ", array(1)" * 100 + ") AS x",
    "json with a format": "SELECT to_json(transform(sequence(1, 90000), n -> now()), map('timestampFormat', repeat('M', 1000))) AS x",
    "a literal of bytes": "SELECT repeat(X'" + "ab" * 20_000 + "', 100000) AS x",
    "all columns": "SELECT repeat(s.f, 10000) AS x FROM (SELECT struct(*) AS s FROM (SELECT repeat('x', 100000) AS f))",
    "an array in a map": "SELECT repeat(array_join(map('k', array_repeat('xxxxxxxxxx', 50000))['k'], ''), 10000) AS x",
    "an array in an array": "SELECT repeat(array_join(array_append(array(array('x')), array_repeat('xxxxxxxxxx', 50000))[1], ''), 10000) AS x",
    "a field of a name around": "SELECT (SELECT max(repeat(s.f, 10000)) FROM (SELECT named_struct('f', repeat('x', 100000)) AS s)) AS x FROM (SELECT 1 AS f) s",
    "a long search": "SELECT instr(repeat('a', 3000000), concat(repeat('a', 1000000), 'b')) AS x",
    "a long replacement": "SELECT length(replace(repeat('a', 3000000), concat(repeat('a', 1000000), 'b'), 'c')) AS x",
    "arrays compared with arrays": "SELECT size(array_distinct(transform(sequence(1, 90000), n -> array(n)))) AS x",
    "windows without end": "SELECT count(*) AS n FROM granted GROUP BY window(ts, '1 day', '1 second')",
    "windows of microseconds": "SELECT count(*) AS n FROM granted GROUP BY window(ts, 86400000000, 1)",
    "a very small error": "SELECT approx_count_distinct(id, 0.0005) AS n FROM granted",
    # rows
    "explode": "SELECT explode(sequence(1, 900000000000)) AS x",
    "explode of explode": "SELECT count(*) AS n FROM (SELECT explode(sequence(1, 100000)) AS a) LATERAL VIEW explode(sequence(1, 100000)) e AS b",
    "three views": "SELECT count(*) AS n FROM granted LATERAL VIEW explode(sequence(1, 1000)) a AS x LATERAL VIEW explode(sequence(1, 1000)) b AS y LATERAL VIEW explode(sequence(1, 1000)) c AS z",
    "stack": "SELECT stack(1000000000, 1) AS x",
    "cross join of sequences": "WITH n AS (SELECT explode(sequence(1, 10000)) AS x) SELECT count(*) AS n FROM n a, n b, n c",
    "cross join of one name": "WITH n AS (SELECT explode(sequence(1, 10000)) AS x) SELECT count(*) AS n FROM n, n, n",
    "steps of a join": "WITH n AS (SELECT explode(sequence(1, 1000)) AS x) SELECT count(*) AS n FROM n a JOIN n b ON exists(sequence(1, 1000), e -> e = a.x + b.x)",
    "steps of a view": "SELECT count(*) AS n FROM (SELECT explode(sequence(1, 10000)) AS x) LATERAL VIEW explode(filter(sequence(1, 10000), e -> e = x)) v AS y",
    "cross join with a condition": "WITH n AS (SELECT explode(sequence(1, 10000)) AS x) SELECT count(*) AS n FROM n a JOIN n b ON a.x <> b.x JOIN n c ON c.x <> b.x",
    "VALUES by a WITH": doubled("SELECT * FROM VALUES (1), (2), (3), (4) AS v (x)", "SELECT a.x FROM {before} a CROSS JOIN {before} b", 6, "SELECT count(*) AS n FROM {last}"),
    "steps of many rows": "SELECT sum(length(md5(repeat('x', 10000)))) AS n FROM (SELECT explode(sequence(1, 100000)) AS a) LATERAL VIEW explode(sequence(1, 40)) e AS b",
    # plans
    "arms": " UNION ALL ".join(["SELECT 1 AS x"] * 4000),
    "arms by a WITH": doubled("SELECT id FROM granted", "SELECT id FROM {before} UNION ALL SELECT id FROM {before}", 12, "SELECT count(*) AS n FROM {last}"),
    "arms in subqueries": "SELECT " + " + ".join(["(SELECT max(id) FROM granted)"] * 150) + " AS x",
    "joins by a WITH": doubled("SELECT id FROM granted", "SELECT a.id FROM {before} a JOIN {before} b ON a.id = b.id", 8, "SELECT count(*) AS n FROM {last}"),
    "joins": "SELECT count(*) AS n FROM granted " + " ".join(f"JOIN granted t{n} USING (id)" for n in range(80)),
    "expression by a WITH": doubled("SELECT id AS x FROM granted", "SELECT x * x + x AS x FROM {before}", 16, "SELECT x FROM {last} WHERE x > 5"),
    "expression by aliases": "SELECT id AS x0, " + ", ".join(f"x{n} * x{n} + x{n} AS x{n + 1}" for n in range(16)) + " FROM granted",
    "cube": "SELECT count(*) AS n FROM granted GROUP BY CUBE (" + ", ".join(f"id % {n}" for n in range(2, 22)) + ")",
    "cubes": "SELECT count(*) AS n FROM granted GROUP BY CUBE (id, id % 2, id % 3), CUBE (id % 4, id % 5, id % 6), CUBE (id % 7, id % 8, id % 9)",
    "old cube": "SELECT count(*) AS n FROM granted GROUP BY " + ", ".join(f"id % {n}" for n in range(2, 22)) + " WITH CUBE",
    "a sum without end": "SELECT " + " + ".join(f"id * {n}" for n in range(500)) + " AS x FROM granted",
    "a sum without end in a condition": "SELECT id FROM granted WHERE " + " + ".join(["id"] * 500) + " > 1 AND id > 1",
    "counts of distinct values": "SELECT " + ", ".join(f"count(DISTINCT id % {n}) AS c{n}" for n in range(2, 202)) + " FROM granted",
    "queries inside of expressions": "SELECT " + "(SELECT max(id) FROM granted WHERE id > " * 20 + "1" + ")" * 20 + " AS x FROM granted",
    "queries inside of expressions by a WITH": doubled("SELECT id FROM granted", "SELECT (SELECT max(id) FROM {before}) AS id", 20, "SELECT id FROM {last}"),
    "cases inside of each other": "SELECT " + "CASE WHEN id > 1 THEN " * 30 + "name" + " END" * 30 + " AS x FROM granted",
    "deep calls": "SELECT " + "abs(" * 300 + "id" + ")" * 300 + " AS x FROM granted",
    "deep cases": "SELECT " + "CASE WHEN id > 1 THEN " * 150 + "id" + " END" * 150 + " AS x FROM granted",
    "deep subqueries": "SELECT id FROM " + "(SELECT id FROM " * 150 + "granted" + ")" * 150,
}  # fmt: skip

BIG = "repeat(repeat('x', 10000), 10000)"
BOMBS |= {
    # wherever an expression can stand
    f"in {place}": query.replace("BIG", BIG)
    for place, query in {
        "IN": "SELECT 1 AS x FROM granted WHERE name IN (BIG)",
        "WHERE": "SELECT 1 AS x FROM granted WHERE name > BIG",
        "ORDER BY": "SELECT id FROM granted ORDER BY BIG",
        "ORDER BY of a UNION": "SELECT id FROM granted UNION ALL SELECT id FROM granted ORDER BY length(BIG)",
        "LIMIT": "SELECT id FROM granted LIMIT length(BIG)",
        "QUALIFY": "SELECT id FROM granted QUALIFY max(BIG) OVER () > 'a'",
        "PARTITION BY": "SELECT sum(id) OVER (PARTITION BY BIG) AS x FROM granted",
        "a named window": "SELECT sum(id) OVER w AS x FROM granted WINDOW w AS (PARTITION BY BIG)",
        "a join": "SELECT 1 AS x FROM granted a JOIN granted b ON a.name = BIG",
        "a join in parentheses": "SELECT 1 AS x FROM (granted a JOIN granted b ON a.name = BIG)",
        "FILTER": "SELECT sum(id) FILTER (WHERE name > BIG) AS x FROM granted",
        "CASE": "SELECT CASE BIG WHEN name THEN 1 END AS x FROM granted",
        "VALUES": "SELECT * FROM VALUES (BIG) AS v (x)",
        "CUBE": "SELECT count(*) AS n FROM granted GROUP BY CUBE (BIG)",
        "EXISTS": "SELECT id FROM granted WHERE EXISTS (SELECT 1 FROM granted WHERE name > BIG)",
        "WITHIN GROUP": "SELECT listagg(name) WITHIN GROUP (ORDER BY BIG) AS x FROM granted",
        "trim": "SELECT trim(BOTH BIG FROM name) AS x FROM granted",
        "LIKE": "SELECT name LIKE ANY (BIG) AS x FROM granted",
        "a place of an array": "SELECT a[length(BIG)] AS x FROM granted",
        "LATERAL VIEW": "SELECT 1 AS x FROM granted LATERAL VIEW explode(split(BIG, '')) e AS y",
        "PIVOT": "SELECT * FROM (SELECT id, name FROM granted) PIVOT (max(BIG) FOR id IN (1, 2))",
        "UNPIVOT": "SELECT * FROM (SELECT id, BIG AS s FROM granted) UNPIVOT (v FOR k IN (s))",
        "a lambda": "SELECT transform(a, x -> concat(x, BIG)) AS x FROM granted",
    }.items()
}
WIDE = "repeat('x', 100000)"
BOMBS |= {
    # by a column of another name
    f"by {way}": query.replace("WIDE", WIDE)
    for way, query in {
        "a column of the query around": "SELECT (SELECT max(repeat(o.s, 10000)) FROM granted) AS s FROM (SELECT WIDE AS s) o",
        "a pivoted column": "SELECT repeat(p, 10000) AS x FROM (SELECT * FROM (SELECT id, WIDE AS s FROM granted) PIVOT (max(s) FOR id IN (1 AS p)))",
        "a renamed star": "SELECT repeat(d, 10000) AS x FROM (SELECT *, WIDE AS s FROM granted) q (a, b, c, d)",
        "a UNION of a star": "SELECT repeat(name, 10000) AS x FROM (SELECT * FROM granted UNION ALL SELECT 1, WIDE, array('x'))",
        "an alias of columns": "WITH c AS (SELECT 1 AS a, WIDE AS b) SELECT repeat(z, 10000) AS x FROM c AS q (y, z)",
        "a field": "SELECT repeat(s.f, 10000) AS x FROM (SELECT named_struct('f', WIDE) AS s)",
        "an element": "SELECT repeat(s[0], 10000) AS x FROM (SELECT array(WIDE) AS s)",
        "a row of an array": "SELECT repeat(y, 10000) AS x FROM (SELECT array(WIDE) AS s) LATERAL VIEW explode(s) e AS y",
        "many names of one": "WITH c AS (SELECT repeat('x', 2000000) AS s) SELECT length(concat(a.s, b.s)) AS n FROM c a, c b, c d, c e, c f",
    }.items()
}

FINE: dict[str, str] = {
    # close to them, and ordinary
    "padding": "SELECT repeat('0', 64 - length(name)) || name AS x FROM granted",
    "padding to a width": "SELECT lpad(name, 66, '0') AS x, rpad(name, 1000, ' ') AS y FROM granted",
    "a line": "SELECT repeat('-', 80) AS x, space(200) AS y",
    "calendar": "SELECT explode(sequence(DATE '2000-01-01', current_date())) AS day",
    "places of an array": "SELECT transform(sequence(1, size(a)), n -> a[n - 1]) AS x FROM granted",
    "pairs of an array": "SELECT flatten(transform(a, x -> transform(a, y -> concat(x, y)))) AS x FROM granted",
    "sum of an array": "SELECT aggregate(a, 0, (s, x) -> s + length(x), s -> s / size(a)) AS x FROM granted",
    "joined by aggregate": "SELECT aggregate(a, '', (s, x) -> concat(s, ',', x)) AS x FROM granted",
    "doubled a few times": doubled("SELECT name AS s FROM granted", "SELECT s || s AS s FROM {before}", 8, "SELECT length(s) AS n FROM {last}"),
    "hours of a year": "SELECT count(*) AS n FROM (SELECT explode(sequence(0, 365)) AS d) LATERAL VIEW explode(sequence(0, 23)) h AS h",
    "thirty arms": " UNION ALL ".join(f"SELECT id + {n} AS id FROM granted" for n in range(30)),
    "sliding windows": "SELECT count(*) AS n FROM granted GROUP BY window(timestamp_seconds(id), '1 hour', '5 minutes')",
    "a small error": "SELECT approx_count_distinct(id, 0.02) AS n FROM granted",
    "rows as json": "SELECT to_json(struct(*)) AS x, date_format(timestamp_seconds(id), 'yyyy-MM-dd') AS d FROM granted",
    "fields of json": "SELECT from_json(name, 'a int, b array<struct<c: string, d: int>>') AS x FROM granted",
    "ten joins": "SELECT count(*) AS n FROM granted " + " ".join(f"JOIN granted t{n} USING (id)" for n in range(10)),
    "cube of five": "SELECT count(*) AS n FROM granted GROUP BY CUBE (id, id % 2, id % 3, id % 4, id % 5)",
    "a list of many": "SELECT id FROM granted WHERE id IN (" + ", ".join(map(str, range(1000))) + ")",
    "thirty calls inside of each other": "SELECT " + "upper(lower(trim(" * 10 + "name" + ")))" * 10 + " AS x FROM granted",
    "five cases inside of each other": "SELECT " + "CASE WHEN id > 1 THEN " * 5 + "name" + " END" * 5 + " AS x FROM granted",
    "some counts of distinct values": "SELECT " + ", ".join(f"count(DISTINCT id % {n}) AS c{n}" for n in range(2, 12)) + " FROM granted",
    "three queries inside of expressions": "SELECT " + "(SELECT max(id) FROM granted WHERE id > " * 3 + "1" + ")" * 3 + " AS x FROM granted",
    "a long sum": "SELECT " + " + ".join(f"id * {n}" for n in range(150)) + " AS x FROM granted",
    "a long condition": "SELECT id FROM granted WHERE " + " OR ".join(f"(id > {n} AND id < {n + 2})" for n in range(100)),
    "many columns": "SELECT " + ", ".join(f"id + {n} AS c{n}" for n in range(100)) + " FROM granted",
    "replaced and replaced": "SELECT regexp_replace(regexp_replace(regexp_replace(lower(name), '^0x(.*)$', '$1'), '[^a-z]+', '_'), '_+', '_') AS x FROM granted",
    "lists of rows": "SELECT array_join(transform(sort_array(collect_list(struct(id, name, a))), x -> x.name), ',') AS x FROM granted",
    "ten parts of a WITH": doubled("SELECT id, name FROM granted", "SELECT id + 1 AS id, upper(name) AS name FROM {before} WHERE id > 0", 10, "SELECT a.id FROM {last} a JOIN c5 b ON a.id = b.id"),
}  # fmt: skip


NUMBERS: Final = (1, 2, 3, 10, 40, 100, 1_000, 5_000, 10_000, 100_000, 1_000_000, 1_000_000_000)
TABLE: Final = "orders"


def made_up(random: Random) -> str:
    """One query over `orders`, which has the numbers `value` and `block_number`."""
    frame = random.choice([_plain, _plain, _chained, _named_before, _exploded, _crossed, _arms, _grouped, _inside])
    return frame(random)


def _plain(random: Random) -> str:
    return f"SELECT {_measured(random)} AS x{random.choice(['', f' FROM {TABLE}'])}"


def _chained(random: Random) -> str:
    text = random.random() < 0.5
    grow = random.choice(
        ["concat(s, s)", "s || s || s", "concat(s, s, s, s)"] if text else ["concat(s, s)", "array(s, s)"]
    )
    start = f"SELECT {_text(random, 1) if text else _array(random, 1)} AS s FROM {TABLE}"
    end = f"SELECT max({'length' if text else 'size'}(s)) AS n FROM {{last}}"
    return doubled(start, f"SELECT {grow} AS s FROM {{before}}", random.randint(1, 20), end)


def _named_before(random: Random) -> str:
    times = random.randint(1, 20)
    later = ", ".join(f"concat(s{n}, s{n}) AS s{n + 1}" for n in range(times))
    return f"SELECT {_text(random, 1)} AS s0, {later} FROM {TABLE}"


def _exploded(random: Random) -> str:
    views = " ".join(
        f"LATERAL VIEW {random.choice(['explode', 'explode_outer'])}({_array(random, 1)}) v{n} AS e{n}"
        for n in range(random.randint(1, 4))
    )
    return f"SELECT count(*) AS n FROM {TABLE} {views}"


def _crossed(random: Random) -> str:
    names = ", ".join(f"n t{n}" for n in range(random.randint(1, 4)))
    return f"WITH n AS (SELECT explode({_array(random, 1)}) AS e) SELECT count(*) AS n FROM {names}"


def _arms(random: Random) -> str:
    if random.random() < 0.5:
        return " UNION ALL ".join([f"SELECT value FROM {TABLE}"] * random.choice([2, 20, 300]))
    step = "SELECT value FROM {before} UNION ALL SELECT value FROM {before}"
    return doubled(f"SELECT value FROM {TABLE}", step, random.randint(1, 14), "SELECT count(*) AS n FROM {last}")


def _grouped(random: Random) -> str:
    columns = ", ".join(f"value % {n + 2}" for n in range(random.randint(1, 20)))
    kind = random.choice(["CUBE", "ROLLUP"])
    return f"SELECT count(*) AS n FROM {TABLE} GROUP BY {kind} ({columns})"


def _inside(random: Random) -> str:
    """In another place than the list of columns."""
    big, slide = _measured(random), random.choice(NUMBERS)
    return random.choice(
        [
            f"SELECT value FROM {TABLE} WHERE {big} > 1",
            f"SELECT value FROM {TABLE} ORDER BY {big}, value",
            f"SELECT count(*) AS n FROM {TABLE} GROUP BY {big}",
            f"SELECT to_json(struct(*)) AS x FROM (SELECT value, {_text(random, 2)} AS s FROM {TABLE})",
            f"SELECT count(*) AS n FROM {TABLE} GROUP BY window(timestamp_seconds(value), '1 day', '{slide} seconds')",
            f"SELECT (SELECT max({big}) FROM {TABLE}) AS x",
            f"SELECT a.value FROM {TABLE} a JOIN {TABLE} b ON a.value = b.value + {big}",
            f"SELECT value FROM {TABLE} QUALIFY max({big}) OVER (PARTITION BY value) >= 0",
            f"SELECT max(x) AS n FROM VALUES ({big}) AS v (x)",
        ]
    )


def _measured(random: Random) -> str:
    """A number that is known only when a large value has been computed."""
    if random.random() < 0.5:
        return f"length({_text(random, random.randint(1, 4))})"
    return f"size({_array(random, random.randint(1, 4))})"


def _number(random: Random) -> str:
    return random.choice([
        *map(str, NUMBERS),
        *map(str, NUMBERS),
        f"{random.choice(NUMBERS)} * {random.choice(NUMBERS[:6])}",
        f"least(value, {random.choice(NUMBERS[:8])})",
        "value * 100000",
        "length(cast(value AS string))",
    ]).replace("value", random.choice(["value", "block_number"]))  # fmt: skip


def _text(random: Random, depth: int) -> str:
    if depth <= 0:
        return random.choice(["'x'", "'0123456789'", "cast(value AS string)", "hex(block_number)"])
    inner, other = _text(random, depth - 1), _text(random, random.randint(0, depth - 1))
    return random.choice(
        [
            f"repeat({inner}, {_number(random)})",
            f"lpad({inner}, {_number(random)}, 'y')",
            f"space({_number(random)})",
            f"concat({inner}, {other})",
            f"replace({inner}, {random.choice(['x', '0', 'xx'])!r}, {other})",
            f"regexp_replace({inner}, {random.choice(['', '.', '(?=(.*))'])!r}, {random.choice(['$0$0', 'yy'])!r})",
            f"hex({inner})",
            f"date_format(timestamp_seconds(value), {inner})",
            f"map('k', {inner}, 'l', {other})['k']",
            f"named_struct('f', {inner}).f",
            f"cast(regexp_extract_all({inner}, {random.choice(['.', '(?=(.*))'])!r}, 0) AS string)",
            f"cast(instr({inner}, {other}) AS string)",
            f"to_json(struct({inner}, {other}))",
            f"array_join({_array(random, depth - 1)}, {other})",
            f"concat_ws({other}, {_array(random, depth - 1)}, {inner})",
            f"format_string('%{random.choice(NUMBERS)}s', {inner})",
            f"aggregate({_array(random, depth - 1)}, {inner}, (s, e) -> concat(s, {random.choice(['s', other])}))",
        ]
    )


def _array(random: Random, depth: int) -> str:
    if depth <= 0:
        return random.choice(["array('x', 'y')", "array(cast(value AS string))"])
    inner = _array(random, depth - 1)
    return random.choice(
        [
            f"transform(sequence(1, {_number(random)}), e -> cast(e AS string))",
            f"transform({inner}, e -> {_text(random, depth - 1)})",
            f"transform(sequence(1, {random.choice(NUMBERS)}), e -> array_join({inner}, ''))",
            f"array_repeat({_text(random, depth - 1)}, {_number(random)})",
            f"array_insert({inner}, {_number(random)}, 'z')",
            f"flatten(transform({inner}, e -> {_array(random, depth - 1)}))",
            f"concat({inner}, {_array(random, depth - 1)})",
            f"array_distinct({inner})",
            f"transform(arrays_zip({inner}, {_array(random, depth - 1)}), z -> cast(z AS string))",
            f"map('k', {inner})['k']",
            f"array_append({inner}, {_text(random, depth - 1)})",
            f"filter({inner}, e -> exists({_array(random, depth - 1)}, f -> f = e))",
            f"zip_with({inner}, {_array(random, depth - 1)}, (e, f) -> concat(e, f))",
            f"reduce({inner}, array('x'), (s, e) -> concat(s, s))",
            f"split({_text(random, depth - 1)}, '')",
        ]
    )
