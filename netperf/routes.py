"""Shortest paths over measured latencies, for the pairs that nobody measured.

Dijkstra without a heap, which is the faster form for the dense graphs we have, and only from zones that have a hole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def infer_us(zones: Sequence[str], measured_us: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Latencies of the directed pairs that are missing from ``measured_us`` but can be reached over it.

    Args:
        zones: all zones.
        measured_us: directed pair -> microseconds, above 0.

    Returns:
        Missing pair -> microseconds of the shortest path. Real traffic takes the direct way, which may be slower or
        faster; it is an estimate, and to be marked as one.
    """
    edges = [[measured_us.get((a, b), math.inf) for b in zones] for a in zones]
    inferred: dict[tuple[str, str], float] = {}
    for i, origin in enumerate(zones):
        holes = [j for j, us in enumerate(edges[i]) if j != i and us == math.inf]
        if not holes:
            continue
        reached = _shortest_from(i, edges)
        inferred |= {(origin, zones[j]): reached[j] for j in holes if reached[j] < math.inf}
    return inferred


def _shortest_from(start: int, edges: Sequence[Sequence[float]]) -> list[float]:
    best = [math.inf] * len(edges)
    best[start] = 0.0
    open_zones = set(range(len(edges)))
    while open_zones:
        near = min(open_zones, key=best.__getitem__)
        here = best[near]
        if here == math.inf:
            break
        open_zones.remove(near)
        row = edges[near]
        for j in open_zones:
            best[j] = min(best[j], here + row[j])
    return best
