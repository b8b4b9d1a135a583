"""A range of blocks becomes tables that equal the chain, whatever the nodes' limits; called as by a Spark executor."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pyarrow as pa
import pytest

from tests.support.chain.devchain import Devchain, running
from tests.support.chain.fetching import QUICK, assert_true
from tests.support.waiting import SECONDS
from tracelake.chain.fetch import ALL_TABLES, fetch_range_sync, fetch_with
from tracelake.chain.nodes.rpc import RpcClient, run
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.chain.read_blocks import Wants
from tracelake.chain.schemas import SCHEMAS
from tracelake.errors import (
    ChainMoved,
    InvalidRequest,
    ProviderError,
    ProviderLagged,
    ProviderLied,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnavailable,
    WrongChain,
)

BLOCKS = 240


@pytest.mark.parametrize("verify_roots", [1.0, 0.3, 0.0])
@pytest.mark.parametrize(
    "tables", [{"blocks"}, {"logs"}, {"transactions"}, {"blocks", "logs"}, {"blocks", "transactions", "logs"}]
)
def test_tables_equal_the_chain(devchain: Devchain, tables: set[str], verify_roots: float) -> None:
    fetched = fetch_range_sync(devchain.pool(verify_roots=verify_roots, **QUICK), 0, BLOCKS, tables)
    assert set(fetched.tables) == tables
    assert_true(devchain, fetched)


def test_a_chain_shows_every_kind_of_transaction_and_log(devchain: Devchain) -> None:
    tables = fetch_range_sync(devchain.pool(**QUICK), 0, BLOCKS).tables
    assert set(tables["transactions"]["transaction_type"].to_pylist()) == {0, 1, 2, 3, 4}
    assert set(tables["transactions"]["success"].to_pylist()) == {True, False}
    assert tables["transactions"]["to_address"].null_count > 0
    assert 0 < tables["logs"]["topic3"].null_count < tables["logs"].num_rows
    assert len(set(tables["transactions"]["block_number"].to_pylist())) < BLOCKS  # some are empty


def test_one_block_is_a_range(devchain: Devchain) -> None:
    assert_true(devchain, fetch_range_sync(devchain.pool(**QUICK), 17, 17))


def test_a_node_that_takes_small_batches_gets_small_batches(devchain: Devchain) -> None:
    devchain.fault("refuse_batch", value=3)
    assert_true(devchain, fetch_range_sync(devchain.pool(**QUICK), 0, 60))


def test_a_node_that_takes_one_call_at_a_time_gets_that(devchain: Devchain) -> None:
    devchain.fault("refuse_batch", value=1)
    assert_true(devchain, fetch_range_sync(devchain.pool(**QUICK), 5, 20))


def test_a_node_that_refuses_wide_ranges_of_logs_gets_narrow_ones(devchain: Devchain) -> None:
    devchain.fault("refuse_range", value=7)
    assert_true(devchain, fetch_range_sync(devchain.pool(verify_roots=0.0, **QUICK), 0, 90, {"logs"}))


def test_a_node_without_receipts_by_block_is_asked_by_transaction(devchain: Devchain) -> None:
    devchain.fault("unknown_method", method="eth_getBlockReceipts")
    assert_true(devchain, fetch_range_sync(devchain.pool(**QUICK), 0, 40))


@pytest.mark.parametrize("kind", ["drop", "truncate", "error", "throttle", "throttle_call"])
def test_a_node_that_stumbles_is_asked_again(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, times=2, value=0.01)
    assert_true(devchain, fetch_range_sync(devchain.pool(max_concurrency=1, **QUICK), 0, 99))


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("drop", 1, ProviderUnavailable),
        ("truncate", 1, ProviderUnavailable),
        ("error", 503, ProviderUnavailable),
        ("error", 403, ProviderRefused),
        ("throttle", 0.01, ProviderThrottled),
        ("throttle_call", 1, ProviderThrottled),
        ("slow", 5, ProviderUnavailable),
        ("lag", 100, ProviderLagged),
        ("null_block", 1, ProviderLagged),
        ("wrong_chain", 99, WrongChain),
        ("unknown_method", 1, ProviderRefused),
    ],
)
def test_a_pool_without_a_working_node_names_each_node_and_its_error(
    devchain: Devchain, kind: str, value: float, error: type[ProviderError]
) -> None:
    devchain.fault(kind, value=value)
    timeout = 0.3 if kind == "slow" else 60.0  # all others answer, and a busy machine may take its time for it
    with pytest.raises(error) as raised:
        fetch_range_sync(devchain.pool("only", timeout=timeout, **QUICK), 200, BLOCKS)
    assert raised.value.where == "only"
    assert "only" in raised.value.message
    assert "http" not in raised.value.message.replace("HTTP status", "")


def test_a_node_that_fails_for_good_leaves_the_work_to_the_others(devchain: Devchain) -> None:
    for kind, value in (("wrong_chain", 99.0), ("error", 403.0)):
        devchain.fault(kind, node="bad", value=value)
        assert_true(devchain, fetch_range_sync(devchain.pool("bad", "good", **QUICK), 0, 80))
        devchain.clear()


def test_keys_in_an_address_or_a_header_are_in_no_error_and_no_repr(devchain: Devchain) -> None:
    key, token = "k3y-0123456789", "Bearer s3cret-token-1"
    url = f"{devchain.url}/node/{key}?apikey={key}2"
    pool = RpcPool("p", 1337, (Endpoint(url, headers=(("Authorization", token),)),), **QUICK)  # type: ignore[arg-type]
    devchain.fault("drop")
    with pytest.raises(ProviderUnavailable) as raised:
        fetch_range_sync(pool, 0, 3)
    shown = repr(pool) + str(raised.value) + repr(raised.value.as_dict()) + repr(raised.value.__cause__)
    assert key not in shown
    assert "s3cret" not in shown
    assert pool.endpoints[0].hide(f"bad key {key}2 for {token}") == "bad key *** for ***"
    account = Endpoint("http://me:p%40ss-word@127.0.0.1/")
    sent = base64.b64encode(b"me:p@ss-word").decode()
    assert account.hide(f"who is Basic {sent}?") == "who is Basic ***?"


def test_a_pool_travels_to_another_process(devchain: Devchain) -> None:
    pool = devchain.pool(**QUICK)
    assert pickle.loads(pickle.dumps(pool)) == pool  # noqa: S301 - our own
    code = (
        "import pickle, sys; from tracelake.chain.fetch import fetch_range_sync;"
        "pool = pickle.load(sys.stdin.buffer);"
        "print(fetch_range_sync(pool, 3, 9).last_hash.hex())"
    )
    output = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(pool), capture_output=True, check=True)
    assert output.stdout.decode().strip() == devchain.chain().block(9).hash[2:]


def test_errors_travel_to_another_process_whole() -> None:
    error = ProviderThrottled("slow down", where="a", retry_after=2.0)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (again.as_dict(), again.retry_after) == (error.as_dict(), 2.0)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (5, 4)])
def test_what_is_no_range_is_refused(devchain: Devchain, start: int, end: int) -> None:
    with pytest.raises(InvalidRequest):
        fetch_range_sync(devchain.pool(), start, end)


def test_an_unknown_table_is_refused(devchain: Devchain) -> None:
    with pytest.raises(InvalidRequest, match="blocks"):
        fetch_range_sync(devchain.pool(), 0, 1, {"traces"})


def test_which_blocks_are_proved_depends_on_their_number_alone() -> None:
    wants = Wants(ALL_TABLES, 0.25)
    chosen = [number for number in range(10_000) if wants.roots(number)]
    assert chosen == [number for number in range(10_000) if wants.roots(number)]
    assert 0.24 < len(chosen) / 10_000 < 0.26
    assert not any(Wants(ALL_TABLES, 0.0).roots(number) for number in range(1000))
    assert all(Wants(ALL_TABLES, 1.0).roots(number) for number in range(1000))


def test_a_limit_of_calls_a_second_is_kept(devchain: Devchain) -> None:
    """61 calls (with the one for the chain id) at 300 a second: no further one before 61/300 s have passed."""

    async def fetch() -> float:
        began = time.monotonic()
        async with RpcClient(devchain.pool(requests_per_second=300, batch_size=20, **QUICK)) as client:
            await fetch_with(client, 0, 59, {"blocks"})
            async with client.health.limits.permit(0, 1):
                return time.monotonic() - began

    assert run(fetch()) >= 61 / 300


def test_a_range_that_is_read_after_a_reorg_is_of_the_new_fork() -> None:
    with running(blocks=60) as moving:
        before = fetch_range_sync(moving.pool(**QUICK), 0, 60)
        assert_true(moving, before)
        moving.reorg(20)
        after = fetch_range_sync(moving.pool(**QUICK), 30, 61)
        assert_true(moving, after)
        assert after.hashes[:11] == before.hashes[30:41]
        assert after.hashes[11] != before.hashes[41]


@pytest.mark.parametrize("calls", range(2, 6))
def test_a_reorg_between_two_calls_of_one_range_never_mixes_two_forks(calls: int) -> None:
    """The reorg comes before the node has received that call, and after it has answered those before."""
    with running(blocks=60) as moving, before_call(moving, calls, lambda: moving.reorg(20)) as url:
        old = moving.chain()
        pool = replace(moving.pool(batch_size=8, max_concurrency=1, **QUICK), endpoints=(Endpoint(url, "a"),))
        try:
            fetched = fetch_range_sync(pool, 30, 60)
        except (ChainMoved, ProviderLied):  # a retryable error, as the two do not fit
            fetched = fetch_range_sync(pool, 30, 60)
        assert moving.chain().block(60).hash != old.block(60).hash, "there was a reorg"
        assert_true(moving, fetched)


@contextmanager
def before_call(moving: Devchain, number: int, act: Callable[[], object]) -> Iterator[str]:
    """A node in front of the node, which does something before it forwards the call of that number."""
    calls = count(1)

    class Between(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if next(calls) == number:
                act()
            request = urllib.request.Request(moving.node("a"), body, {"Content-Type": "application/json"})  # noqa: S310
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - our own loopback
                output = answer.read()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(output)))
            self.end_headers()
            self.wfile.write(output)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def test_a_node_on_another_fork_does_not_spoil_the_range() -> None:
    """One node lags on the old branch's height: the pieces it gives do not link, so each node is queried alone."""
    with running(blocks=60) as moving:
        moving.fault("lie_parent", node="bad", method="eth_getBlockByNumber")
        pool = moving.pool("bad", "good", batch_size=2, **QUICK)
        assert_true(moving, fetch_range_sync(pool, 0, 30))


def test_tables_read_with_nothing_in_them_have_their_columns(devchain: Devchain) -> None:
    chain = devchain.chain()
    empty = next(made.number for made in chain.blocks(1, BLOCKS) if not made.receipts)
    fetched = fetch_range_sync(devchain.pool(**QUICK), empty, empty)
    assert fetched.tables["transactions"].num_rows == fetched.tables["logs"].num_rows == 0
    assert fetched.tables["logs"].equals(pa.Table.from_batches([], SCHEMAS["logs"]))
