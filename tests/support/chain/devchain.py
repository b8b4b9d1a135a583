"""A dev chain for tests and benchmarks: besides what the demo asks of it, nodes by name, faults, and a head that moves.

with running(blocks=100) as devchain:
    pool = devchain.pool("a", "b")
    devchain.fault("lie_hash", node="a")
    devchain.reorg(3)
    truth = devchain.chain()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake_devchain import process

_numbers = count(1)


@contextmanager
def running(**options: Any) -> Iterator[Devchain]:
    """As `handle.running`, which checks the options."""
    with process.running(**options) as started:
        yield Devchain(started.url, started.chain_id, started.process)


class Devchain(process.Devchain):
    def node(self, name: str) -> str:
        """The address of one of its nodes; any name will do."""
        return f"{self.url}/node/{name}"

    def pool(self, *nodes: str, **settings: Any) -> RpcPool:
        """A new pool at each call: what one has learnt of a node, the next does not know."""
        endpoints = tuple(Endpoint(self.node(name), name) for name in nodes or ("a",))
        return RpcPool(f"devchain {next(_numbers)}", self.chain_id, endpoints, **settings)

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
