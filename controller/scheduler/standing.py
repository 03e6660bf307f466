"""A plan that was made, and whether it still holds: pods are bound one after the other, and most bindings are as planned.

Planning anew for each of them would cost a plan per pod, and would let targets wander for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.appgroup.graph import Graph
from controller.scheduler.planner import GroupSnapshot, Plan
from controller.scheduler.pods import GroupPod
from controller.scheduler.requests import Amounts, requests_of
from controller.scheduler.rules import CostTable


class StandingPlan(msgspec.Struct, frozen=True):
    """A plan with what it was made for.

    Attributes:
        plan: the plan.
        graph: of the group.
        costs: the weight that was in use.
        fleet_version: of the hosts.
        members: keys of the pods that were there.
        replicas: declared ones.
    """

    plan: Plan
    graph: Graph
    costs: CostTable
    fleet_version: int
    members: frozenset[str]
    replicas: Mapping[str, int]

    @classmethod
    def of(cls, snapshot: GroupSnapshot, fleet_version: int, plan: Plan) -> StandingPlan:
        """Remember what a plan was made for."""
        return cls(plan, snapshot.graph, snapshot.costs, fleet_version, _members(snapshot), dict(snapshot.replicas))

    def holds(self, snapshot: GroupSnapshot, fleet_version: int) -> bool:
        """Whether the plan is as good as a new one would be: same group, costs, hosts and pods, every pod that was bound
        since is where it should be, and there is still room for those that are not.
        """
        same = (
            self.graph == snapshot.graph
            and self.costs is snapshot.costs
            and self.fleet_version == fleet_version
            and self.members == _members(snapshot)
            and self.replicas == snapshot.replicas
            and not self.plan.unplaced
        )
        return same and self._followed(snapshot) and self._has_room(snapshot)

    def _followed(self, snapshot: GroupSnapshot) -> bool:
        for pod in snapshot.pods:
            key, target = pod.metadata.key, self.plan.targets.get(pod.metadata.key)
            if pod.over or target is None:
                continue
            node = pod.spec.node_name or (snapshot.seats or {}).get(key, "")
            carried = snapshot.released.get(key)
            if (node and node != target.node) or (carried is not None and carried.node != target.node):
                return False
            if not node and not pod.gated and carried is None:
                return False  # the scheduler found no node for it
        return True

    def _has_room(self, snapshot: GroupSnapshot) -> bool:
        wanted: dict[str, Amounts] = {}
        for pod in snapshot.pods:
            target = self.plan.targets.get(pod.metadata.key)
            if target is not None and not pod.over and pod.metadata.key not in (snapshot.seats or {}):
                _add(wanted.setdefault(target.node, {}), pod)
        return all(_fits(node, amounts, snapshot) for node, amounts in wanted.items())


def _members(snapshot: GroupSnapshot) -> frozenset[str]:
    return frozenset(pod.metadata.key for pod in snapshot.pods if not pod.over)


def _add(total: Amounts, pod: GroupPod) -> None:
    for name, value in requests_of(pod.spec.containers, pod.spec.init_containers, pod.spec.overhead).items():
        total[name] = total.get(name, 0) + value


def _fits(node: str, wanted: Amounts, snapshot: GroupSnapshot) -> bool:
    host, used = snapshot.hosts.get(node), snapshot.used.get(node, {})
    return host is not None and all(
        used.get(name, 0) + value <= host.allocatable.get(name, 0) for name, value in wanted.items() if value
    )
