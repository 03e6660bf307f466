"""Plans a whole group: a host for every waiting replica, so that calls spend as little time on the network as possible.

Scored pod by pod, the first replica of a group has no placed peer, so all nodes cost the same (docs/adr/0006). Here bound pods stay, and
all other replicas, also those that no pod exists for yet, are placed together. Objectives, in order: most replicas placed, fewest
violations of maxNetworkCost, least time of calls.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from controller.cluster.pods import GroupPod, Target
from controller.cluster.requests import Amounts, add_amounts, host_requests_of
from controller.cluster.services import Routing
from controller.scheduler.affinity import without_added_requirement
from controller.scheduler.placement.evaluation import evaluate
from controller.scheduler.placement.preferences import call_edges, objective_of, spread_of
from controller.scheduler.placement.problem import Ints, Problem
from controller.scheduler.placement.problem_builder import (
    BoundReplica,
    PlacementRequest,
    WaitingReplica,
    compile_problem,
    total_cost,
)
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.solve import solve
from controller.scheduler.placement.unplaced import why_unplaced
from kubekit.errors import KubekitError
from kubekit.owners import find_outdated_pods

DEADLINE_S = 20.0


class PlanningError(KubekitError):
    """A plan could not be made; ``reason`` is fit for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Plan(msgspec.Struct, frozen=True):
    """A target for each pod, and what could not be placed.

    Attributes:
        targets: pod key -> target, for pods that wait and fit somewhere; released ones included.
        cost: networkCost over all pairs once everything is placed, replicas to come included.
        violations: pairs of a caller and a replica that may answer it beyond their maxNetworkCost; all pairs in parity.
        latency_us: expected time of a call on the network.
        traffic: weight of the dependencies that have replicas at both ends.
        unplaced_reasons: waiting pod for which no place was found -> what every node lacks.
        problems: annotations that could not be read.
    """

    targets: Mapping[str, Target] = {}
    cost: int = 0
    violations: int = 0
    latency_us: float = 0.0
    traffic: float = 0.0
    unplaced_reasons: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()

    @property
    def unplaced(self) -> tuple[str, ...]:
        """Keys of waiting pods for which no place was found."""
        return tuple(self.unplaced_reasons)


def plan_group(snapshot: GroupSnapshot, *, deadline_s: float = DEADLINE_S) -> Plan:
    """Plan a group. The same snapshot gives the same plan, unless the deadline cuts the search short.

    Args:
        snapshot: the group and the cluster.
        deadline_s: the best placement by then is the plan, seconds.
    """
    return _GroupPlanner(snapshot).plan(deadline_s)


class _Placement(NamedTuple):
    """A placement found for a request.

    Attributes:
        request: the replicas to place.
        problem: its arrays.
        hints: [replica] preferred host or -1; None without any.
        at: [replica] host or -1.
    """

    request: PlacementRequest
    problem: Problem
    hints: Ints | None
    at: Ints

    def shortfall(self) -> tuple[int, int]:
        """Replicas without a place, and limits that are broken."""
        return int((self.at < 0).sum()), evaluate(self.problem, self.at).violations


class _GroupPlanner:
    """Converts a snapshot to a request, and the placement found to targets."""

    def __init__(self, snapshot: GroupSnapshot) -> None:
        self.snapshot = snapshot
        self.graph = snapshot.graph
        self._problems: list[str] = []
        self._released_targets: dict[str, Target] = {}
        self._outdated = find_outdated_pods(pod.metadata for pod in snapshot.pods if pod.is_active)
        self._models: list[GroupPod | None] = [None] * len(self.graph.workloads)
        self._bound: list[BoundReplica] = []
        self._vacated_nodes: list[list[str]] = [[] for _ in self.graph.workloads]
        self._extra_requests: dict[str, Amounts] = defaultdict(dict, {n: dict(a) for n, a in snapshot.reserved.items()})
        self._waiting = self._read_pods()

    def _read_pods(self) -> list[WaitingReplica]:
        """Record bound pods; returns the replicas to place."""
        snapshot, found = self.snapshot, list[WaitingReplica]()
        live: Counter[int] = Counter()
        position_of = {selector: i for i, selector in enumerate(self.graph.selectors)}
        # Pods of the current template first: they are the model for missing replicas.
        for pod in sorted(snapshot.pods, key=lambda p: (p.metadata.key in self._outdated, p.metadata.key)):
            position, key = position_of.get(pod.workload), pod.metadata.key
            if position is None or not pod.is_active:
                continue
            original = without_added_requirement(pod)
            self._models[position] = self._models[position] or original
            if self._record_leaving(pod, position):
                continue
            live[position] += 1
            if not self._record_bound(pod, position) and not pod.other_gates:
                refused = snapshot.refused_hosts.get(key, frozenset())
                found.append(WaitingReplica(key, position, original, snapshot.volumes.get(key, ()), refused))
        for position, selector in enumerate(self.graph.selectors):
            model = self._models[position] or GroupPod()
            missing = snapshot.replicas.get(selector, len(self._vacated_nodes[position])) - live[position]
            found += [WaitingReplica("", position, model, snapshot.volumes.get(selector, ()))] * missing
        return found

    def _record_leaving(self, pod: GroupPod, position: int) -> bool:
        """Record a bound pod that a rollout will replace: its requests are free for its successor, but its anti-affinity still counts.

        Returns:
            Whether it is one.
        """
        node = self._assigned_node(pod)
        if not node or pod.metadata.key not in self._outdated:
            return False
        self._bound.append(BoundReplica(node, -1, pod))
        self._vacated_nodes[position].append(node)
        if pod.metadata.key in self.snapshot.assigned_nodes:
            add_amounts(self._extra_requests[node], host_requests_of(pod.spec, pod.status), -1)
        return True

    def _assigned_node(self, pod: GroupPod) -> str:
        return pod.spec.node_name or self.snapshot.assigned_nodes.get(pod.metadata.key, "")

    def _record_bound(self, pod: GroupPod, position: int) -> bool:
        """Record a pod that is bound, or released with a target; returns whether it is one."""
        key, node = pod.metadata.key, self._assigned_node(pod)
        if not node:
            target = self.snapshot.released_targets.get(key)
            if target is None or target.node not in self.snapshot.hosts:
                return False
            self._released_targets[key], node = target, target.node
        self._bound.append(BoundReplica(node, position, pod))
        if key not in self.snapshot.assigned_nodes:
            add_amounts(self._extra_requests[node], host_requests_of(pod.spec, pod.status))
        return True

    def _request(self) -> PlacementRequest:
        snapshot, problems = self.snapshot, self._problems
        default = spread_of(snapshot.group.metadata.annotations, "soft", problems)
        counts = Counter([*(r.workload for r in self._waiting), *(r.workload for r in self._bound)])
        routings = [snapshot.routings.get(selector, Routing.ANY) for selector in self.graph.selectors]
        foreign = [BoundReplica(node, -1, other.pod) for other in snapshot.foreign for node in other.nodes.elements()]
        return PlacementRequest(
            snapshot=snapshot,
            waiting=self._waiting,
            bound=[*self._bound, *foreign],
            spreads=[
                spread_of(model.metadata.annotations, default, problems) if model is not None else default
                for model in self._models
            ],
            edges=call_edges(snapshot.group, self.graph, counts, routings, problems),
            extra_requests=self._extra_requests,
            objective=objective_of(snapshot.group, problems, priced=snapshot.prices is not None),
        )

    def plan(self, deadline_s: float) -> Plan:
        """Search for a placement, and assign its hosts to the pods."""
        request = self._request()
        found = self._search(request, time.monotonic() + deadline_s)
        targets, why = self._assign(found)
        without_place = [number for number, replica in enumerate(self._waiting) if replica.key in why]
        found.at[without_place] = -1
        evaluated = timing = evaluate(found.problem, found.at)
        if request.objective != "time":
            by_time = compile_problem(msgspec.structs.replace(request, objective="time"))
            timing = evaluate(by_time, found.at)
        return Plan(
            targets=targets,
            cost=total_cost(request, found.problem, found.at),
            violations=evaluated.violations,
            latency_us=timing.latency,
            traffic=timing.traffic,
            unplaced_reasons=why,
            problems=tuple(dict.fromkeys(self._problems)),
        )

    def _search(self, request: PlacementRequest, ends_at: float) -> _Placement:
        """The best placement found. Uses hot hosts only if that places more replicas or breaks fewer limits."""
        seed = zlib.crc32("/".join(self.graph.selectors).encode()) + self.snapshot.turn

        def search(wanted: PlacementRequest) -> _Placement:
            problem = compile_problem(wanted)
            hints = self._hints(problem.host_names)
            at = solve(problem, hints, seed=seed, deadline_s=ends_at - time.monotonic())
            return _Placement(wanted, problem, hints, at)

        hot = self.snapshot.hot_hosts
        if not hot:
            return search(request)
        cool = [
            msgspec.structs.replace(replica, refused_hosts=replica.refused_hosts | hot) for replica in request.waiting
        ]
        found = search(msgspec.structs.replace(request, waiting=cool))
        if found.shortfall() == (0, 0):
            return found
        anywhere = search(request)
        if anywhere.shortfall() < found.shortfall():
            return anywhere
        # Hot hosts do not help, so that they are hot is not the reason either.
        return found._replace(request=request)

    def _hints(self, host_names: Sequence[str]) -> Ints | None:
        """[replica] host of the earlier plan, else of a pod that the replica is to replace, or -1."""
        previous = self.snapshot.previous_targets
        if not previous and not any(self._vacated_nodes):
            return None
        nodes = [previous[replica.key].node if replica.key in previous else "" for replica in self._waiting]
        left = [Counter(found) for found in self._vacated_nodes]
        for replica, node in zip(self._waiting, nodes, strict=True):
            left[replica.workload][node] -= 1
        vacated = [(+counts).elements() for counts in left]
        number_of = {name: number for number, name in enumerate(host_names)}
        return np.array(
            [
                number_of.get(node or next(vacated[replica.workload], ""), -1)
                for replica, node in zip(self._waiting, nodes, strict=True)
            ],
            np.int64,
        )

    def _assign(self, found: _Placement) -> tuple[dict[str, Target], dict[str, str]]:
        """Pod -> target, and pod -> reason for pods without one."""
        problem, targets = found.problem, dict(self._released_targets)
        found.at[:] = self._hosts_by_age(found)
        why: dict[str, str] = {}
        reasons: dict[int, str] = {}
        for number, host in enumerate(found.at.tolist()):
            key = self._waiting[number].key
            if key and host >= 0:
                node = self.snapshot.hosts[problem.host_names[host]]
                targets[key] = Target(node.location.zone, node.location.region, node.name)
            elif key:
                class_ = int(problem.class_of[number])
                if class_ not in reasons:
                    reasons[class_] = why_unplaced(found.request, problem, found.at, number)
                why[key] = reasons[class_]
        self._drop_incomplete_pod_groups(targets, why)
        return targets, why

    def _drop_incomplete_pod_groups(self, targets: dict[str, Target], why: dict[str, str]) -> None:
        """Drop targets of pods whose PodGroup is not placed whole, because kube-scheduler binds all of them or none."""
        waiting = [pod for pod in self.snapshot.pods if pod.pod_group and pod.is_waiting]
        reasons = {p.pod_group: why[p.metadata.key] for p in waiting if p.metadata.key in why}
        for pod in waiting:
            if pod.pod_group in reasons and targets.pop(pod.metadata.key, None) is not None:
                why[pod.metadata.key] = f"not all of its PodGroup have a place: {reasons[pod.pod_group]}"

    def _hosts_by_age(self, found: _Placement) -> list[int]:
        """[replica] host: the hosts of each class, assigned to its replicas again.

        A replica keeps its previous host if that is among them. The others get zones in turn, the oldest first, so that replicas
        are spread evenly while they start.
        """
        members: dict[int, list[int]] = defaultdict(list)
        for replica, class_ in enumerate(found.problem.class_of.tolist()):
            members[class_].append(replica)
        given: list[int] = found.at.tolist()
        for replicas in members.values():
            left = Counter(given[replica] for replica in replicas)
            waiting = []
            for replica in sorted(replicas, key=lambda number: _age(self._waiting[number])):
                hint = -1 if found.hints is None else int(found.hints[replica])
                if hint >= 0 and left[hint] > 0:
                    left[hint] -= 1
                    given[replica] = hint
                else:
                    waiting.append(replica)
            for replica, host in zip(waiting, _alternate_zones(left, found.problem.zone_of), strict=True):
                given[replica] = host
        return given


def _age(replica: WaitingReplica) -> tuple[str, str]:
    """Sorts pods by age, then those that do not exist yet."""
    return (replica.pod.metadata.creation_timestamp or "", replica.key) if replica.key else ("~", "")


def _alternate_zones(hosts: Counter[int], zone_of: Ints) -> list[int]:
    """The hosts, one of each zone before the second of any; -1 last."""
    rounds: Counter[int] = Counter()
    queue = []
    for host in sorted(hosts.elements()):
        zone = int(zone_of[host]) if host >= 0 else -1
        queue.append((host < 0, rounds[zone], host))
        rounds[zone] += 1
    return [host for _, _, host in sorted(queue)]
