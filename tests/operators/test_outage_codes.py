"""Which failures a worker reports as an outage of data Postgres, a platform error."""

from __future__ import annotations

import psycopg
import pytest

from tracelake.domain.error_codes import KINDS, PLATFORM_CODES, is_platform_fault
from tracelake.errors import DatabaseUnavailable, HungUp, InvalidRequest, WorkFailed
from tracelake.worker.wait_for_data import is_outage


def test_a_connection_that_postgres_ended_is_an_outage_also_as_the_cause_of_another_error(data_db: str) -> None:
    with psycopg.connect(data_db) as cut, psycopg.connect(data_db, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (cut.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError) as lost:
            cut.execute("SELECT 1")
    assert is_outage(lost.value)
    with pytest.raises(WorkFailed) as wrapped:
        raise WorkFailed("the rows could not be made") from lost.value
    assert is_outage(wrapped.value)


def test_an_unreachable_server_is_an_outage() -> None:
    with pytest.raises(psycopg.OperationalError) as away:
        psycopg.connect("postgresql://127.0.0.1:1/data", connect_timeout=2)
    assert is_outage(away.value)


@pytest.mark.parametrize("state", ["53100", "53200", "53300"], ids=["disk", "memory", "connections"])
def test_a_server_without_free_resources_is_an_outage(data_db: str, state: str) -> None:
    with psycopg.connect(data_db) as connection, pytest.raises(psycopg.OperationalError) as full:
        connection.execute(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$".encode())
    assert is_outage(full.value)


def test_a_wrong_statement_is_an_error_of_the_job(data_db: str) -> None:
    with psycopg.connect(data_db) as connection, pytest.raises(psycopg.Error) as wrong:
        connection.execute("SELECT 1 / 0")
    assert not is_outage(wrong.value)
    assert not is_outage(ValueError("terminating connection due to administrator command"))


def test_the_error_tree_lists_the_retryable_platform_codes() -> None:
    assert {"busy", "unavailable", "query_timeout", "provider_unavailable", DatabaseUnavailable.code} <= PLATFORM_CODES
    assert not {"work_failed", "query_failed", "conflict", "trace_error", "provider_refused"} & PLATFORM_CODES
    assert is_platform_fault("busy", retryable=True)
    assert not is_platform_fault("busy", retryable=False)
    assert not is_platform_fault(None, retryable=True)


def test_an_error_without_a_code_of_its_own_is_raised_again_as_the_one_above_it() -> None:
    assert issubclass(HungUp, InvalidRequest)
    assert KINDS[HungUp.code] is InvalidRequest
