"""Builds the snapshot that a group's plan is made from, for the controller, the descheduler and commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.declared_replicas import DeclaredReplicas, limit_replicas
from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import NodeCache
from controller.cluster.pods import GroupPod, NodeSelector, current_target
from controller.cluster.requests import Amounts, add_amounts, first_insufficient, host_requests_of
from controller.cluster.volumes import Volumes
from controller.scheduler.affinity import without_added_requirement
from controller.scheduler.placement.foreign import foreign_pods
from controller.scheduler.placement.planner import Plan, plan_group
from controller.scheduler.placement.pod_topology import refusals
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.unplaced import describe_lack
from controller.scheduler.state import State
from controller.traffic.prices import PriceTable
from kubekit.owners import find_outdated_pods


class PlanInputs(NamedTuple):
    """The cluster that plans are made for, from watches, one list or a file.

    Attributes:
        state: AppGroups, costs and Services.
        node_cache: nodes, and the pods bound to them.
        volumes: volumes and claims.
        prices: of bytes between zones; None if not configured.
        declared: how many replicas workloads declare, and how many pods their quota allows; None if not read.
    """

    state: State
    node_cache: NodeCache
    volumes: Volumes
    prices: PriceTable | None = None
    declared: DeclaredReplicas | None = None

    def snapshot(self, group: str, pods: Sequence[GroupPod]) -> GroupSnapshot:
        """The planner's input, without reservations of other groups.

        Args:
            group: its key.
            pods: all of its pods.
        """
        known, node_cache = self.state.groups[group], self.node_cache
        costs = self.state.costs(known.metadata.namespace)
        replicas, _ = self.replicas_to_plan(group, pods)
        keys = [pod.metadata.key for pod in pods]
        return GroupSnapshot(
            graph=self.state.graph(group),
            pods=pods,
            replicas=replicas,
            costs=costs.table,
            hosts=node_cache.hosts,
            used=node_cache.used,
            released_targets={p.metadata.key: target for p in pods if (target := current_target(p)) is not None},
            assigned_nodes={key: node for key in keys if (node := node_cache.assigned_node(key))},
            group=known,
            routings=self.state.routings_of(pods),
            has_topology=bool(costs.topology),
            volumes=self.volume_selectors(pods, replicas),
            hot_hosts=node_cache.hot,
            foreign=foreign_pods(node_cache, pods),
            prices=self.prices,
            allocatable=self.state.allocatable,
        )

    def cache_key(self, group: str, pods: Sequence[GroupPod]) -> tuple[object, ...]:
        """The key of a group's cached plan: changes with its graph, replicas, pods and volumes, with costs and hosts.

        Without pods behind foreign gates, and without those that a rollout is about to replace.
        """
        replicas, _ = self.replicas_to_plan(group, pods)
        leaving = find_outdated_pods(pod.metadata for pod in pods if pod.is_active)
        there = [pod for pod in pods if pod.is_active and not (pod.is_waiting and pod.other_gates)]
        return (
            self.state.graph(group),
            self.state.costs(self.state.groups[group].metadata.namespace).table,
            self.node_cache.version,
            frozenset(p.metadata.key for p in there if p.is_waiting or p.metadata.key not in leaving),
            replicas,
            self.volume_selectors(pods, replicas),
            tuple(others for others in foreign_pods(self.node_cache, pods) if others.required),
        )

    def plan(self, snapshot: GroupSnapshot) -> Plan:
        """Plan in this process, as the leader does, preemption included."""
        plan = plan_group(snapshot)
        preemption = self.without_preemptible(snapshot, plan)
        return plan if preemption is None else min(plan, plan_group(preemption[0]), key=lambda p: len(p.unplaced))

    def without_preemptible(self, snapshot: GroupSnapshot, plan: Plan) -> tuple[GroupSnapshot, int] | None:
        """The snapshot without pods of lower priority, and that priority, for pods that the plan leaves without a place.

        None if they may preempt no pod.
        """
        unplaced = [pod.spec for pod in snapshot.pods if pod.metadata.key in plan.unplaced]
        may_preempt = all(spec.preemption_policy != "Never" for spec in unplaced)
        below = min((spec.priority for spec in unplaced), default=None) if may_preempt else None
        preemptible = self.preemptible_requests(snapshot.pods, below)
        if below is None or not preemptible:
            return None
        reserved = {node: dict(amounts) for node, amounts in snapshot.reserved.items()}
        for node, amounts in preemptible.items():
            add_amounts(reserved.setdefault(node, {}), amounts, -1)
        return msgspec.structs.replace(snapshot, reserved=reserved), below

    def preemptible_requests(self, pods: Sequence[GroupPod], below: int | None) -> dict[str, Amounts]:
        """Node -> requests of other pods with a priority below this.

        Pods that a PodDisruptionBudget protects are included: kube-scheduler preempts them as a last resort.
        """
        found: dict[str, Amounts] = {}
        if below is not None:
            own = {pod.metadata.key for pod in pods}
            for info in self.node_cache.bound_pods:
                if info.priority < below and info.key not in own:
                    add_amounts(found.setdefault(info.occupied_node, {}), info.host_requests)
        return found

    def outgoing_requests(self, pods: Sequence[GroupPod]) -> dict[str, Amounts]:
        """Node -> requests of pods that a rollout is about to replace there."""
        found: dict[str, Amounts] = {}
        for key in find_outdated_pods(pod.metadata for pod in pods if pod.is_active):
            info = self.node_cache.bound_pod(key)
            if info is not None:
                add_amounts(found.setdefault(info.node, {}), info.host_requests)
        return found

    def ineligible_nodes(self, pod: GroupPod) -> dict[str, str]:
        """Node -> why a pod may not run there: node constraints, resources, or other pods."""
        original, requests = without_added_requirement(pod), host_requests_of(pod.spec)
        hosts, used = list(self.node_cache.hosts.values()), self.node_cache.used
        number_of = {host.name: number for number, host in enumerate(hosts)}
        others = [
            (node, other.pod) for other in foreign_pods(self.node_cache, [pod]) for node in other.nodes.elements()
        ]
        bound = [(number_of[node], other) for node, other in others if node in number_of]
        by_other_pods = refusals(original, hosts, bound)
        constraints, volumes = Constraints(original.spec), self.volumes.node_selectors_of_pod(pod)
        found: dict[str, str] = {}
        for number, host in enumerate(hosts):
            insufficient = first_insufficient(requests, host.allocatable, used.get(host.name, {}))
            why = host.refusal(constraints, volumes)
            why = why or (describe_lack(insufficient) if insufficient else by_other_pods.get(number, ""))
            if why:
                found[host.name] = why
        return found

    def replicas_to_plan(self, group: str, pods: Sequence[GroupPod]) -> tuple[dict[str, int], int]:
        """Replicas to plan for, as far as numMembers allows; see `limit_replicas`."""
        if self.declared is None:
            return {}, 0
        known = self.state.groups[group]
        declared = self.declared.replicas(known.metadata.namespace, self.state.graph(group).workloads)
        there = [pod for pod in pods if pod.is_active]
        leaving = find_outdated_pods(pod.metadata for pod in there)
        live = Counter(pod.workload for pod in there if pod.metadata.key not in leaving)
        allowed = max(known.spec.num_members - live.total(), len(leaving))
        return limit_replicas(declared, live, allowed)

    def volume_selectors(
        self, pods: Sequence[GroupPod], replicas: Mapping[str, int]
    ) -> dict[str, tuple[NodeSelector, ...]]:
        """See `GroupSnapshot.volumes`."""
        live = [pod for pod in pods if pod.is_active]
        found = {p.metadata.key: self.volumes.node_selectors_of_pod(p) for p in live if p.spec.volumes}
        counts = Counter(pod.workload for pod in live)
        for workload, model in {pod.workload: pod for pod in live if pod.spec.volumes}.items():
            if counts[workload] < replicas.get(workload, 0):
                found[workload] = self.volumes.node_selectors_of_next_replica(model)
        return {key: demands for key, demands in found.items() if demands}
