"""Plans a whole group: a host for every waiting pod, so that calls have the least latency.

If pods are scored one by one, all nodes cost the same for the first pod of a group (docs/adr/0006). Here bound pods stay, and all other
replicas, also declared replicas without a pod, are placed together. Goals, in order: most replicas placed, fewest violations of
maxNetworkCost, least latency of calls (or another `Objective`).
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
from controller.cluster.resource_requests import PORT_PREFIX, Amounts, add_amounts, requests_with_ports_of
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
    refusal_reasons,
    total_cost,
)
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.solve import solve
from kubekit.errors import KubekitError
from kubekit.owners import find_outdated_pod_keys


class PlanningError(KubekitError):
    """No plan was made; ``reason`` is the reason of the condition Planned."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Plan(msgspec.Struct, frozen=True):
    """Targets of pods, the value of the placement, and the reasons of pods without a place.

    Attributes:
        targets: pod key -> target of each waiting pod that fits somewhere, released pods included.
        cost: network cost, summed over all pairs of caller and replica, declared replicas without a pod included.
        violations: number of pairs of caller and replica that may answer it (``parity``: all pairs) beyond maxNetworkCost.
        latency_us: mean latency of a call, with every objective; 0 if no dependency has replicas at both ends.
        traffic: weight of the dependencies that have replicas at both ends.
        unplaced_reasons: key of each waiting pod without a place -> why, with the number of nodes by reason.
        annotation_errors: messages about annotations that are unreadable, or need prices that are not configured.
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


def plan_group(snapshot: GroupSnapshot, *, time_limit_s: float = 20.0) -> Plan:
    """Plan a group. The search ends after ``time_limit_s`` seconds with the best placement so far.

    The same snapshot gives the same plan, unless the time limit cuts the search short. Raises `SearchMissingError` without the search.
    """
    return _GroupPlanner(snapshot).plan(time_limit_s)


class _Placement(NamedTuple):
    """A placement found for a request.

    Attributes:
        request: the replicas to place.
        problem: the request as arrays.
        hints: [replica] preferred host or -1.
        host_of: [replica] host or -1.
    """

    request: PlacementRequest
    problem: Problem
    hints: Ints
    host_of: Ints

    def count_faults(self) -> tuple[int, int]:
        """Number of replicas without a place, and of violations."""
        return int((self.host_of < 0).sum()), evaluate(self.problem, self.host_of).violations


class _GroupPlanner:
    """Converts a snapshot to a request, and the best placement to targets."""

    def __init__(self, snapshot: GroupSnapshot) -> None:
        self._snapshot, self._graph = snapshot, snapshot.graph
        self._annotation_errors: list[str] = []
        self._released_targets: dict[str, Target] = {}
        self._outdated_keys = find_outdated_pod_keys(pod.metadata for pod in snapshot.pods if pod.is_active)
        self._template_pods: list[Pod | None] = [None] * len(self._graph.workloads)
        """[workload] pod whose spec and metadata its missing replicas get."""
        self._bound: list[BoundReplica] = []
        self._vacated_nodes: list[list[str]] = [[] for _ in self._graph.workloads]
        """[workload] nodes of bound pods that a rollout is about to replace."""
        self._extra_requests: dict[str, Amounts] = defaultdict(dict, {n: dict(a) for n, a in snapshot.reserved.items()})
        self._waiting = self._record_pods()

    def plan(self, time_limit_s: float) -> Plan:
        """Search for a placement, and give its hosts to the pods."""
        request = self._build_request()
        placement = self._search(request, time.monotonic() + time_limit_s)
        placement = placement._replace(host_of=self._assign_by_age(placement))
        targets, reasons = self._find_targets(placement)
        host_of = placement.host_of.copy()
        host_of[[index for index, replica in enumerate(self._waiting) if replica.key in reasons]] = -1
        evaluation = evaluation_by_time = evaluate(placement.problem, host_of)
        if request.objective != "time":
            problem_by_time = build_problem(msgspec.structs.replace(request, objective="time"))
            evaluation_by_time = evaluate(problem_by_time, host_of)
        return Plan(
            targets=targets,
            cost=total_cost(request, placement.problem, host_of),
            violations=evaluation.violations,
            latency_us=evaluation_by_time.cost_per_call,
            traffic=evaluation_by_time.traffic,
            unplaced_reasons=reasons,
            annotation_errors=tuple(dict.fromkeys(self._annotation_errors)),
        )

    def _record_pods(self) -> list[WaitingReplica]:
        """The replicas to place. Records all other pods in the attributes above; leaves out pods with gates of other owners."""
        snapshot, waiting = self._snapshot, list[WaitingReplica]()
        current_pods: Counter[int] = Counter()
        workload_of = {selector: i for i, selector in enumerate(self._graph.selectors)}
        # Pods of the current template come first, because the first pod of a workload is the template of its missing replicas.
        for pod in sorted(snapshot.pods, key=lambda p: (p.metadata.key in self._outdated_keys, p.metadata.key)):
            workload, key = workload_of.get(pod.workload), pod.metadata.key
            if workload is None or not pod.is_active:
                continue
            original = without_added_requirement(pod)
            self._template_pods[workload] = self._template_pods[workload] or original
            node = pod.spec.node_name or snapshot.assigned_nodes.get(key, "")
            if node and key in self._outdated_keys:
                self._vacated_nodes[workload].append(node)
                self._record_bound(pod, node, workload=-1)
                continue
            current_pods[workload] += 1
            target = snapshot.released_targets.get(key)
            if not node and target is not None and target.node in snapshot.hosts:
                self._released_targets[key], node = target, target.node
            if node:
                self._record_bound(pod, node, workload)
            elif not pod.other_gates:
                refused_nodes = snapshot.refused_nodes.get(key, frozenset())
                waiting.append(WaitingReplica(key, workload, original, snapshot.volumes.get(key, ()), refused_nodes))
        return waiting + self._missing_replicas(current_pods)

    def _missing_replicas(self, current_pods: Counter[int]) -> list[WaitingReplica]:
        """Declared replicas without a current pod. If the declaration is unknown, a workload has as many as outdated pods."""
        snapshot, missing = self._snapshot, list[WaitingReplica]()
        for workload, selector in enumerate(self._graph.selectors):
            template_pod = self._template_pods[workload] or Pod()
            count = snapshot.replicas.get(selector, len(self._vacated_nodes[workload])) - current_pods[workload]
            missing += [WaitingReplica("", workload, template_pod, snapshot.volumes.get(selector, ()))] * count
        return missing

    def _record_bound(self, pod: Pod, node: str, workload: int) -> None:
        """Record a bound pod, or a released pod on its target's node.

        Workload -1: a rollout is about to replace the pod. Its requests are free, but not its host ports, and topology terms count it.
        """
        self._bound.append(BoundReplica(node, workload, pod))
        are_requests_counted, should_be_counted = pod.metadata.key in self._snapshot.assigned_nodes, workload >= 0
        if are_requests_counted != should_be_counted:
            requests = requests_with_ports_of(pod.spec, pod.status)
            add_amounts(self._extra_requests[node], requests, 1 if should_be_counted else -1)

    def _build_request(self) -> PlacementRequest:
        snapshot, errors = self._snapshot, self._annotation_errors
        default = spread_of(snapshot.group.metadata.annotations, "soft", errors)
        replica_counts = Counter([*(r.workload for r in self._waiting), *(r.workload for r in self._bound)])
        routings = [snapshot.routings.get(selector, Routing.ANY) for selector in self._graph.selectors]
        foreign = [BoundReplica(n, -1, f.pod) for f in snapshot.foreign_pods for n in f.pods_by_node.elements()]
        return PlacementRequest(
            snapshot=snapshot,
            waiting=self._waiting,
            bound=[*self._bound, *foreign],
            spreads=[
                spread_of(pod.metadata.annotations, default, errors) if pod is not None else default
                for pod in self._template_pods
            ],
            edges=call_edges(snapshot.group, self._graph, replica_counts, routings, errors),
            extra_requests=self._extra_requests,
            objective=objective_of(snapshot.group, errors, has_prices=snapshot.prices is not None),
        )

    def _search(self, request: PlacementRequest, ends_at: float) -> _Placement:
        """The best placement found. Uses avoided nodes only if that places more replicas, or as many with fewer violations."""
        seed = zlib.crc32("/".join(self._graph.selectors).encode()) + self._snapshot.seed_offset

        def search(request: PlacementRequest) -> _Placement:
            problem = build_problem(request)
            hints = self._hints(problem.host_names)
            host_of = solve(problem, hints, seed=seed, time_limit_s=ends_at - time.monotonic())
            return _Placement(request, problem, hints, host_of)

        avoided_nodes = self._snapshot.avoided_nodes
        if not avoided_nodes:
            return search(request)
        waiting = [
            msgspec.structs.replace(replica, refused_nodes=replica.refused_nodes | avoided_nodes)
            for replica in request.waiting
        ]
        without_avoided_nodes = search(msgspec.structs.replace(request, waiting=waiting))
        if without_avoided_nodes.count_faults() == (0, 0):
            return without_avoided_nodes
        with_avoided_nodes = search(request)
        if with_avoided_nodes.count_faults() < without_avoided_nodes.count_faults():
            return with_avoided_nodes
        # Reasons of unplaced pods are those of the original request: allowing the avoided nodes did not place more pods.
        return without_avoided_nodes._replace(request=request)

    def _hints(self, host_names: Sequence[str]) -> Ints:
        """[replica] host in the previous plan, else a host that an outdated pod of its workload vacates, else -1."""
        previous = self._snapshot.previous_targets
        nodes = [previous[replica.key].node if replica.key in previous else "" for replica in self._waiting]
        vacated_counts = [Counter(names) for names in self._vacated_nodes]
        for replica, node in zip(self._waiting, nodes, strict=True):
            vacated_counts[replica.workload][node] -= 1
        vacated = [(+counts).elements() for counts in vacated_counts]
        hinted_nodes = (node or next(vacated[r.workload], "") for r, node in zip(self._waiting, nodes, strict=True))
        index_of = {name: index for index, name in enumerate(host_names)}
        return np.array([index_of.get(node, -1) for node in hinted_nodes], np.int64)

    def _find_targets(self, placement: _Placement) -> tuple[dict[str, Target], dict[str, str]]:
        """Pod key -> target, and pod key -> reason for pods without a target."""
        problem, targets = placement.problem, dict(self._released_targets)
        reasons: dict[str, str] = {}
        reason_by_class: dict[int, str] = {}
        for index, host_index in enumerate(placement.host_of.tolist()):
            key = self._waiting[index].key
            if key and host_index >= 0:
                host = self._snapshot.hosts[problem.host_names[host_index]]
                targets[key] = Target(host.location.zone, host.location.region, host.name)
            elif key:
                class_ = int(problem.class_of[index])
                if class_ not in reason_by_class:
                    reason_by_class[class_] = _unplaced_reason(placement.request, problem, placement.host_of, index)
                reasons[key] = reason_by_class[class_]
        self._drop_incomplete_pod_groups(targets, reasons)
        return targets, reasons

    def _drop_incomplete_pod_groups(self, targets: dict[str, Target], reasons: dict[str, str]) -> None:
        """Move pods whose PodGroup is not wholly placed to ``reasons``, because kube-scheduler binds all pods of a PodGroup or none."""
        waiting = [pod for pod in self._snapshot.pods if pod.pod_group and pod.is_waiting]
        reason_by_pod_group = {p.pod_group: reasons[p.metadata.key] for p in waiting if p.metadata.key in reasons}
        for pod in waiting:
            if pod.pod_group in reason_by_pod_group and targets.pop(pod.metadata.key, None) is not None:
                reasons[pod.metadata.key] = f"its PodGroup is not wholly placed: {reason_by_pod_group[pod.pod_group]}"

    def _assign_by_age(self, placement: _Placement) -> Ints:
        """[replica] host, with the hosts of each class permuted among its replicas.

        A replica gets its hint if the hint is among these hosts. The others, the oldest first, get zones in turn, so that early pods spread.
        """
        replicas_by_class: dict[int, list[int]] = defaultdict(list)
        for replica, class_ in enumerate(placement.problem.class_of.tolist()):
            replicas_by_class[class_].append(replica)
        host_of: list[int] = placement.host_of.tolist()
        for replicas in replicas_by_class.values():
            unassigned = Counter(host_of[replica] for replica in replicas)
            without_hint = []
            for replica in sorted(replicas, key=lambda index: _age_key(self._waiting[index])):
                hint = int(placement.hints[replica])
                if hint >= 0 and unassigned[hint] > 0:
                    unassigned[hint] -= 1
                    host_of[replica] = hint
                else:
                    without_hint.append(replica)
            hosts = _alternate_zones(unassigned, placement.problem.zone_of)
            for replica, host in zip(without_hint, hosts, strict=True):
                host_of[replica] = host
        return np.array(host_of, np.int64)


def _age_key(replica: WaitingReplica) -> tuple[str, str]:
    """Sort key: the oldest pods first, replicas without a pod last."""
    return (replica.pod.metadata.creation_timestamp or "", replica.key) if replica.key else ("~", "")


def _alternate_zones(hosts: Counter[int], zone_of: Ints) -> list[int]:
    """The hosts, one of each zone before the second of any zone; -1 last."""
    hosts_by_zone: Counter[int] = Counter()
    keyed_hosts = []
    for host in sorted(hosts.elements()):
        zone = int(zone_of[host]) if host >= 0 else -1
        keyed_hosts.append((host < 0, hosts_by_zone[zone], host))
        hosts_by_zone[zone] += 1
    return [host for _, _, host in sorted(keyed_hosts)]


def _unplaced_reason(request: PlacementRequest, problem: Problem, host_of: Ints, replica: int) -> str:
    """Why a replica has no place: the number of nodes, and of the nodes with each reason. ``host_of`` is [replica] host or -1."""
    requests = problem.requests[problem.class_of[replica]]
    free_after_plan = problem.free.copy()
    is_placed = host_of >= 0
    np.subtract.at(free_after_plan, host_of[is_placed], problem.requests[problem.class_of[is_placed]])
    refused = refusal_reasons(request, request.waiting[replica], problem.host_names)
    reasons = Counter(refused.values())
    for host, name in enumerate(problem.host_names):
        if name in refused:
            continue
        insufficient = np.flatnonzero((requests > 0) & (problem.free[host] < requests))
        if insufficient.size:
            reasons[insufficient_reason(problem.resource_names[insufficient[0]])] += 1
        elif ((requests > 0) & (free_after_plan[host] < requests)).any():
            reasons["insufficient resources beside the other pods of the plan"] += 1
        else:
            reasons["pod affinity, anti-affinity or topology spread constraints"] += 1
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0])))
    return f"0/{len(problem.host_names)} nodes are available: {listed or 'there are none'}"


def insufficient_reason(resource: str) -> str:
    """Why a node with too little of a resource refuses a pod."""
    if resource.startswith(PORT_PREFIX):
        return "host port taken"
    return "too many pods" if resource == "pods" else f"insufficient {resource}"
