"""A node that does not do as it should: per endpoint, per method, for a number of requests or until cleared.

| kind | strikes | `value` |
|---|---|---|
| `throttle` | HTTP 429 | seconds in Retry-After |
| `throttle_call` | error -32005, "rate limit exceeded", with HTTP status 200 | |
| `error` | that HTTP status | the status (500) |
| `slow` | answers late | seconds |
| `drop` | closes the connection without an answer | |
| `truncate` | closes it after half of the answer | |
| `refuse_batch` | error -32600 for larger batches | most calls |
| `refuse_range` | error -32005 for wider eth_getLogs | most blocks |
| `unknown_method` | error -32601 | |
| `wrong_chain` | another chain id | that id |
| `lag` | knows the chain only up to some blocks below the head | how many |
| `null_block` | null for blocks and receipts | |
| `lie_hash` | another hash for a header | |
| `lie_parent`, `lie_transactions_root`, `lie_receipts_root` | that field is another, and the hash is made to fit | |
| `lie_value`, `lie_sender` | a transaction's value or sender is another | |
| `lie_log` | a log's data is another | |
| `missing_transaction`, `missing_receipt`, `missing_log` | the last one is left out | |
| `empty_logs` | no logs at all | |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tracelake.errors import InvalidRequest
from tracelake_devchain import wrong_results

HTTP_KINDS = ("throttle", "error", "slow", "drop", "truncate", "refuse_batch")
CALL_KINDS = ("throttle_call", "refuse_range", "unknown_method", "wrong_chain", "lag", "null_block")
KINDS = (*HTTP_KINDS, *CALL_KINDS, *wrong_results.LIES)


class Fault(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    kind: str
    node: str = "*"
    method: str = "*"
    times: int | None = None
    value: float = 1.0

    def matches(self, node: str, method: str) -> bool:
        return self.node in {"*", node} and (method == "*" or self.method in {"*", method})


class Faults:
    def __init__(self) -> None:
        self._active: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._active)

    def add(self, order: dict[str, Any]) -> None:
        try:
            fault = msgspec.convert(order, Fault)
        except msgspec.ValidationError as error:
            raise InvalidRequest(str(error), where="/fault") from None
        if fault.kind not in KINDS:
            raise InvalidRequest(f"there is no fault {fault.kind!r}", where="/kind", hint=f"one of {', '.join(KINDS)}")
        self._active.append(fault)

    def clear(self, node: str | None = None) -> None:
        self._active = [fault for fault in self._active if node and fault.node != node]

    def strike(self, kinds: Iterable[str], node: str, method: str = "*", *, spare: bool = False) -> Fault | None:
        """The first that applies, if any; it is used up by one, unless spared (asked about, not suffered)."""
        for fault in self._active:
            if fault.kind in kinds and fault.matches(node, method):
                if not spare:
                    self._use(fault)
                return fault
        return None

    def _use(self, fault: Fault) -> None:
        if fault.times is None:
            return
        fault.times -= 1
        if fault.times <= 0:
            self._active.remove(fault)

    def lie(self, node: str, method: str, result: bytes) -> bytes:
        """The result with this node's faults."""
        for kind in wrong_results.LIES:
            if kind in wrong_results.ABOUT.get(method, ()) and (
                fault := self.strike((kind,), node, method, spare=True)
            ):
                changed = wrong_results.LIES[kind](msgspec.json.decode(result), method)
                if changed is not None:
                    self._use(fault)
                    result = msgspec.json.encode(changed)
        return result
