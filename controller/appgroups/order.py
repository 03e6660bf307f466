"""The six orders of TopologicalSort (docs/contracts, section 6). Ties follow the spec, so orders are deterministic.

A group with a cycle is ordered too, as if a dependency of the cycle were not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import msgspec

Algorithm = Literal["KahnSort", "AlternateKahn", "ReverseKahn", "TarjanSort", "AlternateTarjan", "ReverseTarjan"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
FALLBACK: Algorithm = "KahnSort"
"""Used for an unknown algorithm, as upstream does."""

Adjacency = Sequence[Sequence[int]]


class Order(msgspec.Struct, frozen=True):
    """An order of the positions 0..n-1.

    Attributes:
        sequence: positions, first to be scheduled first.
        cycle: a closed path, for example (0, 2, 0); empty without one.
    """

    sequence: tuple[int, ...]
    cycle: tuple[int, ...] = ()


def order(children: Adjacency, algorithm: str) -> Order:
    """Order a graph.

    Args:
        children: per node its dependencies, in spec order; every entry is a node.
        algorithm: one of `ALGORITHMS`; others mean `FALLBACK`.
    """
    depth_first, cycle = _depth_first(children)
    sequence = depth_first if "Tarjan" in algorithm else _kahn(children)
    arrange = _ARRANGE.get(algorithm.removesuffix("Kahn").removesuffix("Tarjan"), _unchanged)
    return Order(tuple(arrange(sequence)), cycle)


def _unchanged(sequence: list[int]) -> list[int]:
    return sequence


def _reverse(sequence: list[int]) -> list[int]:
    return sequence[::-1]


def _alternate(sequence: list[int]) -> list[int]:
    """First, last, second, last but one, and so on."""
    waiting = deque(sequence)
    taken: list[int] = []
    while waiting:
        taken.append(waiting.popleft() if len(taken) % 2 == 0 else waiting.pop())
    return taken


_ARRANGE: dict[str, Callable[[list[int]], list[int]]] = {"Reverse": _reverse, "Alternate": _alternate}


def _kahn(children: Adjacency) -> list[int]:
    """Kahn's algorithm on a stack: the node that became ready last comes next; of a cycle the first in spec order."""
    waiting_for = [0] * len(children)
    for dependencies in children:
        for child in dependencies:
            waiting_for[child] += 1
    ready = [node for node, count in enumerate(waiting_for) if count == 0]
    sequence: dict[int, None] = {}
    others = iter(range(len(children)))
    while len(sequence) < len(children):
        node = ready.pop() if ready else next(node for node in others if node not in sequence)
        sequence[node] = None
        for child in children[node]:
            waiting_for[child] -= 1
            if waiting_for[child] == 0 and child not in sequence:
                ready.append(child)
    return list(sequence)


def _depth_first(children: Adjacency) -> tuple[list[int], tuple[int, ...]]:
    """The reverse of the order in which a search from each node in spec order leaves them, and the first cycle that it meets."""
    cycle: tuple[int, ...] = ()
    left: dict[int, None] = {}
    seen: set[int] = set()
    for start in range(len(children)):
        path = {} if start in seen else {start: iter(children[start])}
        while path:  # No recursion, since chains may be long.
            node = next(reversed(path))
            seen.add(node)
            child = next(path[node], None)
            if child is None:
                left[node] = None
                del path[node]
            elif child in path and not cycle:
                nodes = list(path)
                cycle = (*nodes[nodes.index(child) :], child)
            elif child not in seen:
                path[child] = iter(children[child])
    return list(reversed(left)), cycle
