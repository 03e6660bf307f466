"""LowNodeLoad: moves pods off overutilized nodes until these are within their thresholds.

Free capacity is the sum of ``high x allocatable - usage`` over the nodes with low load (docs/descheduling.md): with a threshold
of 70 %, 96 cores of which 20 % are in use can take another 48.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from weakref import proxy

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.resource_requests import add_amounts
from controller.descheduler.args import LowNodeLoadConfig, Pool
from controller.descheduler.conditions import MOVE_CONDITIONS, POD_CONDITIONS, REASON_CONDITIONS, report_first_failure
from controller.descheduler.fit import OTHER_POD_REASONS, describe_misfits
from controller.descheduler.history import PendingMove
from controller.descheduler.node_load import (
    AnomalyDetector,
    NodeLoad,
    classify_nodes,
    describe_overload,
    update_detectors,
    usage_of,
)
from controller.descheduler.plan import NodeState
from controller.descheduler.plan_builder import Candidate, PlanBuilder, TargetRules
from controller.descheduler.usage import RESOURCES, Amounts, exceeded_resources, percents, weighted_percent
from netperf.contract import HOT_TAINT

MIN_RELIEF_SHARE = 0.02
"""A pod that uses less than this share of the excess is not moved, because that would not relieve the node."""


class LowNodeLoadStrategy(TargetRules):
    """One round of LowNodeLoad.

    Attributes:
        loads: load of every node of every pool, by name.
    """

    def __init__(self, builder: PlanBuilder, config: LowNodeLoadConfig) -> None:
        self._builder, self._config = builder, config
        loads = classify_nodes(config, builder.snapshot.nodes.values(), builder.snapshot.usage.nodes)
        self.loads = {load.name: load for load in loads}
        self._unrelieved_reasons: dict[str, str] = {}
        self._stuck: set[str] = set()
        # Equivalence key of pods -> usage of a pod that fits nowhere, and why.
        self._misfits: dict[tuple[object, ...], tuple[Amounts, str]] = {}
        self._targets = {
            pool.name: sorted(
                (load for load in loads if load.pool is pool and load.kind == "underutilized"), key=self._target_order
            )
            for pool in config.pools
        }
        self._free = {pool.name: self._free_capacity(pool) for pool in config.pools}

    def plan(self, detectors: Mapping[str, AnomalyDetector], *, assume_lasting: bool) -> dict[str, AnomalyDetector]:
        """Plan moves into the round.

        Args:
            detectors: detectors after the last round, by node.
            assume_lasting: see `controller.descheduler.decide.decide`.

        Returns:
            The detectors after this round, by node.
        """
        # With an interval near the timeout, a detector would otherwise expire between rounds.
        keep_s = max(self._config.cache_timeout_s, 3 * self._builder.config.interval_s)
        detectors = update_detectors(detectors, self.loads.values(), keep_s, self._builder.now)
        for pool in self._config.pools:
            overutilized = (load for load in self.loads.values() if load.pool is pool and load.kind == "overutilized")
            for load in sorted(overutilized, key=lambda load: (-load.mean_percent, load.name)):
                detector, needed = detectors[load.name], pool.anomaly.consecutive_abnormalities
                if assume_lasting or detector.is_anomalous:
                    self._relieve(load)
                else:
                    why = f"overutilized for {detector.abnormal_rounds} of {needed} consecutive rounds"
                    self._unrelieved_reasons[load.name] = why
        return detectors

    def states(self) -> tuple[NodeState, ...]:
        """The states of all nodes, with the reason why an overutilized one is not relieved."""
        expired = self._builder.snapshot.usage.expired
        return tuple(
            NodeState(
                node=load.name,
                pool=load.pool.name,
                kind=load.kind,
                usage_percent=load.usage_percent,
                low=load.low,
                high=load.high,
                stuck=load.name in self._stuck,
                why=_unknown_reason(load, expired)
                if load.kind == "unknown"
                else self._unrelieved_reasons.get(load.name, ""),
            )
            for load in self.loads.values()
        )

    def _expected_usage(self, load: NodeLoad) -> dict[str, float]:
        """The node's usage once all moved pods have arrived."""
        arriving = self._builder.arriving_usage.get(load.name, {})
        return {resource: amount + arriving.get(resource, 0.0) for resource, amount in load.used.items()}

    def _target_order(self, load: NodeLoad) -> tuple[float, str]:
        """Sort key: the least loaded target first."""
        percent = percents(self._expected_usage(load), load.node.allocatable)
        return weighted_percent(percent, load.pool.weights), load.name

    def _free_capacity(self, pool: Pool) -> dict[str, float]:
        """Free capacity of all targets of a pool, for resources whose usage is known."""
        free: dict[str, float] = {}
        for load in self._targets[pool.name]:
            usage = self._expected_usage(load)
            add_amounts(free, {resource: load.high_amount(resource) - amount for resource, amount in usage.items()})
        unassigned = self._builder.arriving_usage.get("", {})
        return {resource: free[resource] - unassigned.get(resource, 0.0) for resource in RESOURCES if resource in free}

    def _relieve(self, load: NodeLoad) -> None:
        """Plan moves off one overutilized node."""
        builder, kept_counts = self._builder, Counter[str]()
        victims: list[Candidate] = []
        for pod in builder.snapshot.pods.where("node", load.name).values():
            if not pod.is_active or not pod.is_running:
                continue
            used = usage_of(pod, builder.snapshot, load.used)
            candidate = Candidate(pod, "LowNodeLoad", proxy(self), used, load)
            if failed := report_first_failure(builder, candidate, REASON_CONDITIONS):
                self._unrelieved_reasons[load.name] = failed.why
                return
            if failed := report_first_failure(builder, candidate, POD_CONDITIONS):
                kept_counts[failed.condition.name] += 1
            else:
                victims.append(candidate)
        usage: Amounts = dict(load.used)
        while exceeded := exceeded_resources(percents(usage, load.node.allocatable), load.high):
            victim = next_victim(victims, load, usage, exceeded)
            if victim is None:
                kept_counts["too-small"] += len(victims)
                self._set_stuck(load, _describe_kept(kept_counts))
                return
            victims.remove(victim)
            failed = report_first_failure(builder, victim, MOVE_CONDITIONS)
            if failed is None:
                usage = self._plan_move(victim, load, usage, exceeded)
            elif failed.condition.scope == "pod":
                kept_counts[failed.condition.name] += 1
            else:
                self._set_stuck(load, failed.why)
                return

    def _set_stuck(self, load: NodeLoad, why: str) -> None:
        self._unrelieved_reasons[load.name] = why
        self._stuck.add(load.name)

    def capacity_refusal(self, candidate: Candidate) -> str:
        """See `TargetRules`."""
        assert candidate.node_load is not None
        pool, minimum = candidate.node_load.pool.name, self._config.args.number_of_nodes
        count = len(self._targets[pool])
        if count <= minimum:
            nodes = "node has" if count == 1 else "nodes have"
            text = f"pool {pool}: {count} {nodes} low load, and numberOfNodes asks for more than {minimum}"
            self._builder.add_note(text)
            return text
        used_up = sorted(resource for resource, free in self._free[pool].items() if free <= 0)
        return f"nodes with low load can take no more {', '.join(used_up)}" if used_up else ""

    def find_target(self, candidate: Candidate) -> str:
        """See `TargetRules`: the least loaded node that fits, by the scheduler's constraints and by usage.

        With nodeFit off there is no target, only a check that the nodes together have enough free capacity.
        """
        assert candidate.node_load is not None
        pod, pool, fit = candidate.pod, candidate.node_load.pool, self._builder.fit
        if not self._config.args.node_fit:
            free = self._free[pool.name]
            short = [r for r in pool.high if candidate.used.get(r, 0) > free.get(r, 0)]
            return f"it uses more {', '.join(short)} than nodes with low load can take" if short else ""
        # Moves only reduce capacity: if a pod fits nowhere, an equivalent pod that uses as much does not fit either.
        equivalence_key = pool.name, pod.constraints, pod.claim_names, tuple(pod.requests_with_ports.items())
        used, why = self._misfits.get(equivalence_key, ({}, ""))
        if why and all(candidate.used.get(resource, 0.0) >= amount for resource, amount in used.items()):
            return why
        reasons: Counter[str] = Counter()
        for load in self._targets[pool.name]:
            arriving = self._builder.arriving_usage.get(load.name, {})
            why = fit.static_unschedulable_reason(load.node, pod) or load.overload_reason(candidate.used, arriving)
            why = why or fit.dynamic_unschedulable_reason(load.node, pod)
            if not why:
                candidate.target = load.name
                return ""
            reasons[why] += 1
        why = describe_misfits(reasons)
        if not pod.claim_names and not reasons.keys() & OTHER_POD_REASONS:
            self._misfits[equivalence_key] = candidate.used, why
        return why

    def target_refusal(self, candidate: Candidate, node: Host) -> str:
        """See `TargetRules`."""
        load = self.loads.get(node.name)
        if load is None or load.kind == "unknown":
            return "its load is not known"
        return load.overload_reason(candidate.used, self._builder.arriving_usage.get(node.name, {}))

    def _plan_move(self, candidate: Candidate, load: NodeLoad, used: Amounts, exceeded: Sequence[str]) -> Amounts:
        """Plan a move off a node with this usage; returns the node's usage after it."""
        allocatable = load.node.allocatable
        after = {resource: max(0.0, amount - candidate.used.get(resource, 0.0)) for resource, amount in used.items()}
        node_before, relief = percents(used, allocatable), percents(candidate.used, allocatable)
        move = self._builder.make_move(candidate, describe_overload(node_before, load.high, exceeded))
        pending = PendingMove(
            msgspec.structs.replace(move, node_before=node_before, node_after=percents(after, allocatable)),
            self._builder.now,
            usage_percent_before={r: load.usage_percent[r] for r in load.exceeded},
            expected_relief_percent={r: relief.get(r, 0.0) for r in load.exceeded},
            exceeded_thresholds={r: load.high[r] for r in load.exceeded},
        )
        self._builder.add_move(candidate, pending)
        self._deduct_free_capacity(candidate, self._free[load.pool.name])
        return after

    def _deduct_free_capacity(self, candidate: Candidate, free: dict[str, float]) -> None:
        """Deduct the candidate's usage from the free capacity of its pool, and sort its target in again."""
        target = self.loads.get(candidate.target)
        measured = free if target is None else target.used
        add_amounts(free, {r: amount for r, amount in candidate.used.items() if r in free and r in measured}, -1)
        if target is not None:
            targets = self._targets[target.pool.name]
            targets.remove(target)
            insort(targets, target, key=self._target_order)


def next_victim(
    victims: Iterable[Candidate], load: NodeLoad, used: Amounts, exceeded: Iterable[str]
) -> Candidate | None:
    """The pod to move next; None if no move would relieve the node.

    Order: by priority, QoS class and eviction cost, lowest first; then pods whose move alone suffices, the smallest first; then
    pods that use more; then younger ones; then by name.

    Args:
        victims: pods that may be moved.
        load: load of the overutilized node.
        used: the node's usage after the moves planned so far.
        exceeded: resources above their threshold with that usage.
    """
    weights = {r: load.pool.weights.get(r, 1) for r in exceeded}
    surplus = {r: used[r] - load.high_amount(r) for r in weights}

    def rank(victim: Candidate) -> tuple[object, ...]:
        pod, amounts = victim.pod, victim.used
        share = sum(weight * amounts.get(r, 0.0) / load.node.allocatable[r] for r, weight in weights.items())
        suffices = all(amounts.get(r, 0.0) >= surplus[r] for r in weights)
        signed_share = share if suffices else -share
        return (pod.priority, pod.qos_rank, pod.eviction_cost, not suffices, signed_share, -pod.created_s, pod.key)

    useful = (v for v in victims if any(v.used.get(r, 0.0) >= MIN_RELIEF_SHARE * surplus[r] for r in weights))
    return min(useful, key=rank, default=None)


def nodes_to_taint(
    states: Iterable[NodeState], detectors: Mapping[str, AnomalyDetector], nodes: Mapping[str, Host]
) -> frozenset[str]:
    """Nodes that should have `HOT_TAINT`: anomalous ones, and those above the midpoint of their thresholds, until they have low load.

    Without the taint, replacements would overload a node that is just below its threshold.
    """

    def is_tainted(name: str) -> bool:
        return name in nodes and any(taint.key == HOT_TAINT for taint in nodes[name].prefer_no_schedule_taints)

    def is_above(state: NodeState, fraction: float) -> bool:
        """Whether usage is above this fraction of the way from the low to the high threshold."""
        return any(
            percent > state.low[resource] + fraction * (state.high[resource] - state.low[resource])
            for resource, percent in state.usage_percent.items()
        )

    return frozenset(
        state.node
        for state in states
        if (state.node in detectors and detectors[state.node].is_anomalous)
        or is_above(state, 0.5)
        # Keep the taint while usage is unknown.
        or (is_tainted(state.node) and (state.kind == "unknown" or is_above(state, 0.0)))
    )


def _describe_kept(kept_counts: Mapping[str, int]) -> str:
    """Why no pod of a node can be moved, by the number of pods that each condition keeps there."""
    kept = sorted((-count, name) for name, count in kept_counts.items() if count)
    parts = ", ".join(f"{-negated_count} {name}" for negated_count, name in kept)
    return f"no further pod can be moved: {parts}" if parts else "no further pod runs on it"


def _unknown_reason(load: NodeLoad, expired: Iterable[str]) -> str:
    if load.name in expired:
        return "its usage is older than nodeMetricExpirationSeconds"
    missing = [r for r in load.high if r not in load.usage_percent]
    return f"no usage of {', '.join(missing)}" if missing else "no usage"
