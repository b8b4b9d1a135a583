"""Who acts on the chain: accounts and tokens. A few of them do most of the work, as everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tracelake_devchain.seeded_random import Draw

ACCOUNTS, TOKENS = 96, 5


@dataclass(frozen=True, slots=True)
class Accounts:
    accounts: tuple[str, ...]
    tokens: tuple[str, ...]
    """ERC-20 contracts."""
    collectible: str
    """The ERC-721 contract."""

    def account(self, draw: Draw) -> str:
        return self.accounts[int(len(self.accounts) * draw.share() ** 2.5)]

    def token(self, draw: Draw) -> str:
        return self.tokens[int(len(self.tokens) * draw.share() ** 2)]


@lru_cache(maxsize=8)
def accounts_of(seed: int) -> Accounts:
    def addresses(kind: str, count: int) -> tuple[str, ...]:
        return tuple("0x" + Draw(seed, kind, index, size=20).take(20).hex() for index in range(count))

    return Accounts(addresses("account", ACCOUNTS), addresses("token", TOKENS), addresses("collectible", 1)[0])
