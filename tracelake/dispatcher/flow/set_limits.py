"""Stores the limits of tasks in flight that the settings have for operators and runtimes."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg

from tracelake.dispatcher.dags.catalog import operators as catalog_operators
from tracelake.domain.suggest import closest
from tracelake.errors import SettingsError
from tracelake.settings import OperatorSettings, RuntimeSettings
from tracelake.store.queries import queries


async def set_limits(
    pool: asyncpg.Pool, runtimes: Mapping[str, RuntimeSettings], operators: Mapping[str, OperatorSettings]
) -> None:
    """All replicas have the same settings; if one has others, the one that starts last decides."""
    known = catalog_operators()
    for name in operators:
        if name not in known:
            raise SettingsError(f"there is no operator {name!r}", where=f"operators.{name}", hint=closest(name, known))
    limits = [("runtime", name, limit) for name, runtime in runtimes.items() if (limit := runtime.max_in_flight)]
    limits += [("operator", name, limit) for name, operator in operators.items() if (limit := operator.max_in_flight)]
    kinds, names, numbers = ([limit[place] for limit in limits] for place in range(3))
    await pool.execute(queries("route")["set_limits"], kinds, names, numbers)
