"""A pool of the settings is the pool that a worker calls; invalid settings are refused without showing a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.errors import SettingsError
from tracelake.settings import load_settings
from tracelake.worker.process import resources

PREFIX = "TRACE_RPC_POOLS__MAIN__"
DSN = {"TRACE_DATA__DSN": "postgresql://data"}


def pools(home: Path, **given: str) -> dict[str, RpcPool]:
    env = {f"{PREFIX}{name.upper()}": value for name, value in given.items()}
    return dict(resources(load_settings(DSN | env, home=home)).rpc_pools)


def test_every_setting_of_a_pool_is_the_pools(tmp_path: Path) -> None:
    found = pools(
        tmp_path,
        endpoints=" https://node.example/v2/KEY-0001  two=http://10.0.0.1:8545/?key=a=b ",
        chain_id="137",
        max_concurrency="3",
        batch_size="20",
        requests_per_second="7.5",
        timeout_seconds="4",
        verify_roots="0.25",
    )
    assert found == {
        "main": RpcPool(
            "main",
            137,
            (Endpoint("https://node.example/v2/KEY-0001"), Endpoint("http://10.0.0.1:8545/?key=a=b", "two")),
            max_concurrency=3,
            batch_size=20,
            requests_per_second=7.5,
            timeout=4.0,
            verify_roots=0.25,
        )
    }
    assert [endpoint.label for endpoint in found["main"].endpoints] == ["node.example", "two"]


def test_a_pool_without_addresses_is_no_pool_yet(tmp_path: Path) -> None:
    assert pools(tmp_path, chain_id="5") == {}


def test_a_key_in_a_header_goes_to_its_own_node_alone(tmp_path: Path) -> None:
    both = "a=https://one.example b=https://two.example"
    (pool,) = pools(tmp_path, endpoints=both, headers="a=x-api-key: SECRET-1; b=Authorization: Bearer S2; a=X-More: 1")
    assert pool == "main"
    first, second = pools(tmp_path, endpoints=both, headers="a=x-api-key: S1; b=Authorization: Bearer S2; a=X-More: 1")[
        "main"
    ].endpoints
    assert first.headers == (("x-api-key", "S1"), ("X-More", "1"))
    assert second.headers == (("Authorization", "Bearer S2"),)
    alone = pools(tmp_path, endpoints="https://one.example", headers="x-api-key: S1")["main"].endpoints[0]
    assert alone.headers == (("x-api-key", "S1"),)
    assert "S1" not in repr(alone)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endpoints": ""}, "no address"),
        ({"endpoints": "   "}, "no address"),
        ({"endpoints": "node.example/SECRET-1"}, "address 1 is not http"),
        ({"endpoints": "localhost:8545"}, "address 1 is not http"),
        ({"endpoints": "https://fine wss://SECRET-1"}, "address 2 is not http"),
        ({"endpoints": "https:///SECRET-1"}, "address 1 is not http"),
        ({"endpoints": "https://fine", "chain_id": str(2**63)}, "less than"),
        ({"endpoints": "https://fine", "headers": "SECRET-1"}, "number 1 is not `header: value`"),
        ({"endpoints": "https://one https://two", "headers": "x-api-key: SECRET-1"}, "number 1 must say whose it is"),
        ({"endpoints": "a=https://one", "headers": "b=x-api-key: SECRET-1"}, "number 1 must say whose it is"),
    ],
)
def test_invalid_addresses_and_headers_are_refused_without_being_shown(
    given: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        pools(tmp_path, **given)
    assert "rpc_pools.main" in str(refused.value.where)
    assert "SECRET" not in repr(refused.value.as_dict())
