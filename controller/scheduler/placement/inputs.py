"""Builds the snapshot that a group's plan is made from, for the controller, the descheduler and commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.declared_replicas import Declared, to_plan_for
from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import NodeCache
from controller.cluster.pods import GroupPod, NodeSelector, carried_target
from controller.cluster.requests import Amounts, add, first_insufficient, host_requests_of
from controller.cluster.volumes import Volumes
from controller.scheduler.affinity import without_added_requirement
from controller.scheduler.placement.foreign import foreign_pods
from controller.scheduler.placement.planner import Plan, plan_group
from controller.scheduler.placement.pod_topology import refusals
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.unplaced import describe_lack
from controller.scheduler.state import State
from controller.traffic.prices import PriceTable
from kubekit.owners import outdated


class Evicting(NamedTuple):
    """A plan for which other pods are evicted.

    Attributes:
        snapshot: the group's, as if these pods were gone.
        below: pods of less priority than that are.
    """

    snapshot: GroupSnapshot
    below: int

    def choose(self, plan: Plan, evicting: Plan) -> tuple[Plan, int | None]:
        """The plan in the room that there is, unless evictions place more; and the priority below which it evicts."""
        return (evicting, self.below) if len(evicting.unplaced) < len(plan.unplaced) else (plan, None)


class PlanInputs(NamedTuple):
    """The cluster: stores that watches keep up to date, or the objects of one list or file.

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
    declared: Declared | None = None

    def snapshot(self, group: str, pods: Sequence[GroupPod]) -> GroupSnapshot:
        """All that a plan of a group depends on, but for what the leader promised to other groups.

        Args:
            group: its key.
            pods: all of its pods.
        """
        known, node_cache = self.state.groups[group], self.node_cache
        costs = self.state.costs(known.metadata.namespace)
        replicas, _ = self.replicas(group, pods)
        keys = [pod.metadata.key for pod in pods]
        return GroupSnapshot(
            graph=self.state.graph(group),
            pods=pods,
            replicas=replicas,
            costs=costs.table,
            hosts=node_cache.hosts,
            used=node_cache.used,
            released={p.metadata.key: target for p in pods if (target := carried_target(p)) is not None},
            assigned_nodes={key: node for key in keys if (node := node_cache.assigned_node(key))},
            group=known,
            routings=self.state.routings_of(pods),
            measured=bool(costs.topology),
            volumes=self.demands_of(pods, replicas),
            hot=node_cache.hot,
            foreign=foreign_pods(node_cache, pods),
            prices=self.prices,
            allocatable=self.state.allocatable,
        )

    def key(self, group: str, pods: Sequence[GroupPod]) -> tuple[object, ...]:
        """Equal keys have the same group, costs, hosts and pods. Pods behind gates of others do not count until these open, nor do
        pods that a rollout is about to replace.
        """
        replicas, _ = self.replicas(group, pods)
        leaving = outdated(pod.metadata for pod in pods if pod.is_active)
        there = [pod for pod in pods if pod.is_active and not (pod.waiting and pod.other_gates)]
        return (
            self.state.graph(group),
            self.state.costs(self.state.groups[group].metadata.namespace).table,
            self.node_cache.version,
            frozenset(p.metadata.key for p in there if p.waiting or p.metadata.key not in leaving),
            replicas,
            self.demands_of(pods, replicas),
            tuple(others for others in foreign_pods(self.node_cache, pods) if others.required),
        )

    def plan(self, snapshot: GroupSnapshot) -> Plan:
        """The leader's plan, made here and now."""
        plan = plan_group(snapshot)
        second = self.with_evictions(snapshot, plan)
        return plan if second is None else second.choose(plan, plan_group(second.snapshot))[0]

    def with_evictions(self, snapshot: GroupSnapshot, plan: Plan) -> Evicting | None:
        """A second snapshot without pods of lower priority, for pods that have no place; None if they may evict none."""
        left = [pod.spec for pod in snapshot.pods if pod.metadata.key in plan.unplaced]
        willing = all(spec.preemption_policy != "Never" for spec in left)
        below = min((spec.priority for spec in left), default=None) if willing else None
        evictable = self.evictable(snapshot.pods, below)
        if below is None or not evictable:
            return None
        promised = {node: dict(amounts) for node, amounts in snapshot.promised.items()}
        for node, amounts in evictable.items():
            add(promised.setdefault(node, {}), amounts, -1)
        return Evicting(msgspec.structs.replace(snapshot, promised=promised), below)

    def evictable(self, pods: Sequence[GroupPod], below: int | None) -> dict[str, Amounts]:
        """Node -> requests of pods beside these with less priority. kube-scheduler evicts those that budgets protect, too, where it must."""
        found: dict[str, Amounts] = {}
        if below is not None:
            own = {pod.metadata.key for pod in pods}
            for info in self.node_cache.bound:
                if info.priority < below and info.key not in own:
                    add(found.setdefault(info.occupied_node, {}), info.host_requests)
        return found

    def leaving(self, pods: Sequence[GroupPod]) -> dict[str, Amounts]:
        """Node -> requests of pods that a rollout is about to replace there."""
        found: dict[str, Amounts] = {}
        for key in outdated(pod.metadata for pod in pods if pod.is_active):
            info = self.node_cache.held(key)
            if info is not None:
                add(found.setdefault(info.node, {}), info.host_requests)
        return found

    def ineligible(self, pod: GroupPod) -> dict[str, str]:
        """Node -> why a pod may not run there: node constraints, resources, or other pods."""
        asked, asks = without_added_requirement(pod), host_requests_of(pod.spec)
        hosts, used = list(self.node_cache.hosts.values()), self.node_cache.used
        number_of = {host.name: number for number, host in enumerate(hosts)}
        others = [
            (node, other.pod) for other in foreign_pods(self.node_cache, [pod]) for node in other.nodes.elements()
        ]
        bound = [(number_of[node], other) for node, other in others if node in number_of]
        by_other_pods = refusals(asked, hosts, bound)
        constraints, volumes = Constraints(asked.spec), self.volumes.node_selectors_of_pod(pod)
        found: dict[str, str] = {}
        for number, host in enumerate(hosts):
            lacks = first_insufficient(asks, host.allocatable, used.get(host.name, {}))
            why = host.refusal(constraints, volumes) or (
                describe_lack(lacks) if lacks else by_other_pods.get(number, "")
            )
            if why:
                found[host.name] = why
        return found

    def replicas(self, group: str, pods: Sequence[GroupPod]) -> tuple[dict[str, int], int]:
        """See `to_plan_for`: what may come is what the group's numMembers has left."""
        if self.declared is None:
            return {}, 0
        known = self.state.groups[group]
        declared = self.declared.replicas(known.metadata.namespace, self.state.graph(group).workloads)
        there = [pod for pod in pods if pod.is_active]
        leaving = outdated(pod.metadata for pod in there)
        live = Counter(pod.workload for pod in there if pod.metadata.key not in leaving)
        allowed = max(known.spec.num_members - live.total(), len(leaving))
        return to_plan_for(declared, live, allowed)

    def demands_of(self, pods: Sequence[GroupPod], replicas: Mapping[str, int]) -> dict[str, tuple[NodeSelector, ...]]:
        """See `GroupSnapshot.volumes`."""
        live = [pod for pod in pods if pod.is_active]
        found = {p.metadata.key: self.volumes.node_selectors_of_pod(p) for p in live if p.spec.volumes}
        counts = Counter(pod.workload for pod in live)
        for workload, model in {pod.workload: pod for pod in live if pod.spec.volumes}.items():
            if counts[workload] < replicas.get(workload, 0):
                found[workload] = self.volumes.node_selectors_of_next_replica(model)
        return {key: demands for key, demands in found.items() if demands}
