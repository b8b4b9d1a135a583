"""The rule of each function: what it makes of values of these sizes, at most."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from tracelake.domain.sql.sizes import DAY, SCALAR, Size, UnknownSize, either, listed


def size_of(name: str, arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """What the function makes of values so large. `texts`: those of the arguments that are plain texts."""
    rule = _RULES.get(name)
    if rule is not None:
        try:
            return rule(arguments, texts)
        except IndexError:  # Spark refuses a call with too few arguments
            return Size()
    if name in _LIKE_FIRST and arguments:
        return replace(arguments[0].there(), low=-inf, high=inf, kind="number")
    return _sum(arguments) if name in _GROW else Size()


def _sum(sizes: Sequence[Size], times: float = 1.0) -> Size:
    """All of them, side by side."""
    items = [one.item or one for one in sizes]
    item = items[0] if items else None
    for other in items[1:]:
        item = item.at_least(other) if item else other
    total = sum(one.bytes for one in sizes)
    return Size(total * times + SCALAR, sum(max(1.0, one.count) for one in sizes), item)


def _times(size: Size, most: float) -> Size:
    if most == inf:
        raise UnknownSize
    return Size(size.bytes * max(0.0, most) + SCALAR)


def _repeat(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return _times(given[0], given[1].high)


def _space(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return _times(Size(1), given[0].high)


def _pad(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """So many letters, of up to four bytes."""
    return _times(Size(4), given[1].high)


def _array_repeat(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    if given[1].high == inf:
        raise UnknownSize
    return listed(given[0], max(0.0, given[1].high))


def _array_insert(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Places before the named one are filled with NULL."""
    far = max(abs(given[1].low), abs(given[1].high))
    if far == inf:
        raise UnknownSize
    both = _sum([given[0], given[2]])
    return replace(both, bytes=both.bytes + far * SCALAR, count=max(both.count, far) + 1)


def _sequence(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    start, stop = [_on_the_calendar(one) for one in given[:2]] if _mixed(given) else (given[0], given[1])
    least = _least_step(given)
    span = max(abs(stop.high - start.low), abs(start.high - stop.low))
    if not span < inf or least <= 0:
        raise UnknownSize
    return listed(replace(either(given[:2]), work=1.0), span // least + 1)


def _mixed(given: Sequence[Size]) -> bool:
    return {one.kind for one in given[:2]} == {"clock", "time"}


def _on_the_calendar(value: Size) -> Size:
    """From now on, in seconds since 1970: this code runs in this century."""
    if value.kind != "clock":
        return value
    return replace(value, low=value.low + CENTURY[0], high=value.high + CENTURY[1], kind="time")


CENTURY: Final = (1_577_836_800.0, 4_102_444_800.0)


def _least_step(given: Sequence[Size]) -> float:
    if not given[2:]:
        return DAY if {given[0].kind, given[1].kind} & {"time", "clock"} else 1.0
    step = given[2]
    return 0.0 if step.low <= 0 <= step.high else min(abs(step.low), abs(step.high))


def _replace_text(given: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """Each place that is found becomes the new text."""
    if not given[2:]:
        return given[0].there()
    searched = len((texts[1] or "").encode())
    work = given[0].bytes * given[1].bytes / 64
    return Size(given[0].bytes * (1 + given[2].bytes / max(1, searched)) + SCALAR, work=work)


def _regexp_replace(given: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """A pattern may be found between any two letters. Its groups hold parts of the text; looking ahead, all of it."""
    text, pattern, new = given[0].bytes, texts[1], texts[2]
    groups = inf if new is None else new.count("$")
    looks_around = pattern is None or "(?" in pattern
    held = 0.0 if not groups else text * min(groups, given[2].bytes) * (text if looks_around else 1)
    return Size(text + (text + 1) * given[2].bytes + held + SCALAR, work=text)


def _found_texts(given: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """regexp_extract_all: what is found is part of the text, each letter once unless the pattern looks around."""
    text, pattern = given[0].bytes, texts[1]
    total = text * text if pattern is None or "(?" in pattern else text
    return Size(total * 2 + SCALAR, text + 1, Size(text), work=text)


def _split(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    text = given[0].bytes
    return Size(text * 2 + SCALAR, text + 1, Size(text), work=text)


def _join_texts(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """concat_ws(separator, ...): texts and arrays of texts."""
    parts = sum(one.bytes for one in given[1:])
    between = sum(max(1.0, one.count) for one in given[1:])
    return Size(parts + between * given[0].bytes + SCALAR)


def _array_join(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(given[0].bytes + given[0].count * sum(one.bytes for one in given[1:]) + SCALAR)


def _appended(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """An array and an element more."""
    total = sum(one.bytes for one in given) + SCALAR
    return Size(total, given[0].count + 1, either([given[0].item or given[0], given[-1]]))


def _zipped(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Each element has a place for all of the arrays, however short they are."""
    count = max(one.count for one in given)
    item = Size(sum((one.item or one).bytes for one in given) + SCALAR * len(given), 1.0, either(given))
    return Size(sum(one.bytes for one in given) + count * len(given) * SCALAR, count, item)


def _compared(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Elements that have elements are compared each with each."""
    inner = given[0].item
    pairs = given[0].count * given[-1].count if inner and inner.count else 0.0
    return replace(_sum(given), work=1.0 + pairs)


def _searched(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """A text in a text, tried at every place."""
    sizes = sorted((one.bytes for one in given), reverse=True)
    return Size(low=0.0, high=sizes[0], work=1 + sizes[0] * sizes[1] / 64)


def _approximate(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """approx_count_distinct: the smaller the error, the larger what it keeps; at 1 % it is 13 KB."""
    if given[1:] and not given[1].low >= LEAST_ERROR:
        raise UnknownSize
    return Size()


def _windows(given: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """window(time, length, slide): Spark plans each window that may hold a row."""
    if given[2:]:
        length, slide = (_duration(size, text) for size, text in zip(given[1:3], texts[1:3], strict=True))
        if not length / slide <= OVERLAPS:
            raise UnknownSize
    return Size(2 * SCALAR)


LEAST_ERROR: Final = 0.01
OVERLAPS: Final = 50
"""Windows that one row may be in."""
UNITS: Final = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": DAY,
    "week": 7 * DAY,
}


def _duration(size: Size, text: str | None) -> float:
    """Seconds of '1 hour 30 minutes'; a number is of microseconds."""
    if text is None:
        return size.low / 1e6 if 0 < size.low < inf else inf
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.casefold())
    return sum(float(number) * UNITS.get(unit.removesuffix("s"), inf) for number, unit in parts) or inf


def _written_time(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """date_format: as long as its format, and more."""
    return Size(64 + 4 * sum(one.bytes for one in given))


def _hash(_given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(128)


def _flatten(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    inner = given[0].item
    if inner is None:
        return given[0].there()
    return Size(given[0].bytes, given[0].count * max(1.0, inner.count), inner.item or inner)


def _cut(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Not more letters than the last argument says."""
    return Size(min(given[0].bytes, 4 * max(0.0, given[-1].high) if given[1:] else inf))


def _format(given: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """A width may be any number: `%1000000d`."""
    if texts[0] is None:
        raise UnknownSize
    widths = sum(float(number) for number in re.findall(r"\d+", texts[0]))
    largest = max((one.bytes for one in given[1:]), default=0.0)
    return Size(given[0].bytes + widths + texts[0].count("%") * (largest * 4 + 400))


def _digits(given: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """A number with so many digits behind the point."""
    if not given[1:]:
        return Size(400)
    if texts[1] is not None:
        return Size(400.0 + given[1].bytes)
    if given[1].high == inf or given[1].low == -inf:
        raise UnknownSize
    return Size(400.0 + max(abs(given[1].low), abs(given[1].high)))


def _rounded(given: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """Steps grow with the square of the digits."""
    return Size(work=_digits(given, texts).bytes ** 2 / 100_000)


def _levenshtein(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(work=1 + given[0].bytes * given[1].bytes / 8, low=0)


def _letters(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """What is made so long is as large as what is there already."""
    return Size(low=0.0, high=max((one.bytes for one in given), default=inf))


def _elements(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(low=-1.0, high=max((one.count for one in given), default=inf))


def _least(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return replace(either(given), low=min(one.low for one in given), high=min(one.high for one in given))


def _greatest(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return replace(either(given), low=max(one.low for one in given), high=max(one.high for one in given))


def _remainder(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    most = max(abs(given[1].low), abs(given[1].high))
    return Size(low=-most, high=most)


def _item(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return (given[0].item or replace(given[0], count=0)).there()


def _json(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Every letter may be escaped, every element has its name and comma; options may name a format of times."""
    options = sum(one.bytes for one in given[1:])
    return Size(given[0].bytes * 6 + (given[0].count + 1) * (8 + options) + 64)


def _from_text(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Each {} may become a struct of all the fields that the schema names."""
    text, schema = given[0].bytes, sum(one.bytes for one in given[1:])
    return Size(text * 4 + (text / 2 + 1) * schema * 2, text, Size(text + schema * 2, text / 2, Size(text)))


def _doubled(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(2 * sum(one.bytes for one in given) + SCALAR)


def _either(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return either(given)


def _second(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    """percentile(value, array(...)) gives as many as it is asked for."""
    return Size(given[1].bytes + SCALAR, given[1].count, given[1].item)


def _array(given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(sum(one.bytes for one in given) + SCALAR, float(len(given)), either(given))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_Rule = Callable[[Sequence[Size], Sequence[str | None]], Size]
_RULES: Final[Mapping[str, _Rule]] = {
    "repeat": _repeat,
    "space": _space,
    "array_repeat": _array_repeat,
    "array_insert": _array_insert,
    "sequence": _sequence,
    "replace": _replace_text,
    "regexp_replace": _regexp_replace,
    "concat_ws": _join_texts,
    "array_join": _array_join,
    "flatten": _flatten,
    "format_number": _digits,
    "levenshtein": _levenshtein,
    "least": _least,
    "greatest": _greatest,
    **dict.fromkeys(_words("lpad rpad"), _pad),
    "regexp_extract_all": _found_texts,
    "arrays_zip": _zipped,
    "approx_count_distinct": _approximate,
    "window": _windows,
    **dict.fromkeys(_words("date_format from_unixtime"), _written_time),
    **dict.fromkeys(_words("array_append array_prepend"), _appended),
    **dict.fromkeys(_words("array_distinct array_except array_intersect array_union arrays_overlap"), _compared),
    **dict.fromkeys(_words("contains endswith find_in_set instr locate position startswith"), _searched),
    **dict.fromkeys(_words("bin conv md5 sha sha1 sha2 typeof"), _hash),
    **dict.fromkeys(_words("split str_to_map"), _split),
    **dict.fromkeys(_words("left right substr substring"), _cut),
    **dict.fromkeys(_words("format_string printf"), _format),
    **dict.fromkeys(_words("round bround ceil ceiling floor"), _rounded),
    **dict.fromkeys(_words("length len char_length character_length octet_length"), _letters),
    **dict.fromkeys(_words("size cardinality array_size"), _elements),
    **dict.fromkeys(_words("mod pmod try_mod"), _remainder),
    **dict.fromkeys(_words("element_at try_element_at get array_max array_min"), _item),
    **dict.fromkeys(_words("to_json to_csv schema_of_json"), _json),
    **dict.fromkeys(_words("from_json from_csv parse_json try_parse_json json_object_keys"), _from_text),
    **dict.fromkeys(_words("hex base64 encode decode to_binary try_to_binary string binary mask initcap"), _doubled),
    **dict.fromkeys(_words("coalesce ifnull nvl nvl2 nullif nanvl nullifzero zeroifnull if elt"), _either),
    **dict.fromkeys(_words("percentile percentile_approx approx_percentile"), _second),
    **dict.fromkeys(_words("array map named_struct struct"), _array),
}
RULED: Final = frozenset(_RULES)
_LIKE_FIRST: Final = frozenset(
    _words("""
    any_value first first_value last last_value lag lead nth_value max max_by min min_by mode
    array_compact array_remove array_sort filter map_filter map_keys
    map_values reverse slice sort_array
    btrim get_json_object lcase lower ltrim regexp_extract regexp_substr rtrim split_part substring_index translate trim
    try_variant_get ucase unbase64 unhex upper variant_get
""")
)
"""Nothing that was not in their first argument."""
_GROW: Final = frozenset(
    _words("""
    concat map_concat map_entries map_from_arrays map_from_entries overlay to_char to_number
""")
)
"""All of their arguments."""
