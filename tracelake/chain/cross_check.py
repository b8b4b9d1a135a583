"""A second endpoint is asked for the last block of a range: the blocks before it are proved by it, and it by nothing.

One that lags is waited for a little; one that is down, slow or lies cannot speak for or against anybody. One that
stands by another block, and can prove it as far as the first could, makes the range doubtful: nothing of it counts.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from tracelake.chain import responses
from tracelake.chain.read_blocks import Wants, read_blocks
from tracelake.chain.rpc import Lane, RpcClient
from tracelake.chain.verify import check_header
from tracelake.errors import ChainMoved, ProviderError, ProviderLagged

log = structlog.get_logger()
PATIENCE_SECONDS = 3.0
"""How long a laggard, or an answer, is waited for: nodes of one chain are seldom further apart."""


async def confirm(client: RpcClient, wants: Wants, number: int, block_hash: str, by: int) -> None:
    """Return if another endpoint has the same block, or if none can say; raise ChainMoved if one has another."""
    until, silent = time.monotonic() + PATIENCE_SECONDS, {by}
    while (one := await client.health.witness(silent, until)) is not None:
        began, lane = time.monotonic(), Lane(client, one)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if await _hash_of(lane, number) == block_hash:
                    return
            await read_blocks(lane, range(max(0, number - 1), number + 1), wants)
        except TimeoutError:  # maybe we are the busy ones, so it does not rest; the next one has the same time
            silent.add(one.place)
            until = time.monotonic() + PATIENCE_SECONDS
            continue
        except ProviderError as wrong:
            client.health.failed(one, wrong, began)
            if not isinstance(wrong, ProviderLagged):
                silent.add(one.place)
            continue
        first, second = client.pool.endpoints[by].label, lane.label
        said = f"{first} and {second} have different blocks {number}: the chain moved, or one of them lies"
        raise ChainMoved(said, where=f"{first}, {second}")
    if len(client.pool.endpoints) > 1:
        log.warning("block_unconfirmed", pool=client.pool.name, block=number, by=client.pool.endpoints[by].label)


async def _hash_of(lane: Lane, number: int) -> str:
    (answer,) = await lane.ask([("eth_getBlockByNumber", (hex(number), False))])
    block = lane.read(answer, responses.read_block_of_hashes)
    if block is None:
        raise ProviderLagged(f"{lane.label} does not have block {number}", where=lane.label)
    try:
        check_header(block, number)
    except ValueError as untrue:  # Untrue, or hex that is none
        raise lane.lied(str(untrue)) from None
    return block.hash or ""
