"""Computes the status of a NetworkTopology: the basis of its costs, nodes that others contradict, and faults of the inputs.

Messages contain counts, names and costs. Latencies and ages, which change in every round, are in metrics only, to avoid writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.crds import NetworkTopologyStatus
from controller.cluster.statuses import ConditionState, make_conditions
from controller.cluster.zones import ZoneMap
from kubekit.conditions import merge_conditions
from kubekit.text import join_first, pluralize
from kubekit.wire import Condition, format_time
from netperf.costs import ZoneCosts
from netperf.latencies import ZonePair
from netperf.policy import CostPolicy

MEASURED, UNREACHABLE, OUTLIER_NODES, INPUT_VALID = "Measured", "Unreachable", "OutlierNodes", "InputValid"
"""Types of the conditions of a NetworkTopology."""
MAX_PAIRS_SHOWN = 3
MAX_NAMES_SHOWN = 5
"""Number of zone pairs, and of other names, that a message lists."""
MIN_NODE_COUNT_WRITE_INTERVAL_S = 60.0
"""Shortest time between writes that change nodeCount only."""


class InputFaults(msgspec.Struct, frozen=True):
    """Faults of the inputs from which a NetworkTopology's costs are computed. Pairs are directed pairs of zones.

    Attributes:
        policy_error: why the NetworkTopology's costPolicy is invalid; empty if it is valid.
        missing_configmap: the NetworkTopology's results ConfigMap, if no results ConfigMap could be read; else empty.
        large_configmaps: results ConfigMaps near the API server's limit -> size in bytes.
        refusal_counts: reason -> number of refused keys.
        writers_by_reason: reason -> nodes that wrote refused keys, sorted.
        failures: pairs whose last run failed -> the failure.
        netperf_failures: pairs on which netperf keeps failing while datagrams pass -> the failure.
        disagreeing_pairs: pairs on which netperf and datagrams disagree, although neither has a quality flag.
        zone_map: zones of the cluster, with unzoned nodes and conflicting regions.
    """

    policy_error: str = ""
    missing_configmap: str = ""
    large_configmaps: Mapping[str, int] = {}
    refusal_counts: Mapping[str, int] = {}
    writers_by_reason: Mapping[str, tuple[str, ...]] = {}
    failures: Mapping[ZonePair, str] = {}
    netperf_failures: Mapping[ZonePair, str] = {}
    disagreeing_pairs: tuple[ZonePair, ...] = ()
    zone_map: ZoneMap = ZoneMap({}, {})


PairsByBasis = Mapping[str, Sequence[ZonePair]]
"""Basis of a cost -> directed zone pairs. Order: ``measured`` (also mirrored, and stale at first) and ``inferred`` by cost, the highest
first; ``stale`` by age, the oldest first; ``absent`` (without a cost) and ``unreachable`` by name.
"""


def group_pairs_by_basis(costs: ZoneCosts, policy: CostPolicy, interval_s: float) -> PairsByBasis:
    """Group pairs. A stale cost counts as measured up to the age `CostPolicy.stale_s`: a pair that moves to other nodes misses a round."""
    grace_s = policy.stale_s(interval_s)
    pairs_by_basis: dict[str, list[ZonePair]] = {
        basis: [] for basis in ("measured", "stale", "inferred", "absent", "unreachable")
    }
    pairs_by_basis["absent"] += costs.absent_pairs
    for pair, entry in costs.by_zone_pair.items():
        is_measured = entry.basis == "mirrored" or (entry.basis == "stale" and entry.age_s <= grace_s)
        pairs_by_basis["measured" if is_measured else entry.basis].append(pair)
    pairs_by_basis["stale"].sort(key=lambda p: (-costs.by_zone_pair[p].age_s, p))
    for basis in ("measured", "inferred"):
        pairs_by_basis[basis].sort(key=lambda p: (-costs.by_zone_pair[p].cost, p))
    return pairs_by_basis | {basis: sorted(pairs_by_basis[basis]) for basis in ("absent", "unreachable")}


def build_conditions(
    pairs_by_basis: PairsByBasis, costs: ZoneCosts, faults: InputFaults, generation: int
) -> list[Condition]:
    """The conditions of a NetworkTopology, without lastTransitionTime."""
    states = {
        MEASURED: _measured_state(pairs_by_basis, costs, faults),
        UNREACHABLE: _unreachable_state(pairs_by_basis, costs, faults),
        OUTLIER_NODES: _outlier_nodes_state(costs, faults),
        INPUT_VALID: _input_valid_state(faults),
    }
    return make_conditions(states, generation)


def _measured_state(pairs_by_basis: PairsByBasis, costs: ZoneCosts, faults: InputFaults) -> ConditionState:
    pair_count = sum(map(len, pairs_by_basis.values()))
    if pair_count == 0:
        message = (
            f"no pair of zones to measure: the cluster has {pluralize(len(faults.zone_map.region_by_zone), 'zone')}"
        )
        return ConditionState("NoPairs", message, holds=True)
    if len(pairs_by_basis["unreachable"]) == pair_count:
        return ConditionState("NoPairReachable", f"none of {pair_count} zone pairs is reachable", holds=False)
    summary = f"{len(pairs_by_basis['measured'])} of {pair_count} zone pairs measured"
    if pairs_by_basis["unreachable"]:
        summary += f", {len(pairs_by_basis['unreachable'])} unreachable"
    problems = {
        reason: f"{len(pairs)} {text}: {_join_pairs(pairs)}"
        for reason, pairs, text in (
            ("PairsAbsent", pairs_by_basis["absent"], "without a cost"),
            ("PairsInferred", pairs_by_basis["inferred"], "inferred from paths over other zones"),
            ("MeasurementsOld", pairs_by_basis["stale"], "keep their last good value, oldest"),
        )
        if pairs
    }
    highest = ", ".join(
        f"{' to '.join(p)} {costs.by_zone_pair[p].cost}" for p in pairs_by_basis["measured"][:MAX_PAIRS_SHOWN]
    )
    reason = "ReachablePairsMeasured" if pairs_by_basis["unreachable"] else "AllPairsMeasured"
    state = _join_problems(problems, ConditionState(reason, f"highest costs: {highest}", holds=True))
    return state._replace(message=f"{summary}; {state.message}")


def _unreachable_state(pairs_by_basis: PairsByBasis, costs: ZoneCosts, faults: InputFaults) -> ConditionState:
    pairs = pairs_by_basis["unreachable"]
    if not pairs:
        return ConditionState("AllReachable", "no path is known to be dead", holds=False)
    failures = sorted({faults.failures[pair] for pair in pairs if pair in faults.failures})
    causes = f" ({', '.join(failures)})" if failures else ""
    message = (
        f"{len(pairs)} of {sum(map(len, pairs_by_basis.values()))} zone pairs cannot be reached by any pair of nodes{causes} "
        f"and cost {costs.by_zone_pair[pairs[0]].cost}: {_join_pairs(pairs)}"
    )
    return ConditionState("PathsDead", message, holds=True)


def _outlier_nodes_state(costs: ZoneCosts, faults: InputFaults) -> ConditionState:
    problems: dict[str, str] = {}  # The worst first, because the condition has the first reason.
    if writers := faults.writers_by_reason.get("unplanned"):
        problems["UnplannedResults"] = f"results of pairs that no plan names come from {_join_names(writers)}"
    if faults.netperf_failures:
        failures = ", ".join(sorted(set(faults.netperf_failures.values())))
        message = f"netperf fails ({failures}) and datagrams count instead"
        problems["NetperfFails"] = f"{message}: {_join_pairs(sorted(faults.netperf_failures))}"
    if costs.error_us_by_outlier:
        nodes = [
            f"{node} (measures {'higher' if off_us > 0 else 'lower'} latencies)"
            for node, off_us in costs.error_us_by_outlier.items()
        ]
        problems["NodesContradicted"] = f"ignored, because other nodes contradict them: {_join_names(nodes)}"
    if faults.disagreeing_pairs:
        message = "netperf and datagrams measure different latencies, and the latency by netperf is used"
        problems["InstrumentsDisagree"] = f"{message}: {_join_pairs(faults.disagreeing_pairs)}"
    if costs.disputed_links:
        problems["PairsDisputed"] = f"two reporters contradict each other: {_join_pairs(sorted(costs.disputed_links))}"
    return _join_problems(problems, ConditionState("AllAgree", "all latencies agree", holds=False))


def _input_valid_state(faults: InputFaults) -> ConditionState:
    problems: dict[str, str] = {}
    if faults.policy_error:
        problems["BadCostPolicy"] = f"{faults.policy_error}; the controller's own policy is used"
    if faults.missing_configmap:
        problems["ResultsMissing"] = f"no ConfigMap {faults.missing_configmap}"
    if faults.large_configmaps:
        # Rounded to 64 KiB, so that a change of some bytes does not rewrite the status.
        sizes = [f"{name} ({size // 2**16 * 64} KiB)" for name, size in sorted(faults.large_configmaps.items())]
        problems["ResultsTooLarge"] = (
            f"close to the 1 MiB that a ConfigMap may have: {', '.join(sizes)}; remove keys that netaware did not write"
        )
    if faults.refusal_counts:
        refusals: list[str] = []
        for reason, count in sorted(faults.refusal_counts.items()):
            writers = faults.writers_by_reason.get(reason)
            refusals.append(f"{count} {reason} of {_join_names(writers)}" if writers else f"{count} {reason}")
        problems["ResultsMalformed"] = f"keys refused: {', '.join(refusals)}"
    if nodes := faults.zone_map.unzoned_nodes:
        problems["NodesWithoutZone"] = f"{len(nodes)} nodes without a zone label: {_join_names(nodes)}"
    if zones := faults.zone_map.zones_with_conflicting_regions:
        problems["ConflictingRegions"] = f"nodes disagree about the region of zone {_join_names(zones)}"
    return _join_problems(problems, ConditionState("AllRead", "policy, results and zone labels are valid", holds=True))


def _join_problems(problems: Mapping[str, str], good_state: ConditionState) -> ConditionState:
    """The opposite of ``good_state``, with the first reason and all messages of ``problems``; ``good_state`` without problems."""
    if not problems:
        return good_state
    return ConditionState(next(iter(problems)), "; ".join(problems.values()), holds=not good_state.holds)


def build_status(
    before: NetworkTopologyStatus,
    conditions: Sequence[Condition],
    *,
    node_count: int,
    generation: int,
    has_written_weight: bool,
    now: float,
) -> NetworkTopologyStatus:
    """The new status; equal to ``before`` if nothing changed.

    ``generation`` is that of the spec that was read. If the weight NetperfCosts or its latencies were written (``has_written_weight``),
    weightCalculationTime becomes ``now``, unix seconds.
    """
    return NetworkTopologyStatus(
        node_count=node_count,
        weight_calculation_time=format_time(now) if has_written_weight else before.weight_calculation_time,
        observed_generation=generation,
        conditions=merge_conditions(before.conditions, conditions, now),
    )


def needs_write(before: NetworkTopologyStatus, desired: NetworkTopologyStatus, *, since_last_write_s: float) -> bool:
    """Whether to write a status.

    A change of nodeCount alone waits, because nodes come and go all the time, and a write sends the whole object to every watcher.
    """
    if since_last_write_s < MIN_NODE_COUNT_WRITE_INTERVAL_S:
        before = msgspec.structs.replace(before, node_count=desired.node_count)
    return desired != before


def is_bad(condition: Condition) -> bool:
    """Whether a condition reports a problem."""
    return condition.status == ("True" if condition.type in {UNREACHABLE, OUTLIER_NODES} else "False")


def count_pairs_by_basis(pairs_by_basis: PairsByBasis, costs: ZoneCosts) -> dict[str, int]:
    """Number of pairs by basis, for metrics, in which mirrored costs do not count as measured."""
    mirrored_count = sum(costs.by_zone_pair[p].basis == "mirrored" for p in pairs_by_basis["measured"])
    counts = {basis: len(pairs) for basis, pairs in pairs_by_basis.items()}
    return counts | {"measured": counts["measured"] - mirrored_count, "mirrored": mirrored_count}


def _join_pairs(pairs: Sequence[ZonePair]) -> str:
    return join_first([" to ".join(pair) for pair in pairs], MAX_PAIRS_SHOWN)


def _join_names(names: Sequence[str]) -> str:
    return join_first(names, MAX_NAMES_SHOWN)
