"""A dev chain as a process of its own: real HTTP, real orders, and the truth beside it.

with running(blocks=100) as devchain:
    devchain.reorg(3)
    truth = devchain.chain()
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tracelake.errors import InvalidRequest, SetupError
from tracelake_devchain.chain import Chain
from tracelake_devchain.journal import rebuild


@contextmanager
def running(
    *,
    seed: int = 7,
    chain_id: int = 1337,
    blocks: int = 100,
    block_time: float = 0.0,
    finality: int = 64,
    state: Path | None = None,
    port: int = 0,
) -> Iterator[Devchain]:
    """On a free port of the loopback; ended when the block is left, or when this process is gone."""
    options = {"seed": seed, "chain-id": chain_id, "blocks": blocks, "block-time": block_time, "finality": finality}
    argv = [sys.executable, "-m", "tracelake", "devchain", "--json", "--stop-with-stdin", "--port", str(port)]
    argv += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    argv += ["--state", str(state)] if state else []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None  # noqa: S101 - PIPE above
        assert process.stdout is not None  # noqa: S101 - "
        try:
            message = json.loads(process.stdout.readline() or b"{}")
            if "url" not in message:
                raise SetupError(f"the dev chain did not start: {message.get('error', {}).get('message', 'no output')}")
            yield Devchain(message["url"], chain_id, process)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Devchain:
    def __init__(self, url: str, chain_id: int, process: subprocess.Popen[bytes]) -> None:
        self.url, self.chain_id, self.process = url, chain_id, process

    def mine(self, blocks: int = 1) -> dict[str, Any]:
        return self.order("mine", blocks=blocks)

    def reorg(self, depth: int, blocks: int | None = None) -> dict[str, Any]:
        return self.order("reorg", depth=depth, blocks=blocks)

    def switch(self, branch: int, head: int | None = None) -> dict[str, Any]:
        return self.order("switch", branch=branch, head=head)

    def describe(self) -> dict[str, Any]:
        return self.order("describe")

    def chain(self) -> Chain:
        """The truth: the same chain, made in this process, asking no server for any block."""
        return rebuild(self.describe())

    def order(self, do: str, **more: Any) -> dict[str, Any]:
        """Any order; the answer describes the chain as it is now."""
        body = json.dumps({"do": do, **more}).encode()
        request = urllib.request.Request(f"{self.url}/control", body, {"Content-Type": "application/json"})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - our own loopback
                described: dict[str, Any] = json.load(response)
        except HTTPError as refused:
            with refused:
                error = json.load(refused)["error"]
            raise InvalidRequest(error["message"], where=error["where"], hint=error["hint"]) from None
        return described
