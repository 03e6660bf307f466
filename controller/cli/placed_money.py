"""What traffic of pods and of groups costs where they are and where they might be: for `explain` and for the descheduler's dry run."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from controller.cluster.pods import GroupPod
from controller.cluster.resources import WORKLOAD_LABEL
from controller.cluster.services import ServiceIndex
from controller.cluster.zones import draw_map
from controller.traffic.placed import GroupTraffic, Placed, month_of, month_of_pod, near_of, traffic_of
from controller.traffic.prices import PriceTable
from controller.traffic.workloads import Place
from controller.views.snapshot import ClusterSnapshot


class PlacedMoney:
    """Prices over a snapshot with groups and their pods."""

    def __init__(self, snapshot: ClusterSnapshot, prices: PriceTable) -> None:
        self.prices = prices
        self.places = draw_map(snapshot.nodes).locations
        self._membership = snapshot.membership
        self._pods = {pod.metadata.key: pod for pod in snapshot.pods}
        services = ServiceIndex.among(snapshot.services)
        members: dict[str, list[GroupPod]] = defaultdict(list)
        for pod in snapshot.pods:
            members[self._group(pod)].append(pod)
        self._traffic = {
            key: msgspec.structs.replace(traffic_of(group), near=near_of(members[key], services))
            for key, group in ((group.metadata.key, group) for group in snapshot.groups)
        }
        self._placed: dict[str, dict[str, Counter[Place]]] = defaultdict(lambda: defaultdict(Counter))
        self._at: dict[str, Place] = {}
        for pod in snapshot.pods:
            if pod.spec.node_name in self.places and not pod.finished and not pod.metadata.deletion_timestamp:
                workload = pod.metadata.label(WORKLOAD_LABEL)
                self._at[pod.metadata.key] = place = self.places[pod.spec.node_name]
                self._placed[self._group(pod)][workload][place] += 1

    def traffic(self, key: str) -> GroupTraffic | None:
        """Of the group that a pod belongs to; None where nothing is known."""
        pod = self._pods.get(key)
        return self.traffic_of_group(self._group(pod)) if pod is not None else None

    def traffic_of_group(self, key: str) -> GroupTraffic | None:
        """The same by the group's key."""
        found = self._traffic.get(key)
        return found if found is not None and found.rates else None

    def month_of_group(self, key: str, placed: Placed | None = None) -> float | None:
        """Of a whole group as it stands, or as ``placed``; None where its traffic is not known."""
        traffic = self.traffic_of_group(key)
        return month_of(traffic, self._placed[key] if placed is None else placed, self.prices) if traffic else None

    def month(self, key: str, place: Place) -> float | None:
        """Of a pod at a place; None where its traffic is not known."""
        pod, traffic = self._pods.get(key), self.traffic(key)
        if pod is None or traffic is None:
            return None
        workload = pod.metadata.label(WORKLOAD_LABEL)
        return month_of_pod(traffic, workload, place, self._placed[self._group(pod)], self.prices)

    def saved_by(self, key: str, place: Place) -> float | None:
        """What its group costs less a month once a pod is at a place, which it is taken to be from now on: of two pods that call
        each other and move together, the second pays nothing. None where its traffic, or where it is, is not known.
        """
        pod = self._pods.get(key)
        here = self._at.get(key)
        before = None if pod is None else self.month_of_group(self._group(pod))
        if pod is None or here is None or before is None:
            return None
        counts = self._placed[self._group(pod)][pod.metadata.label(WORKLOAD_LABEL)]
        counts[here] -= 1
        counts += Counter({place: 1})  # forgets places without pods
        self._at[key] = place
        after = self.month_of_group(self._group(pod))
        return None if after is None else before - after

    def _group(self, pod: GroupPod) -> str:
        return self._membership.group_of(pod.metadata.namespace, pod.group)
