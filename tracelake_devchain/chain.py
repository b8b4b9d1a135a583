"""The chain as it stands: branches, which of them is the canonical one, and how high.

A branch leaves another after block `fork` and has a number; a block is made from seed, number and branch, on its
parent's hash. So only the branches and the head need be remembered: any two with the same are the same chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracelake.errors import InvalidRequest
from tracelake_devchain.build_block import Made, seal

NO_PARENT = "0x" + "00" * 32
_KEPT = 20_000
"""Blocks kept whole, with their JSON: about 250 MB. An older one is made again when asked for."""


@dataclass(slots=True)
class Branch:
    parent: int
    fork: int
    """The last block it shares with its parent."""
    head: int
    """How high it was when it was last the canonical one."""
    hashes: list[str] = field(default_factory=list)
    """From `fork` + 1 on, as far as made."""


class Chain:
    def __init__(self, seed: int = 7, chain_id: int = 1337, blocks: int = 0, finality: int = 64) -> None:
        self.seed, self.chain_id, self.finality = seed, chain_id, finality
        self.branches = [Branch(parent=0, fork=-1, head=0)]
        self.branch = 0
        self._made: dict[tuple[int, int], Made] = {}
        self._by_hash: dict[str, tuple[int, int]] = {}
        self._places: dict[str, list[tuple[int, int, int]]] = {}
        self.set_head(blocks)

    @property
    def head(self) -> int:
        return self.branches[self.branch].head

    @property
    def finalized(self) -> int:
        return max(0, self.head - self.finality)

    @property
    def safe(self) -> int:
        return max(0, self.head - self.finality // 2)

    def mine(self, blocks: int = 1) -> None:
        self.set_head(self.head + blocks)

    def set_head(self, number: int) -> None:
        if number < 0:
            raise InvalidRequest(f"{number} is no height of a chain", where="/number")
        self.branches[self.branch].head = number
        self._reach(self.branch, number)

    def reorg(self, depth: int, blocks: int | None = None) -> int:
        """The last `depth` blocks go, and `blocks` others come (one more than went, as the longer chain wins)."""
        if not 1 <= depth <= self.head:
            raise InvalidRequest(f"{depth} blocks of {self.head} cannot be replaced", where="/depth")
        fork = self.head - depth
        new = depth + 1 if blocks is None else blocks
        if new < 0:
            raise InvalidRequest("a branch cannot have fewer than 0 blocks", where="/blocks")
        self.branches.append(Branch(parent=self.branch, fork=fork, head=fork + new))
        self.branch = len(self.branches) - 1
        self._reach(self.branch, self.head)
        return self.branch

    def switch(self, branch: int, head: int | None = None) -> None:
        """Back to a branch that was left, at its former height unless another is given."""
        if not 0 <= branch < len(self.branches):
            raise InvalidRequest(f"there is no branch {branch}", where="/branch")
        self.branch = branch
        self.set_head(self.branches[branch].head if head is None else head)

    def block(self, number: int) -> Made:
        """Of the canonical chain."""
        return self.of_branch(self.branch, number)

    def blocks(self, start: int, end: int) -> Iterator[Made]:
        return (self.block(number) for number in range(start, end + 1))

    def by_hash(self, block_hash: str) -> Made | None:
        """Of any branch: nodes know blocks that a reorg left behind."""
        place = self._by_hash.get(block_hash)
        return None if place is None else self.of_branch(*place)

    def transaction(self, tx_hash: str) -> tuple[int, int] | None:
        """Block number and place in it, on the canonical chain."""
        for place in self._places.get(tx_hash, ()):
            if self._owner(self.branch, place[1]) == place[0] and place[1] <= self.head:
                return place[1], place[2]
        return None

    def of_branch(self, branch: int, number: int) -> Made:
        branch = self._owner(branch, number)
        made = self._made.get((branch, number))
        if made is None:
            self._reach(branch, number)
            made = self._made.get((branch, number)) or self._make(branch, number)
        return made

    def hash_at(self, branch: int, number: int) -> str:
        if number < 0:
            return NO_PARENT
        branch = self._owner(branch, number)
        return self.branches[branch].hashes[number - self.branches[branch].fork - 1]

    def _owner(self, branch: int, number: int) -> int:
        while number <= self.branches[branch].fork:
            branch = self.branches[branch].parent
        return branch

    def _reach(self, branch: int, number: int) -> None:
        """Make what is missing up to there, from the bottom: each block names the one before."""
        one = self.branches[branch]
        if branch and one.fork >= 0:
            self._reach(one.parent, one.fork)
        while len(one.hashes) < number - one.fork:
            made = self._make(branch, one.fork + 1 + len(one.hashes))
            one.hashes.append(made.hash)
            self._by_hash[made.hash] = (branch, made.number)
            for place, tx in enumerate(made.block.transactions):
                self._places.setdefault(tx.hash, []).append((branch, made.number, place))

    def _make(self, branch: int, number: int) -> Made:
        made = seal(self.seed, self.chain_id, number, branch, self.hash_at(branch, number - 1))
        self._made[branch, number] = made
        if len(self._made) > _KEPT:
            del self._made[next(iter(self._made))]
        return made
