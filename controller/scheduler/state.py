"""The cluster state that the scoring rules read: locations of nodes, and counts of placed pods by group, workload and node.

Watch events update the state. Scores are computed on first use after a change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from controller.cluster.costs import NO_LOCATION, CostIndex, Costs, Location, location_of
from controller.cluster.crds import AppGroup, NetworkTopology
from controller.cluster.dependency_graph import DependencyGraph
from controller.cluster.index import Index
from controller.cluster.membership import Membership
from controller.cluster.pods import PLACEMENT_LABEL, PlacementMode, Pod, placement_mode_of
from controller.cluster.services import Routing, Service, ServiceIndex
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.rules import PeerWorkload, ScoreTable, score_locations
from kubekit.stores import Store, subscribe_from_start
from kubekit.wire import Node, Object, ObjectMeta

# Values of `ScoreTable.neutral_reason`.
NO_GROUP_LABEL = "the pod belongs to no AppGroup"
NO_GROUP = "its AppGroup does not exist"
NO_TOPOLOGY = "no NetworkTopology has costs for its AppGroup"
NO_DEPENDENCY = "its workload has no dependency"
NOTHING_PLACED = "no pod of its dependencies, or that depends on it, is placed yet"

NO_LOCATION_INDEX = 0
"""Index of `NO_LOCATION` in `State.locations`."""
PodCounts = Mapping[str, Counter[str]]
"""Workload selector -> node -> number of placed pods of a group."""


class PlacedPod(NamedTuple):
    """A pod with a node: its namespace, the values of its labels for AppGroup and workload, and its node."""

    namespace: str
    group: str
    workload: str
    node: str


class DeletedNodeError(Exception):
    """In upstream parity, a pod of a dependency is on a deleted node, which fails the pod's scheduling."""


class State(Index):
    """Indexes of nodes, placed pods, groups and costs that the rules read.

    Attributes:
        allocatable_args: arguments of NodeResourcesAllocatable.
        version: number of changes that may change a score.
        version_without_pods: number of such changes, except those of pods.
        node_version: number of changes of nodes.
        locations: every (region, zone) that a node ever had, and `NO_LOCATION`.
        location_index: node name -> index in `locations`.
        allocatable_by_node: node name -> its allocatable, as the API server wrote it.
        node_count_by_location: index in `locations` -> number of nodes, above 0.
        membership, cost_index: indexes of the AppGroup of each pod, and of costs between locations.
        placed_pods: UID -> pod of an AppGroup.
        services: index of routing of calls.
    """

    def __init__(self, config: SchedulerConfig, netaware_namespace: str) -> None:
        self._network_overhead_args, self.allocatable_args = config.network_overhead_args, config.allocatable
        self.version = self.version_without_pods = self.node_version = 0
        self.locations: list[Location] = [NO_LOCATION]
        self.location_index: dict[str, int] = {}
        self.allocatable_by_node: dict[str, Mapping[str, str]] = {}
        self.node_count_by_location: Counter[int] = Counter()
        self._index_by_location: dict[Location, int] = {NO_LOCATION: NO_LOCATION_INDEX}
        self.membership = Membership(self._network_overhead_args)
        self._placement_label_by_namespace: dict[str, str] = {}
        self.cost_index = CostIndex(self._network_overhead_args, netaware_namespace)
        self._pod_counts_by_label: dict[str, dict[str, dict[str, Counter[str]]]] = defaultdict(dict)
        """AppGroup label -> namespace of the pods -> `PodCounts`."""
        self.placed_pods: dict[str, PlacedPod] = {}
        self._score_tables: dict[tuple[str, str], ScoreTable] = {}
        self._score_tables_version = -1
        self.services = ServiceIndex()
        self._example_pods: dict[tuple[str, str], dict[str, ObjectMeta]] = defaultdict(dict)
        """Labels for AppGroup and workload -> namespace -> metadata of the pod placed last."""
        self._has_upstream_parity = config.has_upstream_parity

    def subscribe_to(
        self,
        nodes: Store[Node],
        pods: Store[Pod],
        groups: Store[AppGroup],
        topologies: Store[NetworkTopology],
        *,
        namespaces: Store[Object],
        services: Store[Service],
    ) -> None:
        """Add all objects of these stores, and follow their changes."""
        subscribe_from_start(namespaces, self.on_namespace_change)
        subscribe_from_start(services, self.on_service_change)
        subscribe_from_start(nodes, self.on_node_change)
        subscribe_from_start(pods, self.on_pod_change)
        subscribe_from_start(groups, self.on_group_change)
        subscribe_from_start(topologies, self.on_topology_change)

    def on_node_change(self, key: str, _: Node | None, new: Node | None) -> None:
        """Update a node; heartbeats change nothing."""
        if new is None:
            if self.allocatable_by_node.pop(key, None) is not None:
                self._leave_location(key)
                self._record_node_change()
            return
        location = location_of(new)
        index = self._index_by_location.setdefault(location, len(self.locations))
        if index == len(self.locations):
            self.locations.append(location)
        allocatable = new.status.allocatable or {}
        if (self.location_index.get(key), self.allocatable_by_node.get(key)) != (index, allocatable):
            self._leave_location(key)
            self.location_index[key], self.allocatable_by_node[key] = index, allocatable
            self.node_count_by_location[index] += 1
            self._record_node_change()

    def _leave_location(self, node: str) -> None:
        index = self.location_index.pop(node, None)
        if index is not None:
            self.node_count_by_location[index] -= 1
            if not self.node_count_by_location[index]:
                del self.node_count_by_location[index]

    def _increment_versions(self) -> None:
        self.version += 1
        self.version_without_pods += 1

    def _record_node_change(self) -> None:
        if not self._has_upstream_parity:
            self.cost_index.on_nodes_change(self.locations[index] for index in self.node_count_by_location)
        self._increment_versions()
        self.node_version += 1

    def on_namespace_change(self, key: str, _: Object | None, new: Object | None) -> None:
        """Update a namespace: its consent to AppGroups of others, and its label for placement."""
        changed = self.membership.on_namespace_change(key, new.metadata.labels if new is not None else None)
        placement = new.metadata.label(PLACEMENT_LABEL) if new is not None else ""
        if changed or placement != self._placement_label_by_namespace.get(key, ""):
            self._placement_label_by_namespace[key] = placement
            self._increment_versions()
        if new is None:
            for pods_by_namespace in self._example_pods.values():
                pods_by_namespace.pop(key, None)

    def placement_mode_of(
        self, labels: Mapping[str, str] | None, namespace: str, default: PlacementMode
    ) -> PlacementMode:
        """The placement mode of a pod: from its own label, else its namespace's label, else the default."""
        namespace_labels = {PLACEMENT_LABEL: self._placement_label_by_namespace.get(namespace, "")}
        return placement_mode_of(labels, placement_mode_of(namespace_labels, default))

    def on_pod_change(self, _: str, old: Pod | None, new: Pod | None) -> None:
        """Update a pod of a group; see `_placed_pod_of` for when it counts."""
        before, after = self._placed_pod_of(old), self._placed_pod_of(new)
        is_replaced = old is not None and new is not None and old.metadata.uid != new.metadata.uid
        if before == after and not is_replaced:
            return
        self.version += 1
        if old is not None:
            self.placed_pods.pop(old.metadata.uid, None)
        if new is not None and after is not None:
            self.placed_pods[new.metadata.uid] = after
            self._example_pods[new.group, new.workload][new.metadata.namespace] = new.metadata
        for placed, step in ((before, -1), (after, 1)):
            if placed is not None:
                namespace, group, workload, node = placed
                pod_counts = self._pod_counts_by_label[group].setdefault(namespace, {})
                pods_by_node = pod_counts.setdefault(workload, Counter())
                pods_by_node[node] += step
                if pods_by_node[node] <= 0:
                    del pods_by_node[node]
                if not pods_by_node:
                    del pod_counts[workload]
                if not pod_counts:
                    del self._pod_counts_by_label[group][namespace]

    def _placed_pod_of(self, pod: Pod | None) -> PlacedPod | None:
        """The pod as it counts; None unless it has a node and is active or, in upstream parity, finished or terminating."""
        if pod is None or not pod.spec.node_name:
            return None
        if not pod.is_active and not self._network_overhead_args.counts_finished_pods:
            return None
        return PlacedPod(pod.metadata.namespace, pod.group, pod.workload, pod.spec.node_name)

    def on_service_change(self, key: str, old: Service | None, new: Service | None) -> None:
        """Update a Service."""
        if self.services.on_change(key, old, new):
            self._increment_versions()

    def routing_to(self, group: str, workload: str) -> Routing:
        """Routing of calls to a group's workload."""
        return self.services.routing_to(self.example_pods(group, workload))

    def routings_of(self, pods: Iterable[Pod]) -> dict[str, Routing]:
        """Workload selector -> routing of calls to it; empty in upstream parity."""
        return {} if self._has_upstream_parity else self.services.routings_of(pods)

    def example_pods(self, group: str, workload: str) -> list[ObjectMeta]:
        """Metadata of the pod of the workload that was placed last, even if it is gone, in each existing namespace of the group."""
        name = self.groups[group].metadata.name
        example_pods = self._example_pods.get((name, workload), {})
        namespaces_of_group = self.membership.pod_namespaces(group)
        # A chart with hundreds of releases has hundreds of groups of one name, each in its own namespace.
        namespaces = sorted(example_pods if namespaces_of_group is None else example_pods.keys() & namespaces_of_group)
        return [example_pods[namespace] for namespace in namespaces if self.group_key_of(namespace, name) == group]

    def services_of(self, group: str, workload: str) -> list[Service]:
        """The Services that select a group's workload."""
        pods = self.example_pods(group, workload)
        return [s for pod in pods for s in self.services.services_selecting(pod.namespace, pod.labels or {})]

    def on_group_change(self, key: str, old: AppGroup | None, new: AppGroup | None) -> None:
        """Update an AppGroup. A change of annotations alone, which the controller writes too, applies from the next plan on."""
        if self.membership.on_group_change(key, old, new):
            self._increment_versions()

    def on_topology_change(self, key: str, old: NetworkTopology | None, new: NetworkTopology | None) -> None:
        """Update a NetworkTopology; its status changes nothing."""
        if self.cost_index.on_change(key, old, new):
            self._increment_versions()

    @property
    def groups(self) -> Mapping[str, AppGroup]:
        """Every AppGroup by key."""
        return self.membership.groups

    def graph(self, key: str) -> DependencyGraph:
        """An AppGroup's dependencies between its workloads."""
        return self.membership.graph(key)

    def group_key_of(self, namespace: str, name: str) -> str:
        """Key of the AppGroup to which pods of a namespace with this AppGroup label belong; empty if there is none."""
        return self.membership.group_key_of(namespace, name)

    def expected_group_key(self, namespace: str, name: str) -> str:
        """Key of the AppGroup of pods with this label; if it does not exist, the key that it would have in the pods' namespace."""
        return self.group_key_of(namespace, name) or f"{namespace}/{name}"

    def pod_counts(self, key: str) -> PodCounts:
        """Numbers of a group's placed pods."""
        name = self.groups[key].metadata.name
        by_namespace = self._pod_counts_by_label.get(name, {})
        all_counts = [counts for namespace, counts in by_namespace.items() if self.group_key_of(namespace, name) == key]
        if len(all_counts) == 1:
            return all_counts[0]
        totals: dict[str, Counter[str]] = defaultdict(Counter)
        for pod_counts in all_counts:
            for workload, pods_by_node in pod_counts.items():
                totals[workload].update(pods_by_node)
        return totals

    def costs(self, group_namespace: str) -> Costs:
        """The costs for groups of a namespace."""
        return self.cost_index.for_namespace(group_namespace)

    def score(self, namespace: str, group_name: str, workload: str) -> ScoreTable:
        """The scores of all nodes for a pod with these labels; a neutral table says why there are none.

        Raises:
            DeletedNodeError: in upstream parity, if a pod of a dependency is on a deleted node.
        """
        if not group_name:
            return ScoreTable(NO_GROUP_LABEL)
        key = self.group_key_of(namespace, group_name)
        if not key:
            return ScoreTable(NO_GROUP)
        if self._score_tables_version != self.version:
            self._score_tables.clear()
            self._score_tables_version = self.version
        if (key, workload) not in self._score_tables:
            self._score_tables[key, workload] = self._compute_scores(key, workload, self.pod_counts(key))
        return self._score_tables[key, workload]

    def score_table_of(self, pod: Pod) -> ScoreTable:
        """The scores of all nodes for a pod, see `score`; a neutral table instead of DeletedNodeError."""
        try:
            return self.score(pod.metadata.namespace, pod.group, pod.workload)
        except DeletedNodeError as error:
            return ScoreTable(str(error))

    def score_after_eviction(
        self, namespace: str, group_name: str, workload: str, evicted: Iterable[PlacedPod]
    ) -> ScoreTable:
        """Score every location for a pod with these labels, as if placed pods were evicted; pods of other groups make no difference.

        Raises:
            DeletedNodeError: in upstream parity, if a pod of a dependency is on a deleted node.
        """
        key = self.group_key_of(namespace, group_name) if group_name else ""
        evicted_members = [pod for pod in evicted if key and self.group_key_of(pod.namespace, pod.group) == key]
        if not evicted_members:
            return self.score(namespace, group_name, workload)
        pod_counts = {selector: Counter(pods_by_node) for selector, pods_by_node in self.pod_counts(key).items()}
        for pod in evicted_members:
            pod_counts[pod.workload][pod.node] -= 1
        return self._compute_scores(key, workload, {selector: +counts for selector, counts in pod_counts.items()})

    def _compute_scores(self, key: str, workload: str, pod_counts: PodCounts) -> ScoreTable:
        costs = self.costs(self.groups[key].metadata.namespace)
        if not costs.network_topology:
            return ScoreTable(NO_TOPOLOGY)
        dependencies, dependents = self.find_peers(key, workload, pod_counts)
        if not dependencies and not dependents:
            return ScoreTable(NO_DEPENDENCY)
        dependencies = [peer for peer in dependencies if peer.pods_by_node]
        dependents = [peer for peer in dependents if peer.pods_by_node]
        if not dependencies and not dependents:
            return ScoreTable(NOTHING_PLACED)
        return score_locations(dependencies, dependents, self.locations, self.location_index, costs.table)

    def find_peers(
        self, key: str, workload: str, pod_counts: PodCounts
    ) -> tuple[Sequence[PeerWorkload], Sequence[PeerWorkload]]:
        """The workloads that a workload depends on, and with ``scoreDependents`` those that depend on it, with their placed pods.

        Raises:
            DeletedNodeError: in upstream parity, if a pod of a dependency is on a deleted node.
        """
        graph = self.graph(key)
        dependencies: list[PeerWorkload] = []
        dependents: list[PeerWorkload] = []
        for edge in graph.edges:
            dependent, dependency = graph.workloads[edge.caller], graph.workloads[edge.callee]
            if dependent.selector == workload:
                pods_by_node = self._without_deleted_nodes(pod_counts.get(dependency.selector, {}), may_raise=True)
                routing = Routing.ANY if self._has_upstream_parity else self.routing_to(key, dependency.selector)
                dependencies.append(PeerWorkload(dependency.selector, edge.max_network_cost, pods_by_node, routing))
            elif dependency.selector == workload and self._network_overhead_args.score_dependents:
                pods_by_node = self._without_deleted_nodes(pod_counts.get(dependent.selector, {}), may_raise=False)
                dependents.append(PeerWorkload(dependent.selector, edge.max_network_cost, pods_by_node))
        return dependencies, dependents

    def _without_deleted_nodes(self, pods_by_node: Mapping[str, int], *, may_raise: bool) -> Mapping[str, int]:
        deleted = sorted(pods_by_node.keys() - self.location_index.keys())
        if not deleted:
            return pods_by_node
        if may_raise and self._network_overhead_args.rejects_deleted_nodes:
            raise DeletedNodeError(f'getting pod hostname "{deleted[0]}" from Snapshot: node not found')
        return {node: count for node, count in pods_by_node.items() if node in self.location_index}
