"""Fixtures of the contract suites."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest


@pytest.fixture
def queue_role(queue_db: str) -> Iterator[str]:
    """A DSN of the right that processes have: to call the functions, and nothing else."""
    role, password = f"queue_{secrets.token_hex(4)}", secrets.token_hex(8)
    with psycopg.connect(queue_db, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'".encode())
        admin.execute(f"GRANT USAGE ON SCHEMA pgqueue TO {role}".encode())
        admin.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue TO {role}".encode())
    url = urlsplit(queue_db)
    yield url._replace(netloc=f"{role}:{password}@{url.netloc.rpartition('@')[2]}").geturl()
    with psycopg.connect(queue_db, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {role}".encode())
        admin.execute(f"DROP ROLE {role}".encode())
