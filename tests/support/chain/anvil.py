"""A real node: anvil as a process of its own, with a token whose transfers it logs, and its rows as it returns them.

It replaces the dev chain of a test system, and is called here without any of our clients.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError

import msgspec

from tests.support import ROOT
from tests.support.waiting import SECONDS, wait_until
from tracelake.chain.nodes.responses import Block, TxReceipt
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.lite.network_ports import free_port
from tracelake_devchain.build_block import Made

GETTER = ROOT / "tools" / "get_anvil.py"
CHAIN_ID = 31337
KEPT_STATES = 200
"""What a reorg goes back to must still be there. Without a limit anvil writes every state to the disk."""
WITH_TRANSACTIONS = True
TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
TOKEN = bytes.fromhex(f"602035600052600035337f{TRANSFER}60206000a300")
"""A token without balances: called with a receiver and an amount, it logs Transfer(caller, receiver, amount).

In words: the second word of the input goes to memory; logged are that memory and three topics: TRANSFER, the caller,
the first word of the input.
"""
CREATION = bytes.fromhex(f"60{len(TOKEN):02x}600c60003960{len(TOKEN):02x}6000f3") + TOKEN
"""What puts it there: the code after these twelve bytes is copied to memory and returned."""


def program() -> Path | None:
    """As `tools/get_anvil.py` left it, of the version that it names."""
    place: Path = runpy.run_path(str(GETTER))["PROGRAM"]
    return place if place.exists() else None


@contextmanager
def anvil(program: Path) -> Iterator[Anvil]:
    port = free_port()
    options = ["--prune-history", str(KEPT_STATES), "--no-mining", "--slots-in-an-epoch", "4", "--quiet"]
    with subprocess.Popen(
        [program, "--host", "127.0.0.1", "--port", str(port), *options], stdin=subprocess.DEVNULL, stdout=sys.stderr
    ) as process:
        try:
            yield Anvil(process, f"http://127.0.0.1:{port}")
        finally:
            process.kill()


class Anvil:
    """`mine` and `reorg` as the dev chain has them; `pool`, `describe` and `chain` are what test systems ask for."""

    chain_id = CHAIN_ID

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.url = url
        self._until_it_answers(process)
        self.people: list[str] = self.ask("eth_accounts")
        self.sent = 0
        made = self.ask("eth_sendTransaction", {"from": self.people[0], "data": f"0x{CREATION.hex()}"})
        self.ask("evm_mine")
        self.token: str = self.ask("eth_getTransactionReceipt", made)["contractAddress"]

    def mine(self, blocks: int = 1) -> None:
        """Blocks with no transfer, one, or two."""
        for number in range(blocks):
            for _ in range(number % 3):
                self.ask("eth_sendTransaction", self._transfer())
            self.ask("evm_mine")

    def reorg(self, depth: int) -> None:
        """As high as before; other transfers are in the first and the last of its blocks."""
        self.ask("anvil_reorg", depth, [[self._transfer(), 0], [self._transfer(), depth - 1]])

    def pool(self, *_nodes: str, **settings: Any) -> RpcPool:
        return RpcPool("anvil", CHAIN_ID, (Endpoint(self.url, "anvil"),), **settings)

    def describe(self) -> dict[str, Any]:
        newest = self.ask("eth_getBlockByNumber", "latest", not WITH_TRANSACTIONS)
        return {"head": int(newest["number"], 16), "head_hash": newest["hash"]}

    def chain(self) -> Anvil:
        return self

    def blocks(self, start: int, end: int) -> Iterator[Made]:
        for number in range(start, end + 1):
            block = msgspec.convert(self.ask("eth_getBlockByNumber", hex(number), WITH_TRANSACTIONS), Block)
            receipts = msgspec.convert(self.ask("eth_getBlockReceipts", hex(number)), list[TxReceipt])
            yield Made(cast("Any", block), cast("Any", receipts), number, 0)  # the dev chain's say a little more

    def ask(self, method: str, *params: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - "
            output = json.loads(answer.read())
        assert "error" not in output, (method, output)
        return output["result"]

    def _transfer(self) -> dict[str, str]:
        self.sent += 1
        sender, receiver = (self.people[(self.sent + step) % len(self.people)] for step in (0, 1))
        return {"from": sender, "to": self.token, "data": f"0x{receiver[2:]:0>64}{1000 + self.sent:064x}"}

    def _until_it_answers(self, process: subprocess.Popen[bytes]) -> None:

        def answers() -> bool:
            assert process.poll() is None, "anvil has ended"
            return bool(self.ask("eth_chainId"))

        wait_until(answers, "anvil answers", ignoring=(URLError,))
