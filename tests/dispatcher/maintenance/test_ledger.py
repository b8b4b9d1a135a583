"""Each commit is linked to the one before it by hashes of its files, inputs and code, however it is committed."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.dispatcher.job_chain import Chain, deploy_chain
from tests.support.dispatcher.staged_files import begun, finish, staged
from tracelake.dispatcher.buffers.settle import settle_buffers
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.query.verify.chain import check_chain
from tracelake.store.identity import User
from tracelake.wire.task.buffers import CommittedBatch, SettleRequest
from tracelake.wire.user.ledger import LedgerQuery

pytestmark = pytest.mark.anyio


async def test_commits_of_a_dataset_form_a_chain(control: Control) -> None:
    chain = await deploy_chain(control)
    for span in ((0, 99), (100, 199), (0, 99)):
        task, claims = await begun(control, chain)
        await finish(control, task, claims, staged(control.objects, task, span))
    rows = await control.pool.fetch("SELECT number, previous_hash, hash FROM commits ORDER BY number")
    assert [row["number"] for row in rows] == [1, 2, 3]
    assert [row["previous_hash"] for row in rows] == [None, rows[0]["hash"], rows[1]["hash"]]
    assert await control.pool.fetchval("SELECT last_hash FROM dataset_heads") == rows[2]["hash"]


async def test_commits_at_the_same_time_are_linked_one_after_another(control: Control) -> None:
    chain = await deploy_chain(control)
    started = [await begun(control, chain) for _ in range(8)]
    await asyncio.gather(
        *(
            finish(control, task, claims, staged(control.objects, task, (n * 100, n * 100 + 99)))
            for n, (task, claims) in enumerate(started)
        )
    )
    rows = await control.pool.fetch("SELECT number, previous_hash, hash FROM commits ORDER BY number")
    assert [row["previous_hash"] for row in rows] == [None, *(row["hash"] for row in rows[:-1])]


async def test_batches_that_are_settled_together_are_linked_in_the_order_of_their_rows(control: Control) -> None:
    chain = await deploy_chain(control)
    user = User(chain.org.user, chain.org.id, "acme", None, "admin")
    for first in (1, 4):
        batches = [await published(control, chain, n) for n in range(first, first + 3)]
        answer = await settle_buffers(
            control.pool, control.after_commit.outbox, SettleRequest(committed=list(reversed(batches)))
        )
        assert answer.settled == 3
    page = await list_ledger(control.pool, user, str(chain.datasets["first"]), LedgerQuery())
    assert [entry.commit for entry in page.entries] == [1, 2, 3, 4, 5, 6]
    assert list(check_chain(page, 0)) == []
    seqs = await control.pool.fetch(
        "SELECT p.seq FROM commits c JOIN buffer_publishes p ON 'publish:' || p.id = c.scope ORDER BY c.number"
    )
    assert [seq for (seq,) in seqs] == [1, 2, 3, 4, 5, 6]


async def published(control: Control, chain: Chain, seq: int) -> CommittedBatch:
    task, _ = await begun(control, chain)
    publish = await control.pool.fetchval(
        "INSERT INTO buffer_publishes"
        " (org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri, content_hash)"
        " VALUES ($1, $2, 1, $3, $4, 's3://trace/batch', sha256('x')) RETURNING id",
        chain.org.id,
        task.task.task_id,
        chain.datasets["first"],
        chain.versions["first"],
    )
    return CommittedBatch(publish_id=publish, seq=seq, rows=1, bytes=10)
