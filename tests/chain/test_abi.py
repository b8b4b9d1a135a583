"""Events decode to what was encoded; nonsense is counted and harms nothing; names never clash."""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chain.encoding import encode
from tracelake.chain.abi.decode_logs import decode_logs, schema_of
from tracelake.chain.abi.events import (
    BASE_COLUMNS,
    BUILT_IN,
    ERC20_APPROVAL,
    ERC20_TRANSFER,
    ERC721_TRANSFER,
    AbiEvent,
    abi_in,
    event_of,
    read_abi,
    table_names,
)
from tracelake.chain.abi.types import AbiType, read_type
from tracelake.chain.abi.values import LogData, Undecodable, plain
from tracelake.chain.schemas import LOGS
from tracelake.errors import InvalidAbi
from tracelake_devchain.block_content import APPROVAL, TRANSFER, accounts_of
from tracelake_devchain.chain import Chain
from tracelake_devchain.expected_rows import truth_table


def a_log(topics: list[bytes], data: bytes, index: int = 0) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(LOGS.names, 0)
    row |= {"transaction_hash": bytes(32), "block_hash": bytes(32), "address": bytes(20), "log_index": index}
    row |= {f"topic{place}": topics[place] if place < len(topics) else None for place in range(4)}
    return row | {"data": data, "n_data_bytes": len(data)}


def logs_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, LOGS)


def test_known_events_have_their_known_topics() -> None:
    assert "0x" + ERC20_TRANSFER.topic0.hex() == TRANSFER
    assert "0x" + ERC20_APPROVAL.topic0.hex() == APPROVAL
    assert ERC20_TRANSFER.topic0 == ERC721_TRANSFER.topic0


def test_transfers_of_the_chain_decode_to_what_happened() -> None:
    chain = Chain(blocks=120)
    logs = truth_table(chain, "logs", 0, 120)
    tokens, pieces = decode_logs(logs, ERC20_TRANSFER), decode_logs(logs, ERC721_TRANSFER)
    happened = [log for made in chain.blocks(0, 120) for log in made.logs if log.topics[0] == TRANSFER]
    fungible = [log for log in happened if len(log.topics) == 3]
    assert tokens.undecodable == pieces.undecodable == 0
    assert tokens.table["value"].to_pylist() == [str(int(log.data, 16)) for log in fungible]
    assert [item.hex() for item in tokens.table["from_address"].to_pylist()] == [log.topics[1][26:] for log in fungible]
    assert [item.hex() for item in tokens.table["to_address"].to_pylist()] == [log.topics[2][26:] for log in fungible]
    assert {item.hex() for item in pieces.table["address"].to_pylist()} == {accounts_of(7).collectible[2:]}
    assert pieces.table.num_rows == len(happened) - len(fungible)


def test_unlimited_approvals_are_exact_as_text_and_null_as_decimal() -> None:
    logs = truth_table(Chain(blocks=120), "logs", 0, 120)
    rows = decode_logs(logs, ERC20_APPROVAL).table.to_pylist()
    unlimited = [row for row in rows if row["value"] == str(2**256 - 1)]
    assert unlimited
    assert all(row["value_decimal"] is None for row in unlimited)
    assert any(row["value_decimal"] == Decimal(row["value"]) for row in rows if row not in unlimited)


numbers = st.tuples(st.sampled_from(["uint", "int"]), st.integers(1, 32)).map(lambda of: f"{of[0]}{8 * of[1]}")
elementary = st.one_of(
    numbers, st.sampled_from(["address", "bool"]), st.integers(1, 32).map(lambda size: f"bytes{size}")
).map(lambda text: read_type(text, None, "/"))
anything = st.recursive(
    st.one_of(elementary, st.sampled_from([AbiType("bytes"), AbiType("string")])),
    lambda inner: st.one_of(
        st.tuples(inner, st.one_of(st.none(), st.integers(1, 3))).map(lambda of: AbiType("array", of[1], (of[0],))),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: AbiType("tuple", None, tuple(parts), tuple(f"f{place}" for place in range(len(parts))))
        ),
    ),
    max_leaves=5,
)


def values_of(kind: AbiType) -> st.SearchStrategy[Any]:
    if kind.kind == "uint":
        return st.integers(0, 2 ** (kind.size or 0) - 1)
    if kind.kind == "int":
        return st.integers(-(2 ** ((kind.size or 0) - 1)), 2 ** ((kind.size or 0) - 1) - 1)
    if kind.kind in {"address", "fixed_bytes"}:
        size = kind.size or 20
        return st.binary(min_size=size, max_size=size)
    if kind.kind == "array":
        count = kind.size
        sizes = {"max_size": 3} if count is None else {"min_size": count, "max_size": count}
        return st.lists(values_of(kind.parts[0]), **sizes)  # type: ignore[arg-type]
    if kind.kind == "tuple":
        parts = st.tuples(*map(values_of, kind.parts))
        return parts.map(lambda values: dict(zip(kind.names, values, strict=True)))
    return {"bool": st.booleans(), "bytes": st.binary(max_size=70), "string": st.text(max_size=40)}[kind.kind]


@st.composite
def events_with_values(draw: st.DrawFn) -> tuple[AbiEvent, list[list[Any]]]:
    kinds = draw(st.lists(anything, min_size=1, max_size=5))
    indexed = [draw(st.booleans()) and kind.elementary for kind in kinds]
    for place in [place for place, yes in enumerate(indexed) if yes][3:]:
        indexed[place] = False
    named = event_of("Something", *[("uint8", f"a{place}", yes) for place, yes in enumerate(indexed)])
    arguments = [
        type(argument)(argument.name, argument.column, kind, argument.indexed)
        for argument, kind in zip(named.arguments, kinds, strict=True)
    ]
    event = AbiEvent("Something", tuple(arguments))
    rows = draw(st.lists(st.tuples(*map(values_of, kinds)).map(list), max_size=4))
    return event, rows


def logged(event: AbiEvent, values: list[Any], index: int) -> dict[str, Any]:
    pairs = list(zip(event.arguments, values, strict=True))
    topics = [event.topic0] + [encode((argument.type,), [value]) for argument, value in pairs if argument.indexed]
    not_indexed = [(argument.type, value) for argument, value in pairs if not argument.indexed]
    data = encode(tuple(kind for kind, _ in not_indexed), [value for _, value in not_indexed])
    return a_log(topics, data, index)


def expected(kind: AbiType, column: str, value: Any) -> dict[str, Any]:
    if kind.kind in {"array", "tuple"}:
        return {column: json.dumps(plain(value), separators=(",", ":"))}
    if kind.kind in {"uint", "int"} and (kind.size or 0) > (56 if kind.kind == "uint" else 64):
        return {column: str(value), f"{column}_decimal": Decimal(value) if abs(value) < 10**38 else None}
    return {column: value}


@given(events_with_values())
@settings(max_examples=100, deadline=None)
def test_what_was_encoded_is_decoded(case: tuple[AbiEvent, list[list[Any]]]) -> None:
    event, rows = case
    decoded = decode_logs(logs_of([logged(event, row, place) for place, row in enumerate(rows)]), event)
    assert decoded.undecodable == 0
    assert decoded.table.schema == schema_of(event)
    assert decoded.table.schema.names == list(event.columns), "as a query over them is checked at deploy"
    decoded.table.validate(full=True)
    for place, (found, row) in enumerate(zip(decoded.table.to_pylist(), rows, strict=True)):
        wanted: dict[str, Any] = {"log_index": place}
        for argument, value in zip(event.arguments, row, strict=True):
            wanted |= expected(argument.type, argument.column, value)
        assert {name: found[name] for name in wanted} == wanted


@given(anything, st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=150, deadline=None)
def test_nonsense_is_counted_and_never_fatal(kind: AbiType, junk: list[bytes]) -> None:
    bare = event_of("Something", ("uint8", "a", False)).arguments[0]
    event = AbiEvent("Something", (type(bare)("a", "a", kind, indexed=False),))
    decoded = decode_logs(logs_of([a_log([event.topic0], data) for data in junk]), event)
    assert decoded.table.num_rows + decoded.undecodable == len(junk)
    assert decoded.table.schema == schema_of(event)


def pointing_words(kind: AbiType) -> st.SearchStrategy[tuple[AbiType, bytes]]:
    """Data in which offsets and lengths mostly lead somewhere, often to the same place."""
    numbers = st.one_of(st.integers(0, 12).map(lambda number: 32 * number), st.integers(0, 40))
    return st.lists(numbers.map(word), max_size=40).map(lambda given: (kind, b"".join(given)))


@st.composite
def folded(draw: st.DrawFn) -> tuple[AbiType, bytes]:
    """Arrays in arrays, all elements of each at one place."""
    counts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    size = 32 * draw(st.integers(0, 30))
    kind, data = AbiType(draw(st.sampled_from(["bytes", "string"]))), word(32)
    for count in counts:
        kind, data = AbiType("array", None, (kind,)), data + word(count) + word(32 * count) * count
    return kind, data + word(size) + bytes(size)


def test_no_more_is_made_of_a_log_than_four_times_its_data() -> None:
    decoded: list[float] = []

    @given(st.one_of(anything.flatmap(pointing_words), folded()))
    @settings(max_examples=300, deadline=None)
    def holds(case: tuple[AbiType, bytes]) -> None:
        kind, data = case
        with suppress(Undecodable):
            decoded.append(made(LogData(data).value(kind, 0)) / len(data))
            assert decoded[-1] <= 4

    holds()
    assert len(decoded) >= 10, "most of them are refused, and little is shown"
    assert max(decoded) > 1, "some of them point at the same bytes twice"


def made(value: Any) -> int:
    """Bytes: as they are, or of the word that a number needs."""
    if isinstance(value, list):
        return sum(map(made, value))
    if isinstance(value, dict):
        return sum(map(made, value.values()))
    return len(value) if isinstance(value, bytes | str) else 32


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


ONE_PLACE = b"".join([word(32), word(100), *[word(32 * 100)] * 100, word(3200), bytes(3200)])
"""An array of a hundred, all of them the same 3200 bytes."""
NESTED = word(32) + (word(30) + word(32 * 30) * 30) * 3 + word(30) + word(1) * 30
"""Arrays in arrays, each thirty times the next one."""


@pytest.mark.parametrize(("kind", "bomb"), [("bytes[]", ONE_PLACE), ("string[]", ONE_PLACE), ("uint8[][][][]", NESTED)])
def test_a_log_that_unpacks_to_more_than_it_holds_is_undecodable_and_harms_no_other(kind: str, bomb: bytes) -> None:
    event = event_of("Something", (kind, "a", False))
    fine = encode((event.arguments[0].type,), [[]])
    decoded = decode_logs(logs_of([a_log([event.topic0], data) for data in (bomb, fine)]), event)
    assert decoded.table["a"].to_pylist() == ["[]"]
    assert decoded.undecodable == 1


def test_what_a_log_unpacks_to_is_bounded_for_all_its_arguments_together() -> None:
    """Ten arguments of which each holds all of the data."""
    event = event_of("Something", *[("bytes", f"a{place}", False) for place in range(10)])
    data = word(320) * 10 + word(3200) + bytes(3200)
    assert decode_logs(logs_of([a_log([event.topic0], data)]), event).undecodable == 1


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("address", b"\1" * 32),
        ("bool", (2).to_bytes(32, "big")),
        ("uint8", (256).to_bytes(32, "big")),
        ("int8", (128).to_bytes(32, "big")),
        ("bytes4", b"\0" * 4 + b"\1" + b"\0" * 27),
        ("uint256", b"\1" * 31),
        ("string", (2**255).to_bytes(32, "big")),
        ("uint8[]", (32).to_bytes(32, "big") + (2**40).to_bytes(32, "big")),
    ],
)
def test_a_word_that_is_no_value_of_its_type_is_undecodable(kind: str, word: bytes) -> None:
    event = event_of("Something", (kind, "a", False))
    decoded = decode_logs(logs_of([a_log([event.topic0], word)]), event)
    assert (decoded.table.num_rows, decoded.undecodable) == (0, 1)


def test_indexed_texts_are_known_by_their_hash() -> None:
    event = event_of("Named", ("string", "name", True), ("uint8", "n", False))
    decoded = decode_logs(logs_of([a_log([event.topic0, b"\7" * 32], (5).to_bytes(32, "big"))]), event)
    assert decoded.table.select(["name_hash", "n"]).to_pylist() == [{"name_hash": b"\7" * 32, "n": 5}]
    assert decoded.table.schema.names == list(event.columns)


def test_names_are_readable_and_never_clash() -> None:
    event = event_of(
        "Odd",
        ("address", "address", False),
        ("uint256", "tokenId", False),
        ("uint256", "token_id", False),
        ("uint8", "", False),
        ("uint8", "", False),
        ("address", "from", False),
        ("uint8", "_from_address", False),
        ("uint8", "token_id_decimal", False),
        ("uint8", "blockNumber", False),
        ("uint8", "HTTPServer", False),
    )
    columns = [argument.column for argument in event.arguments]
    assert columns == [
        "address_2", "token_id", "token_id_2", "arg3", "arg4", "from_address", "from_address_2", "token_id_decimal_2",
        "block_number_2", "http_server",
    ]  # fmt: skip
    assert len(set(schema_of(event).names)) == len(schema_of(event).names)
    assert list(event.columns) == schema_of(event).names
    assert schema_of(event).names[: len(BASE_COLUMNS)] == list(BASE_COLUMNS)


def test_an_abi_file_is_read_bare_or_wrapped(tmp_path: Path) -> None:
    legs = [{"type": "address", "name": "pool"}, {"type": "uint24"}]
    abi = [
        {"type": "function", "name": "f"},
        {"type": "event", "name": "Swap", "inputs": [{"type": "uint", "name": "amountIn", "indexed": False}]},
        {"type": "event", "name": "Swap", "inputs": [{"type": "tuple[]", "name": "legs", "components": legs}]},
        {"type": "event", "name": "Hidden", "anonymous": True, "inputs": []},
    ]
    for document in (abi, {"abi": abi, "bytecode": "0x"}):
        path = tmp_path / "abi.json"
        path.write_text(json.dumps(document))
        events = read_abi(abi_in(path))
        assert [event.signature for event in events] == ["Swap(uint256)", "Swap((address,uint24)[])"]
    assert list(table_names(events)) == ["swap", "swap_2"]
    assert set(BUILT_IN) == {"erc20", "erc721"}


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "X", "inputs": [{"type": "uint7"}]},
        {"name": "X", "inputs": [{"type": "uint264"}]},
        {"name": "X", "inputs": [{"type": "bytes33"}]},
        {"name": "X", "inputs": [{"type": "fixed128x18"}]},
        {"name": "X", "inputs": [{"type": "tuple"}]},
        {"name": "X", "inputs": [{"type": "tuple", "components": []}]},
        {"name": "X", "inputs": [{"type": "uint8[0]"}]},
        {"name": "X", "inputs": [{"type": "tuple", "components": [{"type": "bool", "name": "a"}] * 2}]},
        {"name": "X", "inputs": [{"type": 5}]},
        {"name": "X", "inputs": [{"type": "uint8" + "[]" * 40}]},
        {"name": "X", "inputs": [{"type": "uint8", "indexed": True}] * 4},
        {"name": "X", "inputs": "none"},
        {"name": 5, "inputs": []},
        {"inputs": []},
    ],
)
def test_an_abi_that_cannot_be_is_refused_with_its_place(entry: dict[str, Any]) -> None:
    with pytest.raises(InvalidAbi) as raised:
        read_abi([{"type": "event", **entry}])
    assert (raised.value.where or "").startswith("/0")


def test_what_is_no_abi_is_refused(tmp_path: Path) -> None:
    for text in ("{", "5", '{"abi": 3}', "[" * 100_000):
        path = tmp_path / "abi.json"
        path.write_text(text)
        with pytest.raises(InvalidAbi):
            read_abi(abi_in(path))
    with pytest.raises(InvalidAbi):
        abi_in(tmp_path / "absent.json")
