"""The rule of each function: what it makes of values of these sizes, at most."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from tracelake.domain.sql.sizes import DAY, SCALAR, Size, UnknownSize, either, listed


def size_of(name: str, arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """The size of the function's result for arguments of these sizes. `texts`: arguments that are text literals."""
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
    items = [size.item or size for size in sizes]
    item = items[0] if items else None
    for other in items[1:]:
        item = item.at_least(other) if item else other
    total = sum(size.bytes for size in sizes)
    return Size(total * times + SCALAR, sum(max(1.0, size.count) for size in sizes), item)


def _times(size: Size, most: float) -> Size:
    if most == inf:
        raise UnknownSize
    return Size(size.bytes * max(0.0, most) + SCALAR)


def _repeat(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return _times(arguments[0], arguments[1].high)


def _space(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return _times(Size(1), arguments[0].high)


def _pad(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """So many letters, of up to four bytes."""
    return _times(Size(4), arguments[1].high)


def _array_repeat(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    if arguments[1].high == inf:
        raise UnknownSize
    return listed(arguments[0], max(0.0, arguments[1].high))


def _array_insert(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Places before the named one are filled with NULL."""
    far = max(abs(arguments[1].low), abs(arguments[1].high))
    if far == inf:
        raise UnknownSize
    both = _sum([arguments[0], arguments[2]])
    return replace(both, bytes=both.bytes + far * SCALAR, count=max(both.count, far) + 1)


def _sequence(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    start, stop = (
        [_on_the_calendar(size) for size in arguments[:2]] if _mixed(arguments) else (arguments[0], arguments[1])
    )
    least = _least_step(arguments)
    span = max(abs(stop.high - start.low), abs(start.high - stop.low))
    if not span < inf or least <= 0:
        raise UnknownSize
    return listed(replace(either(arguments[:2]), work=1.0), span // least + 1)


def _mixed(arguments: Sequence[Size]) -> bool:
    return {size.kind for size in arguments[:2]} == {"clock", "time"}


def _on_the_calendar(value: Size) -> Size:
    """From now on, in seconds since 1970: this code runs in this century."""
    if value.kind != "clock":
        return value
    return replace(value, low=value.low + CENTURY[0], high=value.high + CENTURY[1], kind="time")


CENTURY: Final = (1_577_836_800.0, 4_102_444_800.0)


def _least_step(arguments: Sequence[Size]) -> float:
    if not arguments[2:]:
        return DAY if {arguments[0].kind, arguments[1].kind} & {"time", "clock"} else 1.0
    step = arguments[2]
    return 0.0 if step.low <= 0 <= step.high else min(abs(step.low), abs(step.high))


def _replace_text(arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """Each place that is found becomes the new text."""
    if not arguments[2:]:
        return arguments[0].there()
    searched = len((texts[1] or "").encode())
    work = arguments[0].bytes * arguments[1].bytes / 64
    return Size(arguments[0].bytes * (1 + arguments[2].bytes / max(1, searched)) + SCALAR, work=work)


def _regexp_replace(arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """A pattern may be found between any two letters. Its groups hold parts of the text; looking ahead, all of it."""
    text, pattern, new = arguments[0].bytes, texts[1], texts[2]
    groups = inf if new is None else new.count("$")
    looks_around = pattern is None or "(?" in pattern
    held = 0.0 if not groups else text * min(groups, arguments[2].bytes) * (text if looks_around else 1)
    return Size(text + (text + 1) * arguments[2].bytes + held + SCALAR, work=text)


def _found_texts(arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """regexp_extract_all: what is found is part of the text, each letter once unless the pattern looks around."""
    text, pattern = arguments[0].bytes, texts[1]
    total = text * text if pattern is None or "(?" in pattern else text
    return Size(total * 2 + SCALAR, text + 1, Size(text), work=text)


def _split(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    text = arguments[0].bytes
    return Size(text * 2 + SCALAR, text + 1, Size(text), work=text)


def _join_texts(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """concat_ws(separator, ...): texts and arrays of texts."""
    parts = sum(size.bytes for size in arguments[1:])
    between = sum(max(1.0, size.count) for size in arguments[1:])
    return Size(parts + between * arguments[0].bytes + SCALAR)


def _array_join(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(arguments[0].bytes + arguments[0].count * sum(size.bytes for size in arguments[1:]) + SCALAR)


def _appended(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """An array and an element more."""
    total = sum(size.bytes for size in arguments) + SCALAR
    return Size(total, arguments[0].count + 1, either([arguments[0].item or arguments[0], arguments[-1]]))


def _zipped(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Each element has a place for all of the arrays, however short they are."""
    count = max((size.count for size in arguments), default=0.0)
    item = Size(sum((size.item or size).bytes for size in arguments) + SCALAR * len(arguments), 1.0, either(arguments))
    return Size(sum(size.bytes for size in arguments) + count * len(arguments) * SCALAR, count, item)


def _compared(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Elements that have elements are compared each with each."""
    inner = arguments[0].item
    pairs = arguments[0].count * arguments[-1].count if inner and inner.count else 0.0
    return replace(_sum(arguments), work=1.0 + pairs)


def _searched(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """A text in a text, tried at every place."""
    sizes = sorted((size.bytes for size in arguments), reverse=True)
    return Size(low=0.0, high=sizes[0], work=1 + sizes[0] * sizes[1] / 64)


def _approximate(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """approx_count_distinct: the smaller the error, the larger what it keeps; at 1 % it is 13 KB."""
    if arguments[1:] and not arguments[1].low >= LEAST_ERROR:
        raise UnknownSize
    return Size()


def _windows(arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """window(time, length, slide): Spark plans each window that may hold a row."""
    if arguments[2:]:
        length, slide = (_duration(size, text) for size, text in zip(arguments[1:3], texts[1:3], strict=True))
        if not length / slide <= OVERLAPS:
            raise UnknownSize
    return Size(2 * SCALAR)


LEAST_ERROR: Final = 0.01
OVERLAPS: Final = 50
"""Windows that a row may be in."""
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


def _written_time(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """date_format: as long as its format, and more."""
    return Size(64 + 4 * sum(size.bytes for size in arguments))


def _hash(_given: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(128)


def _flatten(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    inner = arguments[0].item
    if inner is None:
        return arguments[0].there()
    return Size(arguments[0].bytes, arguments[0].count * max(1.0, inner.count), inner.item or inner)


def _cut(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """At most as many letters as the last argument."""
    return Size(min(arguments[0].bytes, 4 * max(0.0, arguments[-1].high) if arguments[1:] else inf))


def _format(arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """A width may be any number: `%1000000d`."""
    if texts[0] is None:
        raise UnknownSize
    widths = sum(float(number) for number in re.findall(r"\d+", texts[0]))
    largest = max((size.bytes for size in arguments[1:]), default=0.0)
    return Size(arguments[0].bytes + widths + texts[0].count("%") * (largest * 4 + 400))


def _digits(arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """A number with so many digits behind the point."""
    if not arguments[1:]:
        return Size(400)
    if texts[1] is not None:
        return Size(400.0 + arguments[1].bytes)
    if arguments[1].high == inf or arguments[1].low == -inf:
        raise UnknownSize
    return Size(400.0 + max(abs(arguments[1].low), abs(arguments[1].high)))


def _rounded(arguments: Sequence[Size], texts: Sequence[str | None]) -> Size:
    """Steps grow with the square of the digits."""
    return Size(work=_digits(arguments, texts).bytes ** 2 / 100_000)


def _levenshtein(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(work=1 + arguments[0].bytes * arguments[1].bytes / 8, low=0)


def _letters(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """What is made so long is as large as what is there already."""
    return Size(low=0.0, high=max((size.bytes for size in arguments), default=inf))


def _elements(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(low=-1.0, high=max((size.count for size in arguments), default=inf))


def _least(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return replace(
        either(arguments), low=min(size.low for size in arguments), high=min(size.high for size in arguments)
    )


def _greatest(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return replace(
        either(arguments), low=max(size.low for size in arguments), high=max(size.high for size in arguments)
    )


def _remainder(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    most = max(abs(arguments[1].low), abs(arguments[1].high))
    return Size(low=-most, high=most)


def _item(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return (arguments[0].item or replace(arguments[0], count=0)).there()


def _json(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Every letter may be escaped, every element has its name and comma; options may name a format of times."""
    options = sum(size.bytes for size in arguments[1:])
    return Size(arguments[0].bytes * 6 + (arguments[0].count + 1) * (8 + options) + 64)


def _from_text(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """Each {} may become a struct of all the fields that the schema names."""
    text, schema = arguments[0].bytes, sum(size.bytes for size in arguments[1:])
    return Size(text * 4 + (text / 2 + 1) * schema * 2, text, Size(text + schema * 2, text / 2, Size(text)))


def _doubled(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(2 * sum(size.bytes for size in arguments) + SCALAR)


def _either(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return either(arguments)


def _second(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    """percentile(value, array(...)) gives as many as it is asked for."""
    return Size(arguments[1].bytes + SCALAR, arguments[1].count, arguments[1].item)


def _array(arguments: Sequence[Size], _: Sequence[str | None]) -> Size:
    return Size(sum(size.bytes for size in arguments) + SCALAR, float(len(arguments)), either(arguments))


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
