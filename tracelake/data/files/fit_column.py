"""Which Arrow types can be read as which of our types, without changing a value.

Other writers use types that Spark does not have (unsigned numbers, bytes of a fixed size, nanoseconds), and most of
their values fit. So a type is refused if values would change or be guessed (a double as a float, a text as bytes);
where only some values do not fit, those are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

MOST_DIGITS: Final = 38
WIDEST: Final = 76
UNSIGNED_DIGITS: Final = 20
"""The digits of the largest 64-bit number."""


def bare(have: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary, or the storage type of an extension type."""
    import pyarrow as pa

    if isinstance(have, pa.BaseExtensionType):
        return bare(have.storage_type)
    return bare(have.value_type) if pa.types.is_dictionary(have) else have


def unwrapped(values: pa.Array) -> pa.Array:
    """Convert to the value type."""
    import pyarrow as pa

    if isinstance(values, pa.ExtensionArray):
        return unwrapped(values.storage)
    return unwrapped(values.dictionary_decode()) if pa.types.is_dictionary(values.type) else values


def may_become(have: pa.DataType, to: pa.DataType) -> bool:
    """Whether some values of one type are values of the other, and none would change."""
    import pyarrow.types as kinds

    have = bare(have)
    if kinds.is_null(have):
        return True
    if kinds.is_floating(have) and kinds.is_floating(to):
        return bool(have.bit_width <= to.bit_width)
    if kinds.is_timestamp(have) and kinds.is_timestamp(to):
        return have.tz is None or to.tz is not None
    routes: tuple[tuple[Callable[[pa.DataType], bool], tuple[Callable[[pa.DataType], bool], ...]], ...] = (
        (kinds.is_integer, (kinds.is_integer, kinds.is_decimal, kinds.is_floating)),
        (kinds.is_floating, (kinds.is_integer,)),
        (kinds.is_decimal, (kinds.is_decimal, kinds.is_integer)),
        (_is_text, (kinds.is_string,)),
        (_is_bytes, (kinds.is_binary, kinds.is_string)),
        (kinds.is_boolean, (kinds.is_boolean,)),
        (kinds.is_date, (kinds.is_date,)),
    )
    return any(is_have(have) and any(is_to(to) for is_to in tos) for is_have, tos in routes)


def fit(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Convert without changing a value; ArrowInvalid if one does not fit."""
    import pyarrow as pa
    import pyarrow.types as kinds

    values = unwrapped(values)
    have = values.type
    if kinds.is_integer(have) and kinds.is_decimal(to):
        values = values.cast(pa.decimal256(UNSIGNED_DIGITS + to.scale, to.scale))  # Arrow compares only types here
    elif kinds.is_decimal(have):
        values = values.cast(pa.decimal256(WIDEST, have.scale))  # Arrow confuses small decimals with other numbers
    elif _is_text(have):
        values = values.cast(pa.large_binary())  # checks that they are UTF-8, which files do not guarantee
    return values.cast(to)


def spark_type(have: pa.DataType) -> str | None:
    """Return the narrowest of our types that holds every value; None: there is none. Times are in microseconds."""
    import pyarrow as pa
    import pyarrow.types as kinds

    have = bare(have)
    plain = {
        pa.null(): "string",
        pa.bool_(): "boolean",
        pa.int8(): "tinyint",
        pa.int16(): "smallint",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.uint8(): "smallint",
        pa.uint16(): "int",
        pa.uint32(): "bigint",
        pa.uint64(): f"decimal({UNSIGNED_DIGITS},0)",
        pa.float16(): "float",
        pa.float32(): "float",
        pa.float64(): "double",
    }
    if have in plain:
        return plain[have]
    if kinds.is_decimal(have):
        return f"decimal({have.precision},{have.scale})" if _is_narrow(have) else None
    if kinds.is_timestamp(have):
        return "timestamp_ntz" if have.tz is None else "timestamp"
    others = (("string", _is_text), ("binary", _is_bytes), ("date", kinds.is_date))
    return next((kind for kind, holds in others if holds(have)), None)


def _is_narrow(have: pa.DataType) -> bool:
    return bool(have.precision <= MOST_DIGITS and 0 <= have.scale <= have.precision)


def _is_text(have: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_string(have) or kinds.is_large_string(have) or kinds.is_string_view(have))


def _is_bytes(have: pa.DataType) -> bool:
    import pyarrow.types as kinds

    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(holds(have) for holds in tests)
