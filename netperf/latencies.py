"""Latencies of zone pairs: their annotation on the NetworkTopology, its hysteresis, and the inference of missing latencies.

``networkCost`` has whole units and hysteresis, because limits are compared with it. Between the zones of most clouds it is 2 for every
pair. Plans need finer values, so the controller publishes the latency of every directed pair of zones. The latencies are in an annotation,
because upstream's definition prunes unknown fields (docs/adr/0007-measurement.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kubekit.wire import DECODE_ERRORS

LATENCY_ANNOTATION = "netaware.io/latency-us"
MAX_TEXT_BYTES = 200 * 1024
"""The API server accepts 256 KiB for all annotations of an object, including those of users."""
HYSTERESIS_RATIO, HYSTERESIS_US = 0.03, 15.0
"""A written latency stays while the new latency differs by at most this share, or by at most this time."""

ZonePair = tuple[str, str]
"""Origin and destination."""


class _Annotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation's JSON.

    Attributes:
        zones: all zones, the order of rows and columns.
        us: latencies; rows are origins, columns destinations; null is unknown.
        error_us: error bars of the latencies, in the same order.
        unreachable: origin and destination of each unreachable pair.
    """

    zones: list[str]
    us: list[list[int | None]]
    error_us: list[list[int | None]] = []
    unreachable: list[tuple[str, str]] = []


_decode_annotation = msgspec.json.Decoder(_Annotation).decode


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies by directed pair of zones.

    Attributes:
        latency_us_by_pair: round trip of each directed pair, in microseconds, above 0.
        error_us_by_pair: error bar of each latency, in microseconds.
        unreachable_pairs: directed pairs that cannot be reached; they have no latency.
        problem: why the annotation is invalid; empty if it is valid.
    """

    latency_us_by_pair: Mapping[ZonePair, int] = field(default_factory=dict)
    error_us_by_pair: Mapping[ZonePair, int] = field(default_factory=dict)
    unreachable_pairs: frozenset[ZonePair] = frozenset()
    problem: str = ""

    def latency_us(self, origin: str, destination: str) -> int | None:
        """Latency between two zones; None if unknown or unreachable."""
        return self.latency_us_by_pair.get((origin, destination))

    def __bool__(self) -> bool:
        """Whether there is a latency or an unreachable pair."""
        return bool(self.latency_us_by_pair or self.unreachable_pairs)


def decode_latencies(text: str | None) -> Latencies:
    """Decode the annotation. Never raises: if it is invalid, the result is empty and has a ``problem``; if missing, it is empty."""
    if not text:
        return Latencies()
    try:
        annotation = _decode_annotation(text)
    except DECODE_ERRORS as error:
        return Latencies(problem=f"annotation {LATENCY_ANNOTATION}: {error}")
    size = len(annotation.zones)
    for matrix in (annotation.us, annotation.error_us or annotation.us):
        if len(matrix) != size or any(len(row) != size for row in matrix):
            return Latencies(problem=f"annotation {LATENCY_ANNOTATION}: a matrix is not {size} by {size}")
    return Latencies(
        _matrix_to_pairs(annotation.zones, annotation.us, minimum=1),
        _matrix_to_pairs(annotation.zones, annotation.error_us, minimum=0),
        frozenset(annotation.unreachable),
    )


def _matrix_to_pairs(
    zones: Sequence[str], matrix: Sequence[Sequence[int | None]], *, minimum: int
) -> dict[ZonePair, int]:
    return {
        (zones[i], zones[j]): value
        for i, row in enumerate(matrix)
        for j, value in enumerate(row)
        if value is not None and value >= minimum
    }


def encode_latencies(latencies: Latencies) -> str:
    """Encode the annotation; zones are in bytewise order, so that equal latencies give equal texts.

    If the text is longer than `MAX_TEXT_BYTES` (above about 130 zones), it has no error bars; if still too long (about 175), it is empty.
    """
    pairs = {*latencies.latency_us_by_pair, *latencies.unreachable_pairs}
    zones = sorted({zone for pair in pairs for zone in pair})
    us = _pairs_to_matrix(zones, latencies.latency_us_by_pair)
    errors = _pairs_to_matrix(zones, latencies.error_us_by_pair) if latencies.error_us_by_pair else []
    unreachable = sorted(latencies.unreachable_pairs)
    for error_us in (errors, []):
        text = msgspec.json.encode(_Annotation(zones, us, error_us, unreachable)).decode()
        if len(text) <= MAX_TEXT_BYTES:
            return text
    return ""


def _pairs_to_matrix(zones: Sequence[str], values: Mapping[ZonePair, int]) -> list[list[int | None]]:
    return [[values.get((a, b)) for b in zones] for a in zones]


def apply_hysteresis(written: Latencies, fresh: Latencies) -> Latencies:
    """The latencies to write: ``written`` itself unless a latency changed by more than the hysteresis.

    Otherwise every latency that changed by more than half of the hysteresis is written too. Changed error bars alone cause no write.
    """
    old_us, new_us = written.latency_us_by_pair, fresh.latency_us_by_pair
    has_same_pairs = old_us.keys() == new_us.keys() and written.unreachable_pairs == fresh.unreachable_pairs
    if has_same_pairs and not any(_differs(old_us[pair], us, 1.0) for pair, us in new_us.items()):
        return written
    kept_us = {pair: us for pair, us in old_us.items() if pair in new_us and not _differs(us, new_us[pair], 0.5)}
    return Latencies({**new_us, **kept_us}, fresh.error_us_by_pair, fresh.unreachable_pairs)


def _differs(written_us: float, new_us: float, hysteresis_share: float) -> bool:
    """Whether a latency changed by more than a share of the hysteresis."""
    return abs(new_us - written_us) > hysteresis_share * max(HYSTERESIS_RATIO * written_us, HYSTERESIS_US)


def round_up_error(value_us: float) -> int:
    """An error bar in whole microseconds, rounded up to two significant figures; at least 1."""
    whole = max(1, math.ceil(value_us))
    step = int(10 ** max(0, len(str(whole)) - 2))
    return -(-whole // step) * step


def infer_latencies_us(zones: Sequence[str], measured_us_by_pair: Mapping[ZonePair, float]) -> dict[ZonePair, float]:
    """Latencies of directed pairs that are missing from ``measured_us_by_pair`` and have a path over other zones, by the shortest path.

    The direct path may be slower or faster, so callers mark these latencies as inferred. The algorithm is Dijkstra's without a heap, which
    is faster for dense graphs.
    """
    edges_us = [[measured_us_by_pair.get((a, b), math.inf) for b in zones] for a in zones]
    inferred_us_by_pair: dict[ZonePair, float] = {}
    for i, origin in enumerate(zones):
        missing_indices = [j for j, us in enumerate(edges_us[i]) if j != i and us == math.inf]
        if not missing_indices:
            continue
        paths_us = _shortest_paths_us(i, edges_us)
        inferred_us_by_pair |= {(origin, zones[j]): paths_us[j] for j in missing_indices if paths_us[j] < math.inf}
    return inferred_us_by_pair


def _shortest_paths_us(start: int, edges_us: Sequence[Sequence[float]]) -> list[float]:
    """Length of the shortest path from one zone to each zone; infinite if there is no path."""
    paths_us = [math.inf] * len(edges_us)
    paths_us[start] = 0.0
    unvisited = set(range(len(edges_us)))
    while unvisited:
        nearest = min(unvisited, key=paths_us.__getitem__)
        nearest_us, nearest_edges_us = paths_us[nearest], edges_us[nearest]
        if nearest_us == math.inf:
            break
        unvisited.remove(nearest)
        for j in unvisited:
            paths_us[j] = min(paths_us[j], nearest_us + nearest_edges_us[j])
    return paths_us
