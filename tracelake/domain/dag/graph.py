"""Order and reach among jobs, without recursion: a DAG may be a chain of a thousand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from tracelake.domain.dag.model import Dag, DagInput, DeclaredDataset, JobOutput
from tracelake.domain.ids import JobName

N = TypeVar("N", bound=str)


def job_order(dag: Dag) -> tuple[JobName, ...]:
    """Upstream first; otherwise as in the file."""
    order, _ = sort([job.name for job in dag.jobs], _upstream(dag))
    return order


def sort(nodes: Sequence[N], upstream: Mapping[N, Iterable[N]]) -> tuple[tuple[N, ...], tuple[tuple[N, ...], ...]]:
    """Sorts upstream first, otherwise in the given order; also returns the cycles that prevent it, as paths.

    Every cycle is cut out once it is found, so that the rest can be ordered: of cycles that share a node, one is shown.
    """
    waiting = {node: set(upstream.get(node, ())) & set(nodes) for node in nodes}
    order: list[N] = []
    cycles: list[tuple[N, ...]] = []
    while waiting:
        order += _take_ready(waiting, {node: place for place, node in enumerate(nodes)})
        if waiting:
            cycles.append(_cycle(waiting))
            _forget(cycles[-1], waiting)
    return tuple(order), tuple(cycles)


def reach(start: Iterable[N], neighbours: Mapping[N, Iterable[N]]) -> frozenset[N]:
    """Everything that can be reached from `start` in one step or more."""
    seen: set[N] = set()
    front = list(start)
    while front:
        fresh = set(neighbours.get(front.pop(), ())) - seen
        seen |= fresh
        front += fresh
    return frozenset(seen)


def reverse(neighbours: Mapping[N, Iterable[N]]) -> dict[N, set[N]]:
    turned: dict[N, set[N]] = {}
    for node, others in neighbours.items():
        for other in others:
            turned.setdefault(other, set()).add(node)
    return turned


def _upstream(dag: Dag) -> dict[JobName, list[JobName]]:
    return {job.name: [feeder for element in job.inputs for feeder in _feeders(dag, element)] for job in dag.jobs}


def _feeders(dag: Dag, item: DagInput) -> Sequence[JobName]:
    match item.upstream:
        case JobOutput(job):
            return (job,)
        case DeclaredDataset(name):
            return dag.writers(name)
        case _:
            return ()


def _take_ready(waiting: dict[N, set[N]], places: Mapping[N, int]) -> list[N]:
    """Take out, one after the other, what waits for nothing."""
    downstream = reverse(waiting)
    ready = [(places[node], node) for node, others in waiting.items() if not others]
    heapify(ready)
    taken: list[N] = []
    while ready:
        _, node = heappop(ready)
        del waiting[node]
        taken.append(node)
        for other in downstream.get(node, ()):
            waiting[other].discard(node)
            if not waiting[other]:
                heappush(ready, (places[other], other))
    return taken


def _cycle(waiting: Mapping[N, set[N]]) -> tuple[N, ...]:
    """Walks upstream from any node: each waits for another, so the walk closes. In the direction of data flow."""
    node = next(iter(waiting))
    walk: dict[N, None] = {}
    while node not in walk:
        walk[node] = None
        node = min(waiting[node])
    path = list(walk)
    loop = path[path.index(node) :][::-1]
    first = loop.index(min(loop))
    return (*loop[first:], *loop[:first])


def _forget(cycle: Sequence[N], waiting: dict[N, set[N]]) -> None:
    for node in cycle:
        del waiting[node]
    for others in waiting.values():
        others.difference_update(cycle)
