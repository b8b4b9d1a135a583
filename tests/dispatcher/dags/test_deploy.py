"""A DAG's text becomes rows, once and whole, and changes nothing that is served."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active, run_here
from tests.support.operators import registered
from tests.support.verbs import activate_dag, deploy_dag, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.catalog import catalog
from tracelake.dispatcher.dags.show import list_dags, show_dag
from tracelake.domain.dag.model import JobOutput
from tracelake.domain.ids import JobName
from tracelake.errors import Conflict, InvalidDag, NotFound
from tracelake.settings import RUNTIMES, RuntimeSettings

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - name: fetch
    operator: pull
    source: {kind: manual}
    outputs: [orders, {name: lines, storage: postgres}]
  - name: clean
    operator: pull
    config: {strip: true}
    inputs: [{from: {job: fetch, output: orders}, where: "amount > 0"}]
    scaling: {max_concurrency: 2}
    max_queue_age: 5m
  - name: gather
    operator: pull
    update_strategy: append
    unique_key: [id]
    inputs: [{from: {job: clean}}]
publish:
  shop_orders: {job: clean}
"""


async def counts(control: Control) -> dict[str, int]:
    tables = ("dag_versions", "jobs", "datasets", "dataset_versions", "dag_version_datasets", "job_inputs")
    return {table: await control.pool.fetchval(f"SELECT count(*) FROM {table}") for table in tables}  # noqa: S608


async def test_a_deploy_writes_jobs_datasets_generations_and_edges(control: Control, org: Org) -> None:
    done = await deploy_dag(control, org.id, org.user, SHOP)
    assert done.created
    assert (done.dag_name, set(done.jobs)) == ("shop", {"fetch", "clean", "gather"})
    assert await counts(control) == {
        "dag_versions": 1,
        "jobs": 3,
        "datasets": 4,
        "dataset_versions": 4,
        "dag_version_datasets": 4,
        "job_inputs": 2,
    }
    [row] = await control.pool.fetch(
        "SELECT activation::text, execution_strategy::text, max_concurrency, max_queue_age, idle_timeout, config::text,"
        " input_datasets, output_datasets FROM jobs WHERE name = 'clean'"
    )
    orders = done.datasets[JobOutput(JobName("fetch"), 0)]
    assert row["activation"] == "reactive"
    assert row["max_concurrency"] == 2
    assert row["max_queue_age"].total_seconds() == 300
    assert row["config"] == '{"strip": true}'
    assert row["input_datasets"] == [orders]
    [edge] = await control.pool.fetch(
        "SELECT live, where_tree::text AS tree FROM job_inputs WHERE dataset_uuid = $1", orders
    )
    assert (edge["live"], edge["tree"]) == (False, '{"gt": ["amount", 0]}')


async def test_each_kind_of_storage_has_its_place(control: Control, org: Org) -> None:
    declared = "  gathered: {storage: postgres, write_mode: buffered, columns: {id: text}, unique_key: [id]}\n"
    done = await deploy_dag(control, org.id, org.user, SHOP + declared)
    rows = await control.pool.fetch(
        "SELECT v.dataset_uuid, v.id, v.storage_location, d.storage::text AS storage, v.config_hash"
        " FROM dataset_versions v JOIN datasets d ON d.id = v.dataset_uuid"
    )
    found = {row["dataset_uuid"]: row for row in rows}
    parquet = found[done.datasets[JobOutput(JobName("fetch"), 0)]]
    table = found[done.datasets[JobOutput(JobName("fetch"), 1)]]
    [buffered] = [row for dataset, row in found.items() if dataset not in done.datasets.values()]
    half = str(org.id)[:18]
    assert parquet["storage_location"] == f"s3://trace/datasets/{half}/{parquet['dataset_uuid']}/{parquet['id']}/"
    assert table["storage_location"] == f"postgres_table:dataset_{str(table['dataset_uuid']).replace('-', '_')}"
    assert table["storage"] == '{"kind": "postgres"}'
    assert buffered["storage_location"] == f"postgres_table:buffered.b_{buffered['id'].hex}"
    assert buffered["storage"] == '{"kind": "buffered"}'


async def test_the_same_text_again_or_written_otherwise_does_nothing(control: Control, org: Org) -> None:
    first = await deploy_dag(control, org.id, org.user, SHOP)
    before = await counts(control)
    again = await deploy_dag(control, org.id, org.user, SHOP)
    otherwise = await deploy_dag(
        control, org.id, None, "# the same\n" + SHOP.replace("{strip: true}", '{"strip": true}')
    )
    assert not again.created
    assert not otherwise.created
    assert first.dag_version_id == again.dag_version_id == otherwise.dag_version_id
    assert first.jobs == otherwise.jobs
    assert await counts(control) == before


async def test_deploys_of_one_text_at_once_are_one(control: Control, org: Org) -> None:
    done = await asyncio.gather(*(deploy_dag(control, org.id, org.user, SHOP) for _ in range(5)))
    assert sorted(outcome.created for outcome in done) == [False] * 4 + [True]
    assert len({outcome.dag_version_id for outcome in done}) == 1
    assert (await counts(control))["jobs"] == 3


async def test_deploys_of_different_texts_at_once_all_succeed(control: Control, org: Org) -> None:
    texts = [SHOP.replace("strip: true", f"strip: {n}") for n in range(6)]
    done = await asyncio.gather(*(deploy_dag(control, org.id, org.user, text) for text in texts))
    assert all(outcome.created for outcome in done)
    found = await counts(control)
    assert (found["datasets"], found["dataset_versions"]) == (4, 2 + 6 * 2)


async def test_a_change_gives_new_generations_to_what_is_downstream_only(control: Control, org: Org) -> None:
    async def generations(version: object) -> dict[str, object]:
        rows = await control.pool.fetch(
            "SELECT d.producer_job_name || d.producer_output_index AS name, p.dataset_version"
            " FROM dag_version_datasets p JOIN datasets d ON d.id = p.dataset_uuid WHERE p.dag_version_id = $1",
            version,
        )
        return {row["name"]: row["dataset_version"] for row in rows}

    old = await generations((await deploy_dag(control, org.id, org.user, SHOP)).dag_version_id)
    changed = SHOP.replace("strip: true", "strip: false")
    new = await generations((await deploy_dag(control, org.id, org.user, changed)).dag_version_id)
    assert {name for name in old if old[name] != new[name]} == {"clean0", "gather0"}
    # And back again: nothing is left of the way there.
    third = await generations((await deploy_dag(control, org.id, org.user, SHOP + "  # again\n")).dag_version_id)
    assert third == old


async def test_a_refused_text_says_everything_and_leaves_nothing(control: Control, org: Org) -> None:
    with pytest.raises(InvalidDag) as refused:
        await deploy_dag(
            control, org.id, org.user, SHOP.replace("job: clean}", "job: cleen}").replace("pull", "pul", 1)
        )
    assert {problem.code for problem in refused.value.problems} >= {"unknown_job", "unknown_operator"}
    assert set((await counts(control)).values()) == {0}


async def test_a_deploy_that_fails_half_way_leaves_nothing(control: Control, org: Org) -> None:
    await control.pool.execute("ALTER TABLE job_inputs ADD CONSTRAINT none CHECK (position <> 0)")
    with pytest.raises(asyncpg.CheckViolationError, match="none"):
        await deploy_dag(control, org.id, org.user, SHOP)
    assert set((await counts(control)).values()) == {0}


async def test_an_inactive_version_renames_nothing(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    await deploy_dag(control, org.id, org.user, SHOP.replace("shop_orders:", "shop_sales:"))
    assert await control.pool.fetchval("SELECT array_agg(name) FROM datasets WHERE name IS NOT NULL") == ["shop_orders"]


async def test_a_dataset_of_another_dag_is_wired_by_its_name(control: Control, org: Org) -> None:
    shop = await deployed_and_active(control, org, SHOP)
    reader = await deploy_dag(control, org.id, org.user, READER)
    read = await control.pool.fetchval("SELECT input_datasets FROM jobs WHERE id = $1", reader.jobs["count"])
    assert read == [shop.datasets[JobOutput(JobName("clean"), 0)]]


READER = """
name: reader
jobs:
  - {name: count, operator: pull, runtime: ecs_platform, inputs: [{from: {dataset: shop_orders}}]}
publish: {order_counts: {job: count}}
"""


async def test_the_catalog_knows_what_a_published_dataset_is_made_from(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    await deployed_and_active(control, org, READER)
    known = await catalog(control.pool, org.id, control.runtime_specs())
    assert known.published["order_counts"].upstream == {"shop_orders"}
    assert known.published["shop_orders"].dag == "shop"
    assert set(known.runtimes) == {"dispatcher", "lambda", "ecs_platform", "ecs_udf", "emr_serverless"}
    cyclic = SHOP.replace("source: {kind: manual}", "inputs: [{from: {dataset: order_counts}}]")
    with pytest.raises(InvalidDag) as refused:
        await deploy_dag(control, org.id, org.user, cyclic)
    assert {problem.code for problem in refused.value.problems} == {"cycle"}


async def test_another_organisation_sees_none_of_it(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, SHOP)
    other = await an_org(control.pool, "other")
    assert (await catalog(control.pool, other.id, control.runtime_specs())).published == {}
    assert (await list_dags(control.pool, other.id)).dags == []
    with pytest.raises(NotFound):
        await show_dag(control.pool, other.id, "shop")
    with pytest.raises(NotFound):
        await activate_dag(control, other.id, "shop", done.dag_version_id)
    theirs = await deployed_and_active(control, other, SHOP)
    assert set(theirs.datasets.values()).isdisjoint(done.datasets.values())


async def test_a_bundle_must_be_there(control: Control, org: Org) -> None:
    text = (
        "name: custom\njobs:\n  - {name: in, operator: noop, runtime: dispatcher, source: {kind: manual}}\n"
        "  - {name: own, operator: bundle, runtime: ecs_udf, inputs: [{from: {job: in}}],"
        f" udf: {{bundle: own.zip, sha256: {'ab' * 32}}}}}\n"
    )
    spec = PULL.__class__(PULL.check_config, frozenset({"ecs_udf"}), runs_bundle=True)
    with registered(bundle=spec), pytest.raises(Conflict) as refused:
        await deploy_dag(control, org.id, org.user, text)
    assert refused.value.where == "jobs.own.udf.sha256"
    assert (await counts(control))["dag_versions"] == 0


async def test_a_runtime_that_this_system_cannot_reach_is_refused_where_it_is_named(control: Control, org: Org) -> None:
    with registered(pull=replace(PULL, runtimes=frozenset({"lambda", "big"}))):
        for text, line in ((SHOP.replace("ecs_platform", "lambda"), 3), (SHOP.replace("ecs_platform", "bigg"), 3)):
            with pytest.raises(InvalidDag) as refused:
                await deploy_dag(control, org.id, org.user, text)
            assert (refused.value.problems[0].line, refused.value.problems[0].field) == (line, "defaults.runtime")
        assert "there is no runtime 'bigg'" in refused.value.message
        with pytest.raises(InvalidDag, match="invoker `function`, which this system does not have") as refused:
            await deploy_dag(control, org.id, org.user, SHOP.replace("ecs_platform", "lambda"))
        assert refused.value.hint == "one of: dispatcher, ecs_platform, ecs_udf"


async def test_a_runtime_of_the_settings_has_its_own_queue_and_defaults(control: Control, org: Org) -> None:
    big = RuntimeSettings(
        queue="huge",
        heartbeat_timeout_seconds=600,
        heartbeat_interval_seconds=100,
        timeout_seconds=7200,
        max_attempts=9,
    )
    more = replace(control, runtimes={**RUNTIMES, "big": big})
    with registered(pull=replace(PULL, runtimes=frozenset({"big"}))):
        text = SHOP.replace("ecs_platform", "big").replace("max_queue_age: 5m", "max_attempts: 2")
        done = await deployed_and_active(more, org, text)
    row = await control.pool.fetchrow("SELECT * FROM jobs WHERE id = $1", done.jobs["clean"])
    assert row is not None
    assert (row["heartbeat_timeout_seconds"], row["heartbeat_interval_seconds"]) == (600, 100)
    assert (row["timeout_seconds"], row["max_attempts"], row["retry_backoff_seconds"]) == (7200, 2, 30)
    await trigger(more, org.id, "shop", "fetch", start=0, end=9, request_id=uuid4())
    await run_here(control)  # a Dispatcher that does not know the runtime leaves the entry pending
    pending = "SELECT last_error FROM outbox WHERE kind = 'enqueue_task' AND status = 'Pending'"
    assert "runtime is not in the settings" in await control.pool.fetchval(pending)
    await control.pool.execute("UPDATE outbox SET available_at = now() WHERE status = 'Pending'")
    await run_here(more)
    assert (await control.queue.depth("huge")).ready == 1


async def test_dags_are_listed_and_shown(control: Control, org: Org) -> None:
    done = await deploy_dag(control, org.id, org.user, SHOP)
    [listed] = (await list_dags(control.pool, org.id)).dags
    assert (listed.name, listed.active_version, listed.versions, listed.jobs) == ("shop", None, 1, 3)
    await activate_dag(control, org.id, "shop", done.dag_version_id)
    newer = await deploy_dag(control, org.id, org.user, SHOP.replace("strip: true", "strip: false"))
    shown = await show_dag(control.pool, org.id, "shop")
    assert [version.dag_version_id for version in shown.versions] == [newer.dag_version_id, done.dag_version_id]
    assert [version.active for version in shown.versions] == [False, True]
    clean = next(job for job in shown.jobs if job.name == "clean")
    assert (clean.inputs, clean.outputs) == (["fetch[0]"], ["shop_orders"])
    assert (clean.queued, clean.in_flight, clean.oldest_seconds) == (0, 0, None)
    assert (shown.shown_version, shown.yaml) == (done.dag_version_id, SHOP)


async def test_a_hot_table_of_another_dag_is_refused_where_files_are_read(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP + "  shop_lines: {job: fetch, output: lines}\n")
    reader = """
name: reader
jobs:
  - name: sum
    operator: sql
    runtime: ecs_platform
    config: {query: SELECT id FROM lines}
    inputs: [{from: {dataset: shop_lines}, name: lines}]
"""
    with pytest.raises(InvalidDag, match="'lines' is a hot table") as refused:
        await deploy_dag(control, org.id, org.user, reader)
    assert refused.value.where == "line 8, column 21"
    await deploy_dag(control, org.id, org.user, reader.replace("shop_lines", "shop_orders"))


async def test_a_version_whose_filter_is_refused_by_now_can_still_be_activated(control: Control, org: Org) -> None:
    """Going back to it must be possible; the same file as a new deployment is refused, at the filter."""
    done = await deploy_dag(control, org.id, org.user, SHOP)
    with registered(pull=replace(PULL, narrows=None)):
        with pytest.raises(InvalidDag) as refusal:
            await deploy_dag(control, org.id, org.user, SHOP)
        assert [item.field for item in refusal.value.problems] == ["jobs[1].inputs[0].where"]
        await activate_dag(control, org.id, "shop", done.dag_version_id)
