"""One address for several listeners: each new connection goes to the next of them that accepts it, without TLS."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

BLOCK = 65536


@dataclass
class Balancer:
    targets: Sequence[int]
    """Ports of this machine."""
    port: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    """Connections by the port that got them."""
    _next: int = 0
    _lines: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.create_task(self._serve(reader, writer))
        self._lines[line] = writer
        line.add_done_callback(self._lines.pop)

    async def close(self) -> None:
        """Cuts what is open."""
        lines = dict(self._lines)
        for writer in lines.values():
            writer.transport.abort()
        await asyncio.gather(*lines)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = await self._open()
        if opened is not None:
            there_reader, there_writer = opened
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        writer.transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in self.targets:
            port = self.targets[self._next % len(self.targets)]
            self._next += 1
            with suppress(OSError):
                opened = await asyncio.open_connection("127.0.0.1", port)
                self.accepted[port] += 1
                return opened
        return None


@asynccontextmanager
async def balancing(*targets: int) -> AsyncIterator[Balancer]:
    balancer = Balancer(targets)
    server = await asyncio.start_server(balancer.accept, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()
        await balancer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends; then the other is ended too."""
    try:
        while block := await reader.read(BLOCK):
            writer.write(block)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
