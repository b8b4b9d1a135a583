"""Edge values on which engines are compared, by what is at the edge: expressions over table `extreme`, and statements.

`ON_SAIL` are those that Sail answers: with the value and the type of Spark's answer. Of `ON_SPARK` it answers none: the
translation refuses them, or they fail there, as they do where Spark refuses the value.
"""

from __future__ import annotations

from typing import Final

WORD: Final = str(2**256 - 1)
HEX: Final = "FF" * 32
NINES: Final = "9" * 38

ON_SAIL: Final[dict[str, tuple[str, ...]]] = {
    "decimals of 38 digits": (
        "big", "fine", f"big = {NINES}", "nullif(big, 0)", "string(big)", "double(big)", "round(fine, 2)",
        "SELECT max(big) AS a, min(big) AS b, max(fine) AS c, count(DISTINCT big) AS d FROM extreme",
        "SELECT big, count(*) AS n FROM extreme GROUP BY big ORDER BY big DESC",
    ),
    "2^256-1 as a text": (
        "u", f"u = '{WORD}'", "length(u)", "reverse(u)", "substring(u, 70)", f"'{WORD}' || u", "md5(u)", "hash(u)",
        f"SELECT id FROM extreme WHERE u IN ('{WORD}', '-')",  # noqa: S608 - our own words
    ),
    "2^256-1 as bytes": (
        "b", f"b = X'{HEX}'", "hex(b)", "length(b)", f"unhex('{HEX}') = b", "sha2(b, 256)", "crc32(b)",
        f"SELECT id FROM extreme WHERE b >= X'{HEX}' ORDER BY b, id",  # noqa: S608 - our own words
    ),
    "NaN and infinities": (
        "d", "d > 1e300", "coalesce(d, 0e0)", "-d", "d + 1e0", "d * 0e0", "f", "abs(d)",
        "SELECT id, d FROM extreme ORDER BY d DESC NULLS LAST, id",
    ),
    "dates at limits": (
        "dt", "ts", "ntz", "year(dt)", "string(dt)", "string(ts)", "dt = DATE '9999-12-31'", "unix_date(dt)",
        "date_add(dt, 1)", "last_day(dt)", "add_months(dt, 12)", "datediff(dt, DATE '1970-01-01')",
        "ts + INTERVAL 1 DAY", "unix_seconds(ts)", "dayofweek(dt)", "date_format(dt, 'yyyy-MM-dd')",
        "SELECT min(dt) AS a, max(dt) AS b, min(ts) AS c, max(ts) AS e FROM extreme",
    ),
    "NULLs": (
        "i IS NULL", "i <=> NULL", "i = NULL", "coalesce(t, 'none')", "nullif(i, i)", "i IN (1, NULL)",
        "concat(t, u)", "greatest(i, s)", "NOT ok", "nvl2(t, 1, 2)",
        "SELECT count(i) AS a, count(*) AS b, sum(NULLIF(i, i)) AS c, max(t) FILTER (WHERE id = 3) AS e FROM extreme",
        "SELECT a.id, b.id AS other FROM extreme a LEFT JOIN extreme b ON a.i = b.i ORDER BY 1, 2",
        "SELECT id FROM extreme WHERE i NOT IN (1, NULL)",
    ),
    "empty inputs": (
        "SELECT count(*) AS a, sum(i) AS b, max(t) AS c, min(big) AS e, avg(dec) AS f, max(d) AS h FROM nothing",
        "SELECT g, sum(i) AS s FROM nothing GROUP BY g",
        "SELECT n.id, e.id AS other FROM extreme e LEFT JOIN nothing n ON n.id = e.id ORDER BY 2",
        "SELECT id FROM extreme WHERE NOT EXISTS (SELECT 1 AS x FROM nothing) ORDER BY id",
        "SELECT id, (SELECT max(i) FROM nothing) AS m FROM extreme ORDER BY id",
        "SELECT id FROM nothing UNION ALL SELECT id FROM extreme ORDER BY id",
        "SELECT row_number() OVER (ORDER BY id) AS n FROM nothing",
        "upper('')", "'' || t", "length('')",
    ),
    "ordering": (
        "SELECT id, i FROM extreme ORDER BY i, id",
        "SELECT id, big FROM extreme ORDER BY big, id",
        "SELECT id, t FROM extreme ORDER BY t, id",
        "SELECT id, b FROM extreme ORDER BY b, id",
        "SELECT id, ts FROM extreme ORDER BY ts, id",
        "SELECT id, ok FROM extreme ORDER BY ok, id",
        "SELECT id, d FROM extreme ORDER BY d, id",
        "SELECT id FROM extreme ORDER BY l DESC NULLS FIRST, id DESC",
        "SELECT id FROM extreme ORDER BY fine DESC NULLS FIRST, id DESC",
        "SELECT id FROM extreme ORDER BY u DESC NULLS FIRST, id DESC",
        "SELECT id FROM extreme ORDER BY dt DESC NULLS FIRST, id DESC",
        "SELECT id FROM extreme ORDER BY i DESC NULLS LAST, t NULLS LAST, id LIMIT 4 OFFSET 1",
    ),
    "division by zero": (
        "try_divide(l, i)", "try_divide(dec, i)", "CASE WHEN i <> 0 THEN l / i END", "dec / nullif(i, 0)",
        "SELECT id, l % i AS x FROM extreme WHERE i <> 0 ORDER BY id",
    ),
    "overflow": (
        "bigint(i) + 1", "i + 1L",
        "SELECT sum(i) AS x FROM extreme",
    ),
    "time zones": (
        "hour(ts)", "to_date(ts)", "ts = TIMESTAMP '1970-01-01 00:00:00'", "CAST(dt AS TIMESTAMP)",
        "CAST(ts AS DATE)", "timestampdiff(HOUR, ts, TIMESTAMP '2024-03-31 12:00:00')", "extract(HOUR FROM ts)",
        "unix_timestamp(ts)",
    ),
    "Unicode": (
        "t", "upper(t)", "lower(t)", "length(t)", "octet_length(t)", "reverse(t)", "substring(t, 8, 3)", "ascii(t)",
        "t = 'é'", "t < 'z'", "instr(t, '😀')", "replace(t, 'ß', 'ss')", "lpad(t, 20, 'é')", "hex(t)",
        "levenshtein(t, 'Straße')", "translate(t, 'İé', 'ie')", "t LIKE '%😀_é'", "split_part(t, ' ', 2)",
        "SELECT id FROM extreme WHERE t LIKE 'Straße%' OR t = 'e\u0301' ORDER BY id",
        "SELECT max(t) AS a, min(t) AS b, count(DISTINCT lower(t)) AS c FROM extreme",
    ),
    "casts": (
        "string(i)", "string(l)", "string(ok)", "CAST(i AS BIGINT)", "CAST(s AS INT)", "CAST(i AS DECIMAL(38, 18))",
        "CAST(l AS DECIMAL(20, 0))", "CAST(dec AS DECIMAL(38, 4))", "double(l)", "double(fine)", "boolean(i)",
        "CAST(ok AS INT)", "binary(t)", "CAST(dt AS STRING)", "CAST(ts AS BIGINT)",
    ),
}  # fmt: skip
ON_SPARK: Final[dict[str, tuple[str, ...]]] = {
    "decimals of 38 digits": (
        "big > fine", "big + 1", "big * 10", "fine / 3", "abs(big)", f"{NINES} + id",
    ),
    "2^256-1 as a text": (
        "CAST(u AS DECIMAL(38, 0))", "try_cast(u AS BIGINT)",
    ),
    "2^256-1 as bytes": (
        "base64(b)",
    ),
    "NaN and infinities": (
        "d = d", "isnan(d)", "d <=> d", "greatest(d, 0e0)", "CAST(d AS INT)", "string(d)",
        "SELECT max(d) AS a, min(d) AS b, count(d) AS c FROM extreme",
        "SELECT d, count(*) AS n FROM extreme GROUP BY d",
    ),
    "dates at limits": (
        "weekday(dt)",
    ),
    "NULLs": (
        "concat_ws('-', t, u, t)", "ok AND NULL", "ok OR NULL",
    ),
    "empty inputs": (
        "size(array())",
    ),
    "ordering": (
        "SELECT id FROM extreme ORDER BY f DESC NULLS FIRST, id DESC",
    ),
    "division by zero": (
        "l / i", "i / 0", "dec / 0", "d / 0e0", "i % 0", "l DIV i", "mod(l, i)", "pmod(i, 0)", "try_divide(d, 0e0)",
        "try_mod(l, i)",
        "SELECT sum(l) / count(NULL) AS x FROM plain",
    ),
    "overflow": (
        "i + 1", "l * 2", "l - 1", "-i", "-l", "abs(i)", "s + s", "CAST(l AS INT)", "CAST(i AS SMALLINT)", "y * y",
        "try_add(i, 1)", "try_multiply(l, 2)", "CAST(dec AS INT)", "CAST(big AS BIGINT)",
        "CAST(big AS DECIMAL(20, 0))", "pow(10, 400)",
        "SELECT sum(l) AS x FROM extreme",
        "SELECT sum(big) AS x FROM extreme",
        "SELECT sum(fine) AS x FROM extreme",
        "SELECT id, sum(l) OVER (ORDER BY id) AS x FROM extreme",
    ),
    "time zones": (
        "date_trunc('day', ts)", "ts < TIMESTAMP '2024-03-31 02:30:00 Europe/Berlin'",
        "TIMESTAMP '2024-01-01 00:00:00+05:45'", "from_utc_timestamp(ts, 'Asia/Kathmandu')",
        "to_utc_timestamp(ts, 'America/New_York')", "CAST(ntz AS TIMESTAMP)",
    ),
    "Unicode": (
        "initcap(t)",
    ),
    "casts": (
        "CAST(u AS INT)", "CAST(t AS DATE)", "try_cast(u AS DATE)", "CAST(d AS STRING)", "CAST(d AS DECIMAL(10, 2))",
        "CAST(b AS STRING)", "CAST(f AS DOUBLE)",
    ),
}  # fmt: skip
