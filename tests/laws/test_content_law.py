"""Whatever is written, again or anew, readers end as if built from scratch, and none ran for what had not changed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.dispatcher.control import WORKS
from tests.support.dispatcher.mill import MillMachine, asked, run_machine, variants
from tests.support.dispatcher.run_tasks import Held, claim_one, drain, finish, read_input, run_some, settle
from tests.support.operators import registered
from tests.support.verbs import invalidate
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.domain.access.object_names import Folder
from tracelake.errors import Conflict, LeaseLost
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.user.backfills import GapsQuery

VARIANTS = variants("works", "grain: {job: ask}")
SPANS = [(0, 9), (10, 19)]
HELD = """
SELECT d.producer_job_name AS job, p.partition_key AS key, p.location, p.files -> 0 ->> 'name' AS name
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
  JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.valid_to IS NULL
 WHERE d.org_id = $1
"""
NEEDLESS = """
SELECT j.name, p.partition_key, p.valid_from
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
  JOIN partition_versions p
    ON p.dataset_version = (t.input_versions ->> 'dataset_version')::uuid
   AND p.partition_key = t.input_versions ->> 'partition_key' AND p.valid_from = (t.input_versions ->> 'commit')::bigint
 WHERE t.org_id = $1 AND t.invalidation_id IS NULL AND p.content_since IS NOT NULL
"""


class ContentMachine(MillMachine):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, int] = {}
        self.held: list[tuple[Held, bytes]] = []

    @initialize(variant=st.sampled_from(VARIANTS))
    def begin(self, variant: str) -> None:
        self.deploy_first(variant)

    @rule(variant=st.sampled_from(VARIANTS))
    def activate(self, variant: str) -> None:
        self.deploy(variant)

    @rule(span=st.sampled_from(SPANS), value=st.integers(0, 3))
    def write(self, span: tuple[int, int], value: int) -> None:
        """The source has this value in this range from now on, and is to write it."""
        start, end = span
        self.values[f"{start}-{end}"] = value
        self.do(asked(self.control, self.org, span))

    @rule(span=st.sampled_from(SPANS), values=st.lists(st.integers(0, 3), min_size=2, max_size=4))
    def write_one_after_another(self, span: tuple[int, int], values: list[int]) -> None:
        """Each is read by everybody before the next."""
        for value in values:
            self.write(span, value)
            self.do(settle(self.control, content=self.content))

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def reorganize(self, data: st.DataObject) -> None:
        start, end = map(int, data.draw(st.sampled_from(sorted(self.values))).split("-"))
        named = {"start": start, "end": end, "reason": "reorg", "request_id": uuid4()}
        self.do(drain(self.control))
        self.do(run_some(self.control, 100, content=self.content))
        held = self.do(self.control.pool.fetch(HELD, self.org.id))
        # A reader of an invalidated range finds its input: a task of the source may have failed before it wrote it.
        if any(row["job"] == "ask" and row["key"] == f"{start}-{end}" for row in held):
            self.do(invalidate(self.control, self.org.id, self.org.user, "grain", **named))

    @rule(most=st.integers(1, 4), fail=st.booleans())
    def run_tasks(self, most: int, *, fail: bool) -> None:
        self.do(drain(self.control))
        self.do(run_some(self.control, most, lambda _: fail, self.content))

    @rule()
    def claim(self) -> None:
        """A task that is still running when the next things happen: it writes what it read now."""
        self.do(drain(self.control))
        claimed = self.do(claim_one(self.control))
        if claimed is not None:
            self.held.append((claimed, self.do(self.content(self.control, claimed[0]))))

    @precondition(lambda self: self.held)
    @rule()
    def complete_late(self) -> None:
        self.do(self._complete_late(*self.held.pop(0)))

    async def content(self, control: Control, task: Claimed) -> bytes:
        """`ask` writes the value of its range, `grind` half of it, so that two values look the same; `bake` copies."""
        job, scope = task.task.job.name, task.task.scope
        if job == "ask":
            return json.dumps(self.values[f"{scope.start}-{scope.end}"]).encode()
        value = json.loads(await read_input(control, task))
        return json.dumps(value // 2 if job == "grind" else value).encode()

    async def _complete_late(self, held: Held, content: bytes) -> None:
        async def written(_control: Control, _task: Claimed) -> bytes:
            return content

        with suppress(Conflict, LeaseLost):
            await finish(self.control, held, content=written)

    async def check(self) -> None:
        await self._finish_all()
        pool, objects = self.control.pool, self.control.objects
        found: dict[str, dict[str, int]] = {"ask": {}, "grind": {}, "bake": {}}
        for row in await pool.fetch(HELD, self.org.id):
            body = objects.get(Folder.parse(row["location"]).object(row["name"]))
            found[row["job"]][row["key"]] = json.loads(body)
        halves = {key: value // 2 for key, value in self.values.items()}
        assert found == {"ask": self.values, "grind": halves, "bake": halves}
        needless = [tuple(row) for row in await pool.fetch(NEEDLESS, self.org.id)]
        assert not needless, needless
        gaps = await list_gaps(pool, self.org.as_user, GapsQuery(of="mill"))
        assert gaps.complete, gaps

    async def _finish_all(self) -> None:
        for task in self.held:
            await self._complete_late(*task)
        for key in self.values:  # a task of a source that failed, or whose version left, is not made up for
            start, end = map(int, key.split("-"))
            await asked(self.control, self.org, (start, end))
        await self.run_all(content=self.content)


def test_readers_end_as_if_built_from_scratch_and_none_ran_for_what_had_not_changed(
    state_db: str, queue_db: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with registered(works=WORKS):
        run_machine(ContentMachine, (state_db, queue_db), tmp_path, request.config.getoption("--version-examples"))
