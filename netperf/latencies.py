"""Encodes latencies in microseconds in an annotation of the NetworkTopology.

``networkCost`` has whole units and hysteresis, because limits are compared with it; between the zones of most clouds it is 2 for every
pair. Plans need the measured latency, so the controller publishes that of every directed pair of zones. It uses an annotation, because
upstream's definition prunes unknown fields (docs/adr/0007-measurement.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kubekit.wire import DECODE_ERRORS

LATENCY_ANNOTATION = "netaware.io/latency-us"
LIMIT_BYTES = 200 * 1024
"""The API server takes 256 KiB of annotations per object, the user's included."""
HOLD_RATIO = 0.03
HOLD_US = 15.0
"""A written latency stays while the new one differs by less than the larger of both."""

ZonePair = tuple[str, str]
"""Origin and destination."""


class _Wire(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation. Rows are origins, columns destinations, both in the order of ``zones``; null is unknown."""

    zones: list[str]
    us: list[list[int | None]]
    error_us: list[list[int | None]] = []
    unreachable: list[tuple[str, str]] = []


_decode_wire = msgspec.json.Decoder(_Wire).decode


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies by directed pair of zones.

    Attributes:
        us: directed pair -> round trip in microseconds, above 0.
        errors_us: directed pair -> error bar of the latency, microseconds.
        unreachable: directed pairs that cannot be reached; they have no latency.
        problem: why the annotation is invalid; empty if it is valid.
    """

    us: Mapping[ZonePair, int] = field(default_factory=dict)
    errors_us: Mapping[ZonePair, int] = field(default_factory=dict)
    unreachable: frozenset[ZonePair] = frozenset()
    problem: str = ""

    def latency_us(self, origin: str, destination: str) -> int | None:
        """Latency between two zones; None if unknown or unreachable."""
        return self.us.get((origin, destination))

    def error_us(self, origin: str, destination: str) -> int | None:
        """Error bar of a latency; None if unknown."""
        return self.errors_us.get((origin, destination))

    def is_unreachable(self, origin: str, destination: str) -> bool:
        """Whether the destination cannot be reached from the origin."""
        return (origin, destination) in self.unreachable

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self.us or self.unreachable)


def decode_latencies(text: str | None) -> Latencies:
    """Read the annotation. Never raises: if it is invalid, the result is empty and has ``problem``."""
    if not text:
        return Latencies()
    try:
        wire = _decode_wire(text)
    except DECODE_ERRORS as error:
        return Latencies(problem=f"annotation {LATENCY_ANNOTATION}: {error}")
    size = len(wire.zones)
    for matrix in (wire.us, wire.error_us or wire.us):
        if len(matrix) != size or any(len(row) != size for row in matrix):
            return Latencies(problem=f"annotation {LATENCY_ANNOTATION}: a matrix is not {size} by {size}")
    return Latencies(
        _pairs(wire.zones, wire.us, least=1),
        _pairs(wire.zones, wire.error_us, least=0),
        frozenset(wire.unreachable),
    )


def _pairs(zones: Sequence[str], matrix: Sequence[Sequence[int | None]], *, least: int) -> dict[ZonePair, int]:
    return {
        (zones[i], zones[j]): value
        for i, row in enumerate(matrix)
        for j, value in enumerate(row)
        if value is not None and value >= least
    }


def encode_latencies(latencies: Latencies) -> str:
    """The annotation; zones are in bytewise order, so that the same latencies always give the same text.

    If the text is too long for an annotation (above about 145 zones), error bars are left out; if it is still too long (above about
    185), the text is empty.
    """
    pairs = {*latencies.us, *latencies.unreachable}
    zones = sorted({zone for pair in pairs for zone in pair})
    us = _matrix(zones, latencies.us)
    errors = _matrix(zones, latencies.errors_us) if latencies.errors_us else []
    unreachable = sorted(latencies.unreachable)
    for error_us in (errors, []):
        text = msgspec.json.encode(_Wire(zones, us, error_us, unreachable)).decode()
        if len(text) <= LIMIT_BYTES:
            return text
    return ""


def _matrix(zones: Sequence[str], values: Mapping[ZonePair, int]) -> list[list[int | None]]:
    return [[values.get((a, b)) for b in zones] for a in zones]


def latencies_with_hysteresis(written: Latencies, fresh: Latencies) -> Latencies:
    """The latencies to write: ``written`` itself unless one changed by more than the hysteresis.

    Then every latency that changed by more than half of the hysteresis is written too, because each of them would soon cause another
    write. Changed error bars alone do not cause a write.
    """
    same = written.us.keys() == fresh.us.keys() and written.unreachable == fresh.unreachable
    if same and not any(_differs(written.us[pair], us, 1.0) for pair, us in fresh.us.items()):
        return written
    us = {
        pair: value if (before := written.us.get(pair)) is None or _differs(before, value, 0.5) else before
        for pair, value in fresh.us.items()
    }
    return Latencies(us, fresh.errors_us, fresh.unreachable)


def _differs(before_us: float, after_us: float, share: float) -> bool:
    return abs(after_us - before_us) > share * max(HOLD_RATIO * before_us, HOLD_US)


def round_up_error(value_us: float) -> int:
    """An error bar, rounded up to two significant figures."""
    whole = max(1, round(value_us))
    step = int(10 ** max(0, len(str(whole)) - 2))
    return -(-whole // step) * step


def infer_latencies_us(zones: Sequence[str], measured_us: Mapping[ZonePair, float]) -> dict[ZonePair, float]:
    """Latencies of the directed pairs that are missing from ``measured_us``, by the shortest path over other zones.

    Dijkstra's algorithm without a heap, which is faster for dense graphs.

    Args:
        zones: all zones.
        measured_us: directed pair -> microseconds, above 0.

    Returns:
        Missing pair -> microseconds of the shortest path. Mark it as inferred: the direct path may be slower
        or faster.
    """
    edges = [[measured_us.get((a, b), math.inf) for b in zones] for a in zones]
    inferred: dict[ZonePair, float] = {}
    for i, origin in enumerate(zones):
        missing = [j for j, us in enumerate(edges[i]) if j != i and us == math.inf]
        if not missing:
            continue
        reached = _shortest_from(i, edges)
        inferred |= {(origin, zones[j]): reached[j] for j in missing if reached[j] < math.inf}
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
