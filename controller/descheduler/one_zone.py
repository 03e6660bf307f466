"""Workloads that are to survive a zone and are wholly in one: one replica goes to another zone once there is one.

So it is after an outage: what ran in the zone that was lost has found its place in the others, and nothing but this rule would bring
any of it back.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.cluster.pod_info import PodInfo
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.balance import as_it_stands, in_one_zone
from controller.scheduler.rules import Tally, Weighing
from controller.scheduler.state import State


class OneZone:
    """The workloads of one round, by group.

    Args:
        network: the scheduler's view.
    """

    def __init__(self, network: State) -> None:
        self._network = network
        self._known: dict[str, Mapping[str, str]] = {}

    def of(self, pod: PodInfo) -> str:
        """The zone that holds all replicas of a pod's workload though it is to survive one; else empty."""
        group = self._network.group_of(pod.namespace, pod.labels.get(APPGROUP_LABEL, ""))
        if not group:
            return ""
        if group not in self._known:
            stands = as_it_stands(self._network, group)
            self._known[group] = {stands.graph.selectors[w]: zone for w, zone in in_one_zone(stands)}
        return self._known[group].get(pod.labels.get(WORKLOAD_LABEL, ""), "")

    def places(self, zone: str) -> frozenset[int]:
        """Where such a pod is not to go: its zone, and nodes without one."""
        return frozenset(place for place, location in enumerate(self._network.places) if location.zone in {zone, ""})

    def weigh(self, weighing: Weighing) -> Weighing:
        """The same, with every place as good as another where the pod talks to nobody."""
        return Weighing("", [Tally()] * len(self._network.places)) if weighing.neutral else weighing


def keeps_limits(now: Tally, there: Tally) -> bool:
    """Whether no more dependencies would be beyond their maxNetworkCost: survival is worth the way, and not more."""
    return there.passes and there.violated <= now.violated


def describe(zone: str) -> str:
    """Why, for people."""
    return f"all replicas of its workload are in zone {zone}, and it is to survive one"
