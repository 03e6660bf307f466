"""Plans a whole group: a host for every waiting replica, so that calls have the least latency.

If pods are scored one by one, all nodes cost the same for the first replica of a group (docs/adr/0006). Here bound pods stay, and all
other replicas, also declared replicas without a pod, are placed together. Objectives, in order: most replicas placed, fewest violations
of maxNetworkCost, least latency of calls.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from controller.cluster.pods import Pod, Target
from controller.cluster.resource_requests import Amounts, add_amounts, requests_with_ports_of
from controller.cluster.services import Routing
from controller.scheduler.affinity import without_added_requirement
from controller.scheduler.placement.annotations import call_edges, objective_of, spread_of
from controller.scheduler.placement.evaluation import evaluate
from controller.scheduler.placement.problem import Ints, Problem
from controller.scheduler.placement.problem_builder import (
    BoundReplica,
    PlacementRequest,
    WaitingReplica,
    build_problem,
    total_cost,
)
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.solve import solve
from controller.scheduler.placement.unplaced import unplaced_reason
from kubekit.errors import KubekitError
from kubekit.owners import find_outdated_pod_keys

DEADLINE_S = 20.0


class PlanningError(KubekitError):
    """A plan could not be made; ``reason`` is the reason of the condition Planned."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Plan(msgspec.Struct, frozen=True):
    """A target for each pod, the value of the placement, and pods without a place.

    Attributes:
        targets: pod key -> target of each waiting pod that fits somewhere, released pods included.
        cost: networkCost over all pairs after everything is placed, declared replicas without a pod included.
        violations: pairs of a caller and a replica that may answer it, beyond their maxNetworkCost; all pairs in parity.
        latency_us: expected latency of a call.
        traffic: weight of the dependencies that have replicas at both ends.
        unplaced_reasons: key of a waiting pod without a place -> what every node lacks.
        annotation_errors: messages about annotations that could not be read.
    """

    targets: Mapping[str, Target] = {}
    cost: int = 0
    violations: int = 0
    latency_us: float = 0.0
    traffic: float = 0.0
    unplaced_reasons: Mapping[str, str] = {}
    annotation_errors: tuple[str, ...] = ()

    @property
    def unplaced(self) -> tuple[str, ...]:
        """Keys of waiting pods without a place."""
        return tuple(self.unplaced_reasons)


def plan_group(snapshot: GroupSnapshot, *, deadline_s: float = DEADLINE_S) -> Plan:
    """Plan a group. The same snapshot gives the same plan, unless the deadline cuts the search short.

    Args:
        snapshot: the group and the cluster.
        deadline_s: time after which the search ends with the best placement so far, seconds.
    """
    return _GroupPlanner(snapshot).plan(deadline_s)


class _Placement(NamedTuple):
    """A placement found for a request.

    Attributes:
        request: the replicas to place.
        problem: its arrays.
        hints: [replica] preferred host or -1; None if no replica prefers one.
        host_of: [replica] host or -1.
    """

    request: PlacementRequest
    problem: Problem
    hints: Ints | None
    host_of: Ints

    def shortfall(self) -> tuple[int, int]:
        """Number of replicas without a place, and of violations."""
        return int((self.host_of < 0).sum()), evaluate(self.problem, self.host_of).violations


class _GroupPlanner:
    """Converts a snapshot to a request, and the best placement to targets."""

    def __init__(self, snapshot: GroupSnapshot) -> None:
        self.snapshot = snapshot
        self.graph = snapshot.graph
        self._annotation_errors: list[str] = []
        self._released_targets: dict[str, Target] = {}
        self._outdated = find_outdated_pod_keys(pod.metadata for pod in snapshot.pods if pod.is_active)
        self._models: list[Pod | None] = [None] * len(self.graph.workloads)
        self._bound: list[BoundReplica] = []
        self._vacated_nodes: list[list[str]] = [[] for _ in self.graph.workloads]
        self._extra_requests: dict[str, Amounts] = defaultdict(dict, {n: dict(a) for n, a in snapshot.reserved.items()})
        self._waiting = self._read_pods()

    def _read_pods(self) -> list[WaitingReplica]:
        """Record bound pods; returns the replicas to place."""
        snapshot, waiting = self.snapshot, list[WaitingReplica]()
        live: Counter[int] = Counter()
        workload_of = {selector: i for i, selector in enumerate(self.graph.selectors)}
        # Pods of the current template first: they are the model for missing replicas.
        for pod in sorted(snapshot.pods, key=lambda p: (p.metadata.key in self._outdated, p.metadata.key)):
            workload, key = workload_of.get(pod.workload), pod.metadata.key
            if workload is None or not pod.is_active:
                continue
            original = without_added_requirement(pod)
            self._models[workload] = self._models[workload] or original
            if self._record_outdated(pod, workload):
                continue
            live[workload] += 1
            if not self._record_bound(pod, workload) and not pod.other_gates:
                refused = snapshot.refused_hosts.get(key, frozenset())
                waiting.append(WaitingReplica(key, workload, original, snapshot.volumes.get(key, ()), refused))
        for workload, selector in enumerate(self.graph.selectors):
            model = self._models[workload] or Pod()
            missing = snapshot.replicas.get(selector, len(self._vacated_nodes[workload])) - live[workload]
            waiting += [WaitingReplica("", workload, model, snapshot.volumes.get(selector, ()))] * missing
        return waiting

    def _record_outdated(self, pod: Pod, workload: int) -> bool:
        """Record a pod that a rollout is about to replace. Its requests are free for its successor; its anti-affinity still counts.

        Returns:
            Whether the pod is bound and outdated.
        """
        node = self._assigned_node(pod)
        if not node or pod.metadata.key not in self._outdated:
            return False
        self._bound.append(BoundReplica(node, -1, pod))
        self._vacated_nodes[workload].append(node)
        if pod.metadata.key in self.snapshot.assigned_nodes:
            add_amounts(self._extra_requests[node], requests_with_ports_of(pod.spec, pod.status), -1)
        return True

    def _assigned_node(self, pod: Pod) -> str:
        return pod.spec.node_name or self.snapshot.assigned_nodes.get(pod.metadata.key, "")

    def _record_bound(self, pod: Pod, workload: int) -> bool:
        """Record a pod that is bound, or released with a target; returns whether the pod is so."""
        key, node = pod.metadata.key, self._assigned_node(pod)
        if not node:
            target = self.snapshot.released_targets.get(key)
            if target is None or target.node not in self.snapshot.hosts:
                return False
            self._released_targets[key], node = target, target.node
        self._bound.append(BoundReplica(node, workload, pod))
        if key not in self.snapshot.assigned_nodes:
            add_amounts(self._extra_requests[node], requests_with_ports_of(pod.spec, pod.status))
        return True

    def _request(self) -> PlacementRequest:
        snapshot, annotation_errors = self.snapshot, self._annotation_errors
        default = spread_of(snapshot.group.metadata.annotations, "soft", annotation_errors)
        counts = Counter([*(r.workload for r in self._waiting), *(r.workload for r in self._bound)])
        routings = [snapshot.routings.get(selector, Routing.ANY) for selector in self.graph.selectors]
        foreign = [
            BoundReplica(node, -1, other.pod)
            for other in snapshot.foreign_pods
            for node in other.pods_by_node.elements()
        ]
        return PlacementRequest(
            snapshot=snapshot,
            waiting=self._waiting,
            bound=[*self._bound, *foreign],
            spreads=[
                spread_of(model.metadata.annotations, default, annotation_errors) if model is not None else default
                for model in self._models
            ],
            edges=call_edges(snapshot.group, self.graph, counts, routings, annotation_errors),
            extra_requests=self._extra_requests,
            objective=objective_of(snapshot.group, annotation_errors, has_prices=snapshot.prices is not None),
        )

    def plan(self, deadline_s: float) -> Plan:
        """Search for a placement, and assign its hosts to the pods."""
        request = self._request()
        placement = self._search(request, time.monotonic() + deadline_s)
        targets, reasons = self._assign(placement)
        unplaced = [number for number, replica in enumerate(self._waiting) if replica.key in reasons]
        placement.host_of[unplaced] = -1
        evaluated = timing = evaluate(placement.problem, placement.host_of)
        if request.objective != "time":
            by_time = build_problem(msgspec.structs.replace(request, objective="time"))
            timing = evaluate(by_time, placement.host_of)
        return Plan(
            targets=targets,
            cost=total_cost(request, placement.problem, placement.host_of),
            violations=evaluated.violations,
            latency_us=timing.latency,
            traffic=timing.traffic,
            unplaced_reasons=reasons,
            annotation_errors=tuple(dict.fromkeys(self._annotation_errors)),
        )

    def _search(self, request: PlacementRequest, ends_at: float) -> _Placement:
        """The best placement found. Uses hot hosts only if that places more replicas or violates fewer limits."""
        seed = zlib.crc32("/".join(self.graph.selectors).encode()) + self.snapshot.seed_offset

        def search(request: PlacementRequest) -> _Placement:
            problem = build_problem(request)
            hints = self._hints(problem.host_names)
            host_of = solve(problem, hints, seed=seed, deadline_s=ends_at - time.monotonic())
            return _Placement(request, problem, hints, host_of)

        avoided_hosts = self.snapshot.avoided_hosts
        if not avoided_hosts:
            return search(request)
        waiting = [
            msgspec.structs.replace(replica, refused_hosts=replica.refused_hosts | avoided_hosts)
            for replica in request.waiting
        ]
        without_avoided_hosts = search(msgspec.structs.replace(request, waiting=waiting))
        if without_avoided_hosts.shortfall() == (0, 0):
            return without_avoided_hosts
        with_avoided_hosts = search(request)
        if with_avoided_hosts.shortfall() < without_avoided_hosts.shortfall():
            return with_avoided_hosts
        # The avoided hosts are not the reason for unplaced pods, because they would not help.
        return without_avoided_hosts._replace(request=request)

    def _hints(self, host_names: Sequence[str]) -> Ints | None:
        """[replica] host in the previous plan, else a host that an outdated pod of its workload vacates, else -1."""
        previous = self.snapshot.previous_targets
        if not previous and not any(self._vacated_nodes):
            return None
        nodes = [previous[replica.key].node if replica.key in previous else "" for replica in self._waiting]
        vacated = [Counter(names) for names in self._vacated_nodes]
        for replica, node in zip(self._waiting, nodes, strict=True):
            vacated[replica.workload][node] -= 1
        left = [(+counts).elements() for counts in vacated]
        number_of = {name: number for number, name in enumerate(host_names)}
        return np.array(
            [
                number_of.get(node or next(left[replica.workload], ""), -1)
                for replica, node in zip(self._waiting, nodes, strict=True)
            ],
            np.int64,
        )

    def _assign(self, placement: _Placement) -> tuple[dict[str, Target], dict[str, str]]:
        """Pod -> target, and pod -> reason for pods without a target."""
        problem, targets = placement.problem, dict(self._released_targets)
        placement.host_of[:] = self._hosts_by_age(placement)
        reasons: dict[str, str] = {}
        reason_of_class: dict[int, str] = {}
        for number, host in enumerate(placement.host_of.tolist()):
            key = self._waiting[number].key
            if key and host >= 0:
                node = self.snapshot.hosts[problem.host_names[host]]
                targets[key] = Target(node.location.zone, node.location.region, node.name)
            elif key:
                class_ = int(problem.class_of[number])
                if class_ not in reason_of_class:
                    reason_of_class[class_] = unplaced_reason(placement.request, problem, placement.host_of, number)
                reasons[key] = reason_of_class[class_]
        self._drop_incomplete_pod_groups(targets, reasons)
        return targets, reasons

    def _drop_incomplete_pod_groups(self, targets: dict[str, Target], reasons: dict[str, str]) -> None:
        """Drop targets of pods whose PodGroup is not placed whole, because kube-scheduler binds all pods of a PodGroup or none."""
        waiting = [pod for pod in self.snapshot.pods if pod.pod_group and pod.is_waiting]
        reason_of_group = {p.pod_group: reasons[p.metadata.key] for p in waiting if p.metadata.key in reasons}
        for pod in waiting:
            if pod.pod_group in reason_of_group and targets.pop(pod.metadata.key, None) is not None:
                reasons[pod.metadata.key] = f"not all of its PodGroup have a place: {reason_of_group[pod.pod_group]}"

    def _hosts_by_age(self, placement: _Placement) -> list[int]:
        """[replica] host, after the hosts of each class are assigned to its replicas again.

        A replica keeps its hint if that is among these hosts. The other replicas get zones in turn, the oldest first, so that they
        are spread evenly while they start.
        """
        members: dict[int, list[int]] = defaultdict(list)
        for replica, class_ in enumerate(placement.problem.class_of.tolist()):
            members[class_].append(replica)
        host_of: list[int] = placement.host_of.tolist()
        for replicas in members.values():
            left = Counter(host_of[replica] for replica in replicas)
            without_hint = []
            for replica in sorted(replicas, key=lambda number: _age(self._waiting[number])):
                hint = -1 if placement.hints is None else int(placement.hints[replica])
                if hint >= 0 and left[hint] > 0:
                    left[hint] -= 1
                    host_of[replica] = hint
                else:
                    without_hint.append(replica)
            for replica, host in zip(without_hint, _alternate_zones(left, placement.problem.zone_of), strict=True):
                host_of[replica] = host
        return host_of


def _age(replica: WaitingReplica) -> tuple[str, str]:
    """Sort key: the oldest pods first, replicas without a pod last."""
    return (replica.pod.metadata.creation_timestamp or "", replica.key) if replica.key else ("~", "")


def _alternate_zones(hosts: Counter[int], zone_of: Ints) -> list[int]:
    """The hosts in an order that takes one of each zone before the second of any; -1 last."""
    rounds: Counter[int] = Counter()
    ordered = []
    for host in sorted(hosts.elements()):
        zone = int(zone_of[host]) if host >= 0 else -1
        ordered.append((host < 0, rounds[zone], host))
        rounds[zone] += 1
    return [host for _, _, host in sorted(ordered)]
