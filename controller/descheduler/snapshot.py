"""The copy of the cluster from which a round decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.volumes import Volumes
from controller.descheduler.disruption_budgets import PodDisruptionBudget
from controller.descheduler.usage import NO_USAGE, UsageView
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.rules import ScoreTable
from controller.scheduler.state import NO_GROUP_LABEL, State

PodField = Literal["node", "namespace", "workload"]


class PodIndex:
    """Pods by key, with indexes by field that are built on first use."""

    def __init__(self, pods: Mapping[str, PodInfo]) -> None:
        self.by_key = pods
        self._indexes: dict[PodField, Mapping[str, Mapping[str, PodInfo]]] = {}

    def where(self, field: PodField, value: str) -> Mapping[str, PodInfo]:
        """Pods whose field has this value, by key, including finished pods; no pods for an empty value."""
        if field not in self._indexes:
            index: dict[str, dict[str, PodInfo]] = defaultdict(dict)
            for key, pod in self.by_key.items():
                index[getattr(pod, field)][key] = pod
            self._indexes[field] = index | {"": {}}
        return self._indexes[field].get(value, {})


@dataclass(frozen=True, slots=True)
class DeschedulerSnapshot:
    """The cluster at one time.

    Attributes:
        nodes: by name.
        pods: all pods, also terminating and finished ones.
        network: the scheduler's view of AppGroups and costs.
        volumes: claims and volumes, which restrict the nodes of pods that mount them.
        budgets: all PodDisruptionBudgets.
        usage: unexpired usage.
    """

    nodes: Mapping[str, Host]
    pods: PodIndex
    network: State
    volumes: Volumes
    budgets: tuple[PodDisruptionBudget, ...]
    netaware_namespace: str
    usage: UsageView = NO_USAGE

    def has_unfinished_pod(self, key: str, uid: str) -> bool:
        """Whether the pod with this key and uid exists, perhaps terminating. A finished pod loads no node; a finalizer may keep it."""
        pod = self.pods.by_key.get(key)
        return pod is not None and pod.uid == uid and not pod.is_finished

    def usage_of(self, pod: PodInfo, resources: Iterable[str]) -> dict[str, float]:
        """The pod's measured usage of some resources. Omits unknown ones."""
        measured = self.usage.by_pod.get(pod.key, {})
        return {resource: measured[resource] for resource in resources if resource in measured}

    def group_key_of(self, pod: PodInfo) -> str:
        """Key of the AppGroup that the pod's label names, even if it does not exist; empty without a label."""
        name = pod.labels.get(APPGROUP_LABEL, "")
        return self.network.expected_group_key(pod.namespace, name) if name else ""

    def score_table_of(self, pod: PodInfo) -> ScoreTable:
        """The pod's scores on all nodes by the scheduler's rules; neutral without a label of an AppGroup."""
        return ScoreTable(NO_GROUP_LABEL) if pod.group_pod is None else self.network.score_table_of(pod.group_pod)


def take_snapshot(
    inputs: PlanInputs, pods: Mapping[str, PodInfo], budgets: Iterable[PodDisruptionBudget], netaware_namespace: str
) -> DeschedulerSnapshot:
    """Copy the current cluster, without usage; ``inputs`` are the planner's, ``pods`` are all pods by key."""
    nodes, network, volumes = inputs.node_cache.hosts.copy(), inputs.state.copy(), inputs.volumes.copy()
    return DeschedulerSnapshot(nodes, PodIndex({**pods}), network, volumes, tuple(budgets), netaware_namespace)
