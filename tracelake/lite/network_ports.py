"""Chooses the network ports of a Lite system."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, fields

from tracelake.errors import SetupError

LOOPBACK = "127.0.0.1"
FREE = range(20_000, 32_000)
"""Where free ports are chosen: below the kernel's range for outgoing connections."""


@dataclass(frozen=True)
class Ports:
    gateway: int
    dispatcher_task: int
    dispatcher_internal: int
    query_task: int
    query_internal: int
    delivery_internal: int
    postgres_state: int
    postgres_data: int
    runner: int

    def url(self, listener: str) -> str:
        return f"https://{LOOPBACK}:{getattr(self, listener)}"


@dataclass(frozen=True)
class StorePorts:
    """Ports of the S3 server. Only `s3` authenticates its callers."""

    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int


LISTENERS = ("gateway", "dispatcher_task", "dispatcher_internal", "query_task", "query_internal", "delivery_internal")


def choose_ports(base: int) -> Ports:
    """Consecutive ports from `base`, or free ones if it is 0. Raises if one is taken."""
    return Ports(**_chosen(base, [field.name for field in fields(Ports)]))


def choose_store_ports(base: int, others: Ports | None = None) -> StorePorts:
    """The ports after the others; or free ones, without the others', which may not be open yet."""
    taken = frozenset(astuple(others)) if others else frozenset[int]()
    names = [field.name for field in fields(StorePorts)]
    return StorePorts(**_chosen(base and base + len(fields(Ports)), names, taken))


def _chosen(base: int, names: Sequence[str], taken: frozenset[int] = frozenset()) -> dict[str, int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(_take(base and base + index, name, taken)) for index, name in enumerate(names)]
        return {name: listener.getsockname()[1] for name, listener in zip(names, listeners, strict=True)}


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(_take_any()).getsockname()[1] for _ in range(count)]


def wanted_ports(base: int, *, store: bool = False) -> list[int]:
    """The ports that a start from `base` would take; empty if it is 0."""
    count = len(fields(Ports)) + (len(fields(StorePorts)) if store else 0)
    return list(range(base, base + count)) if base else []


def _take_any(taken: frozenset[int] = frozenset()) -> socket.socket:
    """Does not use port 0: the kernel may give the same port to an outgoing connection before we listen."""
    for port in random.SystemRandom().sample(FREE, 200):
        with suppress(OSError):
            if port in taken:
                continue
            return socket.create_server((LOOPBACK, port))
    raise SetupError("no free port was found", where=f"{LOOPBACK}:{FREE.start}-{FREE.stop - 1}")


def _take(port: int, name: str, taken: frozenset[int]) -> socket.socket:
    if not port:
        return _take_any(taken)
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise SetupError(
            f"port {port}, for {name}, cannot be taken: {error.strerror}",
            where=f"{LOOPBACK}:{port}",
            hint="`trace doctor` shows the process that holds it; choose others with --port-base N, or 0 for free ones",
        ) from None
