"""Blocks of real chains, from the specification of the execution APIs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.support.chain.encoding import exchanges
from tracelake.chain.nodes.responses import Block, BlockOfHashes


def blocks(data: Path) -> dict[str, Block | BlockOfHashes]:
    found: dict[str, Block | BlockOfHashes] = {}
    for name, request, response in exchanges(data / "execution-apis" / "eth_getBlockByNumber"):
        if response["result"] is not None:
            whole = request["params"][1]
            result = response["result"]
            found[name] = msgspec.convert(result, Block) if whole else msgspec.convert(result, BlockOfHashes)
    return found
