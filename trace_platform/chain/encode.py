"""What nodes hash: headers, transactions, receipts and withdrawals in their own encoding, for every fork to Prague."""

from __future__ import annotations

from trace_platform.chain.bloom import SIZE as BLOOM_SIZE
from trace_platform.chain.bloom import bloom_of
from trace_platform.chain.hex import data, number, quantity
from trace_platform.chain.keccak import keccak
from trace_platform.chain.rlp import encode_bytes, encode_list
from trace_platform.chain.wire import Access, Authorization, Header, Receipt, Transaction, Withdrawal



class UnknownType(ValueError):
    """A transaction of a type that this code cannot encode, so cannot check."""


def header_hash(header: Header) -> bytes:
    return keccak(encode_header(header))


def encode_header(header: Header) -> bytes:
    fields = [
        data(header.parent_hash),
        data(header.sha3_uncles),
        data(header.miner),
        data(header.state_root),
        data(header.transactions_root),
        data(header.receipts_root),
        data(header.logs_bloom),
        quantity(header.difficulty),
        quantity(header.number or "0x"),
        quantity(header.gas_limit),
        quantity(header.gas_used),
        quantity(header.timestamp),
        data(header.extra_data),
        data(header.mix_hash),
        data(header.nonce),
    ]
    # Each fork adds at the end, and none leaves a gap: the first absent one ends the list.
    for text, spelled in (
        (header.base_fee_per_gas, quantity),
        (header.withdrawals_root, data),
        (header.blob_gas_used, quantity),
        (header.excess_blob_gas, quantity),
        (header.parent_beacon_block_root, data),
        (header.requests_hash, data),
    ):
        if not text:
            break
        fields.append(spelled(text))
    return encode_list(map(encode_bytes, fields))


def encode_transaction(tx: Transaction) -> bytes:
    """As it stands in the transactions tree; its Keccak is the transaction's hash."""
    kind = number(tx.type) if tx.type else 0
    if kind == 0:
        return encode_list((*_common(tx, _text(tx.gas_price)), *_signature(tx, _text(tx.v))))
    parity = _text(tx.y_parity) if tx.y_parity else _text(tx.v)
    chain, access = encode_bytes(quantity(_text(tx.chain_id))), _access_list(tx.access_list or [])
    if kind == 1:
        body = (chain, *_common(tx, _text(tx.gas_price)), access)
    elif kind in _FEE_MARKET:
        body = (chain, *_common(tx, _text(tx.max_priority_fee_per_gas), _text(tx.max_fee_per_gas)), access)
        body += _FEE_MARKET[kind](tx)
    else:
        raise UnknownType(f"transaction type {hex(kind)}")
    return bytes([kind]) + encode_list((*body, *_signature(tx, parity)))


def _common(tx: Transaction, *prices: str) -> tuple[bytes, ...]:
    return (
        encode_bytes(quantity(tx.nonce)),
        *[encode_bytes(quantity(price)) for price in prices],
        encode_bytes(quantity(tx.gas)),
        encode_bytes(data(tx.to)) if tx.to else b"\x80",
        encode_bytes(quantity(tx.value)),
        encode_bytes(data(tx.input)),
    )


def _blob_part(tx: Transaction) -> tuple[bytes, ...]:
    hashes = encode_list(encode_bytes(data(one)) for one in tx.blob_versioned_hashes or [])
    return (encode_bytes(quantity(_text(tx.max_fee_per_blob_gas))), hashes)


def _set_code_part(tx: Transaction) -> tuple[bytes, ...]:
    return (encode_list(_authorization(one) for one in tx.authorization_list or []),)


_FEE_MARKET = {2: lambda _: (), 3: _blob_part, 4: _set_code_part}


def _authorization(one: Authorization) -> bytes:
    return encode_list(
        (
            encode_bytes(quantity(one.chain_id)),
            encode_bytes(data(one.address)),
            *[encode_bytes(quantity(text)) for text in (one.nonce, one.y_parity, one.r, one.s)],
        )
    )


def _access_list(entries: list[Access]) -> bytes:
    return encode_list(
        encode_list(
            (encode_bytes(data(entry.address)), encode_list(encode_bytes(data(key)) for key in entry.storage_keys))
        )
        for entry in entries
    )


def _signature(tx: Transaction, v: str) -> tuple[bytes, bytes, bytes]:
    return encode_bytes(quantity(v)), encode_bytes(quantity(tx.r)), encode_bytes(quantity(tx.s))


def _text(field: object) -> str:
    if not isinstance(field, str):
        raise ValueError("a field that this transaction's type has is missing")  # noqa: TRY004 - about the answer
    return field


def encode_receipt(receipt: Receipt) -> bytes:
    """As it stands in the receipts tree. Before Byzantium it names the state's root, since then whether it succeeded."""
    kind = number(receipt.type) if receipt.type else 0
    outcome = data(receipt.root) if receipt.root else quantity(_text(receipt.status))
    body = encode_list(
        (
            encode_bytes(outcome),
            encode_bytes(quantity(receipt.cumulative_gas_used)),
            encode_bytes(bloom_of(receipt.logs).to_bytes(BLOOM_SIZE, "big")),
            encode_list(
                encode_list(
                    (
                        encode_bytes(data(log.address)),
                        encode_list(encode_bytes(data(topic)) for topic in log.topics),
                        encode_bytes(data(log.data)),
                    )
                )
                for log in receipt.logs
            ),
        )
    )
    return bytes([kind]) + body if kind else body


def encode_withdrawal(one: Withdrawal) -> bytes:
    return encode_list(
        (
            encode_bytes(quantity(one.index)),
            encode_bytes(quantity(one.validator_index)),
            encode_bytes(data(one.address)),
            encode_bytes(quantity(one.amount)),
        )
    )
