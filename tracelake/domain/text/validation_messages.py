"""What pydantic refuses, in our own words: what is given, what is wanted, where, and which name was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tracelake.domain.text.suggest import closest, nearest

Path = tuple[str | int, ...]
Context = Mapping[str, Any]

FORMS = {r"^[a-z][a-z0-9_]{0,127}$": "a name in lower snake case, at most 128 characters"}
"""Descriptions of patterns."""
MEANT = {
    **dict.fromkeys(("yes", "on", "true", "1"), "did you mean true?"),
    **dict.fromkeys(("no", "off", "false", "0"), "did you mean false?"),
}
NUMBERS = (re.compile(r"-?[0-9]{1,18}"), re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?"))
"""As text: a whole one, and any."""


@dataclass(frozen=True, slots=True)
class InvalidField:
    path: Path
    """Through what was given: keys and list indexes."""
    code: str
    reason: str
    suggestion: str | None = None


def invalid_fields(errors: ValidationError, model: type[BaseModel], given: Any) -> list[InvalidField]:
    """One per place. If items of a list are wrong, their number is not reported too."""
    placed = [_Placed(error, *_place(error["loc"], model, given)) for error in errors.errors(include_url=False)]
    below = {item.path[:depth] for item in placed for depth in range(len(item.path))}
    left = [item for item in placed if not (item.error["type"] == "too_short" and item.path in below)]
    return [_invalid_field(list(same)) for _, same in groupby(left, key=lambda item: item.path)]


def wanted(error: ErrorDetails) -> str | None:
    """A valid value; None if it is not known, or if the whole sentence is (`sentence`)."""
    find = WANTED.get(error["type"])
    return None if find is None else find(error.get("ctx", {}))


def sentence(error: ErrorDetails) -> str:
    """The message of our own validators, or the type of an unknown error."""
    own = error.get("ctx", {}).get("error")
    return str(own) if own is not None else f"this does not fit here: {error['type'].replace('_', ' ')}"


def kind_of_value(value: Any) -> str:
    """In words, for `this is the text 'x', not a list`."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case str():
            return f"the text {value[:40]!r}"
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "a map"
        case _:
            return "a list"


def choices(context: Context) -> list[str]:
    return re.findall(r"'([^']*)'", context.get("expected", "") or context.get("expected_tags", ""))


def _one_of(context: Context) -> str:
    names = choices(context)
    return f"one of {', '.join(names)}" if len(names) > 1 else "".join(names)


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"


def _signs(count: int) -> str:
    return f"{count} character{'s' * (count != 1)}"


def _always(words: str) -> Callable[[Context], str]:
    return lambda _: words


WANTED: Mapping[str, Callable[[Context], str]] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _always("a whole number")),
    **dict.fromkeys(("float_type", "float_parsing"), _always("a number")),
    "finite_number": _always("a number that is not endless"),
    **dict.fromkeys(("string_type", "string_unicode", "path_type"), _always("text")),
    **dict.fromkeys(("bool_type", "bool_parsing"), _always("true or false")),
    **dict.fromkeys(("list_type", "tuple_type"), _always("a list")),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), _always("a map")),
    **dict.fromkeys(("literal_error", "union_tag_invalid"), _one_of),
    "greater_than_equal": lambda context: f"{context['ge']} or more",
    "greater_than": lambda context: f"more than {context['gt']}",
    "less_than_equal": lambda context: f"{context['le']} or less",
    "less_than": lambda context: f"less than {context['lt']}",
    "too_short": lambda context: f"a list of {_items(context['min_length'])} or more",
    "too_long": lambda context: f"a list of {_items(context['max_length'])} or less",
    "string_too_short": lambda context: f"text of {_signs(context['min_length'])} or more",
    "string_too_long": lambda context: f"text of {_signs(context['max_length'])} or less",
    "string_pattern_mismatch": lambda context: FORMS.get(context["pattern"], f"text like {context['pattern']}"),
}
"""By pydantic's name for the error."""


@dataclass(frozen=True, slots=True)
class _Placed:
    error: ErrorDetails
    path: Path
    known: tuple[str, ...]
    """The fields of what the path's last step leads into."""


def _invalid_field(same: Sequence[_Placed]) -> InvalidField:
    """From all that is wrong at one place: several only where a value may be of several kinds, and is of none."""
    first = same[0]
    error, path, kind = first.error, first.path, first.error["type"]
    if kind == "missing":
        return InvalidField(path, "missing", f"`{path[-1]}` is required")
    if kind == "extra_forbidden":
        hint = closest(str(path[-1]), first.known) if first.known else "there are none: remove it"
        return InvalidField(path, "unknown_field", f"there is no field {str(path[-1])[:128]!r} here", hint)
    if kind == "union_tag_not_found":
        field = str(error["ctx"]["discriminator"]).strip("'")
        return InvalidField((*path, field), "missing", f"`{field}` is required")
    asked = [words for item in same if (words := wanted(item.error))]
    if not asked:
        return InvalidField(path, "bad_config", sentence(error))
    value, context = error["input"], error.get("ctx", {})
    if kind == "union_tag_invalid":
        path, value = (*path, context["discriminator"].strip("'")), context["tag"]
    if "a number" in asked:
        asked = [words for words in asked if words != "a whole number"]
    known = [name for item in same for name in choices(item.error.get("ctx", {}))]
    return InvalidField(path, "bad_config", _sentence(kind, value, " or ".join(asked)), _hint(value, asked, known))


def _sentence(kind: str, value: Any, asked: str) -> str:
    if value is None:
        return f"nothing is given here; {asked} is wanted"
    if kind in {"too_short", "too_long"}:
        return f"this is {f'a list of {_items(len(value))}' if value else 'an empty list'}, not {asked}"
    if kind in {"string_too_short", "string_too_long"}:
        return f"this is {f'text of {_signs(len(value))}' if value else 'empty text'}, not {asked}"
    return f"this is {kind_of_value(value)}, not {asked}"


def _hint(value: Any, asked: Sequence[str], known: Sequence[str]) -> str | None:
    if value is None:
        return "give a value; what is not required may be left out"
    if "a whole number" in asked and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if not isinstance(value, str):
        return None
    if "a list" in asked:
        return f"such as [{value[:40]}]"
    form = NUMBERS[0] if "a whole number" in asked else NUMBERS[1] if "a number" in asked else None
    if form and form.fullmatch(value):
        return f"without quotes: {value}"
    return MEANT.get(value.casefold()) if "true or false" in asked else nearest(value, known)


def _place(location: Path, model: type[BaseModel], given: Any) -> tuple[Path, tuple[str, ...]]:
    """Where it is in what was given, and which fields are known there.

    Pydantic's own way also names the kind that it tried, where a value may be of several; a person wrote no such step.
    """
    path: Path = ()
    models, known = [model], tuple[str, ...]()
    for step in location:
        if isinstance(step, str) and len(models) > 1:
            models = [model for model in models if _has_tag(model, step)] or models
            continue
        fields = {info.alias or name: info for model in models for name, info in model.model_fields.items()}
        inside = _inside(given, step)
        if isinstance(step, str) and step in fields:
            models = list(_models_in(fields[step].annotation))
        elif isinstance(step, str):
            if not (isinstance(given, Mapping) and step in given):
                continue
            models = []
        path, known, given = (*path, step), tuple(fields), inside
    return path, known


def _inside(given: Any, step: str | int) -> Any:
    if isinstance(given, Mapping):
        return given.get(step)
    if isinstance(given, list | tuple) and isinstance(step, int) and step < len(given):
        return given[step]
    return None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _has_tag(model: type[BaseModel], tag: str) -> bool:
    kinds = [info.annotation for info in model.model_fields.values() if get_origin(info.annotation) is Literal]
    return any(tag in get_args(kind) for kind in kinds)
