"""The six orders of upstream's plugin TopologicalSort, in which callers come before their dependencies; also for graphs with cycles.

- KahnSort: by Kahn's algorithm, a workload comes when all its callers have come.
- TarjanSort: the reverse postorder of a depth-first search.
- Reverse...: the plain order from its end, so that dependencies come before their callers.
- Alternate...: the first of the plain order, the last, the second, the last but one, and so on.

Ties follow the spec, so orders are deterministic. See docs/contracts.md, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal, get_args

import msgspec

Algorithm = Literal["KahnSort", "AlternateKahn", "ReverseKahn", "TarjanSort", "AlternateTarjan", "ReverseTarjan"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
FALLBACK_ALGORITHM: Algorithm = "KahnSort"
"""Used for an unknown algorithm, as upstream does."""

Adjacency = Sequence[Sequence[int]]
"""For each workload the positions of its dependencies, both in spec order."""


class WorkloadOrder(msgspec.Struct, frozen=True):
    """Positions of a group's workloads in the spec, in the order of scheduling; ``cycle`` is a closed path such as (0, 2, 0), or empty."""

    sequence: tuple[int, ...]
    cycle: tuple[int, ...] = ()


def sort_workloads(callees: Adjacency, algorithm: str) -> WorkloadOrder:
    """Sort workloads. An ``algorithm`` that is none of `ALGORITHMS` counts as `FALLBACK_ALGORITHM`."""
    if algorithm not in ALGORITHMS:
        algorithm = FALLBACK_ALGORITHM
    depth_first, cycle = _sort_depth_first(callees)
    sequence = depth_first if "Tarjan" in algorithm else _sort_by_kahn(callees)
    variant = algorithm.removesuffix("Kahn").removesuffix("Tarjan")
    if variant == "Reverse":
        sequence.reverse()
    elif variant == "Alternate":
        alternating = chain.from_iterable(zip(sequence, reversed(sequence), strict=True))
        sequence = list(alternating)[: len(sequence)]
    return WorkloadOrder(tuple(sequence), cycle)


def _sort_by_kahn(callees: Adjacency) -> list[int]:
    """Kahn's algorithm with a stack: the workload whose last caller came most recently is next; in a cycle, the first in spec order."""
    in_degrees = [0] * len(callees)
    for own_callees in callees:
        for callee in own_callees:
            in_degrees[callee] += 1
    stack = [workload for workload, count in enumerate(in_degrees) if count == 0]
    sequence: dict[int, None] = {}
    in_spec_order = iter(range(len(callees)))
    while len(sequence) < len(callees):
        workload = stack.pop() if stack else next(workload for workload in in_spec_order if workload not in sequence)
        sequence[workload] = None
        for callee in callees[workload]:
            in_degrees[callee] -= 1
            if in_degrees[callee] == 0 and callee not in sequence:
                stack.append(callee)
    return list(sequence)


def _sort_depth_first(callees: Adjacency) -> tuple[list[int], tuple[int, ...]]:
    """Workloads in reverse postorder of a depth-first search, which starts from each in spec order; and the first cycle, or ()."""
    cycle: tuple[int, ...] = ()
    postorder: list[int] = []
    visited: set[int] = set()
    for start in range(len(callees)):
        path = {} if start in visited else {start: iter(callees[start])}
        while path:  # A stack instead of recursion: a chain may be longer than Python's recursion limit.
            workload = next(reversed(path))
            visited.add(workload)
            callee = next(path[workload], None)
            if callee is None:
                postorder.append(workload)
                del path[workload]
            elif callee in path and not cycle:
                positions = list(path)
                cycle = (*positions[positions.index(callee) :], callee)
            elif callee not in visited:
                path[callee] = iter(callees[callee])
    return postorder[::-1], cycle
