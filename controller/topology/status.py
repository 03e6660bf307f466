"""Computes the status of a NetworkTopology: which costs are measured, stale, inferred or missing.

Messages hold counts, names and costs, and no latency or age: those move with every run, and a status that is written every
round would make a quiet network noisy. The moving numbers are metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.resources import NetworkTopologyStatus
from controller.cluster.zones import SHOWN_NODES, ZoneMap
from kubekit.conditions import make_condition, merge_conditions
from kubekit.text import join_first
from kubekit.wire import Condition, format_time
from netperf.costs import MISSED_ROUNDS, ZoneCosts
from netperf.latencies import ZonePair
from netperf.policy import CostPolicy

MEASURED, UNREACHABLE, OUTLIER_NODES, INPUT_VALID = "Measured", "Unreachable", "OutlierNodes", "InputValid"
SHOWN_PAIRS = 3
COUNT_S = 60.0
"""Least time between writes for the number of nodes alone."""


class InputFaults(msgspec.Struct, frozen=True):
    """Faults of the inputs.

    Attributes:
        policy: why the object's costPolicy is not used; empty if it is used.
        missing: results ConfigMaps that do not exist.
        large: sizes in bytes of results ConfigMaps near the API server's limit.
        refused: malformed keys by reason.
        writers: nodes whose keys were refused, by reason.
        failing: pairs whose last run failed, with the failure.
        netperf_failing: pairs on which netperf keeps failing while datagrams pass, with the failure.
        disagreeing: pairs without loss on which netperf and datagrams disagree.
        zone_map: zones of the cluster, with unlabelled nodes and conflicting regions.
    """

    policy: str = ""
    missing: tuple[str, ...] = ()
    large: Mapping[str, int] = {}
    refused: Mapping[str, int] = {}
    writers: Mapping[str, tuple[str, ...]] = {}
    failing: Mapping[ZonePair, str] = {}
    netperf_failing: Mapping[ZonePair, str] = {}
    disagreeing: tuple[ZonePair, ...] = ()
    zone_map: ZoneMap = ZoneMap({}, {})


PairsByBasis = Mapping[str, Sequence[ZonePair]]
"""Basis of a cost, with ``absent`` and without ``mirrored`` -> directed zone pairs, worst first."""


def group_pairs(table: ZoneCosts, policy: CostPolicy, interval_s: float) -> PairsByBasis:
    """Group pairs by basis. A last good value counts as measured until it is old, because a pair that moves to another node
    misses a round.
    """
    limit_s = max(policy.stale_after_s, MISSED_ROUNDS * interval_s)
    found: dict[str, list[ZonePair]] = {
        "measured": [],
        "stale": [],
        "inferred": [],
        "absent": [*table.absent],
        "unreachable": [],
    }
    for pair, entry in table.zones.items():
        is_measured = entry.basis == "mirrored" or (entry.basis == "stale" and entry.age_s <= limit_s)
        found["measured" if is_measured else entry.basis].append(pair)
    found["stale"].sort(key=lambda p: (-table.zones[p].age_s, p))
    for basis in ("measured", "inferred"):
        found[basis].sort(key=lambda p: (-table.zones[p].cost, p))
    return found | {basis: sorted(found[basis]) for basis in ("absent", "unreachable")}


_Statement = tuple[bool | None, str, str]
"""Whether a condition holds (None: not known), its reason and its message."""


def conditions_of(counts: PairsByBasis, table: ZoneCosts, faults: InputFaults, generation: int) -> list[Condition]:
    """The conditions, without times."""
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
    head = f"{len(counts['measured'])} of {total} zone pairs measured"
    if counts["unreachable"]:
        head += f", {len(counts['unreachable'])} unreachable"
    problems = [
        (reason, f"{len(pairs)} {what}: {_worst(pairs)}")
        for reason, pairs, what in (
            ("PairsAbsent", counts["absent"], "without a cost"),
            ("PairsInferred", counts["inferred"], "inferred from paths over other zones"),
            ("MeasurementsOld", counts["stale"], "keep their last good value, oldest"),
        )
        if pairs
    ]
    costs = ", ".join(f"{_arrow(p)} {table.zones[p].cost}" for p in counts["measured"][:SHOWN_PAIRS])
    holds, reason, message = _joined(problems, "AllPairsMeasured", f"highest costs: {costs}", bad=False)
    return holds, reason, f"{head}; {message}"


def _unreachable(counts: PairsByBasis, table: ZoneCosts, faults: InputFaults) -> _Statement:
    dead = counts["unreachable"]
    if not dead:
        return False, "AllReachable", "no path is known to be dead"
    names = {faults.failing[p] for p in dead if p in faults.failing}
    how = f" ({', '.join(sorted(names))})" if names else ""
    message = (
        f"{len(dead)} of {sum(map(len, counts.values()))} zone pairs cannot be reached by any pair of nodes{how} and cost "
        f"{table.zones[dead[0]].cost}: {_worst(dead)}"
    )
    return True, "PathsDead", message


def _outlier_nodes(table: ZoneCosts, faults: InputFaults) -> _Statement:
    problems: list[tuple[str, str]] = []
    unplanned = faults.writers.get("unplanned")
    if unplanned:
        problems.append(("UnplannedResults", f"results of pairs that no plan names come from {_some(unplanned)}"))
    if table.outliers_us:
        named = [f"{node} (reads {'more' if off_us > 0 else 'less'})" for node, off_us in table.outliers_us.items()]
        problems.append(("NodesContradicted", f"ignored, because other nodes contradict them: {_some(named)}"))
    if faults.netperf_failing:
        how = ", ".join(sorted(set(faults.netperf_failing.values())))
        message = f"netperf fails ({how}) and datagrams count instead"
        problems.append(("NetperfFails", f"{message}: {_worst(sorted(faults.netperf_failing))}"))
    if faults.disagreeing:
        message = "netperf and datagrams read different latencies, and netperf's counts"
        problems.append(("InstrumentsDisagree", f"{message}: {_worst(faults.disagreeing)}"))
    if table.disputed:
        problems.append(("PairsDisputed", f"two reporters contradict each other: {_worst(sorted(table.disputed))}"))
    return _joined(problems, "AllAgree", "all latencies agree", bad=True)


def _input_valid(faults: InputFaults) -> _Statement:
    problems: list[tuple[str, str]] = []
    if faults.policy:
        problems.append(("BadCostPolicy", f"{faults.policy}; the controller's own policy is used"))
    if faults.missing:
        problems.append(("ResultsMissing", f"no ConfigMap {_some(faults.missing)}"))
    if faults.large:
        # Rounded, so that not every byte rewrites the status.
        sizes = ", ".join(f"{name} ({size // 2**16 * 64} KiB)" for name, size in sorted(faults.large.items()))
        problems.append(
            ("ResultsTooLarge", f"close to the 1 MiB that a ConfigMap may have: {sizes}; remove keys that are not ours")
        )
    if faults.refused:
        reasons = ", ".join(
            f"{count} {reason}" + (f" of {_some(nodes)}" if (nodes := faults.writers.get(reason)) else "")
            for reason, count in sorted(faults.refused.items())
        )
        problems.append(("ResultsMalformed", f"keys refused: {reasons}"))
    if faults.zone_map.unzoned:
        count = len(faults.zone_map.unzoned)
        problems.append(("NodesWithoutZone", f"{count} nodes without a zone label: {_some(faults.zone_map.unzoned)}"))
    if faults.zone_map.conflicting_regions:
        problems.append(
            (
                "ConflictingRegions",
                f"nodes disagree about the region of zone {_some(faults.zone_map.conflicting_regions)}",
            )
        )
    return _joined(problems, "AllRead", "everything that was read made sense", bad=False)


def _joined(problems: Sequence[tuple[str, str]], good_reason: str, good_message: str, *, bad: bool) -> _Statement:
    """Join faults by reason, the gravest first; ``bad`` is the condition's status if there are any."""
    if not problems:
        return not bad, good_reason, good_message
    return bad, problems[0][0], "; ".join(text for _, text in problems)


def plan_status(
    before: NetworkTopologyStatus,
    conditions: Sequence[Condition],
    *,
    node_count: int,
    generation: int,
    weights_changed: bool,
    now: float,
) -> NetworkTopologyStatus:
    """The status to write; equal to ``before`` when nothing changed.

    Args:
        before: the present status.
        conditions: from `conditions_of`.
        node_count: nodes of the cluster.
        generation: of the spec that was read.
        weights_changed: NetperfCosts was rewritten, so weightCalculationTime changes.
        now: wall clock, seconds since 1970.
    """
    return NetworkTopologyStatus(
        node_count=node_count,
        weight_calculation_time=format_time(now) if weights_changed else before.weight_calculation_time,
        observed_generation=generation,
        conditions=merge_conditions(before.conditions, conditions, now),
    )


def is_worth_a_write(before: NetworkTopologyStatus, wanted: NetworkTopologyStatus, *, last_s: float) -> bool:
    """Whether to write a status, ``last_s`` seconds after the last write.

    A number of nodes alone waits: with 100 zones a write goes through 0.6 MB that the API server compares and sends to every
    watcher, and in a cluster of that size nodes come and go all the time.
    """
    if last_s < COUNT_S:
        before = msgspec.structs.replace(before, node_count=wanted.node_count)
    return wanted != before


def is_bad(reported: Condition) -> bool:
    """Whether a person should look."""
    return reported.status == ("True" if reported.type in {UNREACHABLE, OUTLIER_NODES} else "False")


def count_bases(counts: PairsByBasis, table: ZoneCosts) -> dict[str, int]:
    """Pairs by basis, for metrics; ``mirrored`` ones apart from those measured themselves."""
    mirrored = sum(table.zones[p].basis == "mirrored" for p in counts["measured"])
    found = {basis: len(pairs) for basis, pairs in counts.items()}
    return found | {"measured": found["measured"] - mirrored, "mirrored": mirrored}


def _arrow(pair: ZonePair) -> str:
    return f"{pair[0]} to {pair[1]}"


def _worst(pairs: Sequence[ZonePair]) -> str:
    return join_first([_arrow(pair) for pair in pairs], SHOWN_PAIRS)


def _some(names: Sequence[str]) -> str:
    return join_first(names, SHOWN_NODES)
