"""Faults in results: each function takes a decoded result and returns a wrong one, or None if it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tracelake.chain.nodes.responses import Header
from tracelake.chain.proofs.encode import header_hash

Result = Any
"""Decoded JSON."""
_BLOCKS = ("eth_getBlockByNumber", "eth_getBlockByHash")


def _other(text: str) -> str:
    """The same length, another last digit."""
    return text[:-1] + ("1" if text[-1] != "1" else "2")


def _hash(block: Result, _: str) -> Result:
    return block and block | {"hash": _other(block["hash"])}


def _field(name: str) -> Callable[[Result, str], Result]:
    def change(block: Result, _: str) -> Result:
        if not block:
            return None
        block[name] = _other(block[name])
        block["hash"] = "0x" + header_hash(msgspec.convert(block, Header)).hex()
        for tx in block["transactions"]:
            if isinstance(tx, dict):
                tx["blockHash"] = block["hash"]
        return block

    return change


def _of_transaction(name: str) -> Callable[[Result, str], Result]:
    def change(block: Result, _: str) -> Result:
        if not block or not block["transactions"] or isinstance(block["transactions"][0], str):
            return None
        tx = block["transactions"][0]
        tx[name] = _other(tx[name])
        return block

    return change


def _missing_transaction(block: Result, _: str) -> Result:
    if not block or not block["transactions"]:
        return None
    block["transactions"].pop()
    return block


def _missing_receipt(receipts: Result, _: str) -> Result:
    return receipts[:-1] if receipts else None


def _log_lists(result: Result, method: str) -> list[list[Any]]:
    """Every non-empty list of logs in a result: of each receipt, or the result itself."""
    if method == "eth_getLogs":
        return [result] if result else []
    receipts = result if isinstance(result, list) else [result] if result else []
    return [receipt["logs"] for receipt in receipts if receipt["logs"]]


def _log(result: Result, method: str) -> Result:
    lists = [logs for logs in _log_lists(result, method) if logs[0]["data"] != "0x"]
    if not lists:
        return None
    lists[0][0]["data"] = _other(lists[0][0]["data"])
    return result


def _missing_log(result: Result, method: str) -> Result:
    lists = _log_lists(result, method)
    if not lists:
        return None
    lists[-1].pop()
    return result


def _empty_logs(result: Result, method: str) -> Result:
    lists = _log_lists(result, method)
    for logs in lists:
        logs.clear()
    return result if lists else None


LIES: dict[str, Callable[[Result, str], Result]] = {
    "lie_hash": _hash,
    "lie_parent": _field("parentHash"),
    "lie_transactions_root": _field("transactionsRoot"),
    "lie_receipts_root": _field("receiptsRoot"),
    "lie_value": _of_transaction("value"),
    "lie_sender": _of_transaction("from"),
    "missing_transaction": _missing_transaction,
    "missing_receipt": _missing_receipt,
    "lie_log": _log,
    "missing_log": _missing_log,
    "empty_logs": _empty_logs,
}
_ABOUT_BLOCKS = (*(kind for kind in LIES if kind.startswith("lie_") and kind != "lie_log"), "missing_transaction")
_ABOUT_LOGS = ("lie_log", "missing_log", "empty_logs")
ABOUT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_BLOCKS, _ABOUT_BLOCKS),
    "eth_getBlockReceipts": (*_ABOUT_LOGS, "missing_receipt"),
    "eth_getTransactionReceipt": _ABOUT_LOGS,
    "eth_getLogs": _ABOUT_LOGS,
}
"""Which faults apply to which method's result."""
