"""Ports are taken where they are free, each once, and not always the same few."""

from __future__ import annotations

from collections import Counter

from tracelake.lite.network_ports import FREE, free_port, free_ports


def test_ports_that_are_asked_for_together_are_different() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(FREE)


def test_concurrent_callers_rarely_get_the_same_port() -> None:
    """Between the look and the use another may take it. By chance five are the same once in a million times."""
    often = Counter(free_port() for _ in range(200)).most_common(1)
    assert often[0][1] < 5
