"""Operators whose config determines their columns say what each column of each output is made from."""

from __future__ import annotations

from tracelake.domain.dag.catalog import ColumnSource, Wired
from tracelake.operators import evm_decode, parquet_compact
from tracelake.operators.helpers.chain_tables import COLUMNS


def test_decoded_columns_are_made_from_the_log_its_topics_and_its_data() -> None:
    wired = Wired(("logs", "more"), ("transfer", "approval"))
    sources = evm_decode.column_lineage({"abi": "erc20", "events": ["transfer", "approval"]}, wired)
    columns = evm_decode.output_columns({"abi": "erc20", "events": ["transfer", "approval"]}, wired)
    for index, known in enumerate(columns):
        for name in wired.inputs:
            made = {source.output for source in sources if (source.index, source.input) == (index, name)}
            assert made == set(known or ()), (index, name)
    first = {(source.output, source.input_column) for source in sources if source.index == 0 and source.input == "logs"}
    arguments = [column for column in columns[0] or () if (column, column) not in first]
    assert arguments
    assert {read for column, read in first if column in arguments} == {"topic1", "topic2", "data"}


def test_compacted_columns_are_those_of_the_hot_table() -> None:
    wired = Wired(("ranges", "blocks", "renamed"), ("blocks", "logs"))
    sources = parquet_compact.column_lineage({"tables": ["blocks", "logs"]}, wired)
    assert sources == [ColumnSource(column, "blocks", column, 0) for column in COLUMNS["blocks"]]
    wired = Wired(("ranges", "blocks", "logs"), ("blocks", "logs"))
    sources = parquet_compact.column_lineage({"tables": ["blocks", "logs"]}, wired)
    assert {source.index for source in sources if source.input == "logs"} == {1}
