"""Stores the limits that the settings have: of operators and runtimes, and those of organisations without their own."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg

from tracelake.dispatcher.dags.catalog import operators as catalog_operators
from tracelake.domain.flow.org_limits import LIMIT_NAMES
from tracelake.domain.text.suggest import closest
from tracelake.errors import SettingsError
from tracelake.settings import LimitSettings, OperatorSettings, RuntimeSettings
from tracelake.settings.limits import NO_LIMITS
from tracelake.store.queries import queries


async def set_limits(
    pool: asyncpg.Pool,
    runtimes: Mapping[str, RuntimeSettings],
    operators: Mapping[str, OperatorSettings],
    of_orgs: LimitSettings = NO_LIMITS,
) -> None:
    """All replicas have the same settings; if one has others, the one that starts last decides."""
    known = catalog_operators()
    for name in operators:
        if name not in known:
            raise SettingsError(f"there is no operator {name!r}", where=f"operators.{name}", hint=closest(name, known))
    limits = [("runtime", name, limit) for name, runtime in runtimes.items() if (limit := runtime.max_in_flight)]
    limits += [("operator", name, limit) for name, operator in operators.items() if (limit := operator.max_in_flight)]
    kinds, names, numbers = ([limit[place] for limit in limits] for place in range(3))
    defaults = {name: most for name in LIMIT_NAMES if (most := getattr(of_orgs, name)) is not None}
    functions = [name for name, runtime in runtimes.items() if runtime.invoker == "function"]
    sandboxed = [name for name, runtime in runtimes.items() if runtime.untrusted or name in functions]
    of_org = queries("org_limits")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("route")["set_limits"], kinds, names, numbers)
        await connection.execute(of_org["set_defaults"], list(defaults), list(defaults.values()))
        await connection.execute(of_org["set_sandboxed_runtimes"], sandboxed, functions)
        await connection.execute(of_org["share_limits"], None)
