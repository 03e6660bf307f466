"""NetworkMisplacement and ZoneSurvival: chooses pods of AppGroups that are better placed elsewhere, by the scheduler's score.

The extender and this rule score by the same code, so a pod is never moved to where the scheduler would not put it. One pod of a
group at a time, only while the group is complete, and only for a gain that has lasted.

Workloads that are to survive a zone and are wholly in one are misplaced as well (ZoneSurvival): one replica goes to another zone
once there is one. NetworkMisplacement never moves a replica to the zone that holds all others of such a workload, so the two do
not undo each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from controller.cluster.costs import Location
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.descheduler.conditions import (
    MOVE_CONDITIONS,
    POD_CONDITIONS,
    REASON_CONDITIONS,
    Candidate,
    TargetFinder,
    check,
)
from controller.descheduler.history import PendingMove
from controller.descheduler.node_load import NodeLoad, usage_of
from controller.descheduler.round import Round, workload_of
from controller.descheduler.round_plan import Move
from controller.scheduler.balance import placed_group, replicas_by_zone
from controller.scheduler.rules import PlaceScore, ScoreTable
from controller.scheduler.state import State

MIN_GAIN = 0.2
"""Of the cost that a pod has now, the least gain that justifies its move."""
IsGain = Callable[[PlaceScore, PlaceScore], bool]
"""Tells whether the second score is enough of a gain over the first."""


class SingleZoneWorkloads:
    """The workloads of one round that are to survive a zone, by group.

    Args:
        network: the scheduler's view.
    """

    def __init__(self, network: State) -> None:
        self._network = network
        self._known: dict[str, Mapping[str, Counter[Location]]] = {}

    def zone_of_all(self, pod: PodInfo) -> str:
        """The zone that holds all replicas of a pod's workload though it is to survive one; else empty."""
        zones = self._zones(pod)
        return next(iter(zones)).zone if len(zones) == 1 else ""

    def zone_of_others(self, pod: PodInfo) -> str:
        """The zone that holds all other replicas: were the pod there too, its workload would survive no zone; else empty."""
        zones = self._zones(pod)
        place = self._network.place_of.get(pod.node)
        if place is None or len(zones) < 2:
            return ""
        others = zones - Counter({self._network.places[place]: 1})
        return next(iter(others)).zone if len(others) == 1 else ""

    def _zones(self, pod: PodInfo) -> Counter[Location]:
        """Replicas of the pod's workload by zone; empty unless it should survive a zone."""
        group = self._network.group_of(pod.namespace, pod.labels.get(APPGROUP_LABEL, ""))
        if not group:
            return Counter()
        if group not in self._known:
            current = placed_group(self._network, group)
            self._known[group] = {current.graph.selectors[w]: zones for w, zones in replicas_by_zone(current)}
        return self._known[group].get(pod.labels.get(WORKLOAD_LABEL, ""), Counter())

    def excluded_places(self, zone: str) -> frozenset[int]:
        """Places of a zone, and of nodes without one; none without a zone."""
        if not zone:
            return frozenset()
        return frozenset(place for place, location in enumerate(self._network.places) if location.zone in {zone, ""})

    def score(self, score_table: ScoreTable) -> ScoreTable:
        """Score places; all are equal for a pod without dependencies."""
        return ScoreTable("", [PlaceScore()] * len(self._network.places)) if score_table.neutral else score_table


def keeps_limits(now: PlaceScore, there: PlaceScore) -> bool:
    """Whether no more dependencies would be above their maxNetworkCost, which survival does not justify."""
    return there.passes and there.violated <= now.violated


class MisplacementRound(TargetFinder):
    """One round over all AppGroups.

    Args:
        base: the round.
        loads: of nodes as LowNodeLoad has them, empty where it is off: a node that is over, or would be, is no target.
    """

    def __init__(self, base: Round, loads: Iterable[NodeLoad]) -> None:
        self._base = base
        self._network = network = base.snapshot.network
        self._config = base.settings.misplacement
        self._loads = {load.name: load for load in loads}
        self._single_zone = SingleZoneWorkloads(network)
        self._now: dict[str, tuple[PlaceScore, ScoreTable]] = {}
        self._nodes_of: dict[int, list[Host]] = defaultdict(list)
        for name, place in network.place_of.items():
            node = base.snapshot.nodes.get(name)
            if node is not None and node.takes_pods:
                self._nodes_of[place].append(node)
        for nodes in self._nodes_of.values():
            nodes.sort(key=lambda n: (self._loads[n.name].mean if n.name in self._loads else 0.0, n.name))

    def plan(
        self, better_since: Mapping[str, float], *, confirmed: bool, survival_only: bool = False
    ) -> dict[str, float]:
        """Plan moves into the round.

        Args:
            better_since: uid -> since when a better place has been there, as the last round left it.
            confirmed: take every gain for one that has lasted.
            survival_only: only what brings a workload out of its one zone.

        Returns:
            The same after this round.
        """
        found: dict[str, float] = {}
        for pods in self._groups():
            candidates = [c for pod in pods.values() if (c := self._candidate(pod)) is not None]
            for candidate in candidates:
                uid = candidate.pod.uid
                found[uid] = better_since.get(uid, self._base.now)
                lasted_s, hold_s = self._base.now - found[uid], self._config.hold_s
                if not confirmed and lasted_s < hold_s and not self._continues(candidate):
                    candidate.waits = f"a better place has been there for {lasted_s:.0f} of {hold_s:g} s"
            lasting = [c for c in candidates if check(self._base, c, REASON_CONDITIONS) is None]
            for _, candidate in sorted((self._rank(c), c) for c in lasting):
                if candidate.strategy == "ZoneSurvival" or not survival_only:
                    self._move(candidate, pods)
        return found

    def _continues(self, candidate: Candidate) -> bool:
        """Whether its group has begun to fill the other zones, which have been there for long enough then.

        A pod with a maxNetworkCost can go only after its peers, so each step of such a chain would wait again.
        """
        moves = (pending.move for pending in self._base.history.pending)
        group = self._base.snapshot.group_of(candidate.pod)
        begun = any(m.strategy == "ZoneSurvival" and m.group == group for m in moves)
        return candidate.strategy == "ZoneSurvival" and begun

    def _groups(self) -> Iterator[Mapping[str, PodInfo]]:
        """Pods of each AppGroup that exists, by its key."""
        by_key: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        for name, pods in self._base.snapshot.pods.groups.items():
            for key, pod in pods.items():
                group = self._network.group_of(pod.namespace, name)
                if group and pod.is_active:
                    by_key[group][key] = pod
        for group in sorted(by_key):
            yield dict(sorted(by_key[group].items()))

    def _candidate(self, pod: PodInfo) -> Candidate | None:
        """The pod, if a better node takes it now; survival comes before cost."""
        place = self._network.place_of.get(pod.node)
        if place is None or not pod.running or pod.key in self._base.planned:
            return None
        score_table = self._base.snapshot.score_table_of(pod)
        if score_table is None:
            return None
        requested = {resource: float(amount) for resource, amount in pod.requests.items()}
        used = requested | usage_of(pod, self._base.snapshot, pod.requests)
        if self._single_zone.zone_of_all(pod):
            score_table = self._single_zone.score(score_table)
            self._now[pod.uid] = score_table.place_score(pod.node, place), score_table
            candidate = Candidate(pod, "ZoneSurvival", self, used)
            if self._best(candidate) is not None:
                return candidate
        if score_table.neutral:
            return None
        self._now[pod.uid] = score_table.place_score(pod.node, place), score_table
        candidate = Candidate(pod, "NetworkMisplacement", self, used)
        return None if self._best(candidate) is None else candidate

    def _best(self, candidate: Candidate) -> tuple[Host, PlaceScore] | None:
        """The node with fewest broken dependencies and then the lowest cost, among those that are a gain and take the pod."""
        pod, zones = candidate.pod, self._single_zone
        survival = candidate.strategy == "ZoneSurvival"
        is_gain: IsGain = keeps_limits if survival else self._is_gain
        excluded = zones.excluded_places(zones.zone_of_all(pod) if survival else zones.zone_of_others(pod))
        now, score_table = self._now[pod.uid]
        places: list[tuple[PlaceScore, str | int]] = [
            (score, name)
            for name, score in score_table.by_node.items()
            if self._network.place_of.get(name) not in excluded and is_gain(now, score)
        ]
        places += [
            (score, place)
            for place, score in enumerate(score_table.by_place)
            if place not in excluded and is_gain(now, score)
        ]
        for score, where in sorted(places, key=lambda p: (p[0].violated, p[0].cost, isinstance(p[1], int), str(p[1]))):
            if isinstance(where, int):
                nodes = [node for node in self._nodes_of.get(where, ()) if node.name not in score_table.by_node]
            else:
                nodes = [n for n in (self._base.snapshot.nodes.get(where),) if n is not None and n.takes_pods]
            for node in nodes:
                if node.name != pod.node and not self._refusal(node, pod):
                    return node, score
        return None

    def _refusal(self, node: Host, pod: PodInfo) -> str:
        fit = self._base.fit
        return fit.static_refusal(node, pod) or self._overload(node, pod) or fit.dynamic_refusal(node, pod)

    def _overload(self, node: Host, pod: PodInfo) -> str:
        """Usage that would exceed its threshold there, with planned arrivals; empty if none would."""
        load = self._loads.get(node.name)
        if load is None or load.kind == "unknown":
            return ""
        used = usage_of(pod, self._base.snapshot, load.used)
        arriving: Mapping[str, float] = self._base.arriving.get(node.name, {})
        for resource, amount in load.used.items():
            if amount + used.get(resource, 0.0) + arriving.get(resource, 0.0) > load.limit(resource):
                return f"{resource} usage would exceed the high threshold"
        return ""

    def _is_gain(self, now: PlaceScore, there: PlaceScore) -> bool:
        """Whether the move is a gain: fewer violated dependencies at no higher cost, or a lower cost by both margins."""
        # The cost of an unmeasured pair is good for scores, but no reason to move a pod.
        if not there.passes or now.unknown or there.unknown:
            return False
        gain = now.cost - there.cost
        if there.violated < now.violated and gain >= 0:
            return True
        enough = max(self._config.margin, MIN_GAIN * now.cost)
        return gain > 0 and gain >= enough and there.violated <= now.violated

    def _rank(self, candidate: Candidate) -> tuple[int, int, str]:
        best, now = self._best(candidate), self._now[candidate.pod.uid][0]
        assert best is not None, "candidates have a better place, and nothing was planned between"
        return best[1].violated - now.violated, best[1].cost - now.cost, candidate.pod.key

    def _move(self, candidate: Candidate, pods: Mapping[str, PodInfo]) -> None:
        """Plan one move, if all conditions hold."""
        base, pod = self._base, candidate.pod
        name = pod.labels[APPGROUP_LABEL]
        ready = sum(1 for p in pods.values() if p.ready and p.key not in base.planned)
        wanted = self._network.groups[self._network.group_of(pod.namespace, name)].spec.num_members
        candidate.group = ready, max(len(pods), wanted), name
        if check(base, candidate, POD_CONDITIONS) or check(base, candidate, MOVE_CONDITIONS):
            return
        now, score_table = self._now[pod.uid]
        there = score_table.place_score(candidate.target, self._network.place_of[candidate.target])
        zone = self._single_zone.zone_of_all(pod) if candidate.strategy == "ZoneSurvival" else ""
        reason = f"all replicas of its workload are in zone {zone}, and it is to survive one"
        move = Move(
            pod=pod.key,
            uid=pod.uid,
            workload=workload_of(pod),
            node=pod.node,
            target=candidate.target,
            strategy=candidate.strategy,
            reason=reason if zone else describe_misplacement(now, there),
            used=candidate.used,
            cost_before=now.cost,
            cost_after=there.cost,
            group=base.snapshot.group_of(pod),
        )
        base.add(pod, PendingMove(move, base.now))

    def find_target(self, candidate: Candidate) -> str:
        """See `controller.descheduler.conditions.TargetFinder`."""
        best = self._best(candidate)
        candidate.target = best[0].name if best is not None else ""
        return "" if best is not None else "no better node takes it any more"

    def redirected(self, move: Move, pod: PodInfo, node: str) -> Move:
        """A withdrawn move, to this node."""
        there, cost = self._network.place_of.get(node), -1
        score_table = self._base.snapshot.score_table_of(pod)
        if there is not None and score_table is not None and not score_table.neutral:
            cost = score_table.place_score(node, there).cost
        return msgspec.structs.replace(move, target=node, cost_after=cost)

    def objection(self, _: Move, pod: PodInfo, node: Host) -> str:
        """Why it would be no gain if a withdrawn move went to this node; empty when it would be one."""
        why = "it is hot" if node.name in self._base.hot else self._overload(node, pod)
        if why:
            return why
        network, zones = self._network, self._single_zone
        here, there = network.place_of.get(pod.node), network.place_of.get(node.name)
        score_table = self._base.snapshot.score_table_of(pod)
        if here is None or there is None or score_table is None:
            return "its place is not known"
        alone, others = zones.zone_of_all(pod), zones.zone_of_others(pod)
        if there in zones.excluded_places(others):
            return f"all other replicas of its workload are in zone {others}, and it is to survive one"
        if alone and there not in zones.excluded_places(alone):
            return ""
        now, then = score_table.place_score(pod.node, here), score_table.place_score(node.name, there)
        if score_table.neutral or not self._is_gain(now, then):
            return f"its network cost there is {then.cost}, and {now.cost} here"
        return ""


def describe_misplacement(now: PlaceScore, there: PlaceScore) -> str:
    """Why, in the form that load reasons have: ``pod is misplaced, network cost(120)>elsewhere(21)``."""
    text = f"pod is misplaced, network cost({now.cost})>elsewhere({there.cost})"
    if now.cost <= there.cost:
        text = f"pod is misplaced, network cost({now.cost}), elsewhere({there.cost})"
    if now.violated > there.violated:
        text += f", dependencies beyond maxNetworkCost({now.violated})>elsewhere({there.violated})"
    return text
