"""Events of a contract: from its JSON ABI to typed Arrow columns.

| in Solidity | column |
|---|---|
| `uint8` .. `uint56`, `int8` .. `int64` | int64 |
| wider numbers | `NAME`: decimal text, always exact; `NAME_decimal`: decimal(38, 0), null where it does not fit |
| `address`, `bytesN`, `bytes` | binary |
| `bool`, `string` | boolean, text (bytes that are no UTF-8 are replaced) |
| arrays, tuples | JSON text: numbers as decimal texts, bytes as hex |
| indexed and not one word (`string`, `bytes`, arrays, tuples) | `NAME_hash`: binary; the chain keeps no more |

Names become snake case; an argument without one is `arg0`, `arg1`, ...; `from` and `to` are `from_address` and
`to_address`, as in `transactions`; a name that is taken gets `_2`, `_3`, ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelake.chain.abi.types import AbiType, read_type
from tracelake.chain.keccak import keccak
from tracelake.errors import InvalidAbi

BASE_COLUMNS = (
    "block_number",
    "block_hash",
    "timestamp",
    "transaction_index",
    "transaction_hash",
    "log_index",
    "address",
)
"""What every decoded row keeps of its log; `address` is the contract's."""
READ_COLUMNS = (*BASE_COLUMNS, "chain_id", "topic0", "topic1", "topic2", "topic3", "data")
"""The columns of logs that are needed."""
_MOST_INDEXED = 3
_LARGEST = 16 << 20
"""Bytes of an ABI file."""


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    """As in the ABI; may be empty."""
    column: str
    type: AbiType
    indexed: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """What its value becomes."""
        if self.indexed and not self.type.elementary:
            return (f"{self.column}_hash",)
        return (self.column, f"{self.column}_decimal") if self.type.is_wide else (self.column,)


@dataclass(frozen=True, slots=True)
class AbiEvent:
    name: str
    arguments: tuple[Argument, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Of a table of its logs: the names of `decode_logs.schema_of`, known without Arrow."""
        return (*BASE_COLUMNS, *(column for argument in self.arguments for column in argument.columns))

    @property
    def signature(self) -> str:
        return f"{self.name}({','.join(str(argument.type) for argument in self.arguments)})"

    @property
    def topic0(self) -> bytes:
        return keccak(self.signature.encode())

    @property
    def topics(self) -> int:
        """The number of topics of its logs, which distinguishes ERC-20 transfers from ERC-721 ones."""
        return 1 + sum(argument.indexed for argument in self.arguments)


def abi_in(path: Path) -> Any:
    """The document in a file: a JSON ABI, bare or as compilers wrap it (`{"abi": [...]}`)."""
    try:
        if path.stat().st_size > _LARGEST:
            raise InvalidAbi("this is too large for an ABI", where=str(path))
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidAbi(f"the file cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise _no_json(str(path)) from None
    return document_of(text, where=str(path))


def document_of(text: str, *, where: str = "/") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _no_json(where) from None


def _no_json(where: str) -> InvalidAbi:
    return InvalidAbi("this is not JSON, or nested without end", where=where, hint="give the contract's ABI as JSON")


def read_abi(document: Any) -> tuple[AbiEvent, ...]:
    """Its events without anonymous ones, whose logs cannot be found by name."""
    entries = document.get("abi") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise InvalidAbi("an ABI is a list", where="/", hint='or an object with the list under "abi"')
    return tuple(
        _event(entry, f"/{place}")
        for place, entry in enumerate(entries)
        if isinstance(entry, dict) and entry.get("type") == "event" and not entry.get("anonymous")
    )


def _event(entry: dict[str, Any], where: str) -> AbiEvent:
    name, inputs = entry.get("name"), entry.get("inputs", [])
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidAbi("an event has a name", where=f"{where}/name")
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise InvalidAbi("an event's inputs are a list of objects", where=f"{where}/inputs")
    if sum(bool(item.get("indexed")) for item in inputs) > _MOST_INDEXED:
        raise InvalidAbi(f"{name} has more than {_MOST_INDEXED} indexed arguments", where=f"{where}/inputs")
    types = [
        read_type(item.get("type"), item.get("components"), f"{where}/inputs/{place}")
        for place, item in enumerate(inputs)
    ]
    columns = _columns([_wanted(item.get("name"), place) for place, item in enumerate(inputs)])
    return AbiEvent(
        name,
        tuple(
            Argument(str(item.get("name") or ""), column, kind, bool(item.get("indexed")))
            for item, column, kind in zip(inputs, columns, types, strict=True)
        ),
    )


def _wanted(name: Any, place: int) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", str(name or "")).lower()
    clean = re.sub(r"[^a-z0-9_]", "_", snake).strip("_")
    return {"from": "from_address", "to": "to_address"}.get(clean, clean) or f"arg{place}"


def _columns(wanted: Sequence[str]) -> list[str]:
    """Each its own, also with the endings that a column may get."""
    taken, columns = set(BASE_COLUMNS), []
    for name in wanted:
        count = 1
        column = name
        while taken & _spellings(column):
            count += 1
            column = f"{name}_{count}"
        taken |= _spellings(column)
        columns.append(column)
    return columns


def _spellings(column: str) -> set[str]:
    return {column, f"{column}_decimal", f"{column}_hash"}


def event_of(name: str, *arguments: tuple[str, str, bool]) -> AbiEvent:
    """From (type, name, indexed) of each argument."""
    inputs = [{"type": kind, "name": called, "indexed": indexed} for kind, called, indexed in arguments]
    return _event({"name": name, "inputs": inputs}, "")


ERC20_TRANSFER = event_of("Transfer", ("address", "from", True), ("address", "to", True), ("uint256", "value", False))
ERC20_APPROVAL = event_of(
    "Approval", ("address", "owner", True), ("address", "spender", True), ("uint256", "value", False)
)
ERC721_TRANSFER = event_of("Transfer", ("address", "from", True), ("address", "to", True), ("uint256", "tokenId", True))
ERC721_APPROVAL = event_of(
    "Approval", ("address", "owner", True), ("address", "approved", True), ("uint256", "tokenId", True)
)
BUILT_IN = {
    "erc20": (ERC20_TRANSFER, ERC20_APPROVAL),
    "erc721": (ERC721_TRANSFER, ERC721_APPROVAL),
}
"""Built-in events."""


def table_names(events: Iterable[AbiEvent]) -> dict[str, AbiEvent]:
    """A name for each: the event's, in snake case; overloads get `_2`, `_3`, ..."""
    named: dict[str, AbiEvent] = {}
    for event in events:
        base = _wanted(event.name, 0)
        count, name = 1, base
        while name in named:
            count += 1
            name = f"{base}_{count}"
        named[name] = event
    return named
