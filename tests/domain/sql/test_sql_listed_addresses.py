"""The list of addresses of a query is found only where nothing but the values that the table has counts."""

from __future__ import annotations

import pytest

from tracelake.domain.sql.dialect import render
from tracelake.domain.sql.gate import check_sql
from tracelake.domain.sql.listed_addresses import MAX_ADDRESSES, listed_addresses

MANY = ", ".join(f"X'{n:04x}'" for n in range(MAX_ADDRESSES + 1))
FOUND = {
    "SELECT * FROM t WHERE address IN (X'aa', X'BB')": {b"\xaa", b"\xbb"},
    "SELECT a FROM t WHERE a > 1 AND (ADDRESS IN (unhex('aa')) OR a = 2)": {b"\xaa"},
    "SELECT o.a FROM t AS o WHERE O.address NOT IN (X'aa', X'aa')": {b"\xaa"},
    "SELECT count(*) AS n FROM t WHERE address IN (X'aa') GROUP BY a HAVING max(address) IN (X'bb')": {b"\xaa"},
}
NOT = [
    "SELECT a FROM t",
    "SELECT a FROM t WHERE address IN ('aa')",
    "SELECT a FROM t WHERE address IN (unhex(a))",
    "SELECT a FROM t WHERE address IN (unhex('a'))",
    "SELECT a FROM t WHERE address IN (unhex('0xaa'))",
    "SELECT a FROM t WHERE address IN (X'aa', NULL)",
    "SELECT a FROM t WHERE address IN (X'aa', b)",
    "SELECT a FROM t WHERE address IN (SELECT address FROM u)",
    "SELECT a FROM t WHERE address IN (X'aa') OR address IN (X'bb')",
    "SELECT a FROM t WHERE lower(address) IN (X'aa')",
    "SELECT a, address IN (X'aa') AS b FROM t",
    "SELECT a FROM t WHERE s.address IN (X'aa')",
    "SELECT a FROM t o WHERE t.address IN (X'aa')",
    "SELECT a FROM t JOIN u ON t.k = u.k WHERE address IN (X'aa')",
    "SELECT a FROM t, u WHERE address IN (X'aa')",
    "SELECT a FROM t LATERAL VIEW explode(list) l AS address WHERE address IN (X'aa')",
    "SELECT a FROM t AS o (address, a) WHERE address IN (X'aa')",
    "SELECT a FROM (SELECT a, b AS address FROM t) AS s WHERE address IN (X'aa')",
    "WITH w AS (SELECT a, b AS address FROM t) SELECT a FROM w WHERE address IN (X'aa')",
    "SELECT a FROM t WHERE exists(list, address -> address IN (X'aa'))",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 AS one FROM u WHERE address IN (X'aa'))",
    "SELECT a FROM t WHERE address IN (X'aa') UNION ALL SELECT a FROM t",
    "SELECT a FROM t WHERE address IN (MANY)".replace("MANY", MANY),
]


@pytest.mark.parametrize(("query", "addresses"), FOUND.items())
def test_the_list_is_found_and_the_rest_of_the_query_does_not_depend_on_it(query: str, addresses: set[bytes]) -> None:
    found = listed_addresses(check_sql(query, {"t"}))
    assert found is not None
    assert found[0] == addresses
    left = render(found[1])
    assert "address IN ('listed')" in left.replace("ADDRESS", "address")
    other = listed_addresses(check_sql(left.replace("'listed'", "X'ee', X'ff'"), {"t"}))
    assert other is not None
    assert render(other[1]) == left


@pytest.mark.parametrize("query", NOT, ids=range(len(NOT)))
def test_any_other_query_has_no_list(query: str) -> None:
    assert listed_addresses(check_sql(query, {"t", "u"})) is None
