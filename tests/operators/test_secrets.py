"""A job's code gets the secrets that the job names, only from the worker; they are shown nowhere else."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import structlog

from tests.support.spark.functions import proof
from tests.support.systems.operators import OperatorSystem, numbers_dag, operator
from tests.support.systems.walk import working
from tracelake.errors import InvalidDag
from tracelake.operators.api.context import TaskContext
from tracelake.runtime.logs import configure_logging
from tracelake.runtime.redact import INSTEAD, redactor
from tracelake.settings import LogSettings, Settings, load_settings
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

MODULE: Final = "tests.support.spark.functions"
API, OTHER = "api-key/5f3a9c+==", "other 'key' \"77be01\""
ENV: Final = {"TRACE_SECRETS__API_KEY": API, "TRACE_SECRETS__OTHER": OTHER}


def dag(*jobs: str, attempts: int = 1) -> str:
    listed = "\n".join(
        f"  - name: work_{number}\n    inputs: [{{from: {{job: numbers}}}}]\n    {job}"
        for number, job in enumerate(jobs)
    )
    published = "\n".join(f"  made_{number}: {{job: work_{number}}}" for number in range(len(jobs)))
    return f"""{numbers_dag(attempts, ", retry: {backoff: 1s, max_backoff: 1s}")}{listed}
publish:
{published}
"""


def python(function: str, secrets: str | None) -> str:
    named = f"\n    secrets: {secrets}" if secrets else ""
    return f'operator: python\n    config: {{function: "{MODULE}:{function}"}}{named}'


def worker(system: OperatorSystem, settings: Settings) -> Wrapper:
    """As `trace worker` makes it from its settings."""
    made = system.worker()
    assert isinstance(made.runner, Runner)
    return replace(made, runner=replace(made.runner, hide=redactor(settings), secrets=settings.secrets))


async def ran(system: OperatorSystem, env: dict[str, str]) -> dict[str, list[str]]:
    async with working(worker(system, load_settings(env, home=system.folder))):
        await system.trigger("d", "ask", start=1, end=2)
        return await system.settled()


@contextlib.contextmanager
def logged(settings: Settings) -> Iterator[io.StringIO]:
    """The worker's log, set up as in its process."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        configure_logging("worker", LogSettings(level="debug"), redactor(settings))
        try:
            yield out
        finally:
            structlog.reset_defaults()


async def test_a_function_gets_the_secrets_that_its_job_names_and_another_jobs_function_none_of_them(
    system: OperatorSystem,
) -> None:
    names = ("[API_KEY]", "[other, api_key]", None, "[]")
    await system.deploy(dag(*(python("proves_secrets", item) for item in names)))
    states = await ran(system, ENV)
    assert {states[f"work_{number}"][0] for number in range(4)} == {"Completed"}, await system.error("work_0")
    proofs = [await system.rows(f"made_{number}") for number in range(4)]
    assert proofs == [
        [{"proofs": f"API_KEY:{proof(API)}", "leaked": False}],
        [{"proofs": f"other:{proof(OTHER)},api_key:{proof(API)}", "leaked": False}],
        [{"proofs": "", "leaked": False}],
        [{"proofs": "", "leaked": False}],
    ]


async def test_secrets_printed_by_a_function_reach_no_log_error_or_table(system: OperatorSystem) -> None:
    settings, reported = load_settings(ENV, home=system.folder), system.folder / "reported"
    job = python("leaks_secrets", "[API_KEY, OTHER]").replace("}", f", args: {{seen: {reported}}}}}")
    with logged(settings) as log:
        await system.deploy(dag(job))
        async with working(worker(system, settings)):
            await system.trigger("d", "ask", start=1, end=2)
            await system.until("SELECT count(*) = 1 FROM tasks WHERE progress ->> 'message' LIKE 'logs in with%'")
            reported.touch()
            states = await system.settled()
    assert states["work_0"] == ["Failed"]
    assert f"cannot log in with {{'API_KEY': '{INSTEAD}', 'OTHER': '{INSTEAD}'}}" in await system.error("work_0")
    assert "cannot log in with" in log.getvalue()
    texts = {"log": log.getvalue(), **await tables(system)}
    assert f"logs in with {INSTEAD}" in texts["tasks"]
    found = {name for name, text in texts.items() for secret in ("5f3a9c", "77be01") if secret in text}
    assert found == set()


@pytest.mark.parametrize("before", [1_966, 9_966])
async def test_a_long_error_is_cut_after_its_secrets_are_redacted(system: OperatorSystem, before: int) -> None:
    settings = load_settings(ENV, home=system.folder)
    with logged(settings) as log:
        job = python("fails_on_spark", "[API_KEY]")
        await system.deploy(dag(job.replace("}", f", args: {{before: {before}}}}}")))
        states = await ran(system, ENV)
    assert states["work_0"] == ["Failed"]
    error = await system.error("work_0")
    assert "pppp" in error
    for text in (error, log.getvalue()):
        assert API[:8] not in text


async def tables(system: OperatorSystem) -> dict[str, str]:
    """Every row of the state database, as text."""
    names = await system.fetch("SELECT tablename::text AS name FROM pg_tables WHERE schemaname = 'public'")
    rows = {item["name"]: await system.fetch(f'SELECT t::text AS row FROM "{item["name"]}" t') for item in names}  # noqa: S608
    return {name: "\n".join(row["row"] for row in found) for name, found in rows.items()}


async def test_a_secret_missing_on_the_worker_fails_the_task_and_the_error_says_how_to_set_it(
    system: OperatorSystem,
) -> None:
    await system.deploy(dag(python("proves_secrets", "[API_KEY, NO_SUCH, other]"), attempts=3))
    states = await ran(system, ENV)
    assert states["work_0"] == ["Failed"]
    message = await system.error("work_0")
    assert message.startswith(
        "this worker has no secret NO_SUCH (set TRACE_SECRETS__NO_SUCH in the environment of `trace"
    )
    (task,) = await system.fetch(
        "SELECT t.attempt, t.next_retry_at FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work_0'"
    )
    assert (task["attempt"], task["next_retry_at"]) == (1, None)


async def test_secrets_are_refused_at_deploy_for_an_operator_that_takes_none(system: OperatorSystem) -> None:
    with pytest.raises(InvalidDag, match=r"jobs\[2\]\.secrets: operator 'sql' does nothing with secrets"):
        await system.deploy(dag('operator: sql\n    config: {query: "SELECT 1 AS one"}\n    secrets: [API_KEY]'))


async def test_a_dag_deployed_before_that_refusal_still_runs(system: OperatorSystem) -> None:
    secrets: list[Any] = []

    def run(ctx: TaskContext[Any]) -> None:
        secrets.append(dict(ctx.secrets))

    with operator("former", run, takes_secrets=True):
        await system.deploy(dag("operator: former\n    secrets: [NO_SUCH]"))
    with operator("former", run):
        states = await ran(system, ENV)
    assert states["work_0"] == ["Completed"], await system.error("work_0")
    assert secrets == [{}]
