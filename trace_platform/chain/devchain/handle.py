"""A dev chain as a process of its own, from a test or a benchmark: real HTTP, real orders, and the truth beside it.

with running(blocks=100) as devchain:
    pool = devchain.pool("a", "b")
    devchain.fault("lie_hash", node="a")
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
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from trace_platform.chain.devchain.chain import Chain
from trace_platform.chain.devchain.journal import rebuild
from trace_platform.chain.rpc_pool import Endpoint, RpcPool
from trace_platform.errors import InvalidRequest, SetupError

_numbers = count(1)


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
    argv = [sys.executable, "-m", "trace_platform", "devchain", "--json", "--stop-with-stdin", "--port", str(port)]
    argv += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    argv += ["--state", str(state)] if state else []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None  # noqa: S101 - PIPE above
        assert process.stdout is not None  # noqa: S101 - "
        try:
            said = json.loads(process.stdout.readline() or b"{}")
            if "url" not in said:
                raise SetupError(f"the dev chain did not start: {said.get('error', {}).get('message', 'no word')}")
            yield Devchain(said["url"], chain_id, process)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Devchain:
    def __init__(self, url: str, chain_id: int, process: subprocess.Popen[bytes]) -> None:
        self.url, self.chain_id, self.process = url, chain_id, process

    def node(self, name: str) -> str:
        """The address of one of its nodes; any name will do."""
        return f"{self.url}/node/{name}"

    def pool(self, *nodes: str, **settings: Any) -> RpcPool:
        """Each a pool of its own: what one has learnt of a node, the next does not know."""
        endpoints = tuple(Endpoint(self.node(name), name) for name in nodes or ("a",))
        return RpcPool(f"devchain {next(_numbers)}", self.chain_id, endpoints, **settings)

    def mine(self, blocks: int = 1) -> dict[str, Any]:
        return self.order("mine", blocks=blocks)

    def reorg(self, depth: int, blocks: int | None = None) -> dict[str, Any]:
        return self.order("reorg", depth=depth, blocks=blocks)

    def switch(self, branch: int, head: int | None = None) -> dict[str, Any]:
        return self.order("switch", branch=branch, head=head)

    def set_head(self, number: int) -> dict[str, Any]:
        return self.order("set_head", number=number)

    def finality(self, depth: int) -> dict[str, Any]:
        return self.order("finality", depth=depth)

    def fault(
        self, kind: str, *, node: str = "*", method: str = "*", times: int | None = None, value: float = 1.0
    ) -> None:
        self.order("fault", kind=kind, node=node, method=method, times=times, value=value)

    def clear(self, node: str | None = None) -> None:
        self.order("clear", node=node)

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
