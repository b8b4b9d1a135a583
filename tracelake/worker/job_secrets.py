"""A task is handed the secrets that its job names, and no others.

The Dispatcher says the names; the values are in this worker's settings and go nowhere from here but to the operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import SecretStr

from tracelake.errors import WorkFailed
from tracelake.operators.api.context import Secrets
from tracelake.settings.job_secrets import variable_of


def secrets_of_job(names: Sequence[str], known: Mapping[str, SecretStr]) -> Secrets:
    """`known` by their names in small letters, as settings have them."""
    if missing := [name for name in names if name.lower() not in known]:
        raise WorkFailed(
            f"this worker has no secret {', '.join(missing)}",
            where="/secrets",
            hint=f"set {', '.join(map(variable_of, missing))} in the environment of `trace up`, or of the worker if it"
            " is started by itself; start it again, then retry the task",
        )
    return Secrets({name: known[name.lower()].get_secret_value() for name in names})
