"""Encodings against slow, plain readings of the same rules, written for this test alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.chain.keccak import keccak
from tracelake.chain.proofs import rlp
from tracelake.chain.proofs.trie import EMPTY_ROOT, ordered_root

values = st.recursive(st.binary(max_size=80), lambda inner: st.lists(inner, max_size=6), max_leaves=20)


def encode(value: Any) -> bytes:
    return rlp.encode_bytes(value) if isinstance(value, bytes) else rlp.encode_list(map(encode, value))


def decode(data: bytes) -> tuple[Any, bytes]:
    """One item and what is left."""
    first = data[0]
    if first < 0x80:
        return data[:1], data[1:]
    is_list, short = first >= 0xC0, first - (0xC0 if first >= 0xC0 else 0x80)
    if short < 56:
        size, rest = short, data[1:]
    else:
        size, rest = int.from_bytes(data[1 : 1 + short - 55], "big"), data[1 + short - 55 :]
    body, rest = rest[:size], rest[size:]
    if not is_list:
        return body, rest
    items = []
    while body:
        item, body = decode(body)
        items.append(item)
    return items, rest


@given(values)
def test_what_is_encoded_can_be_decoded(value: Any) -> None:
    assert decode(encode(value)) == (value, b"")


@given(st.integers(min_value=0, max_value=2**256 - 1), st.integers(min_value=0, max_value=5))
def test_a_quantity_in_text_encodes_as_the_number_whatever_zeros_it_carries(number: int, zeros: int) -> None:
    assert bytes.fromhex(rlp.text_of_quantity("0x" + "0" * zeros + f"{number:x}")) == rlp.encode_int(number)


@given(st.one_of(st.binary(max_size=70), st.integers(250, 70_000).map(bytes)))
def test_data_and_lists_in_text_encode_as_in_bytes(value: bytes) -> None:
    assert bytes.fromhex(rlp.text_of_data("0x" + value.hex())) == rlp.encode_bytes(value)
    assert bytes.fromhex(rlp.text_of_list(value.hex())) == rlp.encode_list([value])


@pytest.mark.parametrize("spell", [rlp.text_of_word, rlp.text_of_address])
def test_a_field_of_the_wrong_length_is_refused(spell: Any) -> None:
    for text in ("0x", "0x" + "11" * 19, "0x" + "11" * 21, "0x" + "11" * 33):
        with pytest.raises(ValueError, match="bytes"):
            spell(text)


def plain_root(entries: dict[str, bytes]) -> bytes:
    """A Merkle-Patricia tree, by the book and from nibbles to node for every single entry."""

    def path(nibbles: str, flag: int) -> bytes:
        odd = len(nibbles) % 2
        return bytes.fromhex(f"{flag + odd:x}" + ("" if odd else "0") + nibbles)

    def structure(subset: dict[str, bytes]) -> Any:
        if not subset:
            return b""
        if len(subset) == 1:
            ((nibbles, value),) = subset.items()
            return [path(nibbles, 2), value]
        shared = ""
        while len({nibbles[: len(shared) + 1] for nibbles in subset}) == 1:
            shared = next(iter(subset))[: len(shared) + 1]
        if shared:
            rest = {nibbles[len(shared) :]: value for nibbles, value in subset.items()}
            return [path(shared, 0), reference(structure(rest))]
        below = [{n[1:]: v for n, v in subset.items() if n[0] == f"{digit:x}"} for digit in range(16)]
        return [*[reference(structure(group)) if group else b"" for group in below], b""]

    def reference(node: Any) -> Any:
        encoded = encode(node)
        return node if len(encoded) < 32 else keccak(encoded)

    return keccak(encode(structure(entries)))


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=300))
def test_a_lists_root_is_the_root_of_its_tree(items: list[bytes]) -> None:
    entries = {rlp.encode_int(position).hex(): item for position, item in enumerate(items)}
    assert ordered_root(items) == plain_root(entries)


def test_an_empty_list_has_the_empty_root() -> None:
    assert ordered_root([]) == EMPTY_ROOT
    assert EMPTY_ROOT.hex() == "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"


def test_keccak_is_the_one_of_ethereum_and_not_the_later_standard() -> None:
    assert keccak(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
