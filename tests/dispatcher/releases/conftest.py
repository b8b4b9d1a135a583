"""Two DAGs, a mill and a shop that reads it, with data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active
from tests.support.dispatcher.mill_and_shop import MILL, SHOP, ask
from tests.support.dispatcher.run_tasks import settle
from tests.support.operators import registered
from tracelake.dispatcher.control import Control


@pytest.fixture(autouse=True)
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


@pytest.fixture
async def org(control: Control) -> Org:
    """With a mill and a shop that have processed two ranges."""
    made = await an_org(control.pool)
    await deployed_and_active(control, made, MILL.format(1, 1))
    await deployed_and_active(control, made, SHOP)
    for first in (0, 10):
        await ask(control, made, first)
    await settle(control)
    return made
