"""The ABI's encoding, written for tests alone, and the request and response vectors of the specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tracelake.chain.abi.types import AbiType


def encode(kinds: tuple[AbiType, ...], values: list[Any]) -> bytes:
    parts = [_one(kind, value) for kind, value in zip(kinds, values, strict=True)]
    heads_size = sum(32 if kind.dynamic else len(part) for kind, part in zip(kinds, parts, strict=True))
    heads, tails = b"", b""
    for kind, part in zip(kinds, parts, strict=True):
        if kind.dynamic:
            heads += (heads_size + len(tails)).to_bytes(32, "big")
            tails += part
        else:
            heads += part
    return heads + tails


def _one(kind: AbiType, value: Any) -> bytes:
    if kind.kind in {"uint", "int", "bool"}:
        return (int(value) % 2**256).to_bytes(32, "big")
    if kind.kind == "address":
        return bytes(12) + bytes(value)
    if kind.kind == "fixed_bytes":
        return bytes(value).ljust(32, b"\0")
    if kind.kind in {"bytes", "string"}:
        content = value.encode() if isinstance(value, str) else value
        return len(content).to_bytes(32, "big") + content + bytes(-len(content) % 32)
    if kind.kind == "tuple":
        return encode(kind.parts, list(value.values()))
    body = encode(kind.parts * len(value), value)
    return body if kind.size is not None else len(value).to_bytes(32, "big") + body


def exchanges(folder: Path) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, request and response of each file."""
    found = []
    for path in sorted(folder.glob("*.io")):
        lines = path.read_text().splitlines()
        request = next(json.loads(line[3:]) for line in lines if line.startswith(">>"))
        response = next(json.loads(line[3:]) for line in lines if line.startswith("<<"))
        found.append((path.stem, request, response))
    return found
