"""The tip of the chain for followers: heads, and headers to go back along after a reorg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelake.chain.nodes import responses
from tracelake.chain.nodes.rpc import Lane, RpcClient
from tracelake.chain.proofs.verify import check_header
from tracelake.errors import ProviderError, ProviderLagged, ProviderRefused


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """As much of a block as a follower needs; its hash was made again from the whole header."""

    number: int
    hash: bytes
    parent_hash: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class Heads:
    """`safe` and `finalized` are None on chains that do not have them."""

    latest: BlockHeader
    safe: BlockHeader | None
    finalized: BlockHeader | None
    by: int
    """The index in the pool of the endpoint that returned it."""


async def heads(client: RpcClient) -> Heads:
    """All three from one endpoint at one time."""

    async def ask(lane: Lane) -> Heads:
        latest = await _by_number(lane, "latest") or _missing(lane, "latest")
        return Heads(latest, await _tagged(lane, "safe"), await _tagged(lane, "finalized"), lane.standing.place)

    return await client.work(ask)


async def finalized_number(client: RpcClient) -> int | None:
    """One call, for information only: None if the chain or the endpoint does not have it."""
    try:
        found = await client.work(lambda lane: _tagged(lane, "finalized"), attempts=1)
    except ProviderError:
        return None
    return found.number if found else None


async def headers(client: RpcClient, numbers: Sequence[int], by: int) -> list[BlockHeader]:
    """In the order asked for, from the endpoint at this place, once; whether they link is for the caller to see."""

    async def ask(lane: Lane) -> list[BlockHeader]:
        answers = await lane.ask([("eth_getBlockByNumber", (hex(number), False)) for number in numbers])
        return [
            _read(lane, lane.read(answer, responses.read_block_of_hashes), number) or _missing(lane, str(number))
            for number, answer in zip(numbers, answers, strict=True)
        ]

    return await client.work(ask, only=by, attempts=1)


async def _tagged(lane: Lane, tag: str) -> BlockHeader | None:
    """Chains without the tag answer null, or that there is no such thing."""
    try:
        return await _by_number(lane, tag)
    except (ProviderLagged, ProviderRefused):
        return None


async def _by_number(lane: Lane, tag: str) -> BlockHeader | None:
    (answer,) = await lane.ask([("eth_getBlockByNumber", (tag, False))])
    return _read(lane, lane.read(answer, responses.read_block_of_hashes), None)


def _read(lane: Lane, block: responses.BlockOfHashes | None, wanted: int | None) -> BlockHeader | None:
    if block is None:
        return None
    try:
        check_header(block, wanted)
        return BlockHeader(
            number=int(block.number or "", 16),
            hash=bytes.fromhex((block.hash or "")[2:]),
            parent_hash=bytes.fromhex(block.parent_hash[2:]),
            timestamp=int(block.timestamp, 16),
        )
    except ValueError as untrue:  # Untrue, or hex that is none
        raise lane.lied(str(untrue)) from None


def _missing(lane: Lane, what: str) -> BlockHeader:
    raise ProviderLagged(f"{lane.label} does not have block {what}", where=lane.label)
