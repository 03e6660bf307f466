"""NetworkMisplacement and ZoneSurvival: chooses pods of AppGroups that are better placed elsewhere, by the scheduler's score.

The extender and this rule score by the same code, so a pod is never moved to where the scheduler would not put it. One pod of a
group at a time, only while the group is complete, and only for a gain that has lasted.

Workloads that are to survive a zone and are wholly in one are misplaced as well (ZoneSurvival): one replica goes to another zone
once there is one. NetworkMisplacement never moves a replica to the zone that holds all others of such a workload, so the two do
not undo each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from weakref import proxy

from controller.cluster.costs import Location
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.descheduler.conditions import MOVE_CONDITIONS, POD_CONDITIONS, REASON_CONDITIONS, check
from controller.descheduler.config import Strategy
from controller.descheduler.history import PendingMove
from controller.descheduler.node_load import NodeLoad, usage_of
from controller.descheduler.round import Candidate, MoveStrategy, Round, workload_of
from controller.descheduler.round_plan import Move
from controller.scheduler.balance import placed_group, replicas_by_zone
from controller.scheduler.rules import NodeScore, ScoreTable

MIN_GAIN = 0.2
"""Least gain, as a share of the present cost."""
STRATEGIES: tuple[Strategy, ...] = ("ZoneSurvival", "NetworkMisplacement")
"""Survival comes before cost."""


class MisplacementRound(MoveStrategy):
    """One round over all AppGroups.

    Args:
        base: the round.
        loads: of nodes by name as LowNodeLoad has them, empty where it is off: a node that is over, or would be, is no target.
    """

    def __init__(self, base: Round, loads: Mapping[str, NodeLoad]) -> None:
        self._base, self._loads = base, loads
        self._network = network = base.snapshot.network
        self._config = base.settings.misplacement
        self._zones: dict[str, Mapping[str, Counter[Location]]] = {}
        self._nodes_of: dict[int, list[Host]] = defaultdict(list)
        for name, index in network.location_index.items():
            node = base.snapshot.nodes.get(name)
            if node is not None and node.takes_pods:
                self._nodes_of[index].append(node)
        for nodes in self._nodes_of.values():
            nodes.sort(key=lambda n: (loads[n.name].mean if n.name in loads else 0.0, n.name))

    def plan(self, better_since: Mapping[str, float], *, confirmed: bool) -> dict[str, float]:
        """Plan moves into the round.

        Args:
            better_since: uid -> time since which the pod has had a better node, from the last round.
            confirmed: skip the hold time.

        Returns:
            The updated times.
        """
        found: dict[str, float] = {}
        for pods in self._groups():
            ranked = []
            for pod in pods.values():
                candidate = self._candidate(pod)
                if candidate is None:
                    continue
                found[pod.uid] = better_since.get(pod.uid, self._base.now)
                lasted_s, hold_s = self._base.now - found[pod.uid], self._config.hold_s
                if not confirmed and lasted_s < hold_s:
                    candidate.waits = f"a better place has been there for {lasted_s:.0f} of {hold_s:g} s"
                if check(self._base, candidate, REASON_CONDITIONS) is None:
                    current, target = self._score(candidate, pod.node), self._score(candidate, candidate.target)
                    ranked.append((target.violated - current.violated, target.cost - current.cost, pod.key, candidate))
            for *_, candidate in sorted(ranked, key=lambda entry: entry[:3]):
                self._move(candidate, pods)
        return found

    def _groups(self) -> Iterator[Mapping[str, PodInfo]]:
        """Pods of each AppGroup that exists, by its key."""
        by_key: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        for key, pod in self._base.snapshot.pods.by_key.items():
            name = pod.labels.get(APPGROUP_LABEL, "")
            group = self._network.group_of(pod.namespace, name) if name and pod.is_active else ""
            if group:
                by_key[group][key] = pod
        for group in sorted(by_key):
            yield dict(sorted(by_key[group].items()))

    def _candidate(self, pod: PodInfo) -> Candidate | None:
        """The pod with its target, if a better node takes it now."""
        if pod.node not in self._network.location_index or not pod.running or pod.uid in self._base.moves:
            return None
        requested = {resource: float(amount) for resource, amount in pod.requests.items()}
        used = requested | usage_of(pod, self._base.snapshot, pod.requests)
        for strategy in STRATEGIES:
            candidate = Candidate(pod, strategy, proxy(self), used)
            if not self.set_target_or_refusal(candidate):
                return candidate
        return None

    def _table(self, candidate: Candidate) -> ScoreTable | None:
        """Scores of all locations; None where the strategy has nothing to say about the pod."""
        table = self._base.snapshot.score_table_of(candidate.pod)
        if candidate.strategy == "NetworkMisplacement":
            return None if table.neutral else table
        if not self._forbidden_zone(candidate):
            return None
        return ScoreTable("", [NodeScore()] * len(self._network.locations)) if table.neutral else table

    def _score(self, candidate: Candidate, node: str) -> NodeScore:
        """The pod's score on a node."""
        table = self._table(candidate)
        assert table is not None, "a candidate has one"
        return table.node_score(node, self._network.location_index[node])

    def _forbidden_zone(self, candidate: Candidate) -> str:
        """The zone that must not receive the pod; empty if there is none, or if the workload need not span zones.

        It has all replicas of the workload (ZoneSurvival), or all but the pod (NetworkMisplacement).
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
        """Replicas of the pod's workload by zone; empty unless it should survive a zone."""
        group = self._base.snapshot.group_of(pod)
        if group not in self._network.groups:
            return Counter()
        if group not in self._zones:
            current = placed_group(self._network, group)
            self._zones[group] = {current.graph.selectors[w]: zones for w, zones in replicas_by_zone(current)}
        return self._zones[group].get(pod.labels.get(WORKLOAD_LABEL, ""), Counter())

    def _is_gain(self, candidate: Candidate, current: NodeScore, target: NodeScore) -> bool:
        """Whether the move is a gain: fewer violated dependencies at no higher cost, or a lower cost by both margins.

        Survival justifies any cost, but no further violated dependency.
        """
        if not target.passes or target.violated > current.violated:
            return False
        if candidate.strategy == "ZoneSurvival":
            return True
        # The cost of an unmeasured pair is good for scores, but no reason to move a pod.
        if current.unknown or target.unknown:
            return False
        gain = current.cost - target.cost
        if target.violated < current.violated and gain >= 0:
            return True
        return gain > 0 and gain >= max(self._config.margin, MIN_GAIN * current.cost)

    def set_target_or_refusal(self, candidate: Candidate) -> str:
        """See `MoveStrategy`: the node with fewest violated dependencies and then the lowest cost that is a gain and takes the pod."""
        pod, table = candidate.pod, self._table(candidate)
        if table is None:
            return "no node is better"
        current, zone = self._score(candidate, pod.node), self._forbidden_zone(candidate)
        scores: list[tuple[NodeScore, str | int]] = [*((score, name) for name, score in table.by_node.items())]
        scores += [(score, index) for index, score in enumerate(table.by_location)]
        for score, where in sorted(scores, key=lambda p: (p[0].violated, p[0].cost, isinstance(p[1], int), str(p[1]))):
            if not self._is_gain(candidate, current, score):
                continue
            if isinstance(where, int):
                nodes = [node for node in self._nodes_of.get(where, ()) if node.name not in table.by_node]
            else:
                nodes = [n for n in (self._base.snapshot.nodes.get(where),) if n is not None and n.takes_pods]
            for node in nodes:
                if node.name != pod.node and not self._refusal(candidate, node, zone):
                    candidate.target, candidate.cost = node.name, score.cost
                    return ""
        return "no better node takes it"

    def _refusal(self, candidate: Candidate, node: Host, zone: str) -> str:
        """Why a node does not take the pod; ``zone``, and nodes without one, are excluded."""
        fit, pod, load = self._base.fit, candidate.pod, self._loads.get(node.name)
        if zone and node.location.zone in {zone, ""}:
            return f"all other replicas of its workload are in zone {zone}, and it is to survive one"
        why = fit.static_refusal(node, pod)
        if not why and load is not None and load.kind != "unknown":
            used = usage_of(pod, self._base.snapshot, load.used)
            why = load.overload(used, self._base.arriving.get(node.name, {}))
        return why or fit.dynamic_refusal(node, pod)

    def objection(self, candidate: Candidate, node: Host) -> str:
        """See `MoveStrategy`."""
        if node.name not in self._network.location_index or self._table(candidate) is None:
            return "its location is not known"
        why = self._refusal(candidate, node, self._forbidden_zone(candidate))
        current, target = self._score(candidate, candidate.pod.node), self._score(candidate, node.name)
        if not why and not self._is_gain(candidate, current, target):
            return f"its network cost there is {target.cost}, and {current.cost} here"
        candidate.cost = target.cost
        return why

    def _move(self, candidate: Candidate, pods: Mapping[str, PodInfo]) -> None:
        """Plan one move, if all conditions hold."""
        base, pod = self._base, candidate.pod
        group = base.snapshot.group_of(pod)
        ready = sum(1 for p in pods.values() if p.ready and p.uid not in base.moves)
        wanted = max(len(pods), self._network.groups[group].spec.num_members)
        candidate.group = ready, wanted, pod.labels[APPGROUP_LABEL]
        if check(base, candidate, POD_CONDITIONS) or check(base, candidate, MOVE_CONDITIONS):
            return
        current, target = self._score(candidate, pod.node), self._score(candidate, candidate.target)
        reason = describe_misplacement(current, target)
        if candidate.strategy == "ZoneSurvival":
            reason = (
                f"all replicas of its workload are in zone {self._forbidden_zone(candidate)}, and it is to survive one"
            )
        move = Move(
            pod=pod.key,
            uid=pod.uid,
            workload=workload_of(pod),
            node=pod.node,
            target=candidate.target,
            strategy=candidate.strategy,
            reason=reason,
            used=candidate.used,
            cost_before=current.cost,
            cost_after=candidate.cost,
            group=group,
        )
        base.add(candidate, PendingMove(move, base.now))


def describe_misplacement(current: NodeScore, target: NodeScore) -> str:
    """Why, in the form that load reasons have: ``pod is misplaced, network cost(120)>elsewhere(21)``."""
    text = f"pod is misplaced, network cost({current.cost})>elsewhere({target.cost})"
    if current.cost <= target.cost:
        text = f"pod is misplaced, network cost({current.cost}), elsewhere({target.cost})"
    if current.violated > target.violated:
        text += f", dependencies beyond maxNetworkCost({current.violated})>elsewhere({target.violated})"
    return text
