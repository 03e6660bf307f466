"""Builds the input of a group's plan from the cluster, for the controller, the descheduler and commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.declared_replicas import DeclaredReplicas, limit_replicas
from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import NodeCache
from controller.cluster.pods import NodeSelector, Pod, pending_target_of
from controller.cluster.resource_requests import Amounts, add_amounts, first_insufficient, requests_with_ports_of
from controller.cluster.volumes import Volumes
from controller.scheduler.affinity import without_added_requirement
from controller.scheduler.placement.foreign_pods import find_foreign_pods
from controller.scheduler.placement.planner import Plan, insufficient_reason, plan_group
from controller.scheduler.placement.pod_topology import unschedulable_reasons
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.state import State
from controller.traffic.prices import PriceTable
from kubekit.owners import find_outdated_pod_keys


class Preemption(NamedTuple):
    """The input of a plan whose pods preempt others: a snapshot without the requests of other pods below a priority."""

    snapshot: GroupSnapshot
    below_priority: int


class PlanInputs(NamedTuple):
    """The cluster that plans are made for, from watches, lists or a file; `build_snapshot` makes the input of one group's plan from it.

    Attributes:
        state: AppGroups, costs and Services.
        node_cache: nodes, and the pods bound to them.
        volumes: volumes and claims.
        prices: prices of bytes between zones; None if not configured.
        declared: declared replicas of workloads; None if they are not read.
    """

    state: State
    node_cache: NodeCache
    volumes: Volumes
    prices: PriceTable | None = None
    declared: DeclaredReplicas | None = None

    def build_snapshot(self, group: str, pods: Sequence[Pod]) -> GroupSnapshot:
        """The input of a group's plan, without reservations, refused nodes and previous targets; ``pods`` are all its pods."""
        app_group, node_cache = self.state.groups[group], self.node_cache
        costs = self.state.costs(app_group.metadata.namespace)
        replicas, _ = self.replicas_to_plan(group, pods)
        keys = [pod.metadata.key for pod in pods]
        return GroupSnapshot(
            graph=self.state.graph(group),
            pods=pods,
            replicas=replicas,
            costs=costs.table,
            hosts=node_cache.hosts,
            used=node_cache.requested,
            released_targets={p.metadata.key: target for p in pods if (target := pending_target_of(p)) is not None},
            assigned_nodes={key: node for key in keys if (node := node_cache.assigned_node(key))},
            group=app_group,
            routings=self.state.routings_of(pods),
            has_topology=bool(costs.network_topology),
            volumes=self.volume_selectors(pods, replicas),
            avoided_nodes=node_cache.avoided_nodes,
            foreign_pods=find_foreign_pods(node_cache, pods),
            prices=self.prices,
            allocatable=self.state.allocatable_args,
        )

    def make_cache_key(self, group: str, pods: Sequence[Pod]) -> tuple[object, ...]:
        """The key of a group's cached plan: a plan is outdated once its key has changed.

        It does not depend on:

        - annotations, which releases write;
        - amounts in use, with which `check_plan` compares the plan;
        - pods that also wait for gates of other controllers, which plans leave out;
        - bound pods that a rollout is about to replace, whose places plans give to new pods.
        """
        active = [pod for pod in pods if pod.is_active]
        outdated = find_outdated_pod_keys(pod.metadata for pod in active)
        replicas, _ = self.replicas_to_plan(group, active, outdated)
        planned_keys = frozenset(
            p.metadata.key for p in active if (not p.other_gates if p.is_waiting else p.metadata.key not in outdated)
        )
        volumes = self.volume_selectors(active, replicas)
        return (
            self.state.graph(group),
            self.state.costs(self.state.groups[group].metadata.namespace).table,
            self.node_cache.version,
            planned_keys,
            replicas,
            {key: selectors for key, selectors in volumes.items() if key in planned_keys or key in replicas},
            tuple(foreign for foreign in find_foreign_pods(self.node_cache, pods) if foreign.is_required),
        )

    def plan_with_preemption(self, snapshot: GroupSnapshot) -> Plan:
        """Plan in this process; pods that do not fit preempt others if that places more pods."""
        plan = plan_group(snapshot)
        preemption = self.build_preemption(snapshot, plan)
        return plan if preemption is None else min(plan, plan_group(preemption.snapshot), key=lambda p: len(p.unplaced))

    def build_preemption(self, snapshot: GroupSnapshot, plan: Plan) -> Preemption | None:
        """The input of a second plan in which the unplaced pods of a plan preempt others.

        None if no pod is unplaced, one has the preemptionPolicy Never, or no other pod has a lower priority than all of them.
        """
        unplaced = [pod.spec for pod in snapshot.pods if pod.metadata.key in plan.unplaced]
        if not unplaced or any(spec.preemption_policy == "Never" for spec in unplaced):
            return None
        below_priority = min(spec.priority for spec in unplaced)
        preemptible = self.preemptible_requests(snapshot.pods, below_priority)
        if not preemptible:
            return None
        reserved = {node: dict(amounts) for node, amounts in snapshot.reserved.items()}
        for node, amounts in preemptible.items():
            add_amounts(reserved.setdefault(node, {}), amounts, -1)
        return Preemption(msgspec.structs.replace(snapshot, reserved=reserved), below_priority)

    def preemptible_requests(self, pods: Sequence[Pod], below_priority: int) -> dict[str, Amounts]:
        """Node -> requests of other pods with a lower priority than ``below_priority``.

        Pods that a PodDisruptionBudget protects are included: kube-scheduler preempts them as a last resort.
        """
        requests: dict[str, Amounts] = {}
        keys = {pod.metadata.key for pod in pods}
        for info in self.node_cache.pods.values():
            if info.priority < below_priority and info.key not in keys:
                add_amounts(requests.setdefault(info.occupied_node, {}), info.requests_with_ports)
        return requests

    def outdated_requests(self, pods: Sequence[Pod]) -> dict[str, Amounts]:
        """Node -> requests of pods that a rollout is about to replace there."""
        requests: dict[str, Amounts] = {}
        for key in find_outdated_pod_keys(pod.metadata for pod in pods if pod.is_active):
            if (info := self.node_cache.pods.get(key)) is not None:
                add_amounts(requests.setdefault(info.node, {}), info.requests_with_ports)
        return requests

    def ineligible_nodes(self, pod: Pod) -> dict[str, str]:
        """Node -> first reason why a pod may not run there: node constraints, volumes, state of the node, resources, or other pods."""
        original, requests = without_added_requirement(pod), requests_with_ports_of(pod.spec)
        hosts, used = list(self.node_cache.hosts.values()), self.node_cache.requested
        index_of = {host.name: index for index, host in enumerate(hosts)}
        foreign = find_foreign_pods(self.node_cache, [pod])
        bound = [(index_of[node], f.pod) for f in foreign for node in f.pods_by_node.elements() if node in index_of]
        other_pods_reasons = unschedulable_reasons(original, hosts, bound)
        constraints, volumes = Constraints(original.spec), self.volumes.node_selectors_of_pod(pod)
        reasons: dict[str, str] = {}
        for index, host in enumerate(hosts):
            insufficient = first_insufficient(requests, host.allocatable, used.get(host.name, {}))
            resources_reason = insufficient_reason(insufficient) if insufficient else ""
            reason = host.unschedulable_reason(constraints, volumes) or resources_reason
            if reason := reason or other_pods_reasons.get(index, ""):
                reasons[host.name] = reason
        return reasons

    def replicas_to_plan(
        self, group: str, pods: Sequence[Pod], outdated: set[str] | None = None
    ) -> tuple[dict[str, int], int]:
        """Workload selector -> replicas to plan, and the number of declared replicas that are left out.

        Without declared replicas, ({}, 0). ``outdated`` are the keys of pods that a rollout is about to replace, if known already.
        """
        if self.declared is None:
            return {}, 0
        app_group, active = self.state.groups[group], [pod for pod in pods if pod.is_active]
        if outdated is None:
            outdated = find_outdated_pod_keys(pod.metadata for pod in active)
        replicas = self.declared.replicas_by_selector(app_group.metadata.namespace, self.state.graph(group).workloads)
        live = Counter(pod.workload for pod in active if pod.metadata.key not in outdated)
        allowed = max(app_group.spec.num_members - live.total(), len(outdated))
        return limit_replicas(replicas, live, allowed)

    def volume_selectors(self, pods: Sequence[Pod], replicas: Mapping[str, int]) -> dict[str, tuple[NodeSelector, ...]]:
        """Node selectors of volumes, by pod key, and by workload selector for replicas that do not exist yet."""
        active = [pod for pod in pods if pod.is_active]
        with_volumes = [pod for pod in active if pod.spec.volumes]
        selectors = {pod.metadata.key: self.volumes.node_selectors_of_pod(pod) for pod in with_volumes}
        counts = Counter(pod.workload for pod in active)
        for workload, example_pod in {pod.workload: pod for pod in with_volumes}.items():
            if counts[workload] < replicas.get(workload, 0):
                selectors[workload] = self.volumes.node_selectors_of_next_replica(example_pod)
        return {key: node_selectors for key, node_selectors in selectors.items() if node_selectors}
