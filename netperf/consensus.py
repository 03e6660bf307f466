"""Finds the latency that the readings of a path agree on, and the nodes that are outliers.

A round trip includes delays of both nodes. A slow or lying node is contradicted in all of its pairs, and no other node is; its readings
are ignored and it is named. Readings from either end count. All readings of one reporter on a link count once, otherwise the only
node of a zone would have the majority. If two reporters contradict each other, the last agreed value decides, then the triangle
inequality with third zones.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

Link = tuple[str, str]
"""Two zones in bytewise order."""

CONTRADICTION_RATIO = 0.12
CONTRADICTION_US = 300.0
RESOLVED_SHARE = 0.6
"""Share of these at which a dispute ends, so that readings at the limit do not flap."""
MIN_CONTRADICTIONS = 2
MAX_ITERATIONS = 50
TRIANGLE_SHARE = 0.5
TRIANGLE_US = 2000.0


def link_of(a: str, b: str) -> Link:
    """The link between two zones."""
    return (a, b) if a <= b else (b, a)


class NodePairReading(msgspec.Struct, frozen=True):
    """The latency of one pair of nodes, as a reading of its zones."""

    origin: str
    destination: str
    link: Link
    value_us: float


class Consensus(msgspec.Struct, frozen=True):
    """The agreed latencies, outlier nodes and disputed links.

    Attributes:
        values_us: by link, the median over reporters of the readings that count.
        spread_us: by link, their median distance from it; None for a single reading.
        disputed: links with two contradicting reporters.
        outliers_us: outlier nodes, with the median error of their readings.
        ignored: origin and destination of the ignored readings.
    """

    values_us: dict[Link, float]
    spread_us: dict[Link, float | None]
    disputed: frozenset[Link]
    outliers_us: dict[str, float]
    ignored: frozenset[tuple[str, str]]


def find_consensus(
    readings: Iterable[NodePairReading], agreed_us: Mapping[Link, float], disputed_before: Collection[Link] = ()
) -> Consensus:
    """Find the values that most reporters agree on, and the outliers.

    Args:
        readings: fresh readings, at most one per directed pair of nodes.
        agreed_us: the last agreed values by link, if known.
        disputed_before: links that were disputed before.
    """
    # Sorted, because the outcome must not depend on the order of keys.
    everything = sorted(readings, key=lambda r: (r.link, r.origin, r.destination))
    by_link: dict[Link, list[NodePairReading]] = defaultdict(list)
    for reading in everything:
        by_link[reading.link].append(reading)
    ignored: set[NodePairReading] = set()
    for _ in range(MAX_ITERATIONS):
        suspect = _most_contradicted(by_link)
        if suspect is None:
            break
        for reading in suspect:
            by_link[reading.link].remove(reading)
            ignored.add(reading)
    disputed = _resolve_disputes(by_link, ignored, agreed_us, disputed_before)
    values_us = {link: _middle_us(counting) for link, counting in by_link.items() if counting}
    return Consensus(
        values_us=values_us,
        spread_us={link: _spread_us(by_link[link], value_us) for link, value_us in values_us.items()},
        disputed=disputed,
        outliers_us=_find_outliers(everything, ignored, values_us),
        ignored=frozenset((r.origin, r.destination) for r in ignored),
    )


def _by_reporter(readings: Iterable[NodePairReading]) -> dict[str, list[NodePairReading]]:
    reporters: dict[str, list[NodePairReading]] = defaultdict(list)
    for reading in readings:
        reporters[reading.origin].append(reading)
    return reporters


def _middle_us(readings: Iterable[NodePairReading]) -> float:
    """The median over reporters of their medians."""
    return statistics.median(statistics.median(r.value_us for r in own) for own in _by_reporter(readings).values())


def contradicts(value_us: float, others_us: float, *, share: float = 1.0) -> bool:
    """Whether a reading is too far from the others; by a ``share`` of the usual distance."""
    return abs(value_us - others_us) > share * max(CONTRADICTION_RATIO * max(value_us, others_us), CONTRADICTION_US)


def _contradictions(
    by_link: Mapping[Link, list[NodePairReading]],
) -> tuple[dict[str, list[NodePairReading]], dict[str, int]]:
    """By node: its contradicted readings, and the number of its readings with others on their link."""
    against: dict[str, list[NodePairReading]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for readings in by_link.values():
        if len(readings) < 2:
            continue
        for reading in readings:
            others_us = _others_us(reading, readings)
            for node in (reading.origin, reading.destination):
                count[node] += 1
                if others_us is not None and contradicts(reading.value_us, others_us):
                    against[node].append(reading)
    return against, count


def _others_us(reading: NodePairReading, readings: Iterable[NodePairReading]) -> float | None:
    """The median of a link's other reporters; None if there is none, or the middle two disagree.

    Of several readings of one reporter the nearest counts, since the others are of other nodes.
    """
    values_us = sorted(
        min((r.value_us for r in own), key=lambda us: abs(us - reading.value_us))
        for reporter, own in _by_reporter(readings).items()
        if reporter != reading.origin
    )
    if not values_us:
        return None
    low_us, high_us = values_us[(len(values_us) - 1) // 2], values_us[len(values_us) // 2]
    return None if contradicts(low_us, high_us) else (low_us + high_us) / 2


def _most_contradicted(by_link: Mapping[Link, list[NodePairReading]]) -> list[NodePairReading] | None:
    """The contradicted readings of the most contradicted node, if there is a clear one; else those outvoted on their link."""
    against, count = _contradictions(by_link)
    ranked = sorted(against, key=lambda n: (-len(against[n]) / count[n], -len(against[n]), n))
    for node in ranked:
        bad = against[node]
        if len(bad) < MIN_CONTRADICTIONS or 2 * len(bad) <= count[node] or _one_against_one(bad, by_link):
            continue
        # Nodes that were measured with a bad node are contradicted too, but only in that pair.
        partners = {r.destination if r.origin == node else r.origin for r in bad}
        if all(_weight(against, count, node) > _weight(against, count, p) for p in partners):
            return [r for r in bad if r.origin == node or not _only_about(node, by_link[r.link])]
    for readings in by_link.values():
        if len(readings) >= 3:
            middle_us = statistics.median(r.value_us for r in readings)
            outvoted = [r for r in readings if contradicts(r.value_us, middle_us)]
            majority = {r.origin for r in readings if r not in outvoted}
            if outvoted and 2 * len(outvoted) < len(readings) and len(majority) > 1:
                return outvoted
    return None


def _one_against_one(bad: Iterable[NodePairReading], by_link: Mapping[Link, list[NodePairReading]]) -> bool:
    """Whether only two reporters of one link contradict each other."""
    links = {r.link for r in bad}
    return len(links) == 1 and len(_by_reporter(by_link[min(links)])) == 2


def _only_about(node: str, readings: Iterable[NodePairReading]) -> bool:
    """Whether every reading of a link has the node at one end, so that its own readings and those of others contradict each other."""
    return all(node in (r.origin, r.destination) for r in readings)


def _weight(against: Mapping[str, list[NodePairReading]], count: Mapping[str, int], node: str) -> tuple[float, int]:
    bad = len(against.get(node, ()))
    return bad / max(1, count.get(node, 0)), bad


def _resolve_disputes(
    by_link: dict[Link, list[NodePairReading]],
    ignored: set[NodePairReading],
    agreed_us: Mapping[Link, float],
    disputed_before: Collection[Link],
) -> frozenset[Link]:
    """Resolve links with two contradicting reporters: keep the value nearer to the last agreed one, else the one that the triangle allows.

    A single reporter is disputed if it contradicts the last agreed value, and also the triangle or itself.
    """
    disputed: set[Link] = set()
    for link, readings in by_link.items():
        middles_us = [_middle_us(own) for own in _by_reporter(readings).values()]
        share = RESOLVED_SHARE if link in disputed_before else 1.0
        if len(middles_us) == 2 and contradicts(*middles_us, share=share):
            disputed.add(link)
    agreeing_us = {
        link: _middle_us(readings) for link, readings in by_link.items() if readings and link not in disputed
    }
    alone = {
        link
        for link, us in agreeing_us.items()
        if len(_by_reporter(by_link[link])) == 1
        and link in agreed_us
        and contradicts(us, agreed_us[link])
        and (us < triangle_least_us(link, agreeing_us) or _contradicts_itself(by_link[link]))
    }
    for link in sorted(disputed | alone):
        readings = by_link[link]
        losers = readings if link in alone else _loser(link, readings, agreed_us.get(link), agreeing_us)
        by_link[link] = [r for r in readings if r not in losers]
        ignored.update(losers)
    return frozenset(disputed | alone)


def _contradicts_itself(own: Collection[NodePairReading]) -> bool:
    return contradicts(min(r.value_us for r in own), max(r.value_us for r in own))


def _loser(
    link: Link, readings: Iterable[NodePairReading], agreed_us: float | None, agreeing_us: Mapping[Link, float]
) -> list[NodePairReading]:
    """The readings of the reporter, one of two, that is ignored."""
    low, high = sorted(_by_reporter(readings).values(), key=_middle_us)
    if agreed_us is not None:
        return max((low, high), key=lambda own: abs(_middle_us(own) - agreed_us) / max(_middle_us(own), agreed_us))
    if _middle_us(low) < triangle_least_us(link, agreeing_us):
        return low
    # No node is faster than the path; a node that both share may be slow, which at least does no harm.
    ends = [{node for r in own for node in (r.origin, r.destination)} for own in (low, high)]
    return low if ends[0] & ends[1] else high


def triangle_least_us(link: Link, values_us: Mapping[Link, float]) -> float:
    """The least plausible latency of a link: half of the median difference of third zones' latencies to both ends.

    Paths of the real internet break the triangle inequality, hence half of it and 2 ms of grace.
    """
    a, b = link
    zones = {zone for pair in values_us for zone in pair} - {a, b}
    gaps = [
        abs(values_us[to_a] - values_us[to_b])
        for c in zones
        if (to_a := link_of(a, c)) in values_us and (to_b := link_of(b, c)) in values_us
    ]
    return max(0.0, TRIANGLE_SHARE * statistics.median(gaps) - TRIANGLE_US) if len(gaps) >= 2 else 0.0


def _spread_us(readings: list[NodePairReading], value_us: float) -> float | None:
    if len(readings) < 2:
        return None
    return statistics.median(abs(r.value_us - value_us) for r in readings)


def _find_outliers(
    readings: Collection[NodePairReading], ignored: set[NodePairReading], values_us: Mapping[Link, float]
) -> dict[str, float]:
    """Outlier nodes with the median error of their ignored readings, microseconds.

    A reading counts against the end with the larger share of ignored readings, in doubt the writer. A node is an outlier if at
    least half of its readings count against it, or most of those that it wrote.
    """
    wrote = Counter(reading.origin for reading in readings)
    count: dict[str, int] = defaultdict(int)
    bad: dict[str, list[NodePairReading]] = defaultdict(list)
    for reading in readings:
        for node in (reading.origin, reading.destination):
            count[node] += 1
            if reading in ignored:
                bad[node].append(reading)
    blamed: dict[str, list[NodePairReading]] = defaultdict(list)
    for reading in ignored:
        shares = [(len(bad[node]) / count[node], len(bad[node])) for node in (reading.origin, reading.destination)]
        blamed[reading.destination if shares[1] > shares[0] else reading.origin].append(reading)
    return {
        node: statistics.median(r.value_us - values_us.get(r.link, r.value_us) for r in ignored_readings)
        for node, ignored_readings in sorted(blamed.items())
        if 2 * len(ignored_readings) >= count[node]
        or (
            len(own := [r for r in ignored_readings if r.origin == node]) >= MIN_CONTRADICTIONS
            and 2 * len(own) > wrote[node]
        )
    }
