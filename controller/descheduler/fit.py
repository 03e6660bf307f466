"""Checks whether kube-scheduler would place a pod on a node, by constraints, requests and other pods."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import add_amounts, first_insufficient
from controller.descheduler.snapshot import DeschedulerSnapshot
from controller.scheduler.affinity import NARROWED_ANNOTATION, without_added_requirement
from controller.scheduler.placement.planner import insufficient_reason
from controller.scheduler.placement.pod_topology import REASON_BY_KIND, unschedulable_reasons
from controller.scheduler.placement.problem import RuleKind

OTHER_POD_REASONS = frozenset(REASON_BY_KIND.values())
"""Reasons that depend on other pods."""


def format_counts(counts: Mapping[str, int]) -> str:
    """The counts above 0, the highest first: ``2 taint x, 1 insufficient cpu``."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])) if count)


def describe_misfits(nodes_by_reason: Mapping[str, int]) -> str:
    """Why no node fits, in kube-scheduler's wording: ``0/3 nodes are available: 2 taint x, 1 insufficient cpu``."""
    if not nodes_by_reason:
        return "there is no other node"
    return f"0/{sum(nodes_by_reason.values())} nodes are available: {format_counts(nodes_by_reason)}"


def without_plan_affinity(pod: PodInfo) -> Pod:
    """The pod without the node affinity that netaware added, which its replacement will not have."""
    return pod.pod_without_requests if pod.group_pod is None else without_added_requirement(pod.group_pod)


class FitChecker:
    """Checks whether pods fit nodes, counting planned moves."""

    def __init__(self, snapshot: DeschedulerSnapshot) -> None:
        self._snapshot = snapshot
        self._nodes = [snapshot.nodes[name] for name in sorted(snapshot.nodes)]
        self._node_index = {node.name: index for index, node in enumerate(self._nodes)}
        self._constraints_by_pod: dict[str, Constraints] = {}
        self._static_reasons: dict[tuple[Constraints, str], str] = {}
        self._requests_by_node: dict[str, dict[str, int]] = {}
        self._planned_moves: dict[str, tuple[PodInfo, str]] = {}  # key of the pod -> pod and target
        self._other_pod_reasons: dict[str, Mapping[int, str]] = {}
        bound_pods = (pod for pod in snapshot.pods.by_key.values() if pod.node and not pod.is_finished)
        self._pods_with_anti_affinity = [pod for pod in bound_pods if pod.constraints.has_required_anti_affinity]

    def static_unschedulable_reason(self, node: Host, pod: PodInfo) -> str:
        """Why the pod may not run on the node, by its own constraints and volumes; empty if it may."""
        constraints = self._constraints_of(pod)
        key = constraints, node.name
        if key not in self._static_reasons:
            self._static_reasons[key] = node.unschedulable_reason(constraints)
        if self._static_reasons[key] or not pod.claim_names:
            return self._static_reasons[key]
        volumes = self._snapshot.volumes.node_selectors_of_claims(pod.namespace, pod.claim_names)
        return node.unschedulable_reason(constraints, volumes)

    def dynamic_unschedulable_reason(self, node: Host, pod: PodInfo) -> str:
        """Why the pod does not fit on the node now, by resources, ports and other pods; empty if it fits."""
        if insufficient := first_insufficient(pod.requests_with_ports, node.allocatable, self._requests_on(node.name)):
            return insufficient_reason(insufficient)
        if self._pods_with_anti_affinity or pod.constraints.depends_on_other_pods:
            return self._reasons_by_other_pods(pod).get(self._node_index[node.name], "")
        return ""

    def reserve(self, pod: PodInfo, node: str) -> None:
        """Count a planned move of the pod to a node; the name is empty for an unknown node.

        The pod's requests count on both nodes, because the pod may still be terminating when its replacement starts.
        """
        self._planned_moves[pod.key] = pod, node
        if node:
            add_amounts(self._requests_on(node), pod.requests_with_ports)
        self._other_pod_reasons.clear()

    def release(self, pod: PodInfo) -> None:
        """Undo `reserve`."""
        _, node = self._planned_moves.pop(pod.key, (pod, ""))
        if node:
            add_amounts(self._requests_by_node[node], pod.requests_with_ports, -1)
        self._other_pod_reasons.clear()

    def _constraints_of(self, pod: PodInfo) -> Constraints:
        """The pod's constraints without the node affinity that netaware added."""
        if pod.group_pod is None or not pod.group_pod.metadata.annotation(NARROWED_ANNOTATION):
            return pod.constraints
        if pod.key not in self._constraints_by_pod:
            self._constraints_by_pod[pod.key] = Constraints(without_added_requirement(pod.group_pod).spec)
        return self._constraints_by_pod[pod.key]

    def _requests_on(self, node: str) -> dict[str, int]:
        """Requests of the node's unfinished pods and of planned moves to it; terminating pods count, as in kube-scheduler."""
        if node not in self._requests_by_node:
            total: dict[str, int] = {}
            for pod in self._snapshot.pods.where("node", node).values():
                if not pod.is_finished:
                    add_amounts(total, pod.requests_with_ports)
            self._requests_by_node[node] = total
        return self._requests_by_node[node]

    def _reasons_by_other_pods(self, pod: PodInfo) -> Mapping[int, str]:
        """Why other pods exclude nodes, by index in ``_nodes``. Terminating pods count only for anti-affinity."""
        if pod.key not in self._other_pod_reasons:
            moving_pod, relevant_pods = without_plan_affinity(pod), self._relevant_pods(pod)
            bound_pods = [(self._node_index[node], without_plan_affinity(other)) for other, node in relevant_pods]
            active_pods = [entry for entry in bound_pods if entry[1].metadata.deletion_timestamp is None]
            reasons = unschedulable_reasons(moving_pod, self._nodes, bound_pods, {RuleKind.ANTI_AFFINITY})
            # If rules of several kinds exclude a node, spread or affinity is the reason.
            reasons |= unschedulable_reasons(moving_pod, self._nodes, active_pods, {RuleKind.SPREAD, RuleKind.AFFINITY})
            self._other_pod_reasons[pod.key] = reasons
        return self._other_pod_reasons[pod.key]

    def _relevant_pods(self, pod: PodInfo) -> list[tuple[PodInfo, str]]:
        """Pods that the pod's rules may count or whose anti-affinity may exclude it, with their nodes after planned moves."""
        pods, pods_by_key = self._snapshot.pods, {p.key: p for p in self._pods_with_anti_affinity}
        if pod.constraints.depends_on_other_pods:
            affinity = msgspec.json.encode(pod.constraints.spec.affinity)
            # ``namespaces`` or ``namespaceSelector`` may name other namespaces.
            pods_by_key |= pods.by_key if b"namespace" in affinity else pods.where("namespace", pod.namespace)
        pods_by_key |= {key: p for key, (p, target) in self._planned_moves.items() if target}
        pods_by_key.pop(pod.key, None)
        target_by_key = {key: target for key, (_, target) in self._planned_moves.items()}
        pods_and_nodes = ((p, target_by_key.get(key, p.node)) for key, p in pods_by_key.items())
        return [(p, node) for p, node in pods_and_nodes if node in self._node_index and not p.is_finished]
