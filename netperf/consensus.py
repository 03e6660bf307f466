"""Finds the latency that most pairs of nodes of a link agree on, and the nodes that are outliers.

A round trip includes delays of both nodes. A slow or lying node is contradicted by other nodes in all of its pairs. Its latencies are
ignored, and the node is reported. Both directions of a link count. All latencies of one reporter (the node that measured) on a link count
as one; otherwise the only node of a zone would have the majority. Two reporters that contradict each other: see `_choose_rejected`.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

ZoneLink = tuple[str, str]
"""Two zones in bytewise order."""

CONTRADICTION_RATIO, CONTRADICTION_US = 0.12, 300.0
"""Two latencies contradict each other if they differ by more than this share of the larger one, and by more than this time."""
RESOLVED_SHARE = 0.6
"""A dispute ends below this share of both limits, so that latencies at a limit do not start and end it again and again."""
MIN_CONTRADICTIONS = 2
"""Fewest contradicted latencies for which a node is suspected, or is an outlier as a reporter."""
MAX_ITERATIONS = 50
"""Limits the time; each iteration ignores the latencies of one node or link."""
TRIANGLE_SHARE, TRIANGLE_SLACK_US = 0.5, 2000.0
"""Allowance for paths that break the triangle inequality, see `triangle_minimum_us`."""


def link_between(a: str, b: str) -> ZoneLink:
    """The link between two zones."""
    return (a, b) if a <= b else (b, a)


class NodePairLatency(msgspec.Struct, frozen=True):
    """The latency of a link as one pair of nodes measures it; ``origin`` is the reporter."""

    origin: str
    destination: str
    link: ZoneLink
    latency_us: float

    @property
    def nodes(self) -> tuple[str, str]:
        """Origin, destination."""
        return self.origin, self.destination


class Consensus(msgspec.Struct, frozen=True):
    """The agreed latencies, outlier nodes and disputed links.

    Attributes:
        latency_us_by_link: the agreed latency: the median over reporters, without the ignored latencies.
        spread_us_by_link: the median absolute deviation from that latency.
        disputed_links: links whose two reporters contradict each other, or whose only reporter has an implausible latency.
        error_us_by_outlier: how much the ignored latencies of each outlier node are too high (or too low, if negative); the median.
        ignored_pairs: origin and destination of the ignored latencies.
    """

    latency_us_by_link: dict[ZoneLink, float]
    spread_us_by_link: dict[ZoneLink, float]
    disputed_links: frozenset[ZoneLink]
    error_us_by_outlier: dict[str, float]
    ignored_pairs: frozenset[tuple[str, str]]


def find_consensus(
    latencies: Iterable[NodePairLatency],
    agreed_us_by_link: Mapping[ZoneLink, float],
    previously_disputed_links: Collection[ZoneLink] = (),
) -> Consensus:
    """Find the latency that most reporters of each link agree on, and the outliers.

    Args:
        latencies: latencies that are not stale, at most one per directed pair of nodes.
        agreed_us_by_link: the last agreed latencies; links without one may be missing.
        previously_disputed_links: links that were disputed at the last call.
    """
    # The outcome must not depend on the order of ``latencies``.
    ordered = sorted(latencies, key=lambda latency: (latency.link, latency.origin, latency.destination))
    latencies_by_link: dict[ZoneLink, list[NodePairLatency]] = defaultdict(list)
    for latency in ordered:
        latencies_by_link[latency.link].append(latency)
    ignored: set[NodePairLatency] = set()
    for _ in range(MAX_ITERATIONS):
        suspects = _find_suspects(latencies_by_link)
        if not suspects:
            break
        for latency in suspects:
            latencies_by_link[latency.link].remove(latency)
            ignored.add(latency)
    disputed_links = _resolve_disputes(latencies_by_link, ignored, agreed_us_by_link, previously_disputed_links)
    latency_us_by_link = {link: _median_us(counted) for link, counted in latencies_by_link.items() if counted}
    return Consensus(
        latency_us_by_link=latency_us_by_link,
        spread_us_by_link={
            link: statistics.median(abs(counted.latency_us - latency_us) for counted in latencies_by_link[link])
            for link, latency_us in latency_us_by_link.items()
        },
        disputed_links=disputed_links,
        error_us_by_outlier=_find_outliers(ordered, ignored, latency_us_by_link),
        ignored_pairs=frozenset(latency.nodes for latency in ignored),
    )


def _group_by_reporter(latencies: Iterable[NodePairLatency]) -> dict[str, list[NodePairLatency]]:
    by_reporter: dict[str, list[NodePairLatency]] = defaultdict(list)
    for latency in latencies:
        by_reporter[latency.origin].append(latency)
    return by_reporter


def _median_us(latencies: Iterable[NodePairLatency]) -> float:
    """The median of the reporters' medians."""
    reports = _group_by_reporter(latencies).values()
    return statistics.median(statistics.median(latency.latency_us for latency in report) for report in reports)


def contradicts(latency_us: float, other_us: float, *, share: float = 1.0) -> bool:
    """Whether two latencies are too far apart to be of one path; ``share`` scales the limit."""
    return abs(latency_us - other_us) > share * max(CONTRADICTION_RATIO * max(latency_us, other_us), CONTRADICTION_US)


class _Contradictions(NamedTuple):
    """By node: its contradicted latencies, and the number of its latencies on links with several latencies."""

    latencies_by_node: Mapping[str, list[NodePairLatency]]
    compared_count_by_node: Mapping[str, int]

    def severity(self, node: str) -> tuple[float, int]:
        """Share and number of the node's latencies that are contradicted."""
        contradicted_count = len(self.latencies_by_node.get(node, ()))
        return contradicted_count / max(1, self.compared_count_by_node.get(node, 0)), contradicted_count


def _find_contradictions(latencies_by_link: Mapping[ZoneLink, list[NodePairLatency]]) -> _Contradictions:
    contradicted_by_node: dict[str, list[NodePairLatency]] = defaultdict(list)
    compared_count_by_node: dict[str, int] = defaultdict(int)
    for latencies in latencies_by_link.values():
        if len(latencies) < 2:
            continue
        for latency in latencies:
            others_median_us = _median_of_others_us(latency, latencies)
            for node in latency.nodes:
                compared_count_by_node[node] += 1
                if others_median_us is not None and contradicts(latency.latency_us, others_median_us):
                    contradicted_by_node[node].append(latency)
    return _Contradictions(contradicted_by_node, compared_count_by_node)


def _median_of_others_us(latency: NodePairLatency, latencies: Iterable[NodePairLatency]) -> float | None:
    """The median of a link's other reporters; None without other reporters, or if the middle two contradict each other.

    If another reporter has several latencies, the one nearest to ``latency`` counts, because the others may be of a slow destination.
    """
    latencies_us = sorted(
        min((other.latency_us for other in report), key=lambda us: abs(us - latency.latency_us))
        for reporter, report in _group_by_reporter(latencies).items()
        if reporter != latency.origin
    )
    if not latencies_us:
        return None
    low_us, high_us = latencies_us[(len(latencies_us) - 1) // 2], latencies_us[len(latencies_us) // 2]
    return None if contradicts(low_us, high_us) else (low_us + high_us) / 2


def _find_suspects(latencies_by_link: Mapping[ZoneLink, list[NodePairLatency]]) -> list[NodePairLatency]:
    """The latencies to ignore next.

    These are the contradicted latencies of the node that is contradicted most. On a link on which every latency has this node as an end,
    only the latencies that it reported are ignored, because nothing shows which end is at fault. If there is no such node, these are the
    latencies of a link that contradict its majority.
    """
    contradictions = _find_contradictions(latencies_by_link)
    severity = contradictions.severity
    for node in sorted(sorted(contradictions.latencies_by_node), key=severity, reverse=True):
        suspects, compared_count = contradictions.latencies_by_node[node], contradictions.compared_count_by_node[node]
        is_minority = len(suspects) < MIN_CONTRADICTIONS or 2 * len(suspects) <= compared_count
        if is_minority or _lacks_majority(suspects, latencies_by_link):
            continue
        # The partners of a bad node are contradicted too, but only in the pair with this node.
        partners = {partner for suspect in suspects for partner in suspect.nodes if partner != node}
        if all(severity(node) > severity(partner) for partner in partners):
            undecided_links = {
                link
                for link, latencies in latencies_by_link.items()
                if all(node in latency.nodes for latency in latencies)
            }
            to_ignore = [
                latency for latency in suspects if latency.origin == node or latency.link not in undecided_links
            ]
            if to_ignore:
                return to_ignore
    return _find_outvoted(latencies_by_link)


def _find_outvoted(latencies_by_link: Mapping[ZoneLink, list[NodePairLatency]]) -> list[NodePairLatency]:
    """The latencies that contradict the majority of their link's reporters, of the first such link."""
    for latencies in latencies_by_link.values():
        if len(latencies) >= 3:
            median_us = _median_us(latencies)
            outvoted = [latency for latency in latencies if contradicts(latency.latency_us, median_us)]
            majority_reporters = {latency.origin for latency in latencies if latency not in outvoted}
            reporter_count = len(_group_by_reporter(latencies))
            if outvoted and 2 * len(majority_reporters) > reporter_count and len(majority_reporters) > 1:
                return outvoted
    return []


def _lacks_majority(
    suspects: Iterable[NodePairLatency], latencies_by_link: Mapping[ZoneLink, list[NodePairLatency]]
) -> bool:
    """Whether the suspects are of one link that has only two reporters."""
    first_link, *other_links = {latency.link for latency in suspects}
    return not other_links and len(_group_by_reporter(latencies_by_link[first_link])) == 2


def _resolve_disputes(
    latencies_by_link: dict[ZoneLink, list[NodePairLatency]],
    ignored: set[NodePairLatency],
    agreed_us_by_link: Mapping[ZoneLink, float],
    previously_disputed_links: Collection[ZoneLink],
) -> frozenset[ZoneLink]:
    """Ignore one of two reporters that contradict each other, and single reporters with implausible latencies; returns the disputed links.

    Moves latencies from ``latencies_by_link`` to ``ignored``. The latency of a single reporter is implausible if it contradicts the last
    agreed one, and also the triangle inequality or another latency of the same reporter.
    """
    disputed: set[ZoneLink] = set()
    for link, latencies in latencies_by_link.items():
        medians_us = [_median_us(report) for report in _group_by_reporter(latencies).values()]
        share = RESOLVED_SHARE if link in previously_disputed_links else 1.0
        if len(medians_us) == 2 and contradicts(*medians_us, share=share):
            disputed.add(link)
    undisputed_us_by_link = {
        link: _median_us(latencies)
        for link, latencies in latencies_by_link.items()
        if latencies and link not in disputed
    }
    implausible = {
        link
        for link, us in undisputed_us_by_link.items()
        if len(_group_by_reporter(latencies_by_link[link])) == 1
        and link in agreed_us_by_link
        and contradicts(us, agreed_us_by_link[link])
        and (us < triangle_minimum_us(link, undisputed_us_by_link) or _has_contradictions(latencies_by_link[link]))
    }
    for link in sorted(disputed | implausible):
        rejected_latencies = latencies_by_link[link]
        if link in disputed:
            agreed_us = agreed_us_by_link.get(link)
            rejected_latencies = _choose_rejected(link, rejected_latencies, agreed_us, undisputed_us_by_link)
        latencies_by_link[link] = [latency for latency in latencies_by_link[link] if latency not in rejected_latencies]
        ignored.update(rejected_latencies)
    return frozenset(disputed | implausible)


def _has_contradictions(latencies: Collection[NodePairLatency]) -> bool:
    values_us = [latency.latency_us for latency in latencies]
    return contradicts(min(values_us), max(values_us))


def _choose_rejected(
    link: ZoneLink,
    latencies: Iterable[NodePairLatency],
    agreed_us: float | None,
    undisputed_us_by_link: Mapping[ZoneLink, float],
) -> list[NodePairLatency]:
    """The latencies of one of a link's two reporters, to ignore.

    This is the reporter farther from the last agreed latency. Without that latency it is the lower one if it breaks the triangle inequality
    or shares a node with the higher one, else the higher one.
    """
    reports = sorted(_group_by_reporter(latencies).values(), key=_median_us)
    if agreed_us is not None:
        return max(reports, key=lambda report: abs(_median_us(report) - agreed_us) / max(_median_us(report), agreed_us))
    low_report, high_report = reports
    if _median_us(low_report) < triangle_minimum_us(link, undisputed_us_by_link):
        return low_report
    # A slow node raises a latency, so the higher latency is rejected. A node that both reports share may have forged the lower one.
    low_nodes, high_nodes = ({node for latency in report for node in latency.nodes} for report in reports)
    return low_report if low_nodes & high_nodes else high_report


def triangle_minimum_us(link: ZoneLink, latency_us_by_link: Mapping[ZoneLink, float]) -> float:
    """The lowest plausible latency of a link, from the median difference of third zones' latencies to its ends; 0 if unknown.

    Only `TRIANGLE_SHARE` of the difference counts, minus `TRIANGLE_SLACK_US`, because paths on the internet break the triangle inequality.
    """
    a, b = link
    third_zones = {zone for other in latency_us_by_link for zone in other} - {a, b}
    differences_us = [
        abs(latency_us_by_link[to_a] - latency_us_by_link[to_b])
        for zone in third_zones
        if (to_a := link_between(a, zone)) in latency_us_by_link
        and (to_b := link_between(b, zone)) in latency_us_by_link
    ]
    if len(differences_us) < 2:  # a single third zone may be wrong itself
        return 0.0
    return max(0.0, TRIANGLE_SHARE * statistics.median(differences_us) - TRIANGLE_SLACK_US)


def _find_outliers(
    latencies: Collection[NodePairLatency], ignored: set[NodePairLatency], latency_us_by_link: Mapping[ZoneLink, float]
) -> dict[str, float]:
    """Median error of the ignored latencies of each outlier node, microseconds.

    An ignored latency counts against the end with the larger share of ignored latencies; if the shares are equal, against the reporter.
    A node is an outlier if at least half of its latencies count against it, or most of the latencies that it reported.
    """
    reported_count_by_node = Counter(latency.origin for latency in latencies)
    count_by_node = Counter(node for latency in latencies for node in latency.nodes)
    ignored_count_by_node = Counter(node for latency in ignored for node in latency.nodes)
    blamed_latencies_by_node: dict[str, list[NodePairLatency]] = defaultdict(list)

    def severity(node: str) -> tuple[float, int]:
        return ignored_count_by_node[node] / count_by_node[node], ignored_count_by_node[node]

    for latency in ignored:
        blamed_node = max(latency.nodes, key=severity)  # of two equal ones the first: the reporter
        blamed_latencies_by_node[blamed_node].append(latency)

    def is_outlier(node: str) -> bool:
        bad_reports = sum(latency.origin == node for latency in blamed_latencies_by_node[node])
        is_bad_reporter = bad_reports >= MIN_CONTRADICTIONS and 2 * bad_reports > reported_count_by_node[node]
        return 2 * len(blamed_latencies_by_node[node]) >= count_by_node[node] or is_bad_reporter

    return {
        node: statistics.median(
            latency.latency_us - latency_us_by_link.get(latency.link, latency.latency_us)
            for latency in blamed_latencies_by_node[node]
        )
        for node in sorted(blamed_latencies_by_node)
        if is_outlier(node)
    }
