"""A few blocks from one endpoint, checked. The calls:

- `eth_getBlockByNumber`, with whole transactions only when that table is wanted;
- `eth_getBlockReceipts` when `transactions` is wanted (gas used and success stand nowhere else) or when a block's logs
  are proved by its root: one call gives every log, and the header proves them. A node without it is asked receipt by
  receipt;
- `eth_getLogs` for the blocks whose logs are not proved by root: one call for all of them, a third of the bytes.

Calls about one block go in one HTTP request, so a node that changes its mind in between is rare; and it is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import Raw

from tracelake.chain.nodes.responses import (
    Block,
    BlockOfHashes,
    Log,
    TxReceipt,
    read_block_of_hashes,
    read_logs,
    read_receipt,
    read_receipts,
)
from tracelake.chain.nodes.rpc import Lane, RpcCall
from tracelake.chain.proofs.encode import UnknownType
from tracelake.chain.proofs.verify import (
    OtherFork,
    Untrue,
    check_bloom,
    check_header,
    check_link,
    check_logs,
    check_receipts,
    check_receipts_root,
    check_transactions,
    check_transactions_root,
    check_withdrawals_root,
)
from tracelake.chain.tables import CheckedBlock
from tracelake.errors import ChainMoved, MethodUnknown, ProviderLagged, ProviderRefused, SizeRefused

AnyBlock = Block | BlockOfHashes
Found = TypeVar("Found")
_SPREAD = 2654435761
"""Knuth's multiplier: neighbouring numbers land far apart, so a sample is spread over any range."""
_WRAP = 1 << 32
_LONGEST = 100
"""Characters of what a node calls a type."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What is asked about each block of a range, and how much of it is proved."""

    tables: frozenset[str]
    verify_roots: float

    @property
    def transactions(self) -> bool:
        return "transactions" in self.tables

    @property
    def logs(self) -> bool:
        return "logs" in self.tables

    @property
    def calls_per_block(self) -> int:
        return 2 if self.transactions or (self.logs and self.verify_roots) else 1

    def roots(self, block: int) -> bool:
        """Whether this block is proved up to its roots: the same every time."""
        return block * _SPREAD % _WRAP < self.verify_roots * _WRAP

    def receipts(self, block: int) -> bool:
        return self.transactions or (self.logs and self.roots(block))


async def read_blocks(lane: Lane, numbers: range, wants: Wants) -> list[CheckedBlock]:
    """All of them, or an error that names the endpoint."""
    with_receipts = [number for number in numbers if wants.receipts(number)]
    blocks, receipts = await _ask(lane, numbers, with_receipts, wants)
    try:
        known = [
            _known(block, receipts.get(number), number, wants, lane.standing.place)
            for number, block in zip(numbers, blocks, strict=True)
        ]
        for before, after in pairwise(blocks):
            check_link(before, after)
        if wants.logs and len(with_receipts) < len(numbers):
            await _add_logs(lane, known, numbers, set(with_receipts))
    except UnknownType as unknown:
        hint = "set this pool's verify_roots to 0: other kinds of chain hash transactions in ways of their own"
        message = f"{lane.label}: {str(unknown)[:_LONGEST]} cannot be checked"
        raise ProviderRefused(message, where=lane.label, hint=hint) from None
    except OtherFork as moved:
        raise ChainMoved(f"{lane.label}: {moved}", where=lane.label) from None
    except ValueError as untrue:  # Untrue, or hex that is none
        raise lane.lied(str(untrue)) from None
    return known


def _known(block: AnyBlock, receipts: list[TxReceipt] | None, number: int, wants: Wants, by: int) -> CheckedBlock:
    """One block with its receipts, everything about them checked that this block's share of proof asks for."""
    check_header(block, number)
    proved = wants.roots(number)
    if isinstance(block, Block):
        check_transactions(block)
    if proved:
        check_withdrawals_root(block)
        if isinstance(block, Block):
            check_transactions_root(block)
    if receipts is None:
        return CheckedBlock(block, [], [], by)
    check_receipts(block, receipts)
    logs = [log for receipt in receipts for log in receipt.logs]
    check_logs(block, logs)
    if proved:
        check_receipts_root(block, receipts)
    else:
        check_bloom(block, logs)
    return CheckedBlock(block, receipts, logs, by)


async def _ask(
    lane: Lane, numbers: range, with_receipts: Sequence[int], wants: Wants
) -> tuple[list[AnyBlock], dict[int, list[TxReceipt]]]:
    calls: list[RpcCall] = [("eth_getBlockByNumber", (hex(number), wants.transactions)) for number in numbers]
    whole = lane.standing.whole_receipts
    if whole:
        calls += [("eth_getBlockReceipts", (hex(number),)) for number in with_receipts]
    try:
        answers: Sequence[Any] = await (lane.ask_for_blocks(calls) if wants.transactions else lane.ask(calls))
    except MethodUnknown:
        if not whole:
            raise
        lane.standing.whole_receipts = False
        return await _ask(lane, numbers, with_receipts, wants)
    blocks = [_block(lane, found, number) for number, found in zip(numbers, answers, strict=False)]
    if not whole:
        return blocks, {n: await _one_by_one(lane, blocks[n - numbers.start], n) for n in with_receipts}
    return blocks, {n: _receipts(lane, item, n) for n, item in zip(with_receipts, answers[len(numbers) :], strict=True)}


def _block(lane: Lane, found: Raw | Block | list[TxReceipt] | None, number: int) -> AnyBlock:
    if isinstance(found, Raw):
        return _there(lane, lane.read(found, read_block_of_hashes), number)
    if isinstance(found, list):
        raise lane.lied(f"receipts were answered for block {number}")
    return _there(lane, found, number)


def _receipts(lane: Lane, found: Raw | Block | list[TxReceipt] | None, number: int) -> list[TxReceipt]:
    if isinstance(found, Raw):
        return _there(lane, lane.read(found, read_receipts), number)
    if isinstance(found, Block):
        raise lane.lied(f"a block was answered for the receipts of block {number}")
    return _there(lane, found, number)


async def _one_by_one(lane: Lane, block: Block | BlockOfHashes, number: int) -> list[TxReceipt]:
    hashes = [tx if isinstance(tx, str) else tx.hash for tx in block.transactions]
    answers = await lane.ask([("eth_getTransactionReceipt", (item,)) for item in hashes])
    return [_there(lane, lane.read(raw, read_receipt), number) for raw in answers]


def _there(lane: Lane, found: Found | None, number: int) -> Found:
    if found is None:
        raise ProviderLagged(f"{lane.label} does not have block {number}", where=lane.label)
    return found


async def _add_logs(lane: Lane, known: list[CheckedBlock], numbers: range, have: set[int]) -> None:
    """Logs of the blocks that have no receipts, by eth_getLogs over the span of them."""
    missing = [number for number in numbers if number not in have]
    first, last = missing[0], missing[-1]
    if last - first >= lane.standing.log_span:
        raise SizeRefused(f"{lane.label} takes {lane.standing.log_span} blocks of logs at once", where=lane.label)
    try:
        (answer,) = await lane.ask([("eth_getLogs", ({"fromBlock": hex(first), "toBlock": hex(last)},))])
    except SizeRefused:
        lane.standing.log_span = max(1, (last - first + 1) // 2)
        raise
    of_block: dict[int, list[Log]] = {number: [] for number in range(first, last + 1)}
    for log in lane.read(answer, read_logs):
        of_block.setdefault(int(log.block_number, 16), []).append(log)
    if len(of_block) != last - first + 1:
        raise Untrue("logs of blocks that were not asked for")
    for number in missing:
        one = known[number - numbers.start]
        one.logs = of_block[number]
        check_logs(one.block, one.logs)
        check_bloom(one.block, one.logs)
