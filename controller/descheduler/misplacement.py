"""Network misplacement: pods of AppGroups that have moved away from their peers, or whose peers have, by the scheduler's own score.

The extender and this rule tally by the same code, so a pod is never moved to where the scheduler would not
put it. One pod of a group at a time, only while the group is whole, and only for a gain that has lasted.

Workloads that are to survive a zone and are wholly in one are misplaced as well: one replica goes to another zone once there is one.
So it is after an outage: what ran in the zone that was lost has found its place in the others, and nothing but this rule would bring
any of it back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from controller.cluster.costs import Location
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.descheduler.classify import Load, protection_of, usage_of
from controller.descheduler.config import Strategy
from controller.descheduler.decision import Move
from controller.descheduler.memory import Followed
from controller.descheduler.round import MISPLACEMENT, Round, workload_of
from controller.scheduler.balance import placed_group, replicas_by_zone
from controller.scheduler.rules import PlaceScore, ScoreTable
from controller.scheduler.state import State


class OneZone:
    """The workloads of one round that are to survive a zone, by group.

    Args:
        network: the scheduler's view.
    """

    def __init__(self, network: State) -> None:
        self._network = network
        self._known: dict[str, Mapping[str, Counter[Location]]] = {}

    def of(self, pod: PodInfo) -> str:
        """The zone that holds all replicas of a pod's workload though it is to survive one; else empty."""
        zones = self._zones(pod)
        return next(iter(zones)).zone if len(zones) == 1 else ""

    def of_the_others(self, pod: PodInfo) -> str:
        """The zone that holds all other replicas: were the pod there too, its workload would survive no zone; else empty."""
        zones = self._zones(pod)
        place = self._network.place_of.get(pod.node)
        if place is None or len(zones) < 2:
            return ""
        others = zones - Counter({self._network.places[place]: 1})
        return next(iter(others)).zone if len(others) == 1 else ""

    def _zones(self, pod: PodInfo) -> Counter[Location]:
        """How many replicas of its workload are where; none of one that is not to survive a zone."""
        group = self._network.group_of(pod.namespace, pod.labels.get(APPGROUP_LABEL, ""))
        if not group:
            return Counter()
        if group not in self._known:
            current = placed_group(self._network, group)
            self._known[group] = {current.graph.selectors[w]: zones for w, zones in replicas_by_zone(current)}
        return self._known[group].get(pod.labels.get(WORKLOAD_LABEL, ""), Counter())

    def places(self, zone: str) -> frozenset[int]:
        """Where such a pod is not to go: this zone, and nodes without one; nowhere without a zone."""
        if not zone:
            return frozenset()
        return frozenset(place for place, location in enumerate(self._network.places) if location.zone in {zone, ""})

    def weigh(self, score_table: ScoreTable) -> ScoreTable:
        """The same, with every place as good as another where the pod talks to nobody."""
        return ScoreTable("", [PlaceScore()] * len(self._network.places)) if score_table.neutral else score_table


def keeps_limits(now: PlaceScore, there: PlaceScore) -> bool:
    """Whether no more dependencies would be beyond their maxNetworkCost: survival is worth the way, and not more."""
    return there.passes and there.violated <= now.violated


def describe_one_zone(zone: str) -> str:
    """Why, for people."""
    return f"all replicas of its workload are in zone {zone}, and it is to survive one"


IsGain = Callable[[PlaceScore, PlaceScore], bool]
"""Tells whether the second tally is enough of a gain over the first."""


class Candidate(NamedTuple):
    """A pod that would be better off elsewhere, as far as the network is concerned.

    Attributes:
        now: how it fares where it is.
        score_table: how it would fare anywhere.
        alone: the zone that all of its workload is in though it is to survive one; empty when it is not that.
    """

    pod: PodInfo
    now: PlaceScore
    score_table: ScoreTable
    alone: str = ""


class MisplacementRound:
    """One round over all AppGroups.

    Args:
        base: the round.
        network: the scheduler's view of groups and costs.
        loads: nodes as LowNodeLoad judged them, empty where it is off: hot nodes are no places to go.
    """

    def __init__(self, base: Round, network: State, loads: Iterable[Load]) -> None:
        self._base, self._network = base, network
        self._config = base.settings.misplacement
        self._hosts = Hosts(base, network, {load.node.name: load for load in loads})
        self._one_zone = OneZone(network)

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
        why = self._base.trust.against_pool(MISPLACEMENT)
        if why:
            self._base.note(why)
            return found
        for pods in self._groups():
            candidates = [c for pod in pods.values() if (c := self._candidate(pod)) is not None]
            for candidate in candidates:
                uid = candidate.pod.uid
                found[uid] = better_since.get(uid, self._base.now)
            hold_s = 0.0 if confirmed else self._config.hold_s
            ripe = [c for c in candidates if self._base.now - found[c.pod.uid] >= hold_s or self._follows(c)]
            for candidate in candidates:
                if candidate not in ripe:
                    lasted_s = self._base.now - found[candidate.pod.uid]
                    text = f"a better place has been there for {lasted_s:.0f} of {hold_s:g} s"
                    self._base.skip(candidate.pod, "not-lasting", text)
            chosen = [c for c in ripe if c.alone or not survival_only]
            self._plan_group(pods, sorted(chosen, key=self._rank))
        return found

    def _follows(self, candidate: Candidate) -> bool:
        """Whether its group has begun to fill the other zones, which have been there for long enough then.

        A pod that may be no further than so from its peers can go only after them: each step of such a chain would wait anew.
        """
        moves = self._base.memory.follows
        group = self._base.snapshot.group_of(candidate.pod)
        return bool(candidate.alone) and any(m.strategy == "ZoneSurvival" and m.group == group for m in moves)

    def _groups(self) -> Iterator[Mapping[str, PodInfo]]:
        """Pods of each AppGroup that exists, by its key."""
        by_key: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        for name, pods in self._base.snapshot.pods.groups.items():
            for key, pod in pods.items():
                group = self._network.group_of(pod.namespace, name)
                if group and not pod.going:
                    by_key[group][key] = pod
        for group in sorted(by_key):
            yield dict(sorted(by_key[group].items()))

    def _candidate(self, pod: PodInfo) -> Candidate | None:
        place = self._network.place_of.get(pod.node)
        if place is None or not pod.running or pod.key in self._base.taken:
            return None
        score_table = self._base.snapshot.score_table_of(pod)
        if score_table is None:
            return None
        alone = self._one_zone.of(pod)
        if alone:
            score_table = self._one_zone.weigh(score_table)
            candidate = Candidate(pod, score_table.place_score(pod.node, place), score_table, alone)
            if self._best(candidate) is not None:
                return candidate
        if score_table.neutral:
            return None
        candidate = Candidate(pod, score_table.place_score(pod.node, place), score_table)
        return None if self._best(candidate) is None else candidate

    def _best(self, candidate: Candidate) -> tuple[Host, PlaceScore] | None:
        if candidate.alone:
            return self._hosts.best(candidate, keeps_limits, self._one_zone.places(candidate.alone))
        return self._hosts.best(
            candidate, self._is_gain, self._one_zone.places(self._one_zone.of_the_others(candidate.pod))
        )

    def _is_gain(self, now: PlaceScore, there: PlaceScore) -> bool:
        """Whether the move is worth it: fewer broken dependencies at no higher cost, or a gain beyond both margins."""
        # The cost of a pair that nobody has measured is a number for scores, and no reason to move a pod.
        if not there.passes or now.unknown or there.unknown:
            return False
        gain = now.cost - there.cost
        if there.violated < now.violated and gain >= 0:
            return True
        enough = max(self._config.margin, now.cost * self._config.margin_percent / 100.0)
        return gain > 0 and gain >= enough and there.violated <= now.violated

    def redirected(self, move: Move, pod: PodInfo, node: str) -> Move:
        """The move, told as one to this node."""
        there, cost = self._network.place_of.get(node), -1
        score_table = self._base.snapshot.score_table_of(pod)
        if there is not None and score_table is not None and not score_table.neutral:
            cost = score_table.place_score(node, there).cost
        return msgspec.structs.replace(move, target=node, cost_after=cost)

    def loss(self, pod: PodInfo, host: Host) -> str:
        """Why it would be no gain if a pod were on another node; empty when it would be one."""
        why = self._hosts.overload(host, pod)
        if why:
            return why
        network, node = self._network, host.name
        here, there = network.place_of.get(pod.node), network.place_of.get(node)
        if here is None or there is None:
            return "its place is not known"
        score_table = self._base.snapshot.score_table_of(pod)
        if score_table is None:
            return "a node of its peers is gone"
        alone, others = self._one_zone.of(pod), self._one_zone.of_the_others(pod)
        now, then = score_table.place_score(pod.node, here), score_table.place_score(node, there)
        if there in self._one_zone.places(others):
            why = f"all other replicas of its workload are in zone {others}, and it is to survive one"
        elif (not alone or there in self._one_zone.places(alone)) and (
            score_table.neutral or not self._is_gain(now, then)
        ):
            why = f"its network cost there is {then.cost}, and {now.cost} here"
        return why

    def _rank(self, candidate: Candidate) -> tuple[int, int, str]:
        best = self._best(candidate)
        assert best is not None, "candidates have a better place, and nothing was planned between"
        there = best[1]
        return there.violated - candidate.now.violated, there.cost - candidate.now.cost, candidate.pod.key

    def _plan_group(self, pods: Mapping[str, PodInfo], candidates: Iterable[Candidate]) -> None:
        base = self._base
        for candidate in candidates:
            pod = candidate.pod
            why = base.exhausted(1)
            if why:
                base.note(why)
                return
            kind, why = self._refusal(pod, pods)
            if kind:
                base.skip(pod, kind, why)
            elif not base.refuses(pod):
                best = self._best(candidate)
                if best is not None:
                    self._take(candidate, *best)

    def _refusal(self, pod: PodInfo, pods: Mapping[str, PodInfo]) -> tuple[str, str]:
        base = self._base
        kind, why = protection_of(pod, base.settings.protection)
        load = base.settings.load
        if not kind and load is not None and not load.admits_namespace(pod.namespace):
            return "namespace", f"namespace {pod.namespace} is not evictable"
        full = base.limits.node_full(pod.node)
        if not kind and full:
            return "node-limit", full
        if not kind:
            missing = self._missing(pods)
            return ("group-not-whole", missing) if missing else ("", "")
        return kind, why

    def _missing(self, pods: Mapping[str, PodInfo]) -> str:
        """Why a group may not lose a pod even for a moment; empty when it may."""
        first = next(iter(pods.values()))
        name = first.labels[APPGROUP_LABEL]
        ready = sum(1 for p in pods.values() if p.ready and p.key not in self._base.taken)
        wanted = self._network.groups[self._network.group_of(first.namespace, name)].spec.num_members
        if ready < max(len(pods), wanted):
            return f"{ready} of {max(len(pods), wanted)} pods of AppGroup {name} are ready"
        return ""

    def _take(self, candidate: Candidate, target: Host, there: PlaceScore) -> None:
        base, pod, now = self._base, candidate.pod, candidate.now
        reason = describe_one_zone(candidate.alone) if candidate.alone else describe_misplacement(now, there)
        strategy: Strategy = "ZoneSurvival" if candidate.alone else "NetworkMisplacement"
        requested = {resource: float(amount) for resource, amount in pod.requests.items()}
        used = requested | usage_of(pod, base.snapshot, pod.requests)
        move = Move(
            pod=pod.key,
            uid=pod.uid,
            workload=workload_of(pod),
            node=pod.node,
            target=target.name,
            strategy=strategy,
            reason=reason,
            used=used,
            cost_before=now.cost,
            cost_after=there.cost,
            group=base.snapshot.group_of(pod),
        )
        follow = Followed(
            pod=pod.key,
            uid=pod.uid,
            workload=move.workload,
            node=pod.node,
            at_s=base.now,
            strategy=strategy,
            target=target.name,
            pool=MISPLACEMENT,
            group=move.group,
            used=used,
            cost_before=now.cost,
        )
        base.take(pod, move, follow)


def describe_misplacement(now: PlaceScore, there: PlaceScore) -> str:
    """Why, in the form that load reasons have: ``pod is misplaced, network cost(120)>elsewhere(21)``."""
    text = f"pod is misplaced, network cost({now.cost})>elsewhere({there.cost})"
    if now.cost <= there.cost:
        text = f"pod is misplaced, network cost({now.cost}), elsewhere({there.cost})"
    if now.violated > there.violated:
        text += f", dependencies beyond maxNetworkCost({now.violated})>elsewhere({there.violated})"
    return text


class Hosts:
    """Nodes by place, asked for the cheapest that takes a pod now.

    Args:
        base: the round, for what is planned to arrive where.
        network: names and places of nodes.
        loads: by node; a node that is over, or would be, takes nothing.
    """

    def __init__(self, base: Round, network: State, loads: Mapping[str, Load]) -> None:
        self._base, self._network, self._loads = base, network, loads
        self._by_place: dict[int, list[Host]] = defaultdict(list)
        for name, place in network.place_of.items():
            node = base.snapshot.nodes.get(name)
            if node is not None and node.takes_pods:
                self._by_place[place].append(node)
        for nodes in self._by_place.values():
            nodes.sort(key=lambda node: (self._load_of(node.name), node.name))

    def _load_of(self, name: str) -> float:
        load = self._loads.get(name)
        return load.load if load is not None else 0.0

    def best(
        self, candidate: Candidate, is_gain: IsGain, shunned: frozenset[int] = frozenset()
    ) -> tuple[Host, PlaceScore] | None:
        """The node with fewest broken dependencies and then the lowest cost, among those that are a gain and take the pod.

        ``shunned`` are places where it is not to go.
        """
        place_of = self._network.place_of
        score_table, now = candidate.score_table, candidate.now
        special = [
            (place_score, name)
            for name, place_score in score_table.by_node.items()
            if name != candidate.pod.node and place_of.get(name) not in shunned and is_gain(now, place_score)
        ]
        general = [
            (place_score, place)
            for place, place_score in enumerate(score_table.by_class)
            if place not in shunned and is_gain(now, place_score)
        ]
        ways: list[tuple[PlaceScore, str | int]] = [*special, *general]
        ways.sort(key=lambda way: (way[0].violated, way[0].cost, isinstance(way[1], int), str(way[1])))
        for place_score, where in ways:
            if isinstance(where, str):
                node = self._base.snapshot.nodes.get(where)
                nodes = [node] if node is not None and node.takes_pods else []
            else:
                nodes = [n for n in self._by_place.get(where, ()) if n.name not in score_table.by_node]
            for node in nodes:
                if node.name != candidate.pod.node and not self._refusal(node, candidate.pod):
                    return node, place_score
        return None

    def _refusal(self, node: Host, pod: PodInfo) -> str:
        return self._base.fit.bars(node, pod) or self.overload(node, pod) or self._base.fit.crowds(node, pod)

    def overload(self, node: Host, pod: PodInfo) -> str:
        """Which usage would be above its threshold there, with what is planned to arrive; empty when none would."""
        load = self._loads.get(node.name)
        if load is None or load.kind == "unknown":
            return ""
        used = usage_of(pod, self._base.snapshot, load.used)
        arriving: Mapping[str, float] = self._base.arriving.get(node.name, {})
        for resource in load.thresholds.high:
            if resource in load.used:
                total = load.used[resource] + used.get(resource, 0.0) + arriving.get(resource, 0.0)
                if total > load.limit(resource):
                    return f"{resource} usage would exceed the high threshold"
        return ""
