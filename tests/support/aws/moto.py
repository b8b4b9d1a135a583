"""moto's server: AWS as far as its APIs go, in a process of its own, over HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.waiting import wait_until
from tracelake.lite.network_ports import free_port


@contextmanager
def running_moto() -> Iterator[str]:
    """Its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(url, process), "moto answers", ignoring=(httpx.HTTPError,))
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "moto has ended"
    return httpx.get(f"{url}/moto-api/").is_success
