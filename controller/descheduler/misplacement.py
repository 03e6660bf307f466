"""NetworkMisplacement and ZoneSurvival: move pods of AppGroups to better nodes by the scheduler's score.

The extender scores with the same code, so the strategies and the scheduler agree on the better node. One pod of a group moves at a
time, only while all pods of the group are ready, and only for a gain that has lasted.

ZoneSurvival moves one replica of a workload that should survive the loss of a zone, but has all replicas in one zone.
NetworkMisplacement never moves such a replica into the zone of all others from another zone, so the two do not undo each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.costs import Location
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.descheduler.conditions import (
    MOVE_CONDITIONS,
    NODE_FIT,
    POD_CONDITIONS,
    REASON_CONDITIONS,
    report_first_failure,
)
from controller.descheduler.config import StrategyName
from controller.descheduler.history import PendingMove
from controller.descheduler.node_load import NodeLoad
from controller.descheduler.plan_builder import Candidate, PlanBuilder
from controller.scheduler.advice import copy_placed_group
from controller.scheduler.rules import NodeScore, ScoreTable

MIN_GAIN_SHARE = 0.2
"""Minimum gain as a share of the current cost."""
MISPLACEMENT_STRATEGIES: tuple[StrategyName, ...] = ("ZoneSurvival", "NetworkMisplacement")
"""In the order in which they search a target for a pod."""


class ScoredNodes(NamedTuple):
    """A score, with the nodes that have it and take pods, the least loaded first."""

    score: NodeScore
    nodes: Iterable[Host]


class MisplacementStrategies:
    """NetworkMisplacement and ZoneSurvival in one round, after LowNodeLoad.

    ``loads_by_node`` is empty without LowNodeLoad; a node whose usage is known, and is or would be above a threshold, is not a target.
    """

    def __init__(self, builder: PlanBuilder, loads_by_node: Mapping[str, NodeLoad]) -> None:
        self._builder, self._loads_by_node = builder, loads_by_node
        self._network = network = builder.snapshot.network
        self._config = builder.config.misplacement
        self._zones_by_group: dict[str, Mapping[str, Counter[Location]]] = {}
        self._nodes_by_location: dict[int, list[Host]] = defaultdict(list)
        for name, index in network.location_index.items():
            node = builder.snapshot.nodes.get(name)
            if node is not None and node.accepts_pods:
                self._nodes_by_location[index].append(node)
        for nodes in self._nodes_by_location.values():
            nodes.sort(key=self._load_order)

    def plan_moves(self, better_since: Mapping[str, float], *, ignore_durations: bool) -> dict[str, float]:
        """Add moves to the plan; returns ``ReasonDurations.better_since`` after this round. ``ignore_durations`` skips the hold time."""
        new_better_since: dict[str, float] = {}
        for pods in self._pods_by_group().values():
            candidates: list[Candidate] = []
            for pod in pods:
                candidate = self._find_candidate(pod)
                if candidate is None:
                    continue
                new_better_since[pod.uid] = better_since.get(pod.uid, self._builder.now)
                lasted_s, hold_s = self._builder.now - new_better_since[pod.uid], self._config.hold_s
                if not ignore_durations and lasted_s < hold_s:
                    candidate.duration_failure = f"there has been a better node for {lasted_s:.0f} of {hold_s:g} s"
                failed = report_first_failure(self._builder, candidate, REASON_CONDITIONS)
                if failed is None:
                    candidates.append(candidate)
            for candidate in sorted(candidates, key=self._gain_order):
                self._try_move(candidate, pods)
        return new_better_since

    def unsuitable_reason(self, candidate: Candidate, node: Host) -> str:
        """Why the node is no better for the candidate than its own; empty if it is better."""
        if node.name not in self._network.location_index or self._score_table(candidate) is None:
            return "its zone or its costs are not known"
        if misfit := self._misfit_reason(candidate, node, self._forbidden_zone(candidate)):
            return misfit
        current, target = self._score(candidate, candidate.pod.node), self._score(candidate, node.name)
        if self._is_gain(candidate, current, target):
            return ""
        violations = f", with {target.violated} pods of dependencies beyond maxNetworkCost" if target.violated else ""
        return f"its network cost would be {target.cost} instead of {current.cost}{violations}"

    def network_cost(self, candidate: Candidate, node: str) -> int:
        """Network cost of the candidate's pod on a node."""
        return self._score(candidate, node).cost

    def _pods_by_group(self) -> dict[str, list[PodInfo]]:
        """The active pods of each AppGroup, by key of the group; groups and pods are sorted by key."""
        pods_by_group: dict[str, list[PodInfo]] = defaultdict(list)
        for pod in self._builder.snapshot.pods.by_key.values():
            name = pod.labels.get(APPGROUP_LABEL, "")
            group = self._network.group_key_of(pod.namespace, name) if name and pod.is_active else ""
            if group:
                pods_by_group[group].append(pod)
        return {group: sorted(pods, key=lambda pod: pod.key) for group, pods in sorted(pods_by_group.items())}

    def _find_candidate(self, pod: PodInfo) -> Candidate | None:
        """The pod's candidate, by the first strategy that finds a target.

        None if no strategy does, if the pod does not run on a known node, or if it moves already.
        """
        if pod.node not in self._network.location_index or not pod.is_running or pod.uid in self._builder.moves_by_uid:
            return None
        requests = {resource: float(amount) for resource, amount in pod.requests.items()}
        usage = requests | self._builder.snapshot.usage_of(pod, pod.requests)
        for strategy in MISPLACEMENT_STRATEGIES:
            candidate = Candidate(pod, strategy, usage)
            self._assign_target(candidate)
            if candidate.target:
                return candidate
        return None

    def _load_order(self, node: Host) -> tuple[float, str]:
        """Sort key: the least loaded node first."""
        load = self._loads_by_node.get(node.name)
        return load.mean_percent if load is not None else 0.0, node.name

    def _gain_order(self, candidate: Candidate) -> tuple[int, int, str]:
        """Sort key: the most violations ended first, then the greatest gain of cost."""
        current, target = self._score(candidate, candidate.pod.node), self._score(candidate, candidate.target)
        return target.violated - current.violated, target.cost - current.cost, candidate.pod.key

    def _score_table(self, candidate: Candidate) -> ScoreTable | None:
        """The pod's scores on all nodes; None if the strategy does not apply to the pod."""
        table = self._builder.snapshot.score_table_of(candidate.pod)
        if candidate.strategy == "NetworkMisplacement":
            return None if table.neutral_reason else table
        if not self._forbidden_zone(candidate):
            return None
        # Without scores all nodes are equal, so ZoneSurvival may use any node in another zone.
        return ScoreTable("", [NodeScore()] * len(self._network.locations)) if table.neutral_reason else table

    def _score(self, candidate: Candidate, node: str) -> NodeScore:
        """The pod's score on a node."""
        table = self._score_table(candidate)
        assert table is not None, "a candidate's strategy applies to its pod"
        return table.node_score(node, self._network.location_index[node])

    def _forbidden_zone(self, candidate: Candidate) -> str:
        """The zone that the pod must not move to; empty if there is none, or if the workload need not survive the loss of a zone.

        ZoneSurvival: the zone of all replicas, if there is one.
        NetworkMisplacement: the zone of all other replicas, if there is one, and this replica is in another.
        """
        pod = candidate.pod
        zones = self._replicas_by_zone(pod)
        if candidate.strategy == "NetworkMisplacement":
            index = self._network.location_index.get(pod.node)
            if index is None or len(zones) < 2:
                return ""
            zones = zones - Counter({self._network.locations[index]: 1})
        return next(iter(zones)).zone if len(zones) == 1 else ""

    def _replicas_by_zone(self, pod: PodInfo) -> Counter[Location]:
        """Number of the workload's replicas by zone; empty unless the workload should survive the loss of a zone."""
        group = self._builder.snapshot.group_key_of(pod)
        if group not in self._network.groups:
            return Counter()
        if group not in self._zones_by_group:
            self._zones_by_group[group] = copy_placed_group(self._network, group).replicas_of_zone_spreads()
        return self._zones_by_group[group].get(pod.labels.get(WORKLOAD_LABEL, ""), Counter())

    def _is_gain(self, candidate: Candidate, current: NodeScore, target: NodeScore) -> bool:
        """Whether a move is a gain: the filter passes the target, which violates no more dependencies.

        In NetworkMisplacement, all costs are also known, and the target violates fewer dependencies at no higher cost, or lowers the
        cost by `misplacement.margin` and by `MIN_GAIN_SHARE`.
        """
        if not target.passes or target.violated > current.violated:
            return False
        if candidate.strategy == "ZoneSurvival":
            return True
        # The cost of an unmeasured pair is a guess, which is enough for a score but not for an eviction.
        if current.unknown or target.unknown:
            return False
        gain = current.cost - target.cost
        if target.violated < current.violated and gain >= 0:
            return True
        return gain > 0 and gain >= max(self._config.margin, MIN_GAIN_SHARE * current.cost)

    def _assign_target(self, candidate: Candidate) -> None:
        """Set the candidate's target, the node with the best score that can take the pod, or its fit failure."""
        candidate.target, candidate.fit_failure = "", "no better node can take it"
        pod, table = candidate.pod, self._score_table(candidate)
        if table is None:
            return
        current, forbidden_zone = self._score(candidate, pod.node), self._forbidden_zone(candidate)
        better = [entry for entry in self._scored_nodes(table) if self._is_gain(candidate, current, entry.score)]
        for entry in sorted(better, key=lambda entry: (entry.score.violated, entry.score.cost)):
            for node in entry.nodes:
                if node.name != pod.node and not self._misfit_reason(candidate, node, forbidden_zone):
                    candidate.target, candidate.fit_failure = node.name, ""
                    return

    def _scored_nodes(self, table: ScoreTable) -> Iterator[ScoredNodes]:
        """All scores of a table: first those of single nodes, then those of locations."""
        for name, score in sorted(table.by_node.items()):
            node = self._builder.snapshot.nodes.get(name)
            if node is not None and node.accepts_pods:
                yield ScoredNodes(score, (node,))
        for index, score in enumerate(table.by_location):
            yield ScoredNodes(score, (n for n in self._nodes_by_location.get(index, ()) if n.name not in table.by_node))

    def _misfit_reason(self, candidate: Candidate, node: Host, forbidden_zone: str) -> str:
        """Why a node cannot take the pod; empty if it can. A forbidden zone also excludes nodes without a zone."""
        if forbidden_zone and node.location.zone in {forbidden_zone, ""}:
            replicas = f"all other replicas of its workload are in zone {forbidden_zone}"
            return f"{replicas}, and it should survive the loss of a zone"
        pod, load = candidate.pod, self._loads_by_node.get(node.name)
        usage = self._builder.snapshot.usage_of(pod, load.usage if load is not None else ())
        return self._builder.misfit_reason(pod, node, load, usage)

    def _try_move(self, candidate: Candidate, pods: Sequence[PodInfo]) -> None:
        """Add the candidate's move to the plan, if it meets all conditions; ``pods`` are those of its AppGroup."""
        builder, pod = self._builder, candidate.pod
        group = builder.snapshot.group_key_of(pod)
        ready_count = sum(p.is_ready and p.uid not in builder.moves_by_uid for p in pods)
        required_count = max(len(pods), self._network.groups[group].spec.num_members)
        if ready_count < required_count:
            name = pod.labels[APPGROUP_LABEL]
            candidate.readiness_failure = f"{ready_count} of {required_count} pods of AppGroup {name} are ready"
        failed = report_first_failure(builder, candidate, (*POD_CONDITIONS, *MOVE_CONDITIONS))
        if failed is None:
            # Moves planned since the target was found may have used its capacity.
            self._assign_target(candidate)
            failed = report_first_failure(builder, candidate, (NODE_FIT,))
        if failed is not None:
            return
        current, target = self._score(candidate, pod.node), self._score(candidate, candidate.target)
        if candidate.strategy == "NetworkMisplacement":
            reason = describe_misplacement(current, target)
        else:
            zone = self._forbidden_zone(candidate)
            reason = f"all replicas of its workload are in zone {zone}, and it should survive the loss of a zone"
        move = builder.make_move(candidate, reason)
        move = msgspec.structs.replace(
            move, cost_before=current.cost, cost_after=target.cost, violated_before=current.violated
        )
        builder.add_move(candidate, PendingMove(move, builder.now))


def describe_misplacement(current: NodeScore, target: NodeScore) -> str:
    """The reason of NetworkMisplacement's move, for users: ``pod is misplaced, network cost(120)>elsewhere(21)``."""
    comparison = ">" if current.cost > target.cost else "="
    text = f"pod is misplaced, network cost({current.cost}){comparison}elsewhere({target.cost})"
    if current.violated > target.violated:
        text += f", pods of dependencies beyond maxNetworkCost({current.violated})>elsewhere({target.violated})"
    return text
