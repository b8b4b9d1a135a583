"""Any sequence of blocks, reorgs, restarts and kills leaves hot and cold equal, row for row, to the final chain.

Costs about a minute on a machine that is not busy. More stories: `--storms 50`. Each run makes up others; one that
fails says with which `--storm-seed` it is repeated.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.chain.devchain import Devchain, running
from tests.support.chain.storm import (
    FINALITY,
    START,
    Back,
    Follows,
    Kill,
    Mine,
    Reorg,
    Restart,
    Step,
    Storm,
    Wait,
    a_storm,
)
from tests.support.programs.blocked_worker import swept
from tests.support.systems.processes import ForkServer
from tracelake.domain.crash_points import POINTS
from tracelake.store.migrate import Database

OWN = [point for point in POINTS if point.startswith(("follow_chain.", "parquet_compact."))]
POINT = st.sampled_from([*OWN, "wrapper.claimed", "wrapper.operator_done", "wrapper.completed", "lease_keeper.renewed"])
REORG = st.builds(Reorg, st.integers(1, 8) | st.integers(9, 100), st.integers(-2, 3), st.integers(1, 2))
KILL = st.builds(Kill, st.none() | POINT, st.integers(1, 3), st.integers(0, 1000))
STEP = st.one_of(
    st.builds(Mine, st.integers(1, 45)),
    REORG,
    st.builds(Back, st.integers(0, 4)),
    KILL,
    st.just(Restart()),
    st.builds(Wait, st.booleans()),
)
STEPS = st.lists(STEP, max_size=4)
STORY = st.builds(
    lambda *pieces: [*pieces[0], pieces[1], *pieces[2], pieces[3], *pieces[4]], STEPS, REORG, STEPS, KILL, STEPS
)
FOLLOWS = st.builds(
    Follows, st.just("latest") | st.integers(0, START + 20), st.sampled_from(["per_block", "per_range"])
)
FROZEN_AT = [
    "wrapper.claimed",  # and so before it has looked at its tables
    "follow_chain.before_write",
    "follow_chain.before_commit",
    "follow_chain.after_commit",
    "follow_chain.before_send",
    "follow_chain.sent",
]
"""Before each of its transactions, and in the middle of one."""
ALL = Follows()
HARD: list[list[Step]] = [
    # A hundred blocks deep, far below what was final and is cold by now; twice at one height; back to the first fork.
    [
        Wait(settled=True),
        Reorg(100),
        Wait(settled=True),
        Reorg(12, 0, 2),
        Wait(),
        Back(0),
        Wait(settled=True),
        Reorg(70, 2),
    ],
    # The branch that comes is shorter than what went, and a process is killed before it has grown again.
    [
        Mine(30),
        Wait(settled=True),
        Reorg(40, -25),
        Wait(),
        Kill(),
        Reorg(3, 0),
        Kill("follow_chain.before_commit"),
        Back(1),
    ],
]
FROM_THE_TIP: list[Step] = [
    # At its first block, then below it, then far below it by a branch that takes a while to come up to it again.
    Reorg(1),
    Wait(settled=True),
    Mine(4),
    Wait(),
    Reorg(9, 2),
    Kill("follow_chain.before_commit"),
    Mine(30),
    Wait(settled=True),
    Reorg(60, -50),
    Restart(),
    Mine(10),
    Wait(),
    Back(0),
]


class RunStorm(Protocol):
    def __call__(self, play: Callable[[Storm], Awaitable[None]], follows: Follows = ALL) -> None: ...


@pytest.fixture(scope="module")
def chain() -> Iterator[Devchain]:
    with running(blocks=START, finality=FINALITY) as made:
        yield made


@pytest.fixture
def storm(clone: Callable[[Database], str], tmp_path: Path, chain: Devchain, fork_server: ForkServer) -> RunStorm:
    """Each story has databases, a Dispatcher and workers of its own."""

    def run(play: Callable[[Storm], Awaitable[None]], follows: Follows = ALL) -> None:
        async def in_a_storm() -> None:
            dsns = {str(name): clone(name) for name in cast("tuple[Database, ...]", ("state", "queue", "data"))}
            folder = tmp_path / uuid4().hex[:8]
            folder.mkdir()
            async with a_storm(dsns, folder, chain, fork_server, follows) as made:
                await play(made)

        asyncio.run(in_a_storm())

    return run


@pytest.mark.parametrize("story", HARD, ids=["deep and back", "shorter"])
def test_what_is_hard_leaves_hot_and_cold_equal_to_the_chain(storm: RunStorm, story: Sequence[Step]) -> None:
    storm(lambda made: made.play(story))


def test_a_follower_that_began_at_the_tip_equals_the_chain_from_there_on_through_any_reorg(storm: RunStorm) -> None:
    storm(lambda made: made.play(FROM_THE_TIP), Follows("latest"))


def test_a_worker_dies_at_each_point_of_following_and_compacting_and_hot_and_cold_equal_the_chain(
    storm: RunStorm,
) -> None:
    async def play(made: Storm) -> None:
        for point in OWN:
            worker = made.start(point)
            made.system.devchain.mine(21)  # something is new, and something else is final
            assert await worker.ended(120), f"{point} was never hit: {worker.said()}"
            assert worker.said().endswith(f"crash point {point}: SIGKILL\n"), worker.said()
            await made.elapse()
        await made.ends()
        await swept(made.system.walk)
        assert await made.garbage() == set(), "what the dead wrote is gone"
        assert await made.is_equal(), "and nothing else is"

    storm(play)


@pytest.mark.long
def test_a_follower_that_froze_and_was_followed_by_another_changes_nothing_when_it_wakes(storm: RunStorm) -> None:
    async def play(made: Storm) -> None:
        for point in FROZEN_AT:
            old = made.start(point, how="stop")
            assert await old.stopped(), f"{point} was never hit: {old.said()}"
            await made.elapse()
            new = made.start()
            await made.until(made.has_begun)
            made.system.devchain.mine(3)
            await made.until(made.is_equal)
            old.send(signal.SIGCONT)
            await old.until_said("lease")
            await made.until(made.is_equal)
            made.system.devchain.mine(3)
            await made.until(made.is_equal)
            for worker in (old, new):
                await worker.kill()
            made.system.devchain.mine(1)
            await made.elapse()
        await made.ends()

    storm(play, Follows("latest", reset=True))


@pytest.mark.long
def test_a_worker_dies_at_each_point_of_compacting_while_its_ranges_change_and_no_row_is_lost_or_doubled(
    storm: RunStorm,
) -> None:
    async def play(made: Storm) -> None:
        for turn, point in enumerate(point for point in OWN if point.startswith("parquet_compact.")):
            worker = made.start(point)
            made.system.devchain.mine(61)  # enough for a range of either size
            assert await worker.ended(120), f"{point} was never hit: {worker.said()}"
            await made.system.deploy(ALL.dag.replace("size: 20", f"size: {(30, 20)[turn % 2]}"))  # and back again
            await made.elapse()
            if turn % 2:
                made.system.devchain.reorg(90)  # into what either of them has compacted
        made.start()
        made.system.devchain.mine(61)
        await made.until(made.hot_and_cold_are_equal)
        # A source's task that was given up with its version is not tried again: the new version has its own.
        assert [said for said in await made.system.failures() if not said.startswith("follow: the lease")] == []

    storm(play)


@pytest.mark.long
def test_after_any_story_of_blocks_reorgs_restarts_and_kills_hot_and_cold_equal_the_final_chain(
    storm: RunStorm, request: pytest.FixtureRequest
) -> None:
    stories, chosen = (request.config.getoption(name) for name in ("--storms", "--storm-seed"))
    chosen = random.randrange(1 << 32) if chosen is None else chosen  # noqa: S311 - any will do

    @seed(chosen)
    @settings(
        max_examples=stories,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(STORY, FOLLOWS)
    def play_story(story: list[Step], follows: Follows) -> None:
        storm(lambda made: made.play(story), follows)

    try:
        play_story()
    except BaseException as wrong:
        wrong.add_note(f"the same stories again: --storms {stories} --storm-seed {chosen}")
        raise
