"""Users ask by SQL, through the Gateway: they read what they may, and nothing else exists for them."""

from __future__ import annotations

import pytest

from tests.query.house import ROWS, House

pytestmark = pytest.mark.anyio
USER = "test|acme"


async def test_a_users_select_over_files_comes_back_as_json(house: House) -> None:
    answer = await house.ask(USER, "SELECT count(*) AS n, sum(value) AS s FROM orders")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["rows"] == [[ROWS, sum(range(ROWS)) * 10]]
    assert [column["name"] for column in told["columns"]] == ["n", "s"]
    assert [one["name"] for one in told["datasets"]] == ["orders"]
