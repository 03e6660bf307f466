"""A copy of the cluster that a round decides from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.resources import APPGROUP_LABEL
from controller.cluster.volumes import Volumes
from controller.descheduler.usage import NO_USAGE, UsageView
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.rules import ScoreTable
from controller.scheduler.state import NO_GROUP_LABEL, State
from kubekit.selectors import LabelSelector
from kubekit.wire import Object, Resource, Wire

Field = Literal["node", "namespace", "workload"]


class PodIndex:
    """Pods by key; indexes by field are built on demand."""

    def __init__(self, pods: Mapping[str, PodInfo]) -> None:
        self.by_key = pods
        self._indexes: dict[Field, Mapping[str, Mapping[str, PodInfo]]] = {}

    def where(self, field: Field, value: str) -> Mapping[str, PodInfo]:
        """Pods with this value, by key; finished ones included, none for an empty value."""
        if field not in self._indexes:
            found: dict[str, dict[str, PodInfo]] = defaultdict(dict)
            for key, pod in self.by_key.items():
                found[getattr(pod, field)][key] = pod
            self._indexes[field] = found | {"": {}}
        return self._indexes[field].get(value, {})


BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


class BudgetSpec(Wire, frozen=True):
    """The spec of a PodDisruptionBudget; an absent selector matches none, an empty one all."""

    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True):
    """The status of a PodDisruptionBudget."""

    disruptions_allowed: int = 0


class Budget(Object, frozen=True):
    """policy/v1 PodDisruptionBudget."""

    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """One moment.

    Attributes:
        nodes: by name.
        network: the scheduler's view of AppGroups and costs.
        volumes: from where the data of pods can be reached.
        usage: nothing expired in it.
    """

    nodes: Mapping[str, Host]
    pods: PodIndex
    network: State
    volumes: Volumes
    budgets: tuple[Budget, ...]
    usage: UsageView = NO_USAGE

    def group_of(self, pod: PodInfo) -> str:
        """Key of a pod's AppGroup; empty without one."""
        name = pod.labels.get(APPGROUP_LABEL, "")
        return self.network.key_of(pod.namespace, name) if name else ""

    def score_table_of(self, pod: PodInfo) -> ScoreTable:
        """The pod's scores everywhere by the scheduler's rules."""
        return ScoreTable(NO_GROUP_LABEL) if pod.wire is None else self.network.score_table_of(pod.wire)


def take_snapshot(inputs: PlanInputs, pods: Mapping[str, PodInfo], budgets: Iterable[Budget]) -> LoadSnapshot:
    """The cluster as it is now, for a thread: nothing that changes later changes it. Usage is not known yet.

    Args:
        inputs: what the scheduler plans from, so that both see one cluster.
        pods: all pods by key.
        budgets: all disruption budgets.
    """
    return LoadSnapshot(
        inputs.node_cache.hosts.copy(),
        PodIndex({**pods}),
        inputs.state.copy(),
        inputs.volumes.copy(),
        tuple(budgets),
    )
