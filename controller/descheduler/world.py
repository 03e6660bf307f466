"""The cluster as the descheduler keeps it: fed by watches in the program, by lists in a preview, and turned into snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.descheduler.objects import Budget, MovablePod, NodeInfo, PodInfo, PodReader, read_node
from controller.descheduler.snapshot import Guard, PodIndex, Snapshot, by_namespace, read_guard
from controller.descheduler.usage import UsageView
from controller.resources import APPGROUP_LABEL, AppGroup, NetworkTopology
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.pods import GroupPod, GroupPodSpec, GroupPodStatus
from controller.scheduler.state import State
from kubekit.wire import Node, ObjectMeta


class World:
    """Nodes, pods, disruption budgets, and the scheduler's view of AppGroups and costs.

    Attributes:
        nodes: by name; pods: indexed.
        network: the scheduler's own state object, fed with the same events.
    """

    def __init__(self, scheduler: SchedulerConfig, namespace: str) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self.pods = PodIndex()
        self.network = State(scheduler, namespace)
        self._reader = PodReader()
        self._guards: dict[str, Guard] = {}

    def take_node(self, key: str, old: Node | None, new: Node | None) -> None:
        """A node changed."""
        self.network.take_node(key, old, new)
        if new is None:
            self.nodes.pop(key, None)
        else:
            self.nodes[key] = read_node(new)

    def take_pod(self, key: str, _: MovablePod | None, new: MovablePod | None) -> None:
        """A pod changed."""
        # What the network state counted before is what our index holds, whatever event came in between.
        before = self.pods.by_key.get(key)
        after = None if new is None else self._reader.read(new)
        self.network.take_pod(key, _group_pod(before), _group_pod(after))
        if after is None:
            self.pods.drop(key)
        else:
            self.pods.put(after)

    def take_budget(self, key: str, _: Budget | None, new: Budget | None) -> None:
        """A PodDisruptionBudget changed."""
        guard = None if new is None else read_guard(new)
        if guard is None:
            self._guards.pop(key, None)
        else:
            self._guards[key] = guard

    def take_group(self, key: str, old: AppGroup | None, new: AppGroup | None) -> None:
        """An AppGroup changed."""
        self.network.take_group(key, old, new)

    def take_topology(self, key: str, old: NetworkTopology | None, new: NetworkTopology | None) -> None:
        """A NetworkTopology changed."""
        self.network.take_topology(key, old, new)

    def take_lists(
        self,
        nodes: Iterable[Node],
        pods: Iterable[MovablePod],
        budgets: Iterable[Budget],
        groups: Iterable[AppGroup],
        topologies: Iterable[NetworkTopology],
    ) -> None:
        """Take whole lists instead of events."""
        for node in nodes:
            self.take_node(node.metadata.key, None, node)
        for pod in pods:
            self.take_pod(pod.metadata.key, None, pod)
        for budget in budgets:
            self.take_budget(budget.metadata.key, None, budget)
        for group in groups:
            self.take_group(group.metadata.key, None, group)
        for topology in topologies:
            self.take_topology(topology.metadata.key, None, topology)

    def snapshot(self, usage: UsageView) -> Snapshot:
        """Now. Shares the indexes with this object, so it must be used before the next await."""
        guards: Mapping[str, tuple[Guard, ...]] = by_namespace(self._guards.values())
        return Snapshot(self.nodes, self.pods, usage, guards, self.network)


def _group_pod(pod: PodInfo | None) -> GroupPod | None:
    """A pod as the scheduler's state counts it; None for pods of no AppGroup."""
    if pod is None or APPGROUP_LABEL not in pod.labels:
        return None
    phase = "Failed" if pod.going else "Running" if pod.running else "Pending"
    return GroupPod(
        metadata=ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid, labels=dict(pod.labels)),
        spec=GroupPodSpec(node_name=pod.node),
        status=GroupPodStatus(phase=phase),
    )
