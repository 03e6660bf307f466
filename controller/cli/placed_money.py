"""What a pod's traffic costs where it is and where it might be: for `explain` and for the descheduler's dry run."""

from __future__ import annotations

from collections import Counter, defaultdict

from controller.cluster.membership import Membership
from controller.cluster.pods import GroupPod
from controller.cluster.resources import WORKLOAD_LABEL
from controller.cluster.zones import draw_map
from controller.traffic.placed import GroupTraffic, month_of_pod, traffic_of
from controller.traffic.prices import PriceTable
from controller.traffic.workloads import Place
from controller.views.snapshot import Snapshot


class PlacedMoney:
    """Prices over a snapshot with groups and their pods."""

    def __init__(self, snapshot: Snapshot, prices: PriceTable) -> None:
        self.prices = prices
        self.places = {name: (p.region, p.zone) for name, p in draw_map(snapshot.nodes).places.items()}
        self._membership = Membership.among(snapshot.groups, snapshot.rules.namespaces)
        self._pods = {pod.metadata.key: pod for pod in snapshot.pods}
        self._traffic = {group.metadata.key: traffic_of(group) for group in snapshot.groups}
        self._placed: dict[str, dict[str, Counter[Place]]] = defaultdict(lambda: defaultdict(Counter))
        for pod in snapshot.pods:
            if pod.spec.node_name in self.places and not pod.finished and not pod.metadata.deletion_timestamp:
                workload = pod.metadata.label(WORKLOAD_LABEL)
                self._placed[self._group(pod)][workload][self.places[pod.spec.node_name]] += 1

    def traffic(self, key: str) -> GroupTraffic | None:
        """Of the group that a pod belongs to; None where nothing is known."""
        pod = self._pods.get(key)
        found = self._traffic.get(self._group(pod)) if pod is not None else None
        return found if found is not None and found.rates else None

    def month(self, key: str, place: Place) -> float | None:
        """Of a pod at a place; None where its traffic is not known."""
        pod, traffic = self._pods.get(key), self.traffic(key)
        if pod is None or traffic is None:
            return None
        workload = pod.metadata.label(WORKLOAD_LABEL)
        return month_of_pod(traffic, workload, place, self._placed[self._group(pod)], self.prices)

    def _group(self, pod: GroupPod) -> str:
        return self._membership.group_of(pod.metadata.namespace, pod.group)
