"""The one reader of bodies that others send."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tracelake
from tracelake.errors import InvalidRequest
from tracelake.runtime.read_body import bounded, read_bounded

pytestmark = pytest.mark.anyio
CHUNKS = re.compile(r"\.(?:stream\(\)|aiter_(?:raw|bytes|text|lines)\(|content\.iter_any\()")
BOUNDED = re.compile(r"bounded\(\w+(?:\.content)?(?:\.stream\(\)|\.aiter_\w+\(\)|\.iter_any\(\))")


async def _chunks(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b"x" * size


async def test_a_body_of_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    assert await read_bounded(_chunks(6, 4), 10) == b"x" * 10
    with pytest.raises(InvalidRequest, match="larger than 10 bytes") as refused:
        await read_bounded(_chunks(6, 5), 10, where="/body")
    assert refused.value.where == "/body"


async def test_a_body_that_is_passed_on_ends_at_the_limit() -> None:
    body = bounded(_chunks(*[4] * 1000), 10)
    assert [await anext(body), await anext(body)] == [b"xxxx"] * 2
    with pytest.raises(InvalidRequest):
        await anext(body)


def test_every_body_is_read_by_it() -> None:
    """But for the answers of our own services."""
    lines = [
        f"{path.name}:{number}: {line.strip()}"
        for path in Path(tracelake.__file__).parent.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if CHUNKS.search(line) and not BOUNDED.search(line)
    ]
    assert lines == []
