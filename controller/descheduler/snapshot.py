"""The cluster as the rules look at it, one moment at a time, and as it is kept: by watches in the program, by lists in a preview."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.cluster.hosts import Host, host_of
from controller.cluster.pod_info import PodInfo
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup, NetworkTopology
from controller.cluster.services import Service
from controller.cluster.volumes import Volumes
from controller.descheduler.usage import UsageView
from controller.scheduler.rules import ScoreTable
from controller.scheduler.state import DeletedNodeError, State
from kubekit.errors import SelectorError
from kubekit.selectors import LabelSelector, Selector, from_object
from kubekit.wire import Node, Object, Resource, Wire

_EMPTY: Mapping[str, PodInfo] = {}


class PodIndex:
    """Pods by key, node, namespace, workload and AppGroup's name."""

    def __init__(self, pods: Iterable[PodInfo] = ()) -> None:
        self.by_key: dict[str, PodInfo] = {pod.key: pod for pod in pods}
        self._by_node: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        self._by_workload: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        self._by_group: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        self._by_namespace: dict[str, dict[str, PodInfo]] = defaultdict(dict)
        for key, pod in self.by_key.items():
            self._by_namespace[pod.namespace][key] = pod
            if pod.node:
                self._by_node[pod.node][key] = pod
            if pod.workload:
                self._by_workload[pod.workload][key] = pod
            if group := pod.labels.get(APPGROUP_LABEL):
                self._by_group[group][key] = pod

    def on_node(self, node: str) -> Mapping[str, PodInfo]:
        """Pods bound to a node, by key; finished ones included."""
        return self._by_node.get(node, _EMPTY)

    def in_namespace(self, namespace: str) -> Mapping[str, PodInfo]:
        """All pods of a namespace."""
        return self._by_namespace.get(namespace, _EMPTY)

    def of_workload(self, workload: str) -> Mapping[str, PodInfo]:
        """Pods that one controller made."""
        return self._by_workload.get(workload, _EMPTY)

    @property
    def groups(self) -> Mapping[str, Mapping[str, PodInfo]]:
        """AppGroup name -> its pods."""
        return self._by_group


BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


class BudgetSpec(Wire, frozen=True):
    """Which pods a budget is for; an absent selector is for none, an empty one for all."""

    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True):
    """What the disruption controller allows now."""

    disruptions_allowed: int = 0


class Budget(Object, frozen=True):
    """policy/v1 PodDisruptionBudget."""

    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class PdbState(NamedTuple):
    """A PodDisruptionBudget.

    Attributes:
        key: ``namespace/name``.
        allowed: evictions that it permits now.
    """

    key: str
    namespace: str
    selector: Selector
    allowed: int


def read_budget(budget: Budget) -> PdbState | None:
    """Convert a budget; None for one without selector, which covers no pod.

    Its ``disruptedPods`` are already out of ``disruptionsAllowed``.
    """
    if budget.spec.selector is None:
        return None
    try:
        selector = from_object(budget.spec.selector)
    except SelectorError:  # newer than we are: then it covers its whole namespace, the safe reading
        selector = Selector()
    return PdbState(budget.metadata.key, budget.metadata.namespace, selector, max(0, budget.status.disruptions_allowed))


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """One moment.

    Attributes:
        nodes: by name.
        budgets: by namespace.
        usage: smoothed, nothing expired in it.
        network: the scheduler's view of AppGroups and costs; None where there are none.
        volumes: from where the data of pods can be reached.
    """

    nodes: Mapping[str, Host]
    pods: PodIndex
    usage: UsageView
    budgets: Mapping[str, tuple[PdbState, ...]] = field(default_factory=dict)
    network: State | None = None
    volumes: Volumes = field(default_factory=Volumes)

    def group_of(self, pod: PodInfo) -> str:
        """Key of a pod's AppGroup; empty without one."""
        name = pod.labels.get(APPGROUP_LABEL, "")
        if not name or self.network is None:
            return f"{pod.namespace}/{name}" if name else ""
        return self.network.key_of(pod.namespace, name)

    def score_table_of(self, pod: PodInfo) -> ScoreTable | None:
        """How a pod would fare anywhere by the scheduler's rules; None where these have no answer."""
        if self.network is None:
            return None
        group, workload = pod.labels.get(APPGROUP_LABEL, ""), pod.labels.get(WORKLOAD_LABEL, "")
        try:
            return self.network.weigh(pod.namespace, group, workload)
        except DeletedNodeError:
            return None


def by_namespace(budgets: Iterable[PdbState]) -> dict[str, tuple[PdbState, ...]]:
    """Budgets by namespace, in order of their keys."""
    found: dict[str, list[PdbState]] = defaultdict(list)
    for budget in sorted(budgets, key=lambda budget: budget.key):
        found[budget.namespace].append(budget)
    return {namespace: tuple(entries) for namespace, entries in found.items()}


class World:
    """Nodes, pods, disruption budgets, and the scheduler's view of AppGroups and costs.

    Attributes:
        nodes: by name; pods: by key.
        network: the scheduler's own state object; fed here, unless somebody else feeds it already.

    Args:
        network: the state.
        volumes: kept up to date by somebody else, where there are any.
        feeds_network: off where the scheduler of the same program keeps it up to date.
    """

    def __init__(self, network: State, volumes: Volumes | None = None, *, feeds_network: bool = True) -> None:
        self.nodes: dict[str, Host] = {}
        self.pods: dict[str, PodInfo] = {}
        self.network, self._feeds_network = network, feeds_network
        self._volumes = volumes or Volumes()
        self._budgets: dict[str, PdbState] = {}

    def take_node(self, key: str, old: Node | None, new: Node | None) -> None:
        """A node changed."""
        if self._feeds_network:
            self.network.take_node(key, old, new)
        if new is None:
            self.nodes.pop(key, None)
        else:
            self.nodes[key] = host_of(new)

    def take_pod(self, key: str, _: PodInfo | None, new: PodInfo | None) -> None:
        """A pod changed."""
        # What the network state counted before is what our index holds, whatever event came in between.
        before = self.pods.get(key)
        if self._feeds_network:
            self.network.take_pod(key, before.wire if before else None, new.wire if new else None)
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new

    def take_budget(self, key: str, _: Budget | None, new: Budget | None) -> None:
        """A PodDisruptionBudget changed."""
        state = None if new is None else read_budget(new)
        if state is None:
            self._budgets.pop(key, None)
        else:
            self._budgets[key] = state

    def take_lists(
        self,
        nodes: Iterable[Node],
        pods: Iterable[PodInfo],
        budgets: Iterable[Budget],
        *,
        namespaces: Iterable[Object],
        services: Iterable[Service],
        groups: Iterable[AppGroup],
        topologies: Iterable[NetworkTopology],
    ) -> None:
        """Take whole lists instead of events."""
        for namespace in namespaces:
            self.network.take_namespace(namespace.metadata.name, None, namespace)
        for service in services:
            self.network.take_service(service.metadata.key, None, service)
        for node in nodes:
            self.take_node(node.metadata.key, None, node)
        for pod in pods:
            self.take_pod(pod.key, None, pod)
        for budget in budgets:
            self.take_budget(budget.metadata.key, None, budget)
        for group in groups:
            self.network.take_group(group.metadata.key, None, group)
        for topology in topologies:
            self.network.take_topology(topology.metadata.key, None, topology)

    def copy(self) -> World:
        """As it is now, for a thread: nothing that is taken later changes it."""
        made = World(self.network.copy(), self._volumes.copy(), feeds_network=self._feeds_network)
        made.nodes, made.pods, made._budgets = self.nodes.copy(), self.pods.copy(), self._budgets.copy()
        return made

    def snapshot(self, usage: UsageView) -> LoadSnapshot:
        """Now. Shares nodes and network with this object: of one that goes on taking changes it is good until the next await."""
        budgets: Mapping[str, tuple[PdbState, ...]] = by_namespace(self._budgets.values())
        return LoadSnapshot(self.nodes, PodIndex(self.pods.values()), usage, budgets, self.network, self._volumes)
