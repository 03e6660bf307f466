"""The six orders of TopologicalSort (docs/contracts, section 6). Ties follow the spec, so orders are deterministic.

Each algorithm sorts the graph of strongly connected components, so a group with a cycle is ordered too: the members of the cycle are
adjacent.
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
        cycles: one closed path per cyclic component, for example (0, 2, 0).
    """

    sequence: tuple[int, ...]
    cycles: tuple[tuple[int, ...], ...] = ()


def order(children: Adjacency, algorithm: str) -> Order:
    """Order a graph.

    Args:
        children: per node its dependencies, in spec order; every entry is a node.
        algorithm: one of `ALGORITHMS`; others mean `FALLBACK`.
    """
    parts = strong_components(children)
    part_of = {node: i for i, part in enumerate(parts) for node in part}
    component_graph = _condense(children, parts, part_of)
    sort = _tarjan if "Tarjan" in algorithm else _kahn
    sequence = [node for part in sort(component_graph) for node in parts[part]]
    return Order(
        tuple(_ARRANGE.get(algorithm.removesuffix("Kahn").removesuffix("Tarjan"), _unchanged)(sequence)),
        tuple(_cycle_in(part, children) for part in parts if len(part) > 1),
    )


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
    """Kahn's algorithm on a stack: the node that became ready last comes next."""
    waiting_for = [0] * len(children)
    for dependencies in children:
        for child in dependencies:
            waiting_for[child] += 1
    ready = [node for node, count in enumerate(waiting_for) if count == 0]
    sequence: list[int] = []
    while ready:
        node = ready.pop()
        sequence.append(node)
        for child in children[node]:
            waiting_for[child] -= 1
            if waiting_for[child] == 0:
                ready.append(child)
    return sequence


def _tarjan(children: Adjacency) -> list[int]:
    """Depth-first search from each node in spec order; the reverse of the order in which nodes are left."""
    return _postorder(children, range(len(children)))[::-1]


def _postorder(children: Adjacency, starts: Sequence[int]) -> list[int]:
    """Nodes in the order in which a depth-first search leaves them; no recursion, since chains may be long."""
    seen: set[int] = set()
    postorder: list[int] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        path = [(start, iter(children[start]))]
        while path:
            node, dependencies = path[-1]
            child = next((c for c in dependencies if c not in seen), None)
            if child is None:
                path.pop()
                postorder.append(node)
            else:
                seen.add(child)
                path.append((child, iter(children[child])))
    return postorder


def strong_components(children: Adjacency) -> list[list[int]]:
    """Strongly connected components, sorted by their first member in spec order (Kosaraju's algorithm).

    Members of a component are in depth-first order from that first member, so that along most edges the dependant still comes
    before its dependency.
    """
    parents: list[list[int]] = [[] for _ in children]
    for node, dependencies in enumerate(children):
        for child in dependencies:
            parents[child].append(node)
    seen: set[int] = set()
    parts: list[list[int]] = []
    for root in reversed(_postorder(children, range(len(children)))):
        if root in seen:
            continue
        members, waiting = {root}, [root]
        while waiting:
            for parent in parents[waiting.pop()]:
                if parent not in members and parent not in seen:
                    members.add(parent)
                    waiting.append(parent)
        seen |= members
        parts.append(_inner_order(members, children))
    return sorted(parts, key=min)


def _inner_order(members: set[int], children: Adjacency) -> list[int]:
    if len(members) == 1:
        return list(members)
    positions = sorted(members)
    local = {node: i for i, node in enumerate(positions)}
    inner = [[local[c] for c in children[node] if c in local] for node in positions]
    return [positions[i] for i in reversed(_postorder(inner, range(len(positions))))]


def _condense(children: Adjacency, parts: list[list[int]], part_of: dict[int, int]) -> list[list[int]]:
    condensed: list[list[int]] = []
    for i, part in enumerate(parts):
        dependencies = dict.fromkeys(part_of[child] for node in part for child in children[node])
        dependencies.pop(i, None)
        condensed.append(list(dependencies))
    return condensed


def _cycle_in(part: list[int], children: Adjacency) -> tuple[int, ...]:
    """A shortest cycle through the component's first member in spec order; begins and ends there."""
    start, inside = min(part), set(part)
    came_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for child in children[node]:
            if child == start:
                path = [start, node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path))
            if child in inside and child not in came_from:
                came_from[child] = node
                waiting.append(child)
    msg = "a strongly connected component of several nodes has a cycle through each"
    raise AssertionError(msg)
