"""Computes the status of a NetworkTopology: which costs are measured, stale, inferred or absent.

Messages contain counts, names and costs, but no latencies or ages: they change in every round, and each change would be a write.
Metrics have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.crds import NetworkTopologyStatus
from controller.cluster.zones import SHOWN_NODES, ZoneMap
from kubekit.conditions import make_condition, merge_conditions
from kubekit.text import join_first
from kubekit.wire import Condition, format_time
from netperf.costs import MISSED_ROUNDS, ZoneCosts
from netperf.latencies import ZonePair
from netperf.policy import CostPolicy

MEASURED, UNREACHABLE, OUTLIER_NODES, INPUT_VALID = "Measured", "Unreachable", "OutlierNodes", "InputValid"
SHOWN_PAIRS = 3
"""Pairs that a message names."""
NODE_COUNT_WRITE_S = 60.0
"""Least time between writes of which only nodeCount is new."""


class InputFaults(msgspec.Struct, frozen=True):
    """Faults of the inputs.

    Attributes:
        policy: error of the object's costPolicy; empty if it is valid.
        missing: results ConfigMaps that do not exist.
        large: results ConfigMaps near the API server's limit -> size in bytes.
        refusal_counts: reason -> number of refused keys.
        writers: reason -> nodes that wrote refused keys.
        failing: pairs whose last run failed -> the failure.
        netperf_failing: pairs on which netperf keeps failing while datagrams pass -> the failure.
        disagreeing: pairs without loss on which netperf and datagrams disagree.
        zone_map: zones of the cluster, with unlabelled nodes and conflicting regions.
    """

    policy: str = ""
    missing: tuple[str, ...] = ()
    large: Mapping[str, int] = {}
    refusal_counts: Mapping[str, int] = {}
    writers: Mapping[str, tuple[str, ...]] = {}
    failing: Mapping[ZonePair, str] = {}
    netperf_failing: Mapping[ZonePair, str] = {}
    disagreeing: tuple[ZonePair, ...] = ()
    zone_map: ZoneMap = ZoneMap({}, {})


PairsByBasis = Mapping[str, Sequence[ZonePair]]
"""Basis of a cost -> directed zone pairs, worst first. The key absent is for pairs without a cost; mirrored counts as measured."""


def group_pairs(table: ZoneCosts, policy: CostPolicy, interval_s: float) -> PairsByBasis:
    """Group pairs by the basis of their cost.

    A stale cost counts as measured at first, because a pair misses a round when it moves to other nodes.
    """
    limit_s = max(policy.stale_after_s, MISSED_ROUNDS * interval_s)
    pairs: dict[str, list[ZonePair]] = {
        "measured": [],
        "stale": [],
        "inferred": [],
        "absent": [*table.absent_pairs],
        "unreachable": [],
    }
    for pair, entry in table.by_zone_pair.items():
        is_measured = entry.basis == "mirrored" or (entry.basis == "stale" and entry.age_s <= limit_s)
        pairs["measured" if is_measured else entry.basis].append(pair)
    pairs["stale"].sort(key=lambda p: (-table.by_zone_pair[p].age_s, p))
    for basis in ("measured", "inferred"):
        pairs[basis].sort(key=lambda p: (-table.by_zone_pair[p].cost, p))
    return pairs | {basis: sorted(pairs[basis]) for basis in ("absent", "unreachable")}


_Statement = tuple[bool | None, str, str]
"""Whether a condition is True (None: Unknown), its reason and its message."""


def conditions_of(counts: PairsByBasis, table: ZoneCosts, faults: InputFaults, generation: int) -> list[Condition]:
    """The four conditions, without lastTransitionTime."""
    statements: dict[str, _Statement] = {
        MEASURED: _measured(counts, table, faults),
        UNREACHABLE: _unreachable(counts, table, faults),
        OUTLIER_NODES: _outlier_nodes(table, faults),
        INPUT_VALID: _input_valid(faults),
    }
    return [
        make_condition(type_, holds=holds, reason=reason, message=message, generation=generation)
        for type_, (holds, reason, message) in statements.items()
    ]


def _measured(counts: PairsByBasis, table: ZoneCosts, faults: InputFaults) -> _Statement:
    total = sum(map(len, counts.values()))
    if total == 0:
        return True, "NoPairs", f"{len(faults.zone_map.zones)} zones: there is no pair of zones to measure"
    summary = f"{len(counts['measured'])} of {total} zone pairs measured"
    if counts["unreachable"]:
        summary += f", {len(counts['unreachable'])} unreachable"
    problems = [
        (reason, f"{len(pairs)} {text}: {_join_pairs(pairs)}")
        for reason, pairs, text in (
            ("PairsAbsent", counts["absent"], "without a cost"),
            ("PairsInferred", counts["inferred"], "inferred from paths over other zones"),
            ("MeasurementsOld", counts["stale"], "keep their last good value, oldest"),
        )
        if pairs
    ]
    costs = ", ".join(f"{_arrow(p)} {table.by_zone_pair[p].cost}" for p in counts["measured"][:SHOWN_PAIRS])
    holds, reason, message = _join_problems(problems, "AllPairsMeasured", f"highest costs: {costs}", bad=False)
    return holds, reason, f"{summary}; {message}"


def _unreachable(counts: PairsByBasis, table: ZoneCosts, faults: InputFaults) -> _Statement:
    pairs = counts["unreachable"]
    if not pairs:
        return False, "AllReachable", "no path is known to be dead"
    failures = {faults.failing[pair] for pair in pairs if pair in faults.failing}
    shown = f" ({', '.join(sorted(failures))})" if failures else ""
    message = (
        f"{len(pairs)} of {sum(map(len, counts.values()))} zone pairs cannot be reached by any pair of nodes{shown} and cost "
        f"{table.by_zone_pair[pairs[0]].cost}: {_join_pairs(pairs)}"
    )
    return True, "PathsDead", message


def _outlier_nodes(table: ZoneCosts, faults: InputFaults) -> _Statement:
    problems: list[tuple[str, str]] = []
    unplanned = faults.writers.get("unplanned")
    if unplanned:
        problems.append(("UnplannedResults", f"results of pairs that no plan names come from {_join_names(unplanned)}"))
    if table.error_us_by_outlier:
        nodes = [
            f"{node} (reads {'more' if off_us > 0 else 'less'})" for node, off_us in table.error_us_by_outlier.items()
        ]
        problems.append(("NodesContradicted", f"ignored, because other nodes contradict them: {_join_names(nodes)}"))
    if faults.netperf_failing:
        failures = ", ".join(sorted(set(faults.netperf_failing.values())))
        message = f"netperf fails ({failures}) and datagrams count instead"
        problems.append(("NetperfFails", f"{message}: {_join_pairs(sorted(faults.netperf_failing))}"))
    if faults.disagreeing:
        message = "netperf and datagrams read different latencies, and netperf's counts"
        problems.append(("InstrumentsDisagree", f"{message}: {_join_pairs(faults.disagreeing)}"))
    if table.disputed_links:
        problems.append(
            ("PairsDisputed", f"two reporters contradict each other: {_join_pairs(sorted(table.disputed_links))}")
        )
    return _join_problems(problems, "AllAgree", "all latencies agree", bad=True)


def _input_valid(faults: InputFaults) -> _Statement:
    problems: list[tuple[str, str]] = []
    if faults.policy:
        problems.append(("BadCostPolicy", f"{faults.policy}; the controller's own policy is used"))
    if faults.missing:
        problems.append(("ResultsMissing", f"no ConfigMap {_join_names(faults.missing)}"))
    if faults.large:
        # Rounded, so that a change of some bytes does not rewrite the status.
        sizes = ", ".join(f"{name} ({size // 2**16 * 64} KiB)" for name, size in sorted(faults.large.items()))
        problems.append(
            ("ResultsTooLarge", f"close to the 1 MiB that a ConfigMap may have: {sizes}; remove keys that are not ours")
        )
    if faults.refusal_counts:
        reasons = ", ".join(
            f"{count} {reason}" + (f" of {_join_names(nodes)}" if (nodes := faults.writers.get(reason)) else "")
            for reason, count in sorted(faults.refusal_counts.items())
        )
        problems.append(("ResultsMalformed", f"keys refused: {reasons}"))
    if faults.zone_map.unzoned:
        count = len(faults.zone_map.unzoned)
        problems.append(
            ("NodesWithoutZone", f"{count} nodes without a zone label: {_join_names(faults.zone_map.unzoned)}")
        )
    if faults.zone_map.conflicting_regions:
        zones = _join_names(faults.zone_map.conflicting_regions)
        problems.append(("ConflictingRegions", f"nodes disagree about the region of zone {zones}"))
    return _join_problems(problems, "AllRead", "policy, results and zone labels are valid", bad=False)


def _join_problems(
    problems: Sequence[tuple[str, str]], good_reason: str, good_message: str, *, bad: bool
) -> _Statement:
    """Join reasons and messages, the gravest first; ``bad`` is whether the condition is True if there are any."""
    if not problems:
        return not bad, good_reason, good_message
    return bad, problems[0][0], "; ".join(text for _, text in problems)


def build_status(
    before: NetworkTopologyStatus,
    conditions: Sequence[Condition],
    *,
    node_count: int,
    generation: int,
    weights_changed: bool,
    now: float,
) -> NetworkTopologyStatus:
    """The new status; equal to ``before`` if nothing changed.

    Args:
        before: the current status.
        conditions: from `conditions_of`.
        node_count: number of nodes in the cluster.
        generation: of the spec that was read.
        weights_changed: NetperfCosts was written, so weightCalculationTime is set.
        now: wall clock, seconds since 1970.
    """
    return NetworkTopologyStatus(
        node_count=node_count,
        weight_calculation_time=format_time(now) if weights_changed else before.weight_calculation_time,
        observed_generation=generation,
        conditions=merge_conditions(before.conditions, conditions, now),
    )


def needs_write(before: NetworkTopologyStatus, desired: NetworkTopologyStatus, *, since_last_write_s: float) -> bool:
    """Whether to write a status.

    A change of nodeCount alone waits, because nodes of large clusters come and go all the time, and the API server compares
    the whole object and sends it to every watcher.
    """
    if since_last_write_s < NODE_COUNT_WRITE_S:
        before = msgspec.structs.replace(before, node_count=desired.node_count)
    return desired != before


def is_bad(reported: Condition) -> bool:
    """Whether a condition reports a problem."""
    return reported.status == ("True" if reported.type in {UNREACHABLE, OUTLIER_NODES} else "False")


def count_bases(counts: PairsByBasis, table: ZoneCosts) -> dict[str, int]:
    """Number of pairs by basis, for metrics; ``mirrored`` is counted separately from ``measured``."""
    mirrored = sum(table.by_zone_pair[p].basis == "mirrored" for p in counts["measured"])
    totals = {basis: len(pairs) for basis, pairs in counts.items()}
    return totals | {"measured": totals["measured"] - mirrored, "mirrored": mirrored}


def _arrow(pair: ZonePair) -> str:
    return f"{pair[0]} to {pair[1]}"


def _join_pairs(pairs: Sequence[ZonePair]) -> str:
    return join_first([_arrow(pair) for pair in pairs], SHOWN_PAIRS)


def _join_names(names: Sequence[str]) -> str:
    return join_first(names, SHOWN_NODES)
