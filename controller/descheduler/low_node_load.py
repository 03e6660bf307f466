"""LowNodeLoad: moves pods off anomalous nodes until these are within their thresholds.

Free capacity is the sum of ``high threshold x allocatable - usage`` over the underutilized nodes (docs/descheduling.md): with a
threshold of 70 %, 96 cores of which 20 % are in use can take another 48.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.resource_requests import add_amounts
from controller.descheduler.args import LowNodeLoadConfig, Pool
from controller.descheduler.conditions import (
    MOVE_CONDITIONS,
    NODE_FIT,
    POD_CONDITIONS,
    REASON_CONDITIONS,
    report_first_failure,
)
from controller.descheduler.fit import OTHER_POD_REASONS, describe_misfits, format_counts
from controller.descheduler.history import PendingMove
from controller.descheduler.node_load import (
    AnomalyDetector,
    LoadClass,
    NodeLoad,
    classify_nodes,
    describe_overload,
    update_detectors,
)
from controller.descheduler.plan import NodeState
from controller.descheduler.plan_builder import Candidate, PlanBuilder
from controller.descheduler.usage import RESOURCES, Amounts, find_exceeded_resources, to_percents, weighted_mean

MIN_DETECTOR_ROUNDS = 3
"""A detector is kept for at least this many rounds of unknown usage, because the interval may exceed the timeout."""
MIN_RELIEF_SHARE = 0.02
"""A pod that uses less than this share of the excess is not moved, because that would not relieve the node."""


class LowNodeLoadStrategy:
    """LowNodeLoad in one round; ``loads_by_node`` has the nodes of all pools."""

    def __init__(self, builder: PlanBuilder, config: LowNodeLoadConfig) -> None:
        self._builder, self._config = builder, config
        loads = classify_nodes(config, builder.snapshot.nodes.values(), builder.snapshot.usage.by_node)
        self.loads_by_node = {load.name: load for load in loads}
        self._reason_by_node: dict[str, str] = {}
        for load in loads:
            if load.load_class == "unknown":
                missing = [resource for resource in load.high_thresholds if resource not in load.usage_percent]
                self._reason_by_node[load.name] = f"no current usage of {', '.join(missing)}"
        self._stuck_nodes: set[str] = set()
        self._misfits: dict[tuple[object, ...], tuple[Amounts, str]] = {}
        """Key of equivalent pods -> usage of one that fits nowhere, and why it does not fit."""
        self._targets_by_pool = {
            pool.name: sorted(self._loads_of(pool, "underutilized"), key=self._target_order) for pool in config.pools
        }
        self._free_capacity_by_pool = {pool.name: self._free_capacity(pool) for pool in config.pools}

    def plan_moves(
        self, detectors: Mapping[str, AnomalyDetector], *, ignore_durations: bool
    ) -> dict[str, AnomalyDetector]:
        """Add moves to the plan; takes the detectors after the last round, by node name, and returns those after this one.

        ``ignore_durations`` also relieves overutilized nodes that are not anomalous yet.
        """
        keep_s = max(self._config.detector_cache_timeout_s, MIN_DETECTOR_ROUNDS * self._builder.config.interval_s)
        detectors = update_detectors(detectors, self.loads_by_node.values(), keep_s, self._builder.now)
        for pool in self._config.pools:
            for load in sorted(self._loads_of(pool, "overutilized"), key=lambda load: (-load.mean_percent, load.name)):
                detector = detectors[load.name]
                if ignore_durations or detector.is_anomalous:
                    self._relieve(load)
                else:
                    rounds = f"{detector.abnormal_rounds} of {pool.consecutive_abnormalities}"
                    self._reason_by_node[load.name] = f"overutilized for {rounds} consecutive rounds"
        return detectors

    def node_states(self) -> tuple[NodeState, ...]:
        """The states of all nodes, after the moves are planned."""
        return tuple(
            NodeState(
                node=load.name,
                pool=load.pool.name,
                kind=load.load_class,
                usage_percent=load.usage_percent,
                low_thresholds=load.low_thresholds,
                high_thresholds=load.high_thresholds,
                is_stuck=load.name in self._stuck_nodes,
                reason=self._reason_by_node.get(load.name, ""),
            )
            for load in self.loads_by_node.values()
        )

    def unsuitable_reason(self, candidate: Candidate, node: Host) -> str:
        """Why the node cannot take the candidate's usage; empty if it can."""
        load = self.loads_by_node.get(node.name)
        if load is None or load.load_class == "unknown":
            return "its load is not known"  # also if it is in no pool
        return load.overload_reason(candidate.usage, self._builder.arriving_usage_by_node.get(node.name, {}))

    def _no_capacity_reason(self, pool: Pool) -> str:
        """Why no node of the pool can take any pod; empty if one may."""
        count, minimum = len(self._targets_by_pool[pool.name]), self._config.args.number_of_nodes
        if count <= minimum:
            nodes = "node is" if count == 1 else "nodes are"
            return f"pool {pool.name}: {count} {nodes} underutilized, and numberOfNodes asks for more than {minimum}"
        exhausted = sorted(resource for resource, free in self._free_capacity_by_pool[pool.name].items() if free <= 0)
        return f"underutilized nodes can take no more {', '.join(exhausted)}" if exhausted else ""

    def _loads_of(self, pool: Pool, load_class: LoadClass) -> list[NodeLoad]:
        return [load for load in self.loads_by_node.values() if load.pool is pool and load.load_class == load_class]

    def _expected_usage(self, load: NodeLoad) -> dict[str, float]:
        """The node's usage once all moved pods have arrived."""
        arriving = self._builder.arriving_usage_by_node.get(load.name, {})
        return {resource: amount + arriving.get(resource, 0.0) for resource, amount in load.usage.items()}

    def _target_order(self, load: NodeLoad) -> tuple[float, str]:
        """Sort key: the least loaded target first."""
        percents = to_percents(self._expected_usage(load), load.node.allocatable)
        return weighted_mean(percents, load.pool.weights), load.name

    def _free_capacity(self, pool: Pool) -> dict[str, float]:
        """Free capacity of all targets of a pool, for resources whose usage is known."""
        free_capacity: dict[str, float] = {}
        for load in self._targets_by_pool[pool.name]:
            for resource, amount in self._expected_usage(load).items():
                add_amounts(free_capacity, {resource: load.high_amount(resource) - amount})
        usage_of_unknown_target = self._builder.arriving_usage_by_node.get("", {})
        return {r: free_capacity[r] - usage_of_unknown_target.get(r, 0.0) for r in RESOURCES if r in free_capacity}

    def _relieve(self, load: NodeLoad) -> None:
        """Plan moves off one overutilized node, as far as conditions allow."""
        builder, failure_counts = self._builder, Counter[str]()
        candidates = [
            Candidate(pod, "LowNodeLoad", builder.snapshot.usage_of(pod, load.usage), load)
            for pod in builder.snapshot.pods.where("node", load.name).values()
            if pod.is_active and pod.is_running
        ]
        # These conditions have the same result for all pods of a node.
        failed = report_first_failure(builder, candidates[0], REASON_CONDITIONS) if candidates else None
        if failed is not None:
            self._reason_by_node[load.name] = failed.reason
            return
        movable: list[Candidate] = []
        for candidate in candidates:
            failed = report_first_failure(builder, candidate, POD_CONDITIONS)
            if failed is not None:
                failure_counts[failed.condition.name] += 1
            else:
                movable.append(candidate)
        if reason := self._move_until_relieved(load, movable, failure_counts):
            self._reason_by_node[load.name] = reason
            self._stuck_nodes.add(load.name)

    def _move_until_relieved(self, load: NodeLoad, candidates: list[Candidate], failure_counts: Counter[str]) -> str:
        """Plan moves of candidates until the node is within its thresholds; returns why it is not, empty if it is.

        ``failure_counts`` has the number of the node's pods by failed condition, or ``too-small``; candidates that fail are added.
        """
        usage: Amounts = dict(load.usage)
        while exceeded := find_exceeded_resources(to_percents(usage, load.node.allocatable), load.high_thresholds):
            candidate = choose_candidate(candidates, load, usage, exceeded)
            if candidate is None:
                failure_counts["too-small"] += len(candidates)
                return _describe_failures(failure_counts)
            candidates.remove(candidate)
            candidate.capacity_failure = self._no_capacity_reason(load.pool)
            failed = report_first_failure(self._builder, candidate, MOVE_CONDITIONS)
            if failed is None:
                self._assign_target(candidate, load.pool)
                failed = report_first_failure(self._builder, candidate, (NODE_FIT,))
            if failed is None:
                usage = self._add_move(candidate, load, usage, exceeded)
            elif failed.condition.scope == "pod":
                failure_counts[failed.condition.name] += 1
            else:
                return failed.reason
        return ""

    def _assign_target(self, candidate: Candidate, pool: Pool) -> None:
        """Set the candidate's target, the least loaded node that fits by the scheduler's rules and by usage, or its fit failure.

        With nodeFit off there is no target, only a check that the nodes together have enough free capacity.
        """
        pod = candidate.pod
        if not self._config.args.node_fit:
            free = self._free_capacity_by_pool[pool.name]
            if scarce := [r for r in pool.high_thresholds if candidate.usage.get(r, 0) > free.get(r, 0)]:
                candidate.fit_failure = f"it uses more {', '.join(scarce)} than underutilized nodes can take"
            return
        # Moves only reduce capacity: if a pod fits nowhere, an equivalent pod that uses as much does not fit either.
        key = pool.name, pod.constraints, pod.claim_names, tuple(pod.requests_with_ports.items())
        misfit_usage, misfit_reason = self._misfits.get(key, ({}, ""))
        if misfit_reason and all(candidate.usage.get(r, 0.0) >= amount for r, amount in misfit_usage.items()):
            candidate.fit_failure = misfit_reason
            return
        nodes_by_reason: Counter[str] = Counter()
        for load in self._targets_by_pool[pool.name]:
            reason = self._builder.misfit_reason(pod, load.node, load, candidate.usage)
            if not reason:
                candidate.target = load.name
                return
            nodes_by_reason[reason] += 1
        candidate.fit_failure = describe_misfits(nodes_by_reason)
        if not pod.claim_names and not nodes_by_reason.keys() & OTHER_POD_REASONS:
            self._misfits[key] = candidate.usage, candidate.fit_failure

    def _add_move(self, candidate: Candidate, load: NodeLoad, usage: Amounts, exceeded: Sequence[str]) -> Amounts:
        """Add the candidate's move to the plan, and deduct its usage from free capacity; returns its node's usage after the move.

        ``usage`` is that of the node before the move, which has ``exceeded`` these resources.
        """
        builder, allocatable = self._builder, load.node.allocatable
        usage_after = {r: max(0.0, amount - candidate.usage.get(r, 0.0)) for r, amount in usage.items()}
        node_before, relief = to_percents(usage, allocatable), to_percents(candidate.usage, allocatable)
        move = builder.make_move(candidate, describe_overload(node_before, load.high_thresholds, exceeded))
        pending = PendingMove(
            msgspec.structs.replace(move, node_before=node_before, node_after=to_percents(usage_after, allocatable)),
            builder.now,
            usage_percent_before={r: load.usage_percent[r] for r in load.exceeded_resources},
            expected_relief_percent={r: relief.get(r, 0.0) for r in load.exceeded_resources},
            exceeded_thresholds={r: load.high_thresholds[r] for r in load.exceeded_resources},
        )
        builder.add_move(candidate, pending)
        free, target = self._free_capacity_by_pool[load.pool.name], self.loads_by_node.get(candidate.target)
        # Only resources that the target has contributed to free capacity are deducted.
        contributed = free.keys() if target is None else free.keys() & target.usage.keys()
        add_amounts(free, {r: amount for r, amount in candidate.usage.items() if r in contributed}, -1)
        if target is not None:
            # The target's expected usage, by which targets are sorted, has changed.
            targets = self._targets_by_pool[target.pool.name]
            targets.remove(target)
            insort(targets, target, key=self._target_order)
        return usage_after


def choose_candidate(
    candidates: Iterable[Candidate], load: NodeLoad, usage: Amounts, exceeded: Iterable[str]
) -> Candidate | None:
    """Choose the pod to move next; None if no move would relieve the node.

    Order: by priority, QoS class and eviction cost, lowest first; then pods whose move alone suffices, the smallest first; then
    pods that use more; then younger ones; then by name.

    ``usage`` is the node's after the moves planned so far; ``exceeded`` are the resources that are above their threshold with it.
    """
    weights = {r: load.pool.weights.get(r, 1) for r in exceeded}
    excess = {r: usage[r] - load.high_amount(r) for r in weights}

    def rank(candidate: Candidate) -> tuple[object, ...]:
        pod, amounts = candidate.pod, candidate.usage
        share = sum(weight * amounts.get(r, 0.0) / load.node.allocatable[r] for r, weight in weights.items())
        suffices = all(amounts.get(r, 0.0) >= excess[r] for r in weights)
        signed_share = (
            share if suffices else -share
        )  # Of pods that suffice, the smallest is first; of others, the largest.
        return (pod.priority, pod.qos_rank, pod.eviction_cost, not suffices, signed_share, -pod.created_s, pod.key)

    useful = (c for c in candidates if any(c.usage.get(r, 0.0) >= MIN_RELIEF_SHARE * excess[r] for r in weights))
    return min(useful, key=rank, default=None)


def _describe_failures(failure_counts: Mapping[str, int]) -> str:
    """Why no further pod of a node can be moved, by the number of its pods that fail each condition."""
    counts = format_counts(failure_counts)
    return f"no further pod can be moved: {counts}" if counts else "no further pod runs on it"
