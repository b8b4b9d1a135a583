"""A wrong `config` of any operator is refused with our own message, at a location that exists in it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tracelake.domain.dag.catalog import ConfigProblem, OperatorSpec
from tracelake.operators.registry import specs

PYDANTICS = (
    "should",
    "valid",
    "Value error",
    "Extra inputs",
    "Field required",
    "Unable to",
    "does not match",
    "pydantic",
    "does not fit here",  # ours, for an unexpected kind of error
)
NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 10_000_000)
    | st.floats()
    | st.sampled_from(["", "x", "5", "yes", "ä"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "a", "min"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def nearly(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of the expected shape, with wrong values at some depth."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return NONSENSE | nearly_all(annotation)
    if origin is Annotated:
        return nearly(inner[0])
    if origin in {Union, UnionType}:
        return st.one_of(*map(nearly, inner))
    if origin in {list, tuple}:
        return NONSENSE | st.lists(nearly(inner[0]), max_size=3)
    if origin is Literal:
        return NONSENSE | st.sampled_from(inner)
    right = {int: st.integers(-1, 100), str: st.text("az_:.", max_size=5)}.get(annotation, NONSENSE)
    return NONSENSE | right


def nearly_all(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: nearly(info.annotation) for name, info in model.model_fields.items()}
    return st.fixed_dictionaries({}, optional={**fields, "unheard_of": NONSENSE})


def leads_into(config: Any, path: tuple[str | int, ...], *, missing: bool) -> bool:
    for step in path[:-1] if missing else path:
        if isinstance(config, Mapping) != isinstance(step, str):
            return False
        if isinstance(config, Mapping) and step not in config:
            return False
        config = config[step]
    return not missing or (isinstance(config, Mapping) and path[-1] not in config)


@pytest.mark.parametrize(("name", "spec"), specs().items(), ids=specs())
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_an_invalid_config_is_refused_with_our_message_and_an_existing_location(
    name: str, spec: OperatorSpec, data: st.DataObject
) -> None:
    model = import_module(f"tracelake.operators.{name}").Config
    config = data.draw(nearly_all(model))
    for problem in spec.check_config(config):
        message = f"{problem.reason} ({problem.suggestion})"
        assert not [words for words in PYDANTICS if words in message], message
        assert leads_into(config, problem.path, missing=problem.code == "missing"), problem


@pytest.mark.parametrize(
    ("operator", "config", "problem"),
    [
        ("range_splitter", {"chunk": "500"}, (("chunk",), "this is the text '500', not a whole number", "500")),
        ("range_splitter", {"chunk": 0}, (("chunk",), "this is the number 0, not 1 or more", None)),
        ("range_splitter", {"chunk": 5.0}, (("chunk",), "this is the number 5.0, not a whole number", "write 5")),
        ("range_splitter", {"chunk": None}, (("chunk",), "nothing is given here; a whole number is wanted", "give")),
        ("range_splitter", {}, (("chunk",), "`chunk` is required", None)),
        ("range_splitter", {"chunk": 5, "chunks": 5}, (("chunks",), "there is no field 'chunks' here", "mean chunk?")),
        ("noop", {"a": 1}, (("a",), "there is no field 'a' here", "there are none")),
        ("sql", {"query": ""}, (("query",), "this is empty text, not text of 1 character or more", None)),
        (
            "sql",
            {"query": "x", "mode": "ful"},
            (("mode",), "this is the text 'ful', not one of partition, update, full", "did you mean full?"),
        ),
        (
            "block_follower",
            {"rpc_pool": "dev", "start_block": "newest"},
            (("start_block",), "this is the text 'newest', not a whole number or latest", None),
        ),
        (
            "cryo_ingest",
            {"rpc_pool": "dev", "tables": ["block"]},
            (("tables", 0), "this is the text 'block', not one of blocks, transactions, logs", "did you mean blocks?"),
        ),
        (
            "quality",
            {"checks": [{"kind": "not_nul"}]},
            (("checks", 0, "kind"), "this is the text 'not_nul', not one of not_null,", "did you mean not_null?"),
        ),
        ("quality", {"checks": [{}]}, (("checks", 0, "kind"), "`kind` is required", None)),
        ("quality", {"checks": []}, (("checks",), "this is an empty list, not a list of 1 item or more", None)),
        (
            "quality",
            {"checks": [{"kind": "range", "column": "a", "min": "x"}]},
            (("checks", 0, "min"), "this is the text 'x', not a number", None),
        ),
        (
            "quality",
            {"checks": [{"kind": "continuous", "colum": "a"}]},
            (("checks", 0, "colum"), "there is no field 'colum' here", "did you mean column?"),
        ),
        (
            "read_files",
            {"path": "x", "format": "csv", "header": "yes"},
            (("header",), "this is the text 'yes', not true or false", "did you mean true?"),
        ),
        (
            "evm_decode",
            {"abi": "erc20", "events": "transfer"},
            (("events",), "this is the text 'transfer', not a list", "such as [transfer]"),
        ),
    ],
)
def test_the_error_for_a_wrong_value_says_what_is_expected_and_suggests_a_value(
    operator: str, config: dict[str, Any], problem: tuple[tuple[str | int, ...], str, str | None]
) -> None:
    (found,) = specs()[operator].check_config(config)
    path, reason, hint = problem
    assert (found.path, found.reason[: len(reason)]) == (path, reason)
    assert (hint is None and found.suggestion is None) or (hint or "") in (found.suggestion or "nothing")


def test_an_address_instead_of_a_name_is_not_repeated() -> None:
    found: list[ConfigProblem] = []
    for given_ in ("https://node/hush", ["https://node/hush"], {"hush": 1}):
        found += specs()["cryo_ingest"].check_config({"rpc_pool": given_})
    assert len(found) == 3
    assert "hush" not in str(found)


@pytest.mark.parametrize(
    ("operator", "config", "path"),
    [
        ("block_follower", {"rpc_pool": "main", "start_block": 2**63}, ("start_block",)),
        ("parquet_compact", {"grace_seconds": 10**21}, ("grace_seconds",)),
        ("read_files", {"path": "a", "format": "csv", "bad_lines": 10**21}, ("bad_lines",)),
        ("range_splitter", {"chunk": 10**21}, ("chunk",)),
        ("range_aggregator", {"size": 5, "start": 10**21}, ("start",)),
        ("quality", {"checks": [{"kind": "row_count", "max": 10**21}]}, ("checks", 0, "max")),
    ],
)
def test_a_number_that_is_too_large_for_its_setting_is_refused_at_deploy(
    operator: str, config: dict[str, object], path: tuple[str | int, ...]
) -> None:
    """A file may have numbers of 38 digits: an operator refuses those that it cannot use."""
    assert [item.path for item in specs()[operator].check_config(config)] == [path]
