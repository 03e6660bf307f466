"""Builds a `Problem` from a `PlacementRequest`, explains refused nodes, and sums the network cost of a placement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from controller.cluster.costs import SAME_HOST_COST
from controller.cluster.eligibility import Constraints, has_node_constraints, required_node_affinity
from controller.cluster.hosts import Host
from controller.cluster.pods import NodeSelector, Pod
from controller.cluster.resource_requests import Amounts, capacity_of, limit_amount, ports_of, requests_with_ports_of
from controller.cluster.services import Routing
from controller.scheduler.placement.call_costs import (
    ON_HOST_US,
    add_prices,
    call_latencies,
    call_network_costs,
    equivalent_limits,
    limited_costs,
    traffic_prices,
)
from controller.scheduler.placement.evaluation import count_replicas
from controller.scheduler.placement.pod_topology import DomainRuleBuilder, terms_of
from controller.scheduler.placement.problem import Bools, CallCostTable, CallEdge, DomainRule, Floats, Ints, Problem
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.rules import raw_allocatable_score

Objective = Literal["time", "parity", "money", "both"]
"""The cost that a plan minimizes. ``time``: latency of calls to the replicas that answer. ``parity``: upstream's sum of network costs
over all pairs of caller and replica. ``money``: price of the calls' bytes; time decides between equal prices. ``both``: sum of time and
price, scaled so that the path with the highest price costs as much as the slowest path.
"""
OBJECTIVES_WITH_PRICES: frozenset[Objective] = frozenset({"money", "both"})
Spread = Literal["none", "soft", "zone"]
"""How a workload's replicas are spread. ``none``: they may share hosts and zones. ``soft``: they prefer different hosts. ``zone``: as
``soft``, and two or more replicas are in more than one zone.
"""

_BALANCE_PRICE_BY_SPREAD: Mapping[Spread, float] = {"none": 1e-6, "soft": 0.02, "zone": 0.02}
"""`Problem.balance_price`; with ``none`` it decides only between placements of equal cost."""
_TIME_WEIGHT_BESIDE_MONEY = 1e-3
"""Weight of time with the objective ``money``: time decides between paths of equal price."""
_CROWDING_PRICE = 0.1
"""Half the share by which each replica on a host reduces the gain of co-location, so that a host never gets all replicas."""


class WaitingReplica(msgspec.Struct, frozen=True):
    """A replica to place: a waiting pod, or a declared replica that does not exist yet.

    Attributes:
        key: key of the pod; empty for a replica that does not exist yet.
        workload: index of its workload.
        pod: the pod, or another pod of its workload as a model; an empty `Pod` if the workload has none.
        volumes: node selectors of its volumes; all must match.
        refused_nodes: nodes not to use: see `GroupSnapshot.refused_nodes`; in the first search also avoided nodes.
    """

    key: str
    workload: int
    pod: Pod
    volumes: tuple[NodeSelector, ...] = ()
    refused_nodes: frozenset[str] = frozenset()


class BoundReplica(msgspec.Struct, frozen=True):
    """A pod that stays on its node.

    Attributes:
        node: name of its node.
        workload: index of its workload; -1 for a pod outside the group, or a pod that a rollout is about to replace.
        pod: the pod; None if only its host counts, not its host ports and topology terms.
    """

    node: str
    workload: int = -1
    pod: Pod | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """The replicas to place, with their dependencies.

    Attributes:
        snapshot: the cluster.
        waiting: replicas to place.
        bound: pods that stay.
        spreads: [workload] how its replicas are spread.
        edges: dependencies, at most one per ordered pair of workloads.
        extra_requests: node -> requests that ``snapshot.used`` does not count yet; negative for pods that leave.
        objective: the cost to minimize.
    """

    snapshot: GroupSnapshot
    waiting: Sequence[WaitingReplica]
    bound: Sequence[BoundReplica]
    spreads: Sequence[Spread]
    edges: Sequence[CallEdge]
    extra_requests: Mapping[str, Amounts] = {}
    objective: Objective = "time"


class _Class(msgspec.Struct, frozen=True):
    """A class of `Problem`: its workload, requests, row of ``allowed``, and one of its pods as a model."""

    workload: int
    requests: Amounts
    row: int
    pod: Pod


def build_problem(request: PlacementRequest) -> Problem:
    """Convert a request to arrays."""
    return _ProblemBuilder(request).build()


class _ProblemBuilder:
    """Assigns the replicas of a request to classes: one for all that the search need not tell apart. Then builds each array."""

    def __init__(self, request: PlacementRequest) -> None:
        self._request, self._snapshot = request, request.snapshot
        hosts = self._snapshot.hosts
        self._host_names = sorted(hosts)
        self._hosts = [hosts[name] for name in self._host_names]
        self._host_index = {name: index for index, name in enumerate(self._host_names)}
        self._locations = sorted({host.location for host in self._hosts})
        location_index = {location: index for index, location in enumerate(self._locations)}
        self._restricted_hosts = [host.name for host in self._hosts if host.taints or host.unavailable_reason]
        self._zone_of = np.array([location_index[host.location] for host in self._hosts], np.int64)
        self._row_index: dict[bytes, int] = {}
        self._allowed: list[Bools] = []
        self._class_index: dict[bytes, int] = {}
        self._classes: list[_Class] = []
        pods = [*(r.pod for r in request.waiting), *(r.pod for r in request.bound if r.pod is not None)]
        has_terms = any(next(terms_of(pod), None) is not None for pod in pods)
        self._class_of = [self._find_or_add_class(waiting, has_terms=has_terms) for waiting in request.waiting]
        self._resources = sorted({name for class_ in self._classes for name, value in class_.requests.items() if value})

    def _find_or_add_class(self, waiting: WaitingReplica, *, has_terms: bool) -> int:
        """The index of a replica's class; a new class is added. Labels tell pods apart only if a pod has topology terms."""
        spec = waiting.pod.spec
        constraints = (spec.node_selector, required_node_affinity(spec.affinity), spec.tolerations)
        row_key = msgspec.json.encode((*constraints, waiting.volumes, sorted(waiting.refused_nodes)))
        requests = requests_with_ports_of(spec)
        topology_key: tuple[object, ...] = ()
        if has_terms:
            metadata = waiting.pod.metadata
            topology_key = (metadata.namespace, metadata.labels, spec.affinity, spec.topology_spread_constraints)
        key = row_key + msgspec.json.encode((waiting.workload, sorted(requests.items()), topology_key))
        index = self._class_index.setdefault(key, len(self._classes))
        if index == len(self._classes):
            row = self._row_index.setdefault(row_key, len(self._allowed))
            if row == len(self._allowed):
                self._allowed.append(self._allowed_hosts(waiting))
            self._classes.append(_Class(waiting.workload, requests, row, waiting.pod))
        return index

    def build(self) -> Problem:
        request = self._request
        fixed_hosts: list[list[int]] = [[] for _ in request.spreads]
        for bound in request.bound:
            host = self._host_index.get(bound.node)
            if bound.workload >= 0 and host is not None:
                fixed_hosts[bound.workload].append(host)
        requests = [[limit_amount(c.requests.get(r, 0)) for r in self._resources] for c in self._classes]
        tables, table_index_by_max_cost = self._tables()
        shape = (max(len(self._allowed), 1), len(self._host_names))
        # If nodes are preferred by size, the sizes of nodes decide which replicas share a node.
        prefers_by_size = self._snapshot.allocatable.weight > 0
        colocation_prices = [float(spread != "none" and not prefers_by_size) for spread in request.spreads]
        return Problem(
            free=self._free_amounts(),
            capacity=self._amounts(lambda host, resource: capacity_of(resource, host.allocatable)),
            zone_of=self._zone_of,
            has_zone_label=np.array([bool(location.zone) for location in self._locations], np.bool_),
            workload_of=np.array([class_.workload for class_ in self._classes], np.int64),
            requests=np.array(requests, np.int64).reshape(len(self._classes), len(self._resources)),
            row_of=np.array([class_.row for class_ in self._classes], np.int64),
            allowed=np.array(self._allowed, np.bool_).reshape(shape) if self._allowed else np.zeros(shape, np.bool_),
            class_of=np.array(self._class_of, np.int64),
            fixed_hosts=tuple(tuple(hosts) for hosts in fixed_hosts),
            edges=self._edges(table_index_by_max_cost, fixed_hosts),
            tables=tables,
            domain_rules=self._domain_rules(),
            must_span_zones=self._must_span_zones(),
            colocation_price=np.array(colocation_prices, np.float64),
            crowding_price=0.0 if "none" in request.spreads or prefers_by_size else _CROWDING_PRICE,
            overload_price=0.0 if request.objective == "parity" else 1.0,
            host_price=self._host_price(),
            balance_price=min((_BALANCE_PRICE_BY_SPREAD[spread] for spread in request.spreads), default=0.0),
            host_names=self._host_names,
            resource_names=self._resources,
        )

    def _free_amounts(self) -> Ints:
        """[host, resource] free amount. Host ports of bound pods, also of outdated pods, are never free."""
        request, used, no_amounts = self._request, self._snapshot.used, Amounts()
        bound_ports = {(b.node, port) for b in request.bound if b.pod is not None for port in ports_of(b.pod.spec)}

        def free_amount(host: Host, resource: str) -> int:
            if (host.name, resource) in bound_ports:
                return 0
            taken = (amounts.get(host.name, no_amounts).get(resource, 0) for amounts in (used, request.extra_requests))
            return capacity_of(resource, host.allocatable) - sum(taken)

        return self._amounts(free_amount)

    def _amounts(self, amount_of: Callable[[Host, str], int]) -> Ints:
        """[host, resource] amount."""
        amounts = [[limit_amount(amount_of(host, resource)) for resource in self._resources] for host in self._hosts]
        return np.array(amounts, np.int64).reshape(len(self._hosts), len(self._resources))

    def _host_price(self) -> Floats:
        """[host] the score of NodeResourcesAllocatable as a price, scaled as in the extender's answer."""
        args = self._snapshot.allocatable
        scores = np.array([raw_allocatable_score(host.allocatable, args) for host in self._hosts], np.float64)
        score_range = float(np.ptp(scores)) if args.weight and len(scores) else 0.0
        return args.weight * (scores.max() - scores) / score_range if score_range else np.zeros(len(scores))

    def _must_span_zones(self) -> Bools:
        """[workload] whether its spread is ``zone``, and its pods are allowed in several zones."""
        zones_by_workload: dict[int, set[int]] = defaultdict(set)
        for class_ in self._classes:
            zones_by_workload[class_.workload] |= set(self._zone_of[self._allowed[class_.row]].tolist())
        spreads = enumerate(self._request.spreads)
        return np.array([spread == "zone" and len(zones_by_workload[w]) > 1 for w, spread in spreads], np.bool_)

    def _tables(self) -> tuple[tuple[CallCostTable, ...], dict[int, int]]:
        """One table for all limits that the same pairs of zones violate, and maxNetworkCost -> index of its table."""
        snapshot, objective, locations = self._snapshot, self._request.objective, tuple(self._locations)
        if objective == "parity":
            costs, host_cost = call_network_costs(locations, snapshot.costs), float(SAME_HOST_COST)
        else:
            costs, host_cost = call_latencies(locations, snapshot.costs, has_topology=snapshot.has_topology), ON_HOST_US
        if objective in OBJECTIVES_WITH_PRICES and snapshot.prices is not None:
            time_weight = _TIME_WEIGHT_BESIDE_MONEY if objective == "money" else 1.0
            costs, host_cost = add_prices(costs, host_cost, traffic_prices(locations, snapshot.prices), time_weight)
        network_costs = limited_costs(locations, snapshot.costs)
        limits = equivalent_limits((edge.max_cost for edge in self._request.edges), network_costs)
        index_of = {limit: index for index, limit in enumerate(dict.fromkeys(limits.values()))}
        tables = tuple(CallCostTable(costs, host_cost, network_costs > limit) for limit in index_of)
        return tables, {max_cost: index_of[limit] for max_cost, limit in limits.items()}

    def _edges(
        self, table_index_by_max_cost: Mapping[int, int], fixed_hosts: Sequence[Sequence[int]]
    ) -> tuple[CallEdge, ...]:
        """The edges with their tables. With the objective ``parity`` every pair has the same weight, and any replica may answer."""
        edges = [msgspec.structs.replace(e, table=table_index_by_max_cost[e.max_cost]) for e in self._request.edges]
        if self._request.objective == "parity":
            waiting = Counter(self._classes[class_].workload for class_ in self._class_of)
            counts = [len(hosts) + waiting[workload] for workload, hosts in enumerate(fixed_hosts)]
            edges = [
                msgspec.structs.replace(e, weight=float(counts[e.caller] * counts[e.callee]), routing=Routing.ANY)
                for e in edges
            ]
        return tuple(edges)

    def _domain_rules(self) -> tuple[DomainRule, ...]:
        placed = ((self._host_index.get(replica.node), replica.pod) for replica in self._request.bound)
        bound = [(host, pod) for host, pod in placed if host is not None and pod is not None]
        return DomainRuleBuilder([class_.pod for class_ in self._classes], self._hosts, bound).build()

    def _allowed_hosts(self, waiting: WaitingReplica) -> Bools:
        """[host] whether a replica may be placed there, see `refusal_reasons`."""
        candidates = self._host_names
        # Only hosts with taints and unavailable hosts refuse pods without node constraints.
        if not has_node_constraints(waiting.pod.spec) and not waiting.volumes:
            candidates = [*self._restricted_hosts, *(waiting.refused_nodes & self._host_index.keys())]
        is_allowed: Bools = np.ones(len(self._host_names), np.bool_)
        is_allowed[[self._host_index[name] for name in refusal_reasons(self._request, waiting, candidates)]] = False
        return is_allowed


def refusal_reasons(request: PlacementRequest, waiting: WaitingReplica, host_names: Iterable[str]) -> dict[str, str]:
    """Node -> why a replica may not be placed there: constraints of its pod or volumes, the node's state, or `refused_nodes`."""
    constraints, reasons = Constraints(waiting.pod.spec), {}
    for name in host_names:
        reason = request.snapshot.hosts[name].unschedulable_reason(constraints, waiting.volumes)
        if reason or name in waiting.refused_nodes:
            reasons[name] = reason or "refused earlier, and unchanged since"
    return reasons


def total_cost(request: PlacementRequest, problem: Problem, host_of: Ints) -> int:
    """Network cost of a placement, summed over all pairs of caller and replica of the callee (docs/contracts.md, section 4)."""
    names = problem.host_names
    pods_by_node = [{names[host]: n for host, n in counts.items()} for counts in count_replicas(problem, host_of)]
    locations = {name: request.snapshot.hosts[name].location for nodes in pods_by_node for name in nodes}
    cost = request.snapshot.costs.total_cost
    return sum(cost(pods_by_node[edge.caller], pods_by_node[edge.callee], locations) for edge in request.edges)
