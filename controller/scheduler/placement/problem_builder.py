"""Builds a `Problem` from pods, nodes and dependencies: one class per distinct pod spec.

The caller decides which pods wait and which stay.
"""

from __future__ import annotations

from collections import defaultdict
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
    call_cost_table,
    canonical_limits,
    combine_with_money,
    cost_matrix,
    money_table,
)
from controller.scheduler.placement.evaluation import replicas_by_host
from controller.scheduler.placement.pod_topology import PodTopologyConstraints, terms_of
from controller.scheduler.placement.problem import Bools, CallCostTable, CallEdge, DomainRule, Floats, Ints, Problem
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.rules import raw_allocatable_score

Objective = Literal["time", "parity", "money", "both"]
"""``time``: latency of calls to the replicas that answer them. ``parity``: upstream's sum of network costs over all pairs of caller
and replica. ``money``: price of the calls' bytes, and time between equals. ``both``: the most expensive path between two zones counts
like the slowest one.
"""
PRICED: frozenset[Objective] = frozenset({"money", "both"})
"""Objectives that need prices."""
Spread = Literal["none", "soft", "zone"]
"""``none``: replicas may share hosts and zones. ``soft``: replicas prefer different hosts. ``zone``: as ``soft``, and a workload with
several replicas is in more than one zone.
"""

_BALANCE_PRICE: Mapping[Spread, float] = {"none": 1e-6, "soft": 0.02, "zone": 0.02}
_TIME_SHARE_OF_MONEY = 1e-3
"""Weight of time with the objective ``money``: it decides between the many paths of equal price."""
_CROWDING_PRICE = 0.1
"""Share by which each replica on a host reduces the gain of co-location, so that never all replicas share one."""


class WaitingReplica(msgspec.Struct, frozen=True):
    """A replica to place: a waiting pod, or a declared replica that does not exist yet.

    Attributes:
        key: of the pod; empty for a replica that does not exist yet.
        workload: index of its workload.
        pod: the pod, or another of its workload as a model.
        volumes: node selectors of its volumes; all must match.
        refused_hosts: hosts that the scheduler refused to such pods a moment ago, and hot hosts.
    """

    key: str
    workload: int
    pod: Pod
    volumes: tuple[NodeSelector, ...] = ()
    refused_hosts: frozenset[str] = frozenset()


class BoundReplica(msgspec.Struct, frozen=True):
    """A pod that stays where it is.

    Attributes:
        node: its node.
        workload: index of its workload; -1 for a pod outside the group, or one that is about to be replaced.
        pod: the pod; None if only its node is known.
    """

    node: str
    workload: int = -1
    pod: Pod | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """The replicas to place, with their dependencies.

    Attributes:
        snapshot: hosts, their used amounts, costs and prices.
        waiting: replicas to place.
        bound: pods that stay.
        spreads: [workload] how its replicas are spread.
        edges: at most one per ordered pair of workloads.
        extra_requests: host -> amounts that ``snapshot.used`` does not count yet.
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
    """A class of `Problem`: its workload, requests, row of ``allowed``, and one of its pods."""

    workload: int
    requests: Amounts
    row: int
    pod: Pod


def build_problem(request: PlacementRequest) -> Problem:
    """Compile a request to arrays."""
    return _ProblemBuilder(request).problem()


class _ProblemBuilder:
    def __init__(self, request: PlacementRequest) -> None:
        self._request, self._snapshot = request, request.snapshot
        hosts = self._snapshot.hosts
        self._host_names = sorted(hosts)
        self._hosts = [hosts[name] for name in self._host_names]
        self._host_number = {name: number for number, name in enumerate(self._host_names)}
        self._locations = sorted({host.location for host in self._hosts})
        location_number = {location: number for number, location in enumerate(self._locations)}
        self._restricted_hosts = [host.name for host in self._hosts if host.taints or host.unavailable_reason]
        self._location_of = np.array([location_number[host.location] for host in self._hosts], np.int64)
        self._row_number: dict[bytes, int] = {}
        self._allowed: list[Bools] = []
        self._class_number: dict[bytes, int] = {}
        self._classes: list[_Class] = []
        pods = [*(r.pod for r in request.waiting), *(r.pod for r in request.bound if r.pod is not None)]
        labels_matter = any(next(terms_of(pod), None) is not None for pod in pods)
        self._class_of = [self._classify(waiting, labels_matter=labels_matter) for waiting in request.waiting]
        self._resources = sorted({name for class_ in self._classes for name, value in class_.requests.items() if value})

    def _classify(self, waiting: WaitingReplica, *, labels_matter: bool) -> int:
        """The number of a replica's class, which is added if it is new."""
        spec = waiting.pod.spec
        constraints = (spec.node_selector, required_node_affinity(spec.affinity), spec.tolerations)
        row_key = msgspec.json.encode((*constraints, waiting.volumes, sorted(waiting.refused_hosts)))
        requests = requests_with_ports_of(spec)
        topology: tuple[object, ...] = ()
        if labels_matter:
            meta = waiting.pod.metadata
            topology = (meta.namespace, meta.labels, spec.affinity, spec.topology_spread_constraints)
        key = row_key + msgspec.json.encode((waiting.workload, sorted(requests.items()), topology))
        number = self._class_number.setdefault(key, len(self._classes))
        if number == len(self._classes):
            row = self._row_number.setdefault(row_key, len(self._allowed))
            if row == len(self._allowed):
                self._allowed.append(self._eligible_hosts(waiting))
            self._classes.append(_Class(waiting.workload, requests, row, waiting.pod))
        return number

    def problem(self) -> Problem:
        request = self._request
        workloads = len(request.spreads)
        fixed: list[list[int]] = [[] for _ in range(workloads)]
        for bound in request.bound:
            number = self._host_number.get(bound.node)
            if bound.workload >= 0 and number is not None:
                fixed[bound.workload].append(number)
        requests = [
            [limit_amount(class_.requests.get(resource, 0)) for resource in self._resources] for class_ in self._classes
        ]
        tables, table_of = self._tables()
        shape = (max(len(self._allowed), 1), len(self._host_names))
        by_size = self._snapshot.allocatable.weight > 0
        return Problem(
            free=self._free(),
            capacity=self._by_resource(lambda host, resource: capacity_of(resource, host.allocatable)),
            zone_of=self._location_of,
            has_zone_label=np.array([bool(location.zone) for location in self._locations], np.bool_),
            workload_of=np.array([class_.workload for class_ in self._classes], np.int64),
            requests=np.array(requests, np.int64).reshape(len(self._classes), len(self._resources)),
            row_of=np.array([class_.row for class_ in self._classes], np.int64),
            allowed=np.array(self._allowed, np.bool_).reshape(shape) if self._allowed else np.zeros(shape, np.bool_),
            class_of=np.array(self._class_of, np.int64),
            fixed_hosts=tuple(tuple(hosts) for hosts in fixed),
            edges=self._edges(table_of, fixed),
            tables=tables,
            domain_rules=self._domain_rules(),
            must_span_zones=self._must_span_zones(),
            # If nodes are preferred by size, the size decides which replicas share one.
            colocation_penalty=np.array([float(s != "none" and not by_size) for s in request.spreads], np.float64),
            crowding_price=0.0 if "none" in request.spreads or by_size else _CROWDING_PRICE,
            overload_price=0.0 if request.objective == "parity" else 1.0,
            host_price=self._host_price(),
            balance_price=min((_BALANCE_PRICE[spread] for spread in request.spreads), default=0.0),
            host_names=self._host_names,
            resource_names=self._resources,
        )

    def _free(self) -> Ints:
        """[host, resource] free amount. Host ports of bound pods are never free, even if ``used`` does not count them yet."""
        request, used, none = self._request, self._snapshot.used, Amounts()
        ports = {(s.node, port) for s in request.bound if s.pod is not None for port in ports_of(s.pod.spec)}

        def free(host: Host, resource: str) -> int:
            if (host.name, resource) in ports:
                return 0
            counted = (amounts.get(host.name, none).get(resource, 0) for amounts in (used, request.extra_requests))
            return capacity_of(resource, host.allocatable) - sum(counted)

        return self._by_resource(free)

    def _by_resource(self, amount: Callable[[Host, str], int]) -> Ints:
        table = [[limit_amount(amount(host, resource)) for resource in self._resources] for host in self._hosts]
        return np.array(table, np.int64).reshape(len(self._hosts), len(self._resources))

    def _host_price(self) -> Floats:
        """The score of NodeResourcesAllocatable as a price, scaled as in the extender's answer."""
        args = self._snapshot.allocatable
        raw = np.array([raw_allocatable_score(host.allocatable, args) for host in self._hosts], np.float64)
        spread = float(np.ptp(raw)) if args.weight and len(raw) else 0.0
        return args.weight * (raw.max() - raw) / spread if spread else np.zeros(len(raw))

    def _must_span_zones(self) -> Bools:
        """[workload] whether its spread is ``zone`` and its eligible hosts are in several zones."""
        zones_of: dict[int, set[int]] = defaultdict(set)
        for class_ in self._classes:
            zones_of[class_.workload] |= set(self._location_of[self._allowed[class_.row]].tolist())
        spreads = self._request.spreads
        return np.array([spread == "zone" and len(zones_of[w]) > 1 for w, spread in enumerate(spreads)], np.bool_)

    def _tables(self) -> tuple[tuple[CallCostTable, ...], dict[int, int]]:
        """The tables, one for all limits that the same pairs of zones violate, and limit -> index of its table."""
        snapshot, objective, locations = self._snapshot, self._request.objective, tuple(self._locations)
        prices = call_cost_table(
            locations, snapshot.costs, has_topology=snapshot.has_topology, parity=objective == "parity"
        )
        local = float(SAME_HOST_COST) if objective == "parity" else ON_HOST_US
        if objective in PRICED and snapshot.prices is not None:
            share = _TIME_SHARE_OF_MONEY if objective == "money" else 1.0
            prices, local = combine_with_money(prices, local, money_table(locations, snapshot.prices), share)
        matrix = cost_matrix(locations, snapshot.costs)
        limits = canonical_limits((edge.max_cost for edge in self._request.edges), matrix)
        number_of = {limit: i for i, limit in enumerate(dict.fromkeys(limits.values()))}
        tables = tuple(CallCostTable(prices, local, matrix > limit) for limit in number_of)
        return tables, {max_cost: number_of[limit] for max_cost, limit in limits.items()}

    def _edges(self, table_of: Mapping[int, int], fixed: Sequence[Sequence[int]]) -> tuple[CallEdge, ...]:
        """The edges with their tables. In parity every pair has the same weight, and any replica may answer."""
        count = np.array([len(hosts) for hosts in fixed], np.int64)
        for number in self._class_of:
            count[self._classes[number].workload] += 1
        parity = self._request.objective == "parity"
        return tuple(
            msgspec.structs.replace(
                edge,
                weight=float(count[edge.caller] * count[edge.callee]) if parity else edge.weight,
                routing=Routing.ANY if parity else edge.routing,
                table=table_of[edge.max_cost],
            )
            for edge in self._request.edges
        )

    def _domain_rules(self) -> tuple[DomainRule, ...]:
        numbered = ((self._host_number.get(replica.node), replica.pod) for replica in self._request.bound)
        bound = [(number, pod) for number, pod in numbered if number is not None and pod is not None]
        return PodTopologyConstraints([class_.pod for class_ in self._classes], self._hosts, bound).rules()

    def _eligible_hosts(self, waiting: WaitingReplica) -> Bools:
        """[host] whether a replica may be placed there, see `refusal_reasons`. Only restricted hosts refuse pods without node constraints."""
        candidates = self._host_names
        if not has_node_constraints(waiting.pod.spec) and not waiting.volumes:
            candidates = [*self._restricted_hosts, *(waiting.refused_hosts & self._host_number.keys())]
        eligible: Bools = np.ones(len(self._host_names), np.bool_)
        eligible[[self._host_number[name] for name in refusal_reasons(self._request, waiting, candidates)]] = False
        return eligible


def refusal_reasons(request: PlacementRequest, waiting: WaitingReplica, names: Iterable[str]) -> dict[str, str]:
    """Host -> why a replica may not be placed there, for those of these hosts that refuse it."""
    constraints, reasons = Constraints(waiting.pod.spec), {}
    for name in names:
        reason = request.snapshot.hosts[name].unschedulable_reason(constraints, waiting.volumes)
        if reason or name in waiting.refused_hosts:
            reasons[name] = reason or "refused by the scheduler a moment ago, or hot"
    return reasons


def total_cost(request: PlacementRequest, problem: Problem, at: Ints) -> int:
    """NetworkCost of a placement summed over all pairs of caller and callee (docs/contracts.md, section 4)."""
    by_host = replicas_by_host(problem, at)
    by_node = [{problem.host_names[host]: count for host, count in counts.items()} for counts in by_host]
    locations = {name: request.snapshot.hosts[name].location for counts in by_node for name in counts}
    cost = request.snapshot.costs.total_cost
    return sum(cost(by_node[edge.caller], by_node[edge.callee], locations) for edge in request.edges)
