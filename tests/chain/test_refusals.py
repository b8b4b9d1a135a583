"""Nodes' refusals in their own words: temporary refusals are waited for, ranges that are too large are halved."""

from __future__ import annotations

import pytest

from tracelake.chain.nodes.errors import read_error, read_status
from tracelake.chain.nodes.responses import RpcError
from tracelake.chain.nodes.rpc_pool import Endpoint
from tracelake.errors import ProviderError, ProviderRefused, ProviderThrottled, SizeRefused

NODE = Endpoint("https://node.example/v2/KEY-0123456789", "node")
THROTTLES = [
    (429, "Your app has exceeded its compute units per second capacity. If you have retries enabled, you can safely"),
    (429, "Your app has exceeded its concurrent requests capacity."),
    (429, "Monthly capacity limit exceeded. Visit the dashboard to upgrade your scaling policy"),
    (429, "rate limit exceeded"),
    (429, "no words that we know"),
    (-32005, "rate limit exceeded"),
    (-32005, "daily request count exceeded, request rate limited"),
    (-32005, "project ID request rate exceeded"),
    (-32005, "request limit exceeded"),
    (-32005, "You've exceeded the RPS limit available on the current plan"),
    (-32005, "method eth_getLogs in batch triggered rate limit"),
    (-32005, ""),
    (-32007, "50/second request limit reached - reduce calls per second or upgrade your account"),
    (-32003, "daily request limit reached - upgrade your account to continue"),
    (-32012, "credits limited to 6000/sec"),
    (-32016, "over rate limit"),
    (-32029, "Too Many Requests"),
    (-32090, "too many requests, reason: call rate limit exhausted, retry in 10s"),
    (-32097, "rate limit exceeded"),
    (-32097, "nothing more"),
    (-32000, "Too many requests, please slow down"),
    (15, "Too many request, try again later"),
    (-32603, "You've reached the usage limit for your current plan"),
]
SIZES = [
    (-32005, "query returned more than 10000 results"),
    (-32005, "query returned more than 10000 results. Try with this block range [0x1, 0x2]."),
    (-32005, "limit exceeded"),
    (-32005, "query exceeds max block range 100000"),
    (-32602, "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range"),
    (
        -32600,
        "You can make eth_getLogs requests with up to a 100 block range. This block range should work: []",
    ),
    (-32614, "eth_getLogs is limited to a 10,000 range"),
    (-32600, "block range is too wide"),
    (-32603, "block range too large"),
    (-32000, "query exceeds max results 20000, retry with the range 100-200"),
    (-32000, "requested too many blocks from 0 to 16777216, maximum is set to 2048"),
    (-32000, "exceed maximum block range: 50000"),
    (-32000, "Block range limit exceeded"),
    (-32000, "eth_getLogs is limited to 0 - 10000 blocks range"),
    (-32000, "response size should not greater than 10000000 bytes"),
    (-32000, "backend response too large"),
    (-32003, "response too large"),
    (-32008, "Response is too big"),
    (-32005, "Too many logs requested. Max logs per response is 20000."),
    (-32600, "batch too large"),
    (-32600, "too many requests in batch"),
    (35, "ranges over 10000 blocks are not supported on freetier"),
    (-32000, "query timeout exceeded"),
    (-32602, "Consider reducing your block range"),
]


@pytest.mark.parametrize(("code", "words"), THROTTLES)
@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_getLogs", "a batch"])
def test_a_throttle_is_waited_out_whatever_its_code_and_words(method: str, code: int, words: str) -> None:
    error = read_error(NODE, method, RpcError(code, words))
    assert type(error) is ProviderThrottled
    assert error.retryable


@pytest.mark.parametrize(("code", "words"), SIZES)
def test_a_range_that_is_too_large_is_fetched_in_smaller_ranges(code: int, words: str) -> None:
    assert type(read_error(NODE, "eth_getLogs", RpcError(code, words))) is SizeRefused


def test_a_bare_limit_is_one_of_pace_where_nothing_can_be_split() -> None:
    assert type(read_error(NODE, "eth_getBlockByNumber", RpcError(-32005, "limit exceeded"))) is ProviderThrottled
    assert type(read_error(NODE, "a batch", RpcError(-32005, "limit exceeded"))) is SizeRefused


@pytest.mark.parametrize(
    ("words", "seconds"),
    [("retry in 10s", 10.0), ("try again in 250ms", 0.25), ("retry after 2m0s", 120.0), ("later", None)],
)
def test_a_wait_given_in_the_error_message_is_respected(words: str, seconds: float | None) -> None:
    error = read_error(NODE, "eth_blockNumber", RpcError(429, f"too many requests, {words}"))
    assert isinstance(error, ProviderThrottled)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("status", "header", "body", "kind", "wait"),
    [
        (429, "3", b"", ProviderThrottled, 3.0),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", b"", ProviderThrottled, None),
        (429, None, b"retry in 4s", ProviderThrottled, 4.0),
        (403, None, b'{"error": {"code": 429, "message": "rate limit exceeded"}}', ProviderThrottled, None),
        (403, None, b"forbidden", ProviderRefused, None),
        (413, None, b"eth_getLogs is limited to a 10,000 range", SizeRefused, None),
        (400, None, b"batch too large", SizeRefused, None),
    ],
)
def test_a_status_is_read_with_its_words(
    status: int, header: str | None, body: bytes, kind: type[ProviderError], wait: float | None
) -> None:
    error = read_status(NODE, status, {"Retry-After": header} if header else {}, body)
    assert type(error) is kind
    assert getattr(error, "retry_after", None) == wait


@pytest.mark.parametrize("before", range(230, 320, 7))
def test_a_key_is_redacted_before_the_message_is_cut(before: int) -> None:
    key = "abcdefghijklmnopqrstuvwxyz012345"
    node = Endpoint(f"https://node.example/v2/{key}", "node", (("x-api-key", key[::-1]),))
    words = "x" * before + f" /v2/{key} {key[::-1]} is not allowed"
    for error in (read_status(node, 403, {}, words.encode()), read_error(node, "eth_call", RpcError(-32000, words))):
        assert not any(piece in error.message for item in (key, key[::-1]) for piece in (item[:4], item[-4:]))


def test_a_key_is_redacted_in_every_spelling() -> None:
    node = Endpoint("https://node.example/v2/key%2Fwith%20more-0123", "node")
    assert node.hide("no such key: key/with more-0123, key%2Fwith%20more-0123") == "no such key: ***, ***"
