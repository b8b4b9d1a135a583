"""Secrets of an organisation: encrypted, given to its own jobs only, and never shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.support.dispatcher.control import an_org
from tests.support.dispatcher.job_chain import a_task, claimed, deploy_chain
from tests.support.systems.gateway import System, system
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.identity.secrets import set_secret
from tracelake.domain.seal import Seal, new_key, read_keys

pytestmark = pytest.mark.anyio
VALUE = "the value of acme"


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


async def test_a_job_gets_the_value_of_its_own_organisation_and_the_stored_bytes_are_not_it(control: Control) -> None:
    own = replace(control, seal=Seal(read_keys(new_key())))
    chain = await deploy_chain(own)
    await own.pool.execute(
        "UPDATE jobs SET secrets = '{API_KEY,other}', operator = 'python' WHERE id = $1", chain.jobs["first"]
    )
    rival = await an_org(own.pool, "rival")
    (mine,) = await own.pool.fetch("SELECT u.id, u.org_id FROM users u WHERE org_id <> $1", rival.id)
    admin = msgspec.structs.replace(rival.as_user, id=mine["id"], org_id=mine["org_id"])
    await set_secret(own.pool, own.seal, admin, "job", "api_key", value=VALUE)
    await set_secret(own.pool, own.seal, rival.as_user, "job", "api_key", value="that of the rival")
    await set_secret(own.pool, own.seal, rival.as_user, "job", "other", value="another of the rival")
    answer, _ = await claimed(own, await a_task(own, chain))
    assert answer.secret_values == {"api_key": VALUE}
    assert VALUE not in repr(answer)
    rows = await own.pool.fetch("SELECT sealed FROM org_secrets")
    assert all(VALUE.encode() not in row["sealed"] for row in rows)
    lost, _ = await claimed(replace(own, seal=Seal(read_keys(new_key()))), await a_task(own, chain))
    assert lost.secret_values == {"api_key": None}
