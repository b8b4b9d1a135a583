"""Generates queries with huge results: texts, arrays, lambdas, generators, joins and plans, nested in each other.

Numbers are chosen so that some are far too large, some near the limits, and some harmless.
"""

# ruff: noqa: S608 - queries of tests
from __future__ import annotations

from random import Random
from typing import Final

from tests.support.cases.sql_bombs import doubled

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
