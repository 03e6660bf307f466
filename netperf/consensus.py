"""Finds the latency of each link that most of its pairs of nodes agree on, and the nodes that are outliers.

A round trip includes delays of both nodes. A slow or lying node is contradicted in all of its pairs, and no other node is; its
latencies are ignored and it is reported. Both directions of a link count. All latencies of one reporter (the node that measured) on a
link count as one, otherwise the only node of a zone would have the majority. If two reporters contradict each other, the last agreed
latency decides, then the triangle inequality with third zones.
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
"""Share of both limits at which a dispute ends, so that latencies at the limit do not flap."""
MIN_CONTRADICTIONS = 2
MAX_ITERATIONS = 50
TRIANGLE_SHARE = 0.5
TRIANGLE_US = 2000.0


def link_of(a: str, b: str) -> Link:
    """The link between two zones."""
    return (a, b) if a <= b else (b, a)


class NodePairLatency(msgspec.Struct, frozen=True):
    """The latency of a link as one pair of nodes measures it; ``origin`` is the reporter."""

    origin: str
    destination: str
    link: Link
    latency_us: float


class Consensus(msgspec.Struct, frozen=True):
    """The agreed latencies, outlier nodes and disputed links.

    Attributes:
        latencies_us: by link, the agreed latency: the median over reporters, without the ignored latencies.
        spread_us: by link, the median absolute deviation from it; None for a single pair of nodes.
        disputed: links whose two reporters contradict each other.
        outliers_us: outlier nodes, with the median error of their latencies.
        ignored: origin and destination of the ignored latencies.
    """

    latencies_us: dict[Link, float]
    spread_us: dict[Link, float | None]
    disputed: frozenset[Link]
    outliers_us: dict[str, float]
    ignored: frozenset[tuple[str, str]]


def find_consensus(
    latencies: Iterable[NodePairLatency], agreed_us: Mapping[Link, float], disputed_before: Collection[Link] = ()
) -> Consensus:
    """Find the latency of each link that most reporters agree on, and the outliers.

    Args:
        latencies: that are not stale, at most one per directed pair of nodes.
        agreed_us: the last agreed latencies by link, if known.
        disputed_before: links that were disputed at the last call.
    """
    # Sorted, because the outcome must not depend on the order of keys.
    ordered = sorted(latencies, key=lambda n: (n.link, n.origin, n.destination))
    by_link: dict[Link, list[NodePairLatency]] = defaultdict(list)
    for latency in ordered:
        by_link[latency.link].append(latency)
    ignored: set[NodePairLatency] = set()
    for _ in range(MAX_ITERATIONS):
        suspects = _find_suspects(by_link)
        if suspects is None:
            break
        for latency in suspects:
            by_link[latency.link].remove(latency)
            ignored.add(latency)
    disputed = _resolve_disputes(by_link, ignored, agreed_us, disputed_before)
    latencies_us = {link: _median_us(counting) for link, counting in by_link.items() if counting}
    return Consensus(
        latencies_us=latencies_us,
        spread_us={link: _spread_us(by_link[link], latency_us) for link, latency_us in latencies_us.items()},
        disputed=disputed,
        outliers_us=_find_outliers(ordered, ignored, latencies_us),
        ignored=frozenset((n.origin, n.destination) for n in ignored),
    )


def _by_reporter(latencies: Iterable[NodePairLatency]) -> dict[str, list[NodePairLatency]]:
    reporters: dict[str, list[NodePairLatency]] = defaultdict(list)
    for latency in latencies:
        reporters[latency.origin].append(latency)
    return reporters


def _median_us(latencies: Iterable[NodePairLatency]) -> float:
    """The median of the reporters' medians."""
    return statistics.median(statistics.median(n.latency_us for n in own) for own in _by_reporter(latencies).values())


def contradicts(latency_us: float, others_us: float, *, share: float = 1.0) -> bool:
    """Whether two latencies are too far apart to be of one path; ``share`` scales the limit."""
    return abs(latency_us - others_us) > share * max(CONTRADICTION_RATIO * max(latency_us, others_us), CONTRADICTION_US)


def _contradictions(
    by_link: Mapping[Link, list[NodePairLatency]],
) -> tuple[dict[str, list[NodePairLatency]], dict[str, int]]:
    """By node: its contradicted latencies, and the number of its latencies that others can contradict."""
    against: dict[str, list[NodePairLatency]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for latencies in by_link.values():
        if len(latencies) < 2:
            continue
        for latency in latencies:
            others_us = _others_us(latency, latencies)
            for node in (latency.origin, latency.destination):
                count[node] += 1
                if others_us is not None and contradicts(latency.latency_us, others_us):
                    against[node].append(latency)
    return against, count


def _others_us(latency: NodePairLatency, latencies: Iterable[NodePairLatency]) -> float | None:
    """The median of a link's other reporters; None if there is none, or if the middle two contradict each other.

    Of several latencies of one reporter the nearest counts, because the others may be of a slow destination.
    """
    latencies_us = sorted(
        min((n.latency_us for n in own), key=lambda us: abs(us - latency.latency_us))
        for reporter, own in _by_reporter(latencies).items()
        if reporter != latency.origin
    )
    if not latencies_us:
        return None
    low_us, high_us = latencies_us[(len(latencies_us) - 1) // 2], latencies_us[len(latencies_us) // 2]
    return None if contradicts(low_us, high_us) else (low_us + high_us) / 2


def _find_suspects(by_link: Mapping[Link, list[NodePairLatency]]) -> list[NodePairLatency] | None:
    """The contradicted latencies of the most contradicted node, if there is a clear one; else the outvoted ones of a link."""
    against, count = _contradictions(by_link)
    ranked = sorted(against, key=lambda node: (-len(against[node]) / count[node], -len(against[node]), node))
    for node in ranked:
        bad = against[node]
        if len(bad) < MIN_CONTRADICTIONS or 2 * len(bad) <= count[node] or _is_one_against_one(bad, by_link):
            continue
        # The partners of a bad node are contradicted too, but only in the pair with it.
        partners = {n.destination if n.origin == node else n.origin for n in bad}
        if all(_contradicted_share(against, count, node) > _contradicted_share(against, count, p) for p in partners):
            return [n for n in bad if n.origin == node or not _all_involve(node, by_link[n.link])]
    for latencies in by_link.values():
        if len(latencies) >= 3:
            median_us = statistics.median(n.latency_us for n in latencies)
            outvoted = [n for n in latencies if contradicts(n.latency_us, median_us)]
            majority = {n.origin for n in latencies if n not in outvoted}
            if outvoted and 2 * len(outvoted) < len(latencies) and len(majority) > 1:
                return outvoted
    return None


def _is_one_against_one(bad: Iterable[NodePairLatency], by_link: Mapping[Link, list[NodePairLatency]]) -> bool:
    """Whether only two reporters of one link contradict each other."""
    links = {n.link for n in bad}
    return len(links) == 1 and len(_by_reporter(by_link[min(links)])) == 2


def _all_involve(node: str, latencies: Iterable[NodePairLatency]) -> bool:
    """Whether the node is one end of every latency of a link; then nothing else shows which end is at fault."""
    return all(node in (n.origin, n.destination) for n in latencies)


def _contradicted_share(
    against: Mapping[str, list[NodePairLatency]], count: Mapping[str, int], node: str
) -> tuple[float, int]:
    bad = len(against.get(node, ()))
    return bad / max(1, count.get(node, 0)), bad


def _resolve_disputes(
    by_link: dict[Link, list[NodePairLatency]],
    ignored: set[NodePairLatency],
    agreed_us: Mapping[Link, float],
    disputed_before: Collection[Link],
) -> frozenset[Link]:
    """Ignore one of two reporters that contradict each other; returns the links on which this was so.

    A single reporter is disputed too if it contradicts the last agreed latency, and also the triangle inequality or itself.
    """
    disputed: set[Link] = set()
    for link, latencies in by_link.items():
        medians_us = [_median_us(own) for own in _by_reporter(latencies).values()]
        share = RESOLVED_SHARE if link in disputed_before else 1.0
        if len(medians_us) == 2 and contradicts(*medians_us, share=share):
            disputed.add(link)
    agreeing_us = {
        link: _median_us(latencies) for link, latencies in by_link.items() if latencies and link not in disputed
    }
    alone = {
        link
        for link, us in agreeing_us.items()
        if len(_by_reporter(by_link[link])) == 1
        and link in agreed_us
        and contradicts(us, agreed_us[link])
        and (us < triangle_minimum_us(link, agreeing_us) or _contradicts_itself(by_link[link]))
    }
    for link in sorted(disputed | alone):
        latencies = by_link[link]
        rejected = latencies if link in alone else _rejected(link, latencies, agreed_us.get(link), agreeing_us)
        by_link[link] = [n for n in latencies if n not in rejected]
        ignored.update(rejected)
    return frozenset(disputed | alone)


def _contradicts_itself(own: Collection[NodePairLatency]) -> bool:
    return contradicts(min(n.latency_us for n in own), max(n.latency_us for n in own))


def _rejected(
    link: Link, latencies: Iterable[NodePairLatency], agreed_us: float | None, agreeing_us: Mapping[Link, float]
) -> list[NodePairLatency]:
    """The latencies of the reporter to ignore: the one farther from the last agreed latency, else the one that breaks the triangle."""
    low, high = sorted(_by_reporter(latencies).values(), key=_median_us)
    if agreed_us is not None:
        return max((low, high), key=lambda own: abs(_median_us(own) - agreed_us) / max(_median_us(own), agreed_us))
    if _median_us(low) < triangle_minimum_us(link, agreeing_us):
        return low
    # A slow node raises a latency, so the higher one is rejected. If both pairs share a node, the lower one may be forged by it.
    ends = [{node for n in own for node in (n.origin, n.destination)} for own in (low, high)]
    return low if ends[0] & ends[1] else high


def triangle_minimum_us(link: Link, latencies_us: Mapping[Link, float]) -> float:
    """The lowest plausible latency of a link: half of the median difference of third zones' latencies to both ends.

    Paths of the real internet break the triangle inequality, hence half of it, minus 2 ms.
    """
    a, b = link
    zones = {zone for pair in latencies_us for zone in pair} - {a, b}
    gaps = [
        abs(latencies_us[to_a] - latencies_us[to_b])
        for c in zones
        if (to_a := link_of(a, c)) in latencies_us and (to_b := link_of(b, c)) in latencies_us
    ]
    return max(0.0, TRIANGLE_SHARE * statistics.median(gaps) - TRIANGLE_US) if len(gaps) >= 2 else 0.0


def _spread_us(latencies: list[NodePairLatency], latency_us: float) -> float | None:
    if len(latencies) < 2:
        return None
    return statistics.median(abs(n.latency_us - latency_us) for n in latencies)


def _find_outliers(
    latencies: Collection[NodePairLatency], ignored: set[NodePairLatency], latencies_us: Mapping[Link, float]
) -> dict[str, float]:
    """Outlier nodes with the median error of their ignored latencies, microseconds.

    A latency counts against the end with the larger share of ignored latencies, in doubt the reporter. A node is an outlier if at
    least half of its latencies count against it, or most of those that it reported.
    """
    reported = Counter(latency.origin for latency in latencies)
    count: dict[str, int] = defaultdict(int)
    bad: dict[str, list[NodePairLatency]] = defaultdict(list)
    for latency in latencies:
        for node in (latency.origin, latency.destination):
            count[node] += 1
            if latency in ignored:
                bad[node].append(latency)
    counted_against: dict[str, list[NodePairLatency]] = defaultdict(list)
    for latency in ignored:
        shares = [(len(bad[node]) / count[node], len(bad[node])) for node in (latency.origin, latency.destination)]
        counted_against[latency.destination if shares[1] > shares[0] else latency.origin].append(latency)
    return {
        node: statistics.median(n.latency_us - latencies_us.get(n.link, n.latency_us) for n in ignored_latencies)
        for node, ignored_latencies in sorted(counted_against.items())
        if 2 * len(ignored_latencies) >= count[node]
        or (
            len(own := [n for n in ignored_latencies if n.origin == node]) >= MIN_CONTRADICTIONS
            and 2 * len(own) > reported[node]
        )
    }
