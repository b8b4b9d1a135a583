"""Nodes that count what a follower asks them: a test waits for steps that it has done, and not for time to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.chain.rewriting_proxy import rewriting_proxy
from tracelake.chain.nodes.rpc_pool import Endpoint

STEPS = 3
"""The first answer may be one of before; the second is a look from now on, which is done when a third comes."""


@dataclass
class CountingNode:
    """A node that passes every request on."""

    name: str
    url: str = ""
    requests: int = 0
    polls: int = 0
    """How often it was asked for the newest block, with which every step of a follower begins."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.name)

    def note(self, calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.requests += 1
        self.polls += any(call["params"] and call["params"][0] == "latest" for call in calls)
        return answers


@contextmanager
def counting_node(url: str, name: str = "a") -> Iterator[CountingNode]:
    node = CountingNode(name)
    with rewriting_proxy(url, node.note) as node.url:
        yield node


async def until_polled(*nodes: CountingNode) -> None:
    """Until a step that began after this call has ended, and each of the nodes was asked in such steps."""
    polls = sum(node.polls for node in nodes) + STEPS * len(nodes)
    requests = [node.requests + STEPS for node in nodes]
    async with asyncio.timeout(120):
        while sum(node.polls for node in nodes) < polls or any(  # noqa: ASYNC110 - a thread's work is waited for
            node.requests < wanted for node, wanted in zip(nodes, requests, strict=True)
        ):
            await asyncio.sleep(0.02)
