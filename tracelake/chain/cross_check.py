"""Reads the last block of a range from a second endpoint: it proves the blocks before it, but nothing proves it.

An endpoint that lags is waited for briefly; one that is down, slow or wrong is ignored. One that has another valid
block makes the range doubtful, and it is refused.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from tracelake.chain.nodes import responses
from tracelake.chain.nodes.rpc import Lane, RpcClient
from tracelake.chain.proofs.verify import check_header
from tracelake.chain.read_blocks import Wants, read_blocks
from tracelake.errors import ChainMoved, ProviderError, ProviderLagged

log = structlog.get_logger()
WAIT_SECONDS = 3.0
"""How long to wait for a response or a lagging endpoint."""


async def confirm(client: RpcClient, wants: Wants, number: int, block_hash: str, by: int) -> None:
    """Returns if another endpoint has the same block, or if none answers; raises ChainMoved if one has another."""
    until, silent = time.monotonic() + WAIT_SECONDS, {by}
    while (one := await client.health.witness(silent, until)) is not None:
        began, lane = time.monotonic(), Lane(client, one)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                if await _hash_of(lane, number) == block_hash:
                    return
            # What it answered first was not proved: an endpoint that was wrong once may have the same block.
            proved = await read_blocks(lane, range(max(0, number - 1), number + 1), wants)
            if proved[-1].block.hash == block_hash:
                return
        except TimeoutError:  # our own load may be the cause, so it is not paused; the next endpoint gets the same time
            silent.add(one.place)
            until = time.monotonic() + WAIT_SECONDS
            continue
        except ProviderError as error:
            client.health.failed(one, error, began)
            if not isinstance(error, ProviderLagged):
                silent.add(one.place)
            continue
        first, second = client.pool.endpoints[by].label, lane.label
        message = f"{first} and {second} have different blocks {number}: the chain moved, or one of them is wrong"
        raise ChainMoved(message, where=f"{first}, {second}")
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
