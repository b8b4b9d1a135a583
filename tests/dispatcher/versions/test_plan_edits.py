"""Edits that cannot change rows rebuild nothing; edits that can are all found."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.control import Org, an_org, deployed_and_active
from tests.support.dispatcher.releases import plan
from tracelake.dispatcher.control import Control

pytestmark = pytest.mark.anyio

QUERY = "SELECT day, sum(amount) AS amount FROM orders WHERE amount > 0 GROUP BY day"
LOAD = """\
  - name: load
    operator: noop
    runtime: dispatcher
    source: {kind: manual}
"""
ORDERS = """\
  - name: orders
    operator: read_files
    config: {path: orders, format: csv, columns: [day date, amount bigint, state string]}
    inputs: [{from: {job: load}}]
"""
DAG = f"""\
name: shop
defaults:
  runtime: ecs_platform
jobs:
{LOAD}{ORDERS}  - name: daily
    operator: sql
    config: {{mode: full, query: "SELECT day, sum(amount) AS amount FROM orders WHERE amount > 0 GROUP BY day"}}
    inputs: [{{from: {{job: orders}}, where: "amount > 0"}}]
publish:
  volume: {{job: daily}}
"""  # noqa: S608 - YAML
JOB = "  - name: daily\n    operator: sql\n"
NOTHING = {
    "a comment": ("name: shop\n", "# the shop\nname: shop\n"),
    "a comment at the end": ("publish:\n", "publish: # for all\n"),
    "an empty line": ("jobs:\n", "jobs:\n\n"),
    "the order of jobs": (LOAD + ORDERS, ORDERS + LOAD),
    "the order of fields": (JOB, "  - operator: sql\n    name: daily\n"),
    "quotes": ("name: shop\n", 'name: "shop"\n'),
    "a flow map": ("defaults:\n  runtime: ecs_platform\n", "defaults: {runtime: ecs_platform}\n"),
    "the order of a map": ("{path: orders, format: csv,", "{format: csv, path: orders,"),
    "white space in SQL": ("GROUP BY day", "  GROUP   BY day"),
    "a line break in SQL": (f'"{QUERY}"', f'"{QUERY.replace(" FROM", chr(92) + "n FROM")}"'),
    "the case of a keyword": ("SELECT day", "select day"),
    "the case of all keywords": ("WHERE amount > 0 GROUP BY", "where amount > 0 group by"),
    "a comment in SQL": ("SELECT day", "SELECT /* by day */ day"),
    "redundant white space around an operator": ("WHERE amount > 0", "WHERE amount>0"),
    "AS that is left out": ("sum(amount) AS amount", "sum(amount) amount"),
    "scaling": (JOB, JOB + "    scaling: {max_concurrency: 2}\n"),
    "a timeout": (JOB, JOB + "    timeout_seconds: 10m\n"),
    "a lease": (JOB, JOB + "    heartbeat_timeout_seconds: 60\n"),
    "a heartbeat": (JOB, JOB + "    heartbeat_interval_seconds: 10\n"),
    "attempts": (JOB, JOB + "    max_attempts: 7\n"),
    "platform failures": (JOB, JOB + "    max_platform_failures: 7\n"),
    "retries": (JOB, JOB + "    retry: {backoff: 5}\n"),
    "a priority": (JOB, JOB + "    priority: bulk\n"),
    "a limit of the queue": (JOB, JOB + "    max_queue_depth: 10\n"),
    "an age of the queue": (JOB, JOB + "    max_queue_age: 1h\n"),
    "a mark to resume at": (JOB, JOB + "    max_queue_depth: 10\n    resume_queue_depth: 3\n"),
    "an idle timeout": (JOB, JOB + "    idle_timeout: 5m\n"),
    "an explicit default": (JOB, JOB + "    max_attempts: 3\n"),
    "a default for all jobs": ("defaults:\n", "defaults:\n  max_attempts: 4\n"),
    "the runtime in the job": (JOB, JOB + "    runtime: ecs_platform\n"),
    "another published name": ("publish:\n", "publish:\n  raw: {job: orders}\n"),
    "a name of the output": (JOB, JOB + "    outputs: [{name: daily}]\n"),
}
SOMETHING = {
    "a filter": ("WHERE amount > 0", "WHERE amount > 1", {"volume"}),
    "a comparison": ("WHERE amount > 0", "WHERE amount >= 0", {"volume"}),
    "an aggregate": ("sum(amount) AS", "max(amount) AS", {"volume"}),
    "a column": ("SELECT day, sum", "SELECT day, count(*) AS n, sum", {"volume"}),
    "a name of a column": ("AS amount", "AS total", {"volume"}),
    "the case of a column's name": ("AS amount", "AS Amount", {"volume"}),
    "a group": ("GROUP BY day", "GROUP BY day, state", {"volume"}),
    "an order": ("GROUP BY day", "GROUP BY day ORDER BY day", {"volume"}),
    "a limit": ("GROUP BY day", "GROUP BY day ORDER BY day LIMIT 3", {"volume"}),
    "DISTINCT": ("SELECT day", "SELECT DISTINCT day", {"volume"}),
    "a literal": ("amount > 0 GROUP", "amount > 10 GROUP", {"volume"}),
    "a cast": ("sum(amount) AS", "CAST(sum(amount) AS DOUBLE) AS", {"volume"}),
    "a HAVING": ("GROUP BY day", "GROUP BY day HAVING count(*) > 1", {"volume"}),
    "a subquery": ("FROM orders", "FROM (SELECT * FROM orders) orders", {"volume"}),
    "no condition": (" WHERE amount > 0 GROUP", " GROUP", {"volume"}),
    "the mode": ("mode: full", "mode: partition", {"volume"}),
    "the filter of an input": ('where: "amount > 0"', 'where: "amount > 5"', {"volume"}),
    "no filter of an input": (', where: "amount > 0"', "", {"volume"}),
    "one more filter": ('where: "amount > 0"', "where: \"amount > 0 AND state = 'x'\"", {"volume"}),
    "another function": ("sum(amount) AS", "avg(amount) AS", {"volume"}),
    "a path": ("path: orders", "path: invoices", {"volume", "orders[0]"}),
    "a column of files": ("state string", "state string, note string", {"volume", "orders[0]"}),
    "a type of files": ("amount bigint", "amount int", {"volume", "orders[0]"}),
    "the order of columns": ("[day date, amount bigint,", "[amount bigint, day date,", {"volume", "orders[0]"}),
    "the delimiter": ("format: csv,", 'format: csv, delimiter: ";",', {"volume", "orders[0]"}),
    "a header": ("format: csv,", "format: csv, header: false,", {"volume", "orders[0]"}),
    "the format": ("format: csv,", "format: json,", {"volume", "orders[0]"}),
    "a union": ("GROUP BY day", "GROUP BY day UNION ALL SELECT day, amount FROM orders", {"volume"}),
    "a literal's case": ("WHERE amount > 0", "WHERE state = 'A'", {"volume"}),
    "NULLs": ("WHERE amount > 0", "WHERE amount IS NOT NULL", {"volume"}),
}


CONTRACTS = """\
name: tokens
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: ingest, operator: cryo_ingest, config: {rpc_pool: main, tables: [logs]}, inputs: [{from: {job: ask}}]}
  - name: transfers
    operator: evm_decode
    config: {abi: erc20, events: [transfer]}
    inputs: [{from: {job: ingest}}]
"""
CONTRACT = """\
  - name: {name}
    operator: sql
    config: {{query: "SELECT * FROM transfers WHERE address = unhex('{number:040x}')"}}
    inputs: [{{from: {{job: transfers}}}}]
"""


@pytest.fixture
async def org(control: Control) -> Org:
    made = await an_org(control.pool)
    await deployed_and_active(control, made, DAG)
    return made


def edited(old: str, new: str) -> str:
    assert old in DAG, old
    return DAG.replace(old, new)


async def rebuilt(control: Control, org: Org, text: str) -> set[str]:
    return {row.dataset for row in (await plan(control, org, text)).datasets if row.action != "carry on"}


async def test_thirty_edits_that_cannot_change_rows_rebuild_nothing(control: Control, org: Org) -> None:
    assert len(NOTHING) >= 30
    found = {name: await rebuilt(control, org, edited(*edit)) for name, edit in NOTHING.items()}
    assert {name: datasets for name, datasets in found.items() if datasets} == {}


async def test_thirty_edits_that_can_change_rows_rebuild_just_what_they_change(control: Control, org: Org) -> None:
    assert len(SOMETHING) >= 30
    found = {name: await rebuilt(control, org, edited(old, new)) for name, (old, new, _) in SOMETHING.items()}
    assert found == {name: datasets for name, (_, _, datasets) in SOMETHING.items()}


def of_contracts(*names: str) -> str:
    """A job for each contract: its address is its number."""
    return CONTRACTS + "".join(CONTRACT.format(name=name, number=number) for number, name in enumerate(names))


async def test_a_contract_that_is_added_as_a_job_builds_its_own_dataset_and_no_other(control: Control) -> None:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, of_contracts("usdc", "dai"))
    assert await rebuilt(control, org, of_contracts("usdc", "dai", "weth")) == {"weth[0]"}
