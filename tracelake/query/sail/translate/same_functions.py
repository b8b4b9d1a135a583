"""The functions of which Sail and Spark give the same rows, by the types of their arguments.

`tests/query/sail/test_parity.py` compares every one of them on ordinary and extreme values, and finds those that Sail
does not have. Everything else runs on Spark: for some functions Sail gives other values (`initcap`, `conv`, `hash` of a
decimal), for some other types (decimals), and some it has not. `whole` is any integer; `int` is one of 32 bits at most;
`n` is one as it is written, not negative, and `-n` a negative one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

ANY: Final = ("whole", "decimal", "text", "bytes", "date", "time", "bool")

IN_ORDER: Final = ("first_value", "last_value")
"""Functions of an OVER with an order: elsewhere they return the value of any row."""
FIRST: Final = "first"
"""The type of the first argument."""
RESULTS: Final = {
    "bigint": """
        count(*) crc32(bytes) crc32(text) unix_micros(time)
        xxhash64(text) xxhash64(whole)
    """,
    "int": """
        row_number() rank() dense_rank() ntile(n)
        length(text) length(bytes) char_length(text) character_length(text) len(text) octet_length(text)
        octet_length(bytes) bit_length(text) instr(text text) locate(text text) position(text text) ascii(text)
        find_in_set(text text) levenshtein(text text) bit_count(whole) hash(text) hash(whole) size(array)
        year(date) year(time) quarter(date) quarter(time) month(date) month(time) day(date) day(time)
        dayofmonth(date) dayofmonth(time) dayofweek(date) dayofweek(time) dayofyear(date) dayofyear(time)
        weekofyear(date) weekofyear(time) hour(time) minute(time) second(time) unix_date(date)
    """,
    FIRST: """
        bit_and(whole) bit_or(whole) bit_xor(whole) nullifzero(whole)
        positive(whole)
    """,
    "double": "cume_dist() percent_rank() sqrt(double) sign(whole)",
    "boolean": """
        some(bool) every(bool) bool_and(bool) bool_or(bool) contains(text text) startswith(text text)
        endswith(text text)
    """,
    "string": """
        upper(text) ucase(text) lower(text) lcase(text) trim(text) ltrim(text) rtrim(text) btrim(text)
        substring(text n) substring(text n n) substr(text n) substr(text n n)
        concat(text) concat(text text) concat(text text text) concat(text text text text) concat_ws(text text text)
        replace(text text text) replace(text text) reverse(text) repeat(text int) lpad(text n text)
        rpad(text n text) lpad(text n) rpad(text n) translate(text text text) split_part(text text n)
        substring_index(text text n) substring_index(text text -n)
        hex(whole) hex(text) hex(bytes) bin(whole) md5(bytes) sha(bytes) sha1(bytes)
        md5(text) sha1(text) sha2(bytes int) sha2(text int) dayname(date) monthname(date)
    """,
    "binary": "unhex(text) binary(text)",
    "date": """
        last_day(date) to_date(date) to_date(time) date(date) date(time) date_add(date int) date_sub(date int)
        add_months(date int) date_from_unix_date(int) trunc(date 'year') trunc(date 'month') trunc(date 'week')
        trunc(date 'quarter') trunc(date 'mm') trunc(time 'year') trunc(time 'month') trunc(time 'mm')
        next_day(date 'mon') next_day(date 'sunday') current_date() curdate()
    """,
    "timestamp": """
        timestamp_micros(whole) current_timestamp() now()
    """,
}
"""By the type of the result; a text in quotes is that text alone."""


def _signatures() -> Iterator[tuple[str, str]]:
    for result, text in RESULTS.items():
        for part in text.replace(")", ")\n").splitlines():
            if part.strip():
                yield part.strip(), result
    for family in (*ANY, "double"):
        yield f"count({family})", "bigint"
        yield from ((f"{name}({family})", "boolean") for name in ("isnull", "isnotnull"))
        yield from ((f"{name}({family})", FIRST) for name in IN_ORDER)


SAME: Final = dict(_signatures())
