"""What the rules know of the cluster: kept up to date by watch events, asked without any await.

Nodes become places and indexes, pods become counts per group, workload and node; nothing else of them is kept. Groups and
costs are compiled when first asked for after a change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from controller.appgroup.graph import Graph, build_graph, namespaces_of
from controller.resources import REGION_LABEL, ZONE_LABEL, AppGroup, NetworkTopology
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.pods import GroupPod
from controller.scheduler.rules import NOWHERE, Bond, CostTable, Location, Weighing, weigh
from kubekit.reflector import Reflector
from kubekit.wire import Node

NO_GROUP_LABEL = "the pod belongs to no AppGroup"
NO_GROUP = "its AppGroup does not exist"
NO_TOPOLOGY = "there is no NetworkTopology with the costs asked for"
NO_DEPENDENCY = "its workload has no dependency"
NOTHING_PLACED = "no pod that matters to it is placed yet"

Members = Mapping[str, Counter[str]]
"""Workload selector -> node -> number of placed pods."""


class DeletedNodeError(Exception):
    """Upstream parity only: a dependency's pod is on a node that is gone, which fails the pod."""


class Costs(msgspec.Struct, frozen=True):
    """The costs in use.

    Attributes:
        table: ready for look-ups.
        topology: key of the NetworkTopology, empty when there is none.
        weight: name of the weight, empty when the NetworkTopology has none that was asked for.
        version: changes whenever the object does.
    """

    table: CostTable
    topology: str = ""
    weight: str = ""
    version: str = ""


class NodeFacts(msgspec.Struct, frozen=True):
    """A node: the index of its place, and its allocatable as the API server wrote it."""

    place: int
    allocatable: Mapping[str, str]


class State:
    """The cluster in the rules' eyes.

    Attributes:
        version: counts changes of anything that may change an answer.
        surroundings_version: the same without pods.
        places: every (region, zone) that a node ever had; index 0 is `NOWHERE`.
        place_of: node name -> index in `places`.
        nodes: node name -> facts.
        population: index in `places` -> how many nodes are there; no zeros.
        node_version: counts changes of nodes alone.
    """

    def __init__(self, config: SchedulerConfig, namespace: str) -> None:
        self._rules, self._namespace = config.rules, namespace
        self.version = self.surroundings_version = self.node_version = 0
        self.places: list[Location] = [NOWHERE]
        self.place_of: dict[str, int] = {}
        self.nodes: dict[str, NodeFacts] = {}
        self.population: Counter[int] = Counter()
        self._place_ids: dict[Location, int] = {NOWHERE: 0}
        self._groups: dict[str, AppGroup] = {}
        self._graphs: dict[str, Graph] = {}
        self._groups_named: dict[str, dict[str, None]] = defaultdict(dict)
        self._topologies: dict[str, NetworkTopology] = {}
        self._costs: dict[str, Costs] = {}
        self._pods: dict[str, dict[str, dict[str, Counter[str]]]] = defaultdict(dict)
        self._weighed: dict[tuple[str, str], Weighing] = {}
        self._weighed_at = -1

    def follow(
        self,
        nodes: Reflector[Node],
        pods: Reflector[GroupPod],
        groups: Reflector[AppGroup],
        topologies: Reflector[NetworkTopology],
    ) -> None:
        """Take everything that these mirrors hold, and every change to come."""
        nodes.subscribe(self.take_node)
        pods.subscribe(self.take_pod)
        groups.subscribe(self.take_group)
        topologies.subscribe(self.take_topology)
        for key, node in nodes.items.items():
            self.take_node(key, None, node)
        for key, pod in pods.items.items():
            self.take_pod(key, None, pod)
        for key, group in groups.items.items():
            self.take_group(key, None, group)
        for key, topology in topologies.items.items():
            self.take_topology(key, None, topology)

    def take_node(self, key: str, _: Node | None, new: Node | None) -> None:
        """A node changed; heartbeats change nothing here."""
        if new is None:
            if self.nodes.pop(key, None) is not None:
                self._leave_place(key)
                self._touch_nodes()
            return
        location = Location(new.metadata.label(REGION_LABEL), new.metadata.label(ZONE_LABEL))
        place = self._place_ids.setdefault(location, len(self.places))
        if place == len(self.places):
            self.places.append(location)
        facts = NodeFacts(place, new.status.allocatable or {})
        if self.nodes.get(key) != facts:
            self._leave_place(key)
            self.nodes[key], self.place_of[key] = facts, place
            self.population[place] += 1
            self._touch_nodes()

    def _leave_place(self, node: str) -> None:
        place = self.place_of.pop(node, None)
        if place is not None:
            self.population[place] -= 1
            if not self.population[place]:
                del self.population[place]

    def _touch(self) -> None:
        self.version += 1
        self.surroundings_version += 1

    def _touch_nodes(self) -> None:
        self._touch()
        self.node_version += 1

    def take_pod(self, _: str, old: GroupPod | None, new: GroupPod | None) -> None:
        """A pod of a group changed; only what is placed counts."""
        before, after = self._counted(old), self._counted(new)
        if before == after:
            return
        self.version += 1
        for where, step in ((before, -1), (after, 1)):
            if where is not None:
                namespace, group, workload, node = where
                members = self._pods[group].setdefault(namespace, {}).setdefault(workload, Counter())
                members[node] += step
                if members[node] <= 0:
                    del members[node]

    def _counted(self, pod: GroupPod | None) -> tuple[str, str, str, str] | None:
        if pod is None or not pod.spec.node_name or (pod.over and not self._rules.finished_pods_count):
            return None
        return pod.metadata.namespace, pod.group, pod.workload, pod.spec.node_name

    def take_group(self, key: str, old: AppGroup | None, new: AppGroup | None) -> None:
        """An AppGroup changed; its status does not matter here."""
        if old is not None and new is not None and old.spec == new.spec:
            self._groups[key] = new
            return
        self._touch()
        self._graphs.pop(key, None)
        known = new or old
        if new is None:
            self._groups.pop(key, None)
            if known is not None:
                self._groups_named[known.metadata.name].pop(key, None)
        else:
            self._groups[key] = new
            self._groups_named[new.metadata.name][key] = None

    def take_topology(self, key: str, old: NetworkTopology | None, new: NetworkTopology | None) -> None:
        """A NetworkTopology changed; its status does not matter here."""
        if old is not None and new is not None and old.spec.weights == new.spec.weights:
            return
        self._touch()
        self._costs.clear()
        if new is None:
            self._topologies.pop(key, None)
        else:
            self._topologies[key] = new

    @property
    def groups(self) -> Mapping[str, AppGroup]:
        """Every AppGroup by key."""
        return self._groups

    def graph(self, key: str) -> Graph:
        """An AppGroup's dependencies, resolved."""
        if key not in self._graphs:
            self._graphs[key] = build_graph(self._groups[key].spec)
        return self._graphs[key]

    def group_of(self, namespace: str, name: str) -> str:
        """Key of the AppGroup that pods of a namespace with this label belong to; empty when there is none."""
        named = self._groups_named.get(name, {})
        if self._rules.search_everywhere:
            if f"{namespace}/{name}" in named:
                return f"{namespace}/{name}"
            for key in sorted(named):
                graph = self.graph(key)
                if namespace in namespaces_of(self._groups[key].metadata.namespace, graph.workloads):
                    return key
        return next((f"{n}/{name}" for n in self._rules.namespaces if f"{n}/{name}" in named), "")

    def members(self, key: str) -> Members:
        """Placed pods of a group."""
        name = self._groups[key].metadata.name
        by_namespace = self._pods.get(name, {})
        # Upstream takes every namespace's pods with this label for the group's.
        everybody = not self._rules.search_everywhere
        mine = [p for n, p in by_namespace.items() if everybody or self.group_of(n, name) == key]
        if len(mine) == 1:
            return mine[0]
        total: dict[str, Counter[str]] = defaultdict(Counter)
        for pods in mine:
            for workload, nodes in pods.items():
                total[workload].update(nodes)
        return total

    def costs(self, group_namespace: str) -> Costs:
        """The costs that a group of this namespace is judged by."""
        if group_namespace not in self._costs:
            self._costs[group_namespace] = self._find_costs(group_namespace)
        return self._costs[group_namespace]

    def _find_costs(self, group_namespace: str) -> Costs:
        topology = next(
            (self._topologies[k] for k in self._topology_keys(group_namespace) if k in self._topologies), None
        )
        if topology is None and self._rules.search_everywhere and len(self._topologies) == 1:
            topology = next(iter(self._topologies.values()))
        if topology is None:
            return Costs(CostTable())
        meta = topology.metadata
        for name in (self._rules.weights_name, self._rules.fallback_weights_name):
            weight = topology.weight(name) if name else None
            if weight is not None and weight.topology_list:
                return Costs(CostTable(weight), meta.key, name, f"{meta.uid}/{meta.resource_version}")
        return Costs(CostTable(), meta.key, "", f"{meta.uid}/{meta.resource_version}")

    def _topology_keys(self, group_namespace: str) -> Iterator[str]:
        name = self._rules.network_topology_name
        if self._rules.search_everywhere:
            yield f"{group_namespace}/{name}"
        for namespace in self._rules.namespaces:
            yield f"{namespace}/{name}"
        if self._rules.search_everywhere:
            yield f"{self._namespace}/{name}"

    def weigh(self, namespace: str, group_name: str, workload: str) -> Weighing:
        """Weigh every place for a pod with these labels.

        Raises:
            DeletedNodeError: only where deleted nodes block, as upstream has it.
        """
        if not group_name:
            return Weighing(NO_GROUP_LABEL)
        key = self.group_of(namespace, group_name)
        if not key:
            return Weighing(NO_GROUP)
        if self._weighed_at != self.version:
            self._weighed.clear()
            self._weighed_at = self.version
        if (key, workload) not in self._weighed:
            self._weighed[key, workload] = self._weigh(key, workload)
        return self._weighed[key, workload]

    def _weigh(self, key: str, workload: str) -> Weighing:
        costs = self.costs(self._groups[key].metadata.namespace)
        if not costs.topology:
            return Weighing(NO_TOPOLOGY)
        dependencies, dependants = self.bonds(key, workload, self.members(key))
        if not dependencies and not dependants:
            return Weighing(NO_DEPENDENCY)
        dependencies = [bond for bond in dependencies if bond.pods]
        dependants = [bond for bond in dependants if bond.pods]
        if not dependencies and not dependants:
            return Weighing(NOTHING_PLACED)
        return weigh(
            dependencies,
            dependants,
            self.places,
            self.place_of,
            costs.table,
            bandwidth=self._rules.bandwidth_filter,
        )

    def bonds(self, key: str, workload: str, members: Members) -> tuple[Sequence[Bond], Sequence[Bond]]:
        """What a workload depends on, and what depends on it, with the pods that are placed.

        Raises:
            DeletedNodeError: only where deleted nodes block, as upstream has it.
        """
        graph = self.graph(key)
        dependencies: list[Bond] = []
        dependants: list[Bond] = []
        for edge in graph.edges:
            dependant, dependency = graph.workloads[edge.dependant], graph.workloads[edge.dependency]
            limits = edge.max_network_cost, edge.min_bandwidth_bps
            if dependant.selector == workload:
                pods = self._existing(members.get(dependency.selector, {}), complain=True)
                dependencies.append(Bond(dependency.selector, *limits, pods))
            elif dependency.selector == workload and self._rules.dependants_weigh:
                pods = self._existing(members.get(dependant.selector, {}), complain=False)
                dependants.append(Bond(dependant.selector, *limits, pods))
        return dependencies, dependants

    def _existing(self, pods: Mapping[str, int], *, complain: bool) -> Mapping[str, int]:
        if all(node in self.place_of for node in pods):
            return pods
        gone = sorted(node for node in pods if node not in self.place_of)
        if complain and self._rules.deleted_nodes_block:
            raise DeletedNodeError(f'getting pod hostname "{gone[0]}" from Snapshot: node not found')
        return {node: count for node, count in pods.items() if node in self.place_of}
