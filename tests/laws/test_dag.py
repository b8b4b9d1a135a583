"""DAGs: any text is a DAG or refused with places inside it; order and generations hold on random graphs."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.domain.dag.catalog import Catalog, Count, OperatorSpec, RuntimeSpec, every_input
from tracelake.domain.dag.graph import job_order, reach, reverse, sort
from tracelake.domain.dag.hashes import dataset_ids, generation_ids
from tracelake.domain.dag.model import Dag, SourceKind
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.ids import JobName, OrgId
from tracelake.errors import InvalidDag

ORG = OrgId(UUID(int=1))
ANY = OperatorSpec(
    lambda _: (),
    frozenset({"r"}),
    source_kinds=frozenset(SourceKind),
    inputs=Count(1, None),
    outputs=Count(0, None),
    narrows=every_input,
)
CATALOG = Catalog({"op": ANY}, {"r": RuntimeSpec()})

SEED = """name: shop
defaults: {runtime: r, max_attempts: 3}
jobs:
  - {name: src, operator: op, source: {kind: cron, schedule: "* * * * *"}, outputs: [x, y]}
  - name: a
    operator: op
    inputs:
      - from: {job: src, output: x}
        where: "p = 'q' and not r in (1, 2)"
    unique_key: [id]
    retry: {backoff: 5s}
publish:
  daily: {job: a, read_roles: [b]}
"""
PIECES = [
    *"{}[]\"'|>#~é,",
    "name",
    "jobs",
    "src",
    "where",
    "null",
    "&a",
    "*a",
    "!!x",
    "<<",
    "%YAML",
    "---",
    "1e9",
    "\\u",
]
PIECES += [": ", "- ", "? ", "\n", "  ", "\t", "\x00"]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = SEED
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 8)))
        text = text[:start] + draw(st.sampled_from(PIECES) | st.text(max_size=3)) + text[stop:]
    return text


@settings(max_examples=200, deadline=None)
@given(mutated() | st.lists(st.sampled_from(PIECES), max_size=20).map("".join) | st.text(max_size=40))
def test_any_text_is_a_dag_or_refused_inside_the_text(text: str) -> None:
    try:
        dag = parse_dag(text, CATALOG)
    except InvalidDag as refusal:
        lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + text.count("\u2029")
        for problem in refusal.problems:
            assert 1 <= problem.line <= lines + 2
            assert problem.column >= 1
            assert problem.reason
            assert problem.code
    else:
        assert parse_dag(dag.canonical, CATALOG) == dag


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidDag):
        parse_dag(content, CATALOG)


@st.composite
def wirings(draw: st.DrawFn) -> dict[int, list[int]]:
    """For each job, the earlier ones that it reads."""
    count = draw(st.integers(1, 7))
    return {job: sorted(draw(st.sets(st.integers(0, job - 1)))) if job else [] for job in range(count)}


def as_yaml(wiring: dict[int, list[int]], configs: dict[int, int], order: list[int]) -> str:
    rows = []
    for job in order:
        inputs = ", ".join(f"{{from: {{job: j{above}}}}}" for above in wiring[job])
        what = f"inputs: [{inputs}]" if inputs else "source: {kind: manual}"
        rows.append(f"  - {{name: j{job}, operator: op, runtime: r, config: {{c: {configs.get(job, 0)}}}, {what}}}\n")
    return "name: random\njobs:\n" + "".join(rows)


def upstream_in(wiring: dict[int, list[int]]) -> dict[JobName, list[JobName]]:
    return {JobName(f"j{job}"): [JobName(f"j{above}") for above in others] for job, others in wiring.items()}


def random_dag(wiring: dict[int, list[int]], configs: dict[int, int], order: list[int] | None = None) -> Dag:
    return parse_dag(as_yaml(wiring, configs, order or list(wiring)), CATALOG)


@settings(max_examples=25, deadline=None)
@given(wirings(), st.randoms(use_true_random=False))
def test_every_job_comes_after_everything_upstream(wiring: dict[int, list[int]], random: object) -> None:
    order = list(wiring)
    random.shuffle(order)  # type: ignore[attr-defined]
    dag = random_dag(wiring, {}, order)
    found = job_order(dag)
    assert sorted(found) == sorted(job.name for job in dag.jobs)
    for place, name in enumerate(found):
        assert reach([name], upstream_in(wiring)) <= set(found[:place])


@settings(max_examples=25, deadline=None)
@given(wirings(), st.data())
def test_a_changed_job_gives_new_generations_to_itself_and_downstream_alone(
    wiring: dict[int, list[int]], data: st.DataObject
) -> None:
    job = data.draw(st.sampled_from(sorted(wiring)))
    before, after = random_dag(wiring, {}), random_dag(wiring, {job: 1})
    old, new = generation_ids(before, ORG), generation_ids(after, ORG)
    changed = {output.job for output, dataset in dataset_ids(after, ORG).items() if old[dataset] != new[dataset]}
    name = JobName(f"j{job}")
    assert changed == {name} | reach([name], reverse(upstream_in(wiring)))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef")), min_size=1))
def test_cycles_are_real_and_found_exactly_when_there_is_one(upstream: dict[str, set[str]]) -> None:
    nodes = sorted({*upstream, *(other for others in upstream.values() for other in others)})
    order, cycles = sort(nodes, upstream)
    assert sorted([*order, *(node for cycle in cycles for node in cycle)]) == nodes
    for cycle in cycles:
        for item, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            assert item in upstream[following]
    if not cycles:
        assert all(set(upstream.get(node, ())) <= set(order[:place]) for place, node in enumerate(order))
