"""A node that answers one question with the answer to another is named, and what it said is nowhere."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.devchain import Devchain
from tracelake.chain.fetch import fetch_range_sync
from tracelake.chain.rpc_pool import Endpoint, RpcPool
from tracelake.errors import ProviderLied


@contextmanager
def swapping(devchain: Devchain, given: str, to: str) -> Iterator[RpcPool]:
    """A node before the dev chain's: every question of kind `to` gets the answer to one of kind `given`."""

    class Node(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["content-length"]))
            request = urllib.request.Request(devchain.url, asked, {"content-type": "application/json"})  # noqa: S310
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own loopback
                said = swapped(json.loads(asked), json.load(answer))
            self.send_response(200)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    def swapped(calls: object, answers: object) -> bytes:
        if isinstance(calls, list) and isinstance(answers, list):
            method = {call["id"]: call["method"] for call in calls}
            results = [item["result"] for item in answers if method[item["id"]] == given]
            for item in answers:
                if method[item["id"]] == to and results:
                    item["result"] = results[0]
        return json.dumps(answers).encode()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Node)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield RpcPool("devchain", devchain.chain_id, (Endpoint(url, "mixed up"),), timeout=60)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("given", "to", "said"),
    [
        ("eth_getBlockReceipts", "eth_getBlockByNumber", "receipts were answered for block"),
        ("eth_getBlockByNumber", "eth_getBlockReceipts", "a block was answered for the receipts of block"),
    ],
)
def test_an_answer_to_another_question_is_a_lie(devchain: Devchain, given: str, to: str, said: str) -> None:
    with swapping(devchain, given, to) as pool, pytest.raises(ProviderLied, match=said) as raised:
        fetch_range_sync(pool, 0, 20)
    assert raised.value.where == "mixed up"
