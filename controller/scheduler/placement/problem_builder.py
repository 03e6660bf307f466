"""Builds a `Problem` from pods, nodes and dependencies: one class per distinct pod spec.

The caller (controller, `simulate`) says which pods wait and which stay; all rules are here.
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
from controller.cluster.pods import GroupPod, NodeSelector
from controller.cluster.requests import Amounts, capacity_of, clamp_amount, host_requests_of, ports_of
from controller.cluster.services import Routing
from controller.scheduler.placement.evaluation import count_hosts
from controller.scheduler.placement.pod_topology import PodTopologyConstraints
from controller.scheduler.placement.problem import Bools, CallEdge, Floats, Ints, Problem, Rule, Table
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.tables import (
    ON_HOST_US,
    canonical_limits,
    combine_with_money,
    cost_matrix,
    money_table,
    price_table,
)
from controller.scheduler.rules import raw_score

Objective = Literal["time", "parity", "money", "both"]
"""``time``: what calls spend on the network, by the replica that answers. ``parity``: upstream's sum of whole costs over all
pairs of caller and replica. ``money``: what their bytes cost, and time between equals. ``both``: the most expensive path between two
zones counts like the slowest one.
"""
PRICED: frozenset[Objective] = frozenset({"money", "both"})
"""Those that need prices."""
Spread = Literal["none", "soft", "zone"]
"""``none``: replicas may share hosts and zones. ``soft``: replicas prefer different hosts. ``zone``: and no workload of several
replicas is in one zone only.
"""

_BALANCE: Mapping[Spread, float] = {"none": 1e-6, "soft": 0.02, "zone": 0.02}
_BETWEEN_EQUALS = 1e-3
"""Weight of time where money decides: most paths cost the same."""
_CROWD = 0.1
"""Share by which each replica on a host reduces the gain of co-location: some share hosts, never all."""


class WaitingReplica(msgspec.Struct, frozen=True):
    """A replica to place: a pod, or one that its workload declares and that does not exist yet (no key).

    Attributes:
        key: of the pod, or empty.
        workload: number of its workload.
        pod: what it asks for.
        volumes: what its volumes demand of a node; every one must hold.
        refused: hosts that the scheduler refused to pods like it.
    """

    key: str
    workload: int
    pod: GroupPod
    volumes: tuple[NodeSelector, ...] = ()
    refused: frozenset[str] = frozenset()


class BoundReplica(msgspec.Struct, frozen=True):
    """A pod that stays where it is.

    Attributes:
        node: its node.
        workload: number of its workload; -1 for pods of none.
        pod: itself, None where only its place is known.
    """

    node: str
    workload: int = -1
    pod: GroupPod | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """The replicas to place, with their dependencies.

    Attributes:
        snapshot: for hosts, what is used of them, costs and prices.
        waiting: what is to be placed.
        bound: what stays.
        spreads: per workload.
        edges: at most one per ordered pair.
        taken: host -> amounts that ``snapshot.used`` does not count yet.
        objective: by what a placement is judged.
    """

    snapshot: GroupSnapshot
    waiting: Sequence[WaitingReplica]
    bound: Sequence[BoundReplica]
    spreads: Sequence[Spread]
    edges: Sequence[CallEdge]
    taken: Mapping[str, Amounts] = {}
    objective: Objective = "time"


class _Class(msgspec.Struct, frozen=True):
    """Interchangeable replicas."""

    workload: int
    asks: Amounts
    row: int
    pod: GroupPod


def compile_problem(request: PlacementRequest) -> Problem:
    """Compile a request to arrays."""
    return _Compiler(request).problem()


class _Compiler:
    def __init__(self, request: PlacementRequest) -> None:
        self._request, self._snapshot = request, request.snapshot
        hosts = self._snapshot.hosts
        self._names = sorted(hosts)
        self._hosts = [hosts[name] for name in self._names]
        self._number_of = {name: number for number, name in enumerate(self._names)}
        self._locations = sorted({host.location for host in self._hosts})
        index = {location: number for number, location in enumerate(self._locations)}
        self._repelling = [host.name for host in self._hosts if host.taints or host.unavailable_reason]
        self._location_of = np.array([index[host.location] for host in self._hosts], np.int64)
        self._rows: dict[bytes, int] = {}
        self._allowed: list[Bools] = []
        self._classes: dict[bytes, int] = {}
        self._known: list[_Class] = []
        labels_matter = _has_pod_topology_terms(request)
        self._class_of = [self._classify(waiting, labels_matter=labels_matter) for waiting in request.waiting]
        self._resources = sorted({name for known in self._known for name, value in known.asks.items() if value})

    def _classify(self, waiting: WaitingReplica, *, labels_matter: bool) -> int:
        spec = waiting.pod.spec
        limits = (spec.node_selector, required_node_affinity(spec.affinity), spec.tolerations)
        hosts = msgspec.json.encode((*limits, waiting.volumes, sorted(waiting.refused)))
        asks = host_requests_of(spec)
        shares: tuple[object, ...] = ()
        if labels_matter:
            meta = waiting.pod.metadata
            shares = (meta.namespace, meta.labels, spec.affinity, spec.topology_spread_constraints)
        key = hosts + msgspec.json.encode((waiting.workload, sorted(asks.items()), shares))
        number = self._classes.get(key)
        if number is None:
            number = self._classes[key] = len(self._known)
            self._known.append(_Class(waiting.workload, asks, self._row(hosts, waiting), waiting.pod))
        return number

    def _row(self, hosts: bytes, waiting: WaitingReplica) -> int:
        if hosts not in self._rows:
            self._rows[hosts] = len(self._allowed)
            self._allowed.append(self._eligible_hosts(waiting))
        return self._rows[hosts]

    def problem(self) -> Problem:
        request = self._request
        workloads = len(request.spreads)
        fixed: list[list[int]] = [[] for _ in range(workloads)]
        for bound in request.bound:
            number = self._number_of.get(bound.node)
            if bound.workload >= 0 and number is not None:
                fixed[bound.workload].append(number)
        asks = [[clamp_amount(known.asks.get(resource, 0)) for resource in self._resources] for known in self._known]
        tables, table_of = self._tables()
        shape = (max(len(self._allowed), 1), len(self._names))
        by_size = self._snapshot.allocatable.weight > 0
        return Problem(
            free=self._free(),
            capacity=self._by_resource(lambda host, resource: capacity_of(resource, host.allocatable)),
            zone_of=self._location_of,
            zoned=np.array([bool(location.zone) for location in self._locations], np.bool_),
            workload_of=np.array([known.workload for known in self._known], np.int64),
            asks=np.array(asks, np.int64).reshape(len(self._known), len(self._resources)),
            row_of=np.array([known.row for known in self._known], np.int64),
            allowed=np.array(self._allowed, np.bool_).reshape(shape) if self._allowed else np.zeros(shape, np.bool_),
            class_of=np.array(self._class_of, np.int64),
            fixed=tuple(tuple(hosts) for hosts in fixed),
            edges=self._edges(table_of, fixed),
            tables=tables,
            rules=self._rules(),
            must_span_zones=self._must_span_zones(),
            # Where nodes are preferred by their size, that decides which are shared.
            colocation_penalty=np.array([float(s != "none" and not by_size) for s in request.spreads], np.float64),
            crowd=0.0 if "none" in request.spreads or by_size else _CROWD,
            load=0.0 if request.objective == "parity" else 1.0,
            host_price=self._host_price(),
            balance=min((_BALANCE[spread] for spread in request.spreads), default=0.0),
            host_names=self._names,
            resource_names=self._resources,
        )

    def _free(self) -> Ints:
        """[host, resource]; a port that a bound pod has is taken, counted or not."""
        request, used, none = self._request, self._snapshot.used, Amounts()
        ports = {(s.node, port) for s in request.bound if s.pod is not None for port in ports_of(s.pod.spec)}

        def free(host: Host, resource: str) -> int:
            if (host.name, resource) in ports:
                return 0
            counted = (amounts.get(host.name, none).get(resource, 0) for amounts in (used, request.taken))
            return capacity_of(resource, host.allocatable) - sum(counted)

        return self._by_resource(free)

    def _by_resource(self, amount: Callable[[Host, str], int]) -> Ints:
        table = [[clamp_amount(amount(host, resource)) for resource in self._resources] for host in self._hosts]
        return np.array(table, np.int64).reshape(len(self._hosts), len(self._resources))

    def _host_price(self) -> Floats | None:
        """The score of NodeResourcesAllocatable as a price, scaled as in the extender's answer."""
        args = self._snapshot.allocatable
        if not args.weight:
            return None
        raw = np.array([raw_score(host.allocatable, args) for host in self._hosts], np.float64)
        spread = float(np.ptp(raw)) if len(raw) else 0.0
        return args.weight * (raw.max() - raw) / spread if spread else None

    def _must_span_zones(self) -> Bools:
        """[workload] those that want to survive a zone and have hosts in more than one."""
        zones_of: dict[int, set[int]] = defaultdict(set)
        for known in self._known:
            zones_of[known.workload] |= set(self._location_of[self._allowed[known.row]].tolist())
        spreads = self._request.spreads
        return np.array([spread == "zone" and len(zones_of[w]) > 1 for w, spread in enumerate(spreads)], np.bool_)

    def _tables(self) -> tuple[tuple[Table, ...], dict[int, int]]:
        """Tables, one for all limits that the same pairs violate; and limit -> number of its table."""
        snapshot, objective, locations = self._snapshot, self._request.objective, tuple(self._locations)
        prices = price_table(locations, snapshot.costs, measured=snapshot.measured, parity=objective == "parity")
        local = float(SAME_HOST_COST) if objective == "parity" else ON_HOST_US
        if objective in PRICED and snapshot.prices is not None:
            share = _BETWEEN_EQUALS if objective == "money" else 1.0
            prices, local = combine_with_money(prices, local, money_table(locations, snapshot.prices), share)
        matrix = cost_matrix(locations, snapshot.costs)
        limits = canonical_limits((edge.max_cost for edge in self._request.edges), matrix)
        number_of = {limit: i for i, limit in enumerate(dict.fromkeys(limits.values()))}
        tables = tuple(Table(prices, local, matrix > limit) for limit in number_of)
        return tables, {max_cost: number_of[limit] for max_cost, limit in limits.items()}

    def _edges(self, table_of: Mapping[int, int], fixed: Sequence[Sequence[int]]) -> tuple[CallEdge, ...]:
        """In parity every pair weighs the same, and every replica may answer."""
        count = np.array([len(hosts) for hosts in fixed], np.int64)
        for class_ in self._class_of:
            count[self._known[class_].workload] += 1
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

    def _rules(self) -> tuple[Rule, ...]:
        known = ((self._number_of.get(s.node), s.pod) for s in self._request.bound)
        bound = [(number, pod) for number, pod in known if number is not None and pod is not None]
        return PodTopologyConstraints([known.pod for known in self._known], self._hosts, bound).rules()

    def _eligible_hosts(self, waiting: WaitingReplica) -> Bools:
        """[host] whether a replica may go there, see `why_refused`. Only some nodes can refuse a pod without node constraints."""
        looked_at = self._names
        if not has_node_constraints(waiting.pod.spec) and not waiting.volumes:
            looked_at = [*self._repelling, *(waiting.refused & self._number_of.keys())]
        may: Bools = np.ones(len(self._names), np.bool_)
        may[[self._number_of[name] for name in why_refused(self._request, waiting, looked_at)]] = False
        return may


def why_refused(request: PlacementRequest, waiting: WaitingReplica, names: Iterable[str]) -> dict[str, str]:
    """Host -> why a replica may not go there, of those of these hosts that refuse it."""
    constraints, found = Constraints(waiting.pod.spec), {}
    for name in names:
        why = request.snapshot.hosts[name].refusal(constraints, waiting.volumes)
        if why or name in waiting.refused:
            found[name] = why or "refused by the scheduler a moment ago, or hot"
    return found


def total_cost(request: PlacementRequest, problem: Problem, at: Ints) -> int:
    """NetworkCost of a placement summed over all pairs of caller and callee, by the contract's table."""
    hosts_of = count_hosts(problem, at)
    on = [{problem.host_names[host]: count for host, count in counts.items()} for counts in hosts_of]
    locations = {name: request.snapshot.hosts[name].location for counts in on for name in counts}
    cost = request.snapshot.costs.total_cost
    return sum(cost(on[edge.caller], on[edge.callee], locations) for edge in request.edges)


def _has_pod_topology_terms(request: PlacementRequest) -> bool:
    """Whether any pod has terms about other pods; then labels distinguish pods."""
    pods = [w.pod for w in request.waiting] + [s.pod for s in request.bound if s.pod is not None]
    return any(
        pod.spec.topology_spread_constraints
        or (pod.spec.affinity and (pod.spec.affinity.pod_anti_affinity or pod.spec.affinity.pod_affinity))
        for pod in pods
    )
