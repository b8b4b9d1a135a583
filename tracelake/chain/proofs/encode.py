"""Encodes headers, transactions, receipts and withdrawals as nodes hash them, for every fork to Prague.

Every block that is proved goes through here, so fields are put together in place, not by a call for each. A length is
checked wherever a field has a fixed one: the borders between fields are part of what is proved.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable

from tracelake.chain.keccak import keccak
from tracelake.chain.nodes.responses import (
    AccessListEntry,
    Authorization,
    Header,
    Log,
    Transaction,
    TxReceipt,
    Withdrawal,
)
from tracelake.chain.proofs.rlp import (
    QUANTITIES,
    text_of_address,
    text_of_data,
    text_of_list,
    text_of_quantity,
    text_of_word,
)

_WORD, _ADDRESS, _BLOOM, _NONCE = 66, 42, 514, 18
"""Lengths as text."""


class UnknownType(ValueError):
    """A transaction of a type that this code cannot encode, so cannot check."""


def header_hash(header: Header) -> bytes:
    return keccak(encode_header(header))


def encode_header(header: Header) -> bytes:
    parent, uncles, state = header.parent_hash, header.sha3_uncles, header.state_root
    transactions, receipts, mixed = header.transactions_root, header.receipts_root, header.mix_hash
    miner, bloom, nonce = header.miner, header.logs_bloom, header.nonce
    if (
        not len(parent) == len(uncles) == len(state) == len(transactions) == len(receipts) == len(mixed) == _WORD
        or len(miner) != _ADDRESS
        or len(bloom) != _BLOOM
        or len(nonce) != _NONCE
    ):
        raise ValueError("a field of a header does not have the length it should")
    body = (
        f"a0{parent[2:]}a0{uncles[2:]}94{miner[2:]}a0{state[2:]}a0{transactions[2:]}a0{receipts[2:]}"
        f"b90100{bloom[2:]}{QUANTITIES[header.difficulty]}{text_of_quantity(header.number or '0x0')}"
        f"{QUANTITIES[header.gas_limit]}{text_of_quantity(header.gas_used)}{text_of_quantity(header.timestamp)}"
        f"{text_of_data(header.extra_data)}a0{mixed[2:]}88{nonce[2:]}{_added_by_forks(header)}"
    )
    return unhexlify(text_of_list(body))


def _added_by_forks(header: Header) -> str:
    """Each fork adds at the end, and none leaves a gap: the first absent one ends the list."""
    _check_no_gap(header)
    text = ""
    if header.base_fee_per_gas:
        text += text_of_quantity(header.base_fee_per_gas)
        if header.withdrawals_root:
            text += text_of_word(header.withdrawals_root)
            if header.blob_gas_used:
                text += QUANTITIES[header.blob_gas_used]
                if header.excess_blob_gas:
                    text += QUANTITIES[header.excess_blob_gas]
                    if header.parent_beacon_block_root:
                        text += text_of_word(header.parent_beacon_block_root)
                        if header.requests_hash:
                            text += text_of_word(header.requests_hash)
    return text


def _check_no_gap(header: Header) -> None:
    """A field after an absent one is not hashed, so nothing would prove it."""
    there = (
        bool(header.base_fee_per_gas),
        bool(header.withdrawals_root),
        bool(header.blob_gas_used),
        bool(header.excess_blob_gas),
        bool(header.parent_beacon_block_root),
        bool(header.requests_hash),
    )
    if there[sum(there) :].count(True):
        raise ValueError("a header has a field of a later fork than its own")


def encode_transaction(tx: Transaction) -> bytes:
    """The leaf of the transactions tree; its Keccak is the transaction's hash."""
    kind = int(tx.type, 16) if tx.type else 0
    if kind == _FEE_MARKET:
        begin = f"{QUANTITIES[tx.chain_id]}{QUANTITIES[tx.nonce]}{_fees(tx)}"
        end = _access_list(tx) if tx.access_list else "c0"
    elif kind == 0:
        begin, end = QUANTITIES[tx.nonce] + QUANTITIES[tx.gas_price], ""
    elif kind in _RARER:
        begin, end = _RARER[kind](tx)
    else:
        raise UnknownType(f"a transaction of type {hex(kind)}")
    to, value, data, r, s = tx.to or "", tx.value, tx.input, tx.r, tx.s
    if to and len(to) != _ADDRESS:
        raise ValueError("an address does not have 20 bytes")
    worth = "80" if value == "0x0" else text_of_quantity(value)
    signed = f"a0{r[2:]}a0{s[2:]}" if len(r) == len(s) == _WORD and r[2] != "0" != s[2] else _short_signature(tx)
    body = text_of_list(
        f"{begin}{QUANTITIES[tx.gas]}{'94' if to else '80'}{to[2:]}{worth}"
        f"{'80' if data == '0x' else text_of_data(data)}{end}{QUANTITIES[(kind and tx.y_parity) or tx.v]}{signed}"
    )
    return unhexlify(f"0{kind}{body}" if kind else body)


def _access_list_kind(tx: Transaction) -> tuple[str, str]:
    return QUANTITIES[tx.chain_id] + QUANTITIES[tx.nonce] + QUANTITIES[tx.gas_price], _access_list(tx)


def _blob_kind(tx: Transaction) -> tuple[str, str]:
    hashes = text_of_list("".join(map(text_of_word, tx.blob_versioned_hashes or [])))
    begin = QUANTITIES[tx.chain_id] + QUANTITIES[tx.nonce] + _fees(tx)
    return begin, _access_list(tx) + QUANTITIES[tx.max_fee_per_blob_gas] + hashes


def _set_code_kind(tx: Transaction) -> tuple[str, str]:
    signed = text_of_list("".join(map(_authorization, tx.authorization_list or [])))
    return QUANTITIES[tx.chain_id] + QUANTITIES[tx.nonce] + _fees(tx), _access_list(tx) + signed


_FEE_MARKET = 2
_RARER: dict[int, Callable[[Transaction], tuple[str, str]]] = {1: _access_list_kind, 3: _blob_kind, 4: _set_code_kind}
"""The encoding before a transaction's gas, and between its data and its signature."""


def _fees(tx: Transaction) -> str:
    return QUANTITIES[tx.max_priority_fee_per_gas] + QUANTITIES[tx.max_fee_per_gas]


def _short_signature(tx: Transaction) -> str:
    """Half of it begins with a zero, one time in eight."""
    return text_of_quantity(tx.r) + text_of_quantity(tx.s)


def _authorization(authorization: Authorization) -> str:
    rest = "".join(
        map(text_of_quantity, (authorization.nonce, authorization.y_parity, authorization.r, authorization.s))
    )
    return text_of_list(text_of_quantity(authorization.chain_id) + text_of_address(authorization.address) + rest)


def _access_list(tx: Transaction) -> str:
    return text_of_list("".join(map(_access, tx.access_list or [])))


def _access(entry: AccessListEntry) -> str:
    keys = text_of_list("".join(map(text_of_word, entry.storage_keys)))
    return text_of_list(text_of_address(entry.address) + keys)


def encode_receipt(receipt: TxReceipt) -> bytes:
    """The leaf of the receipts tree. Before Byzantium it has the state's root, since then the outcome.

    The bloom filter of the response is used: the resulting root proves it.
    """
    outcome = text_of_word(receipt.root) if receipt.root else QUANTITIES[receipt.status]
    bloom, logs = receipt.logs_bloom, receipt.logs
    if len(bloom) != _BLOOM:
        raise ValueError("a bloom filter does not have 256 bytes")
    message = text_of_list("".join([_log(log) for log in logs])) if logs else "c0"
    body = text_of_list(f"{outcome}{text_of_quantity(receipt.cumulative_gas_used)}b90100{bloom[2:]}{message}")
    kind = int(receipt.type, 16) if receipt.type else 0
    return unhexlify(f"{kind:02x}{body}" if kind else body)


def _log(log: Log) -> str:
    address, data, named = log.address, log.data, ""
    if len(address) != _ADDRESS:
        raise ValueError("an address does not have 20 bytes")
    for topic in log.topics:
        if len(topic) != _WORD:
            raise ValueError("a topic does not have 32 bytes")
        named += f"a0{topic[2:]}"
    encoded = f"a0{data[2:]}" if len(data) == _WORD else text_of_data(data)
    return text_of_list(f"94{address[2:]}{text_of_list(named)}{encoded}")


def encode_withdrawal(withdrawal: Withdrawal) -> bytes:
    numbers = text_of_quantity(withdrawal.index) + text_of_quantity(withdrawal.validator_index)
    return unhexlify(text_of_list(numbers + text_of_address(withdrawal.address) + text_of_quantity(withdrawal.amount)))
