"""The functions of which Sail and Spark give the same rows, by the families of their arguments.

`tests/query/test_parity.py` compares every one of them on ordinary and extreme values, and finds those that Sail does
not have. Everything else runs on Spark: for some functions Sail gives other values (`initcap`, `conv`, `hash` of a
decimal, times as text), for some other types (`datediff`, decimals), and some it has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

ANY: Final = ("int", "decimal", "text", "bytes", "date", "time", "bool")
ORDERED: Final = ("int", "decimal", "text", "date", "time")
ONE_TYPE: Final = ("text", "bytes", "date", "time", "bool")
"""Families of one type: of several, Sail chooses the type of the result differently (but for integers)."""

RESULTS: Final = {
    "int": """
        count(*) count_if(bool) bit_and(int) bit_or(int) bit_xor(int) row_number() rank() dense_rank()
        length(text) length(bytes) char_length(text) character_length(text) len(text) octet_length(text)
        octet_length(bytes) bit_length(text) instr(text text) locate(text text) position(text text) ascii(text)
        find_in_set(text text) levenshtein(text text) crc32(bytes) abs(int) bit_count(int) zeroifnull(int)
        nullifzero(int) positive(int)
        year(date) year(time) quarter(date) quarter(time) month(date) month(time) day(date) day(time)
        dayofmonth(date) dayofmonth(time) dayofweek(date) dayofweek(time) dayofyear(date) dayofyear(time)
        weekofyear(date) weekofyear(time) hour(time) minute(time) second(time)
        unix_date(date) unix_seconds(time) unix_millis(time) unix_micros(time)
    """,
    "double": "avg(int) cume_dist() percent_rank()",
    "bool": """
        any(bool) some(bool) every(bool) bool_and(bool) bool_or(bool) contains(text text) startswith(text text)
        endswith(text text)
    """,
    "text": """
        upper(text) ucase(text) lower(text) lcase(text) trim(text) ltrim(text) rtrim(text) btrim(text)
        substring(text int) substring(text int int) substr(text int) substr(text int int)
        concat(text) concat(text text) concat(text text text) concat_ws(text text text)
        replace(text text text) replace(text text) reverse(text) repeat(text int) lpad(text int text)
        rpad(text int text) lpad(text int) rpad(text int) translate(text text text) split_part(text text int)
        substring_index(text text int) hex(int) hex(text) hex(bytes) bin(int) md5(bytes) sha(bytes) sha1(bytes)
        md5(text) sha1(text) sha2(bytes int) sha2(text int) base64(bytes) dayname(date) monthname(date)
        char(int) chr(int)
    """,
    "bytes": "unhex(text) binary(text)",
    "date": """
        last_day(date) to_date(date) to_date(time) date(date) date(time) date_add(date int) date_sub(date int)
        add_months(date int) date_from_unix_date(int) trunc(date 'year') trunc(date 'month') trunc(date 'week')
        trunc(date 'quarter')
    """,
    "time": """
        date_trunc('year' time)
        date_trunc('quarter' time) date_trunc('month' time) date_trunc('week' time) date_trunc('day' time)
        date_trunc('hour' time) date_trunc('minute' time) date_trunc('second' time)
    """,
}
"""By the family of the result; a text in quotes is that text alone."""


def _signatures() -> Iterator[tuple[str, str]]:
    for result, text in RESULTS.items():
        for part in text.replace(")", ")\n").splitlines():
            if part.strip():
                yield part.strip(), result
    for family in ANY:
        yield f"count({family})", "int"
        yield from ((f"{name}({family})", "bool") for name in ("isnull", "isnotnull"))
        yield from ((f"{name}({family})", family) for name in ("lag", "lead", "coalesce"))
        yield from ((f"{name}({family} int)", family) for name in ("lag", "lead"))
    for family in ("int", *ONE_TYPE):
        yield f"equal_null({family} {family})", "bool"
        yield f"coalesce({family} {family})", family
        yield f"coalesce({family} {family} {family})", family
        yield f"if(bool {family} {family})", family
    for family in ORDERED:
        yield from ((f"{name}({family})", family) for name in ("min", "max"))
    for family in ("int", "text", "date", "time"):
        yield from ((f"{name}({family} {family})", family) for name in ("greatest", "least"))
    for family in ("int", "text", "bool"):
        yield from ((f"{name}({family} {family})", family) for name in ("ifnull", "nvl"))
    for family in ONE_TYPE:
        yield f"nullif({family} {family})", family


SAME: Final = dict(_signatures())
