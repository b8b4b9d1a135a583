"""Small tables of chain data, and the queries that analysts write over them (`analyst_queries.sql`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE: Final = Path(__file__).with_name("analyst_queries.sql")
QUERIES: Final[dict[str, str]] = dict(re.findall(r"^-- (.+)\n((?:.|\n)+?);$", _FILE.read_text(), re.MULTILINE))
"""By title."""

TABLES: Final = {
    "blocks": """
        SELECT id AS number, concat('0xb', id) AS hash, concat('0xb', id - 1) AS parent_hash,
               timestamp_seconds(1709251200 + id * 4000) AS timestamp,
               to_date(timestamp_seconds(1709251200 + id * 4000)) AS block_date, concat('0xm', id % 3) AS miner,
               15000000 + id AS gas_used, 30000000L AS gas_limit,
               cast(1000000000 + id AS decimal(38, 0)) AS base_fee_per_gas,
               1000 + id AS size, cast(id % 3 AS int) AS transaction_count, 1 AS chain_id
          FROM range(30) WHERE id <> 7""",
    "transactions": """
        SELECT concat('0x', lpad(id, 8, '0')) AS hash, id DIV 2 AS block_number,
               timestamp_seconds(1709251200 + id * 2000) AS block_timestamp, cast(id % 2 AS int) AS tx_index,
               concat('0xa', id % 5) AS from_address, if(id % 7 = 0, NULL, concat('0xa', id % 4)) AS to_address,
               cast(id * 1000000 AS decimal(38, 0)) AS value, cast(2000000000 + id AS decimal(38, 0)) AS gas_price,
               21000 + id AS gas_used, id DIV 5 AS nonce, concat('0xa9059cbb', lpad(id, 64, '0')) AS input,
               if(id % 9 = 0, 0, 1) AS status, cast(id % 3 AS int) AS tx_type, 1 AS chain_id
          FROM range(40)""",
    "logs": """
        SELECT id DIV 3 AS block_number, timestamp_seconds(1709251200 + id * 900) AS block_timestamp,
               concat('0x', lpad(id DIV 2, 8, '0')) AS tx_hash, cast(id % 2 AS int) AS log_index,
               concat('0xc', id % 3) AS address, array('0xddf2', concat('0x', lpad(id % 5, 64, '0'))) AS topics,
               concat('0x', lpad(id, 64, '0')) AS data, elt(1 + id % 3, 'Transfer', 'Swap', 'Approval') AS event_name,
               map('from', concat('0xa', id % 5), 'value', cast(id AS string)) AS params
          FROM range(40)""",
    "transfers": """
        SELECT id DIV 2 AS block_number, timestamp_seconds(1709251200 + id * 1700) AS block_timestamp,
               concat('0x', lpad(id, 8, '0')) AS tx_hash, cast(id AS int) AS log_index,
               elt(1 + id % 2, '0xa', '0xb') AS token,
               concat('0xa', id % 5) AS from_address, concat('0xa', id % 3) AS to_address,
               cast(id * 1000 + 1 AS decimal(38, 0)) AS value
          FROM range(40)""",
    "daily_volume": """
        SELECT date_add(DATE '2024-03-01', cast(id DIV 2 AS int)) AS day, elt(1 + id % 2, '0xa', '0xb') AS token,
               cast(100 + (id * 37) % 50 AS double) AS volume, 5 + id AS transfers, 3 + id AS holders
          FROM range(24)""",
    "tokens": """
        SELECT elt(id + 1, '0xa', '0xb', '0xc') AS address, elt(id + 1, 'WETH', 'USDC', 'CAT') AS symbol,
               elt(id + 1, 'Wrapped Ether', 'USD Coin v2', 'Cats token') AS name, elt(id + 1, 18, 6, 8) AS decimals,
               id AS created_block, named_struct('category', 'coin', 'tags', array('stable', 'erc20')) AS attributes,
               '{"website": "https://example.org", "links": ["a", "b"], "rank": 3}' AS meta
          FROM range(3)""",
    "prices": """
        SELECT elt(1 + id % 2, '0xa', '0xb') AS token, timestamp_seconds(1709251200 + (id DIV 2) * 3600) AS ts,
               1.5D + (id * 13) % 7 AS usd
          FROM range(40)""",
    "swaps": """
        SELECT id DIV 3 AS block_number, timestamp_seconds(1709251200 + id * 1100) AS block_timestamp,
               concat('0x', lpad(id DIV 2, 8, '0')) AS tx_hash, cast(id AS int) AS log_index,
               concat('0xp', id % 2) AS pool,
               concat('0xa', id % 3) AS sender, elt(1 + id % 2, '0xa', '0xb') AS token_in,
               elt(2 - id % 2, '0xa', '0xb') AS token_out, 10.0D + id AS amount_in, 9.0D + id AS amount_out
          FROM range(30)""",
    "labels": """
        SELECT * FROM VALUES ('0xa1', 'Exchange', 'exchange'), ('0xp1', 'Pool', 'pool') AS l (address, label, kind)""",
}


QUICK: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For tables of thirty rows."""


def quick_session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    for name, value in QUICK.items():
        own.conf.set(name, value)
    return own


def tables(spark: SparkSession) -> dict[str, DataFrame]:
    """All of them, by name, each read by one task."""
    return {name: spark.createDataFrame(spark.sql(rows).toArrow()).coalesce(1) for name, rows in TABLES.items()}
