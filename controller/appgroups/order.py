"""The six orders of TopologicalSort (docs/contracts, section 6). Ties follow the spec, so orders are deterministic.

A group with a cycle is ordered as if one dependency of the cycle did not exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
        algorithm: one of `ALGORITHMS`; any other counts as `FALLBACK`.
    """
    depth_first, cycle = _depth_first(children)
    sequence = depth_first if "Tarjan" in algorithm else _kahn(children)
    variant = algorithm.removesuffix("Kahn").removesuffix("Tarjan")
    if variant == "Reverse":
        sequence.reverse()
    elif variant == "Alternate":
        sequence = _alternate(sequence)
    return Order(tuple(sequence), cycle)


def _alternate(sequence: list[int]) -> list[int]:
    """The first item, the last, the second, the last but one, and so on."""
    rest = deque(sequence)
    alternated: list[int] = []
    while rest:
        alternated.append(rest.popleft() if len(alternated) % 2 == 0 else rest.pop())
    return alternated


def _kahn(children: Adjacency) -> list[int]:
    """Kahn's algorithm with a stack: the node that became ready last comes next; without a ready node, the first in spec order."""
    in_degrees = [0] * len(children)
    for dependencies in children:
        for child in dependencies:
            in_degrees[child] += 1
    ready = [node for node, count in enumerate(in_degrees) if count == 0]
    sequence: dict[int, None] = {}
    in_spec_order = iter(range(len(children)))
    while len(sequence) < len(children):
        node = ready.pop() if ready else next(node for node in in_spec_order if node not in sequence)
        sequence[node] = None
        for child in children[node]:
            in_degrees[child] -= 1
            if in_degrees[child] == 0 and child not in sequence:
                ready.append(child)
    return list(sequence)


def _depth_first(children: Adjacency) -> tuple[list[int], tuple[int, ...]]:
    """Nodes in reverse postorder of a depth-first search from each node in spec order, and the first cycle that it meets."""
    cycle: tuple[int, ...] = ()
    postorder: list[int] = []
    seen: set[int] = set()
    for start in range(len(children)):
        path = {} if start in seen else {start: iter(children[start])}
        while path:  # No recursion, since chains may be long.
            node = next(reversed(path))
            seen.add(node)
            child = next(path[node], None)
            if child is None:
                postorder.append(node)
                del path[node]
            elif child in path and not cycle:
                nodes = list(path)
                cycle = (*nodes[nodes.index(child) :], child)
            elif child not in seen:
                path[child] = iter(children[child])
    return postorder[::-1], cycle
