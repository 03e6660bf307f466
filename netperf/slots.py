"""Edge colouring: which probes may run at the same time.

Zones are vertices, probes are edges, slots are colours: no zone occurs twice in a slot, hence no node probes two peers at
once nor is probed by two. For a complete graph the circle method of a round-robin tournament needs Z - 1 colours for
even Z and Z for odd, which is the least there is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ProbeEdge(NamedTuple):
    """A probe between zones ``a`` <= ``b``; several edges may join the same zones."""

    a: str
    b: str
    rank: int
    reverse: bool


def tournament_rounds(zones: Sequence[str]) -> dict[tuple[str, str], int]:
    """Round number of every pair of zones by the circle method; keys are in the order of ``zones``."""
    count = len(zones) + len(zones) % 2
    rounds: dict[tuple[str, str], int] = {}
    for i in range(len(zones)):
        for j in range(i + 1, len(zones)):
            # One team stands still (the last), the others turn: i + j mod (n - 1) is the round in which they meet.
            number = (i + j) % (count - 1) if j < count - 1 else (2 * i) % (count - 1)
            rounds[zones[i], zones[j]] = number
    return rounds


def colour(
    edges: Sequence[ProbeEdge], before: Mapping[ProbeEdge, int], max_concurrent: int
) -> tuple[dict[ProbeEdge, int], int]:
    """Give every edge a slot; edges that had one keep it.

    Args:
        edges: in order of preference for the low slots.
        before: slots in force, as far as known.
        max_concurrent: edges per slot, 0 for any number.

    Returns:
        Slot by edge, and the number of slots (at least 1). Starts afresh when keeping would cost a quarter more slots
        than needed.
    """
    kept, count = _first_fit(edges, before, max_concurrent)
    if not before:
        return kept, count
    fresh, fresh_count = _first_fit(edges, {}, max_concurrent)
    return (kept, count) if count <= math.ceil(1.25 * fresh_count) + 1 else (fresh, fresh_count)


def _first_fit(
    edges: Sequence[ProbeEdge], before: Mapping[ProbeEdge, int], max_concurrent: int
) -> tuple[dict[ProbeEdge, int], int]:
    busy: dict[str, int] = defaultdict(int)  # zone -> bit set of its slots
    members: dict[int, int] = defaultdict(int)
    full = 0
    slots: dict[ProbeEdge, int] = {}
    waiting: list[ProbeEdge] = []

    def take(edge: ProbeEdge, slot: int) -> None:
        nonlocal full
        slots[edge] = slot
        busy[edge.a] |= 1 << slot
        busy[edge.b] |= 1 << slot
        members[slot] += 1
        if members[slot] == max_concurrent:
            full |= 1 << slot

    for edge in edges:
        slot = before.get(edge)
        if slot is None or slot > 4 * len(edges) or (busy[edge.a] | busy[edge.b] | full) >> slot & 1:
            waiting.append(edge)
        else:
            take(edge, slot)
    for edge in waiting:
        taken = busy[edge.a] | busy[edge.b] | full
        take(edge, (~taken & (taken + 1)).bit_length() - 1)
    return slots, max(slots.values(), default=0) + 1
