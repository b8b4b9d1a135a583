"""What happens in a block: its transactions and their logs, before anything is hashed.

Made from seed, block number and branch alone. On another branch about half of the transactions at a height are the same
ones: a reorganised chain mostly holds what was there before, elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from tracelake.chain.nodes.responses import AccessListEntry, Authorization, Transaction, Withdrawal
from tracelake_devchain.seeded_random import Draw

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
APPROVAL = "0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925"
NOBODY = "0x" + "00" * 20
GWEI = 10**9
MOST = 7
"""Transactions in the fullest block."""
_EMPTY_SHARE = 0.1
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


@dataclass(slots=True)
class EmittedLog:
    address: str
    topics: list[str]
    data: str


@dataclass(slots=True)
class Action:
    """One transaction, not yet hashed, and what it did."""

    tx: Transaction
    events: list[EmittedLog] = field(default_factory=list)
    succeeded: bool = True
    created: str | None = None
    gas_used: int = 21_000


def base_fee(seed: int, number: int) -> int:
    return GWEI + Draw(seed, "fee", number, size=6).below(40 * GWEI)


def actions(seed: int, chain_id: int, number: int, branch: int) -> list[Action]:
    draw = Draw(seed, "block", number, branch, size=64)
    if number == 0 or draw.share() < _EMPTY_SHARE:
        return []
    return [_action(seed, chain_id, number, place, branch) for place in range(1 + draw.below(MOST))]


def withdrawals(seed: int, number: int) -> list[Withdrawal]:
    draw = Draw(seed, "withdrawals", number, size=96)
    if draw.below(4):
        return []
    account = accounts_of(seed).account
    return [
        Withdrawal(hex(4 * number + place), hex(draw.below(500_000)), account(draw), hex(draw.below(10**8)))
        for place in range(1 + draw.below(3))
    ]


def _action(seed: int, chain_id: int, number: int, place: int, branch: int) -> Action:
    moved = branch and Draw(seed, "moved", number, place, branch, size=6).below(2)
    draw = Draw(seed, "transaction", number, place, branch if moved else 0, size=512)
    cast = accounts_of(seed)
    kind = _choose(draw, _KINDS)
    action = kind(draw, cast, _bare(draw, cast, number * MOST + place))
    _price(draw, cast, action, chain_id, base_fee(seed, number))
    return action


def _bare(draw: Draw, cast: Accounts, nonce: int) -> Transaction:
    return Transaction(
        hash="",
        nonce=hex(nonce),
        block_hash=None,
        block_number=None,
        transaction_index=None,
        from_=cast.account(draw),
        to=cast.account(draw),
        value="0x0",
        gas="0x5208",
        input="0x",
        r=hex(int.from_bytes(draw.take(32), "big")),
        s=hex(int.from_bytes(draw.take(32), "big") >> 1),
    )


def _send_ether(draw: Draw, _: Accounts, tx: Transaction) -> Action:
    tx.value = hex(_amount(draw))
    return Action(tx)


def _send_token(draw: Draw, cast: Accounts, tx: Transaction) -> Action:
    token, to, amount = cast.token(draw), cast.account(draw), _word(_amount(draw))
    sender = NOBODY if draw.below(40) == 0 else tx.from_  # a mint now and then
    tx.to, tx.input = token, "0xa9059cbb" + _padded(to)[2:] + amount[2:]
    event = EmittedLog(token, [TRANSFER, _padded(sender), _padded(to)], amount)
    return Action(tx, [event], gas_used=45_000 + draw.below(20_000))


def _approve(draw: Draw, cast: Accounts, tx: Transaction) -> Action:
    token, spender = cast.token(draw), cast.account(draw)
    amount = _word(2**256 - 1 if draw.below(2) else _amount(draw))
    tx.to, tx.input = token, "0x095ea7b3" + _padded(spender)[2:] + amount[2:]
    event = EmittedLog(token, [APPROVAL, _padded(tx.from_), _padded(spender)], amount)
    return Action(tx, [event], gas_used=46_000)


def _send_collectible(draw: Draw, cast: Accounts, tx: Transaction) -> Action:
    to, piece = cast.account(draw), _word(draw.below(10_000))
    tx.to, tx.input = cast.collectible, "0x42842e0e" + _padded(tx.from_)[2:] + _padded(to)[2:] + piece[2:]
    event = EmittedLog(cast.collectible, [TRANSFER, _padded(tx.from_), _padded(to), piece], "0x")
    return Action(tx, [event], gas_used=80_000 + draw.below(9_000))


def _swap(draw: Draw, cast: Accounts, tx: Transaction) -> Action:
    """A router: several transfers of different tokens in one transaction."""
    tx.to, tx.input = cast.accounts[0], "0x38ed1739" + draw.take(64).hex()
    events = []
    for _ in range(2 + draw.below(3)):
        ends = [TRANSFER, _padded(tx.from_), _padded(cast.account(draw))]
        events.append(EmittedLog(cast.token(draw), ends, _word(_amount(draw))))
    return Action(tx, events, gas_used=150_000 + draw.below(90_000))


def _create(draw: Draw, _: Accounts, tx: Transaction) -> Action:
    tx.to, tx.input = None, "0x6080604052" + draw.take(40).hex()
    return Action(tx, created="0x" + draw.take(20).hex(), gas_used=400_000 + draw.below(100_000))


def _fail(draw: Draw, cast: Accounts, tx: Transaction) -> Action:
    action = _send_token(draw, cast, tx)
    action.events, action.succeeded = [], False
    return action


_KINDS: tuple[tuple[int, Callable[[Draw, Accounts, Transaction], Action]], ...] = (
    (58, _send_token),
    (72, _send_ether),
    (80, _approve),
    (88, _send_collectible),
    (94, _swap),
    (98, _fail),
    (100, _create),
)


def _choose(
    draw: Draw, of: tuple[tuple[int, Callable[[Draw, Accounts, Transaction], Action]], ...]
) -> Callable[[Draw, Accounts, Transaction], Action]:
    at = draw.below(100)
    return next(kind for limit, kind in of if at < limit)


def _price(draw: Draw, cast: Accounts, action: Action, chain_id: int, fee: int) -> None:
    """Its type, and the fields that the type brings."""
    tx, at = action.tx, draw.below(100)
    kind = 0 if at < 20 else 1 if at < 26 else 2 if at < 95 or tx.to is None else 3 if at < 98 else 4  # noqa: PLR2004
    tx.type, tx.gas = hex(kind), hex(action.gas_used + 9_000)
    parity, tip = draw.below(2), 1 + draw.below(3 * GWEI)
    if kind == 0:
        tx.chain_id, tx.v, tx.gas_price = hex(chain_id), hex(35 + 2 * chain_id + parity), hex(fee + tip)
        return
    tx.chain_id, tx.v, tx.y_parity = hex(chain_id), hex(parity), hex(parity)
    tx.gas_price = hex(fee + tip)
    tx.access_list = [AccessListEntry(cast.token(draw), ["0x" + draw.take(32).hex()])] if draw.below(3) == 0 else []
    if kind == 1:
        return
    tx.max_priority_fee_per_gas, tx.max_fee_per_gas = hex(tip), hex(2 * fee + tip)
    if kind == 3:  # noqa: PLR2004 - blobs
        tx.max_fee_per_blob_gas = hex(GWEI)
        tx.blob_versioned_hashes = ["0x01" + draw.take(31).hex() for _ in range(1 + draw.below(2))]
    if kind == 4:  # noqa: PLR2004 - set code
        tx.authorization_list = [_authorization(draw, cast, chain_id)]


def _authorization(draw: Draw, cast: Accounts, chain_id: int) -> Authorization:
    r, s = (hex(int.from_bytes(draw.take(32), "big")) for _ in range(2))
    return Authorization(hex(chain_id), cast.account(draw), hex(draw.below(50)), hex(draw.below(2)), r, s)


def _amount(draw: Draw) -> int:
    """Mostly small, sometimes large, rarely very large: the tail is what alerts look for."""
    size = 27 if draw.below(100) == 0 else 13 + int(9 * draw.share())
    return int(10**size * (1 + 9 * draw.share())) // 1000


def _padded(address: str) -> str:
    return "0x" + "0" * 24 + address[2:]


def _word(value: int) -> str:
    return f"0x{value:064x}"
