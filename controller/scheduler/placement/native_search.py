"""Converts a `Problem` to the arrays of the compiled search (native/search.c), and calls the search through ctypes."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.scheduler.placement import native_library
from controller.scheduler.placement.problem import CallCostTable, Floats, Ints, Problem
from kubekit.errors import KubekitError

_SIZE_NAMES = ("hosts", "resources", "zones", "classes", "workloads", "replicas", "edges", "tables", "rules")
_ARRAYS: Mapping[str, tuple[type[np.generic], str]] = {
    "free": (np.int64, "hosts resources"),
    "inverse_capacity": (np.float64, "hosts resources"),
    "zone_of": (np.int32, "hosts"),
    "has_zone_label": (np.uint8, "zones"),
    "host_price": (np.float64, "hosts"),
    "workload_of": (np.int32, "classes"),
    "row_of": (np.int32, "classes"),
    "allowed": (np.uint8, "rows hosts"),
    "requests": (np.int64, "classes resources"),
    "class_of": (np.int32, "replicas"),
    "member_start": (np.int64, "workloads+1"),
    "member": (np.int32, "replicas"),
    "replica_count": (np.int64, "workloads"),
    "must_span_zones": (np.uint8, "workloads"),
    "host_colocation_price": (np.float64, "workloads"),
    "zone_colocation_price": (np.float64, "workloads"),
    "fixed_start": (np.int64, "workloads+1"),
    "fixed_host": (np.int32, "fixed"),
    "caller": (np.int32, "edges"),
    "callee": (np.int32, "edges"),
    "routing": (np.int32, "edges"),
    "table": (np.int32, "edges"),
    "weight": (np.float64, "edges"),
    "pair_weight": (np.float64, "edges"),
    "edge_end_start": (np.int64, "workloads+1"),
    "edge_end": (np.int32, "edges ends fields"),
    "cost_between_hosts": (np.float64, "tables zones zones"),
    "cost_within_host": (np.float64, "tables"),
    "mean_detour": (np.float64, "tables zones"),
    "violates_limit": (np.uint8, "tables zones zones"),
    "rule_kind": (np.int32, "rules"),
    "rule_max_skew": (np.int32, "rules"),
    "rule_lacks_domains": (np.uint8, "rules"),
    "rule_price": (np.float64, "rules"),
    "domain_of": (np.int32, "rules hosts"),
    "domain_start": (np.int64, "rules+1"),
    "bound_counted": (np.int64, "domains"),
    "bound_owners": (np.int64, "domains"),
    "counts_for_minimum": (np.uint8, "domains"),
    "role_start": (np.int64, "classes+1"),
    "role_rule": (np.int32, "roles"),
    "role": (np.uint8, "roles"),
}
"""Arrays of `Problem` in problem.h, in its order: name -> type of the entries, and dimensions as keys of `_sizes`."""
_PRICES = ("limit_price", "one_zone_price", "overload_price", "balance_price", "crowding_price")
FIELD_NAMES = (*_SIZE_NAMES, *_ARRAYS, *_PRICES)
"""The fields of `Problem` in problem.h, in its order."""

_WORST_COST = 1e6
"""Scaled cost of all calls if each takes the slowest path."""
_DEFAULT_HOST_GAIN = 0.05
"""`_CallCosts.host_gain` if no call gains: with 0, replicas would not spread."""
_HALF_COLOCATION_FACTOR = 0.75
"""Half of the 1.5 in `Problem.colocation_price`: each of the two replicas adds half of the price."""
_ZONE_PRICE_SHARE = 1e-3
"""Price of two replicas in one zone, as a share of that on one host: so small that it decides only between placements of equal cost."""
LIMIT_PRICE = 4 * _WORST_COST
"""Price of a pair of caller and replica beyond the limit: more than all calls together."""
ONE_ZONE_PRICE = 1e4 * LIMIT_PRICE
"""Price of a workload in one zone that must span zones."""


class SearchMissingError(KubekitError):
    """The library of the search cannot be loaded, or is missing and cannot be compiled; the message has the reason."""


class _NativeArrays(ctypes.Structure):
    """`Problem` of problem.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZE_NAMES),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_double) for name in _PRICES),
    ]


class SearchResult(NamedTuple):
    """A placement: [replica] host or -1, and its cost."""

    host_of: Ints
    cost: float


class NativeProblem:
    """A problem as the arrays of the compiled search. Searches may run on it concurrently."""

    def __init__(self, problem: Problem) -> None:
        # Loaded here and not by `search`, whose time limit a compilation would exceed.
        self._plan_search = _library().plan_search
        call_costs = _CallCosts(problem)
        sizes = _sizes(problem, call_costs)
        arrays = _host_arrays(problem, call_costs) | _replica_arrays(problem, call_costs)
        arrays |= _edge_arrays(problem, call_costs) | _rule_arrays(problem, call_costs)
        self._arrays = {name: _to_native_array(name, arrays.pop(name), sizes) for name in _ARRAYS}
        assert not arrays, f"problem.h has no field {', '.join(arrays)}"
        self._native = native = _NativeArrays()
        for name in _SIZE_NAMES:
            setattr(native, name, sizes[name])
        for name, array in self._arrays.items():
            setattr(native, name, array.ctypes.data)
        native.limit_price, native.one_zone_price = LIMIT_PRICE, ONE_ZONE_PRICE
        native.overload_price = problem.overload_price
        native.balance_price = problem.balance_price * call_costs.per_replica
        # A host's price grows with the square of its replicas; divided thus, evenly filled hosts have the price of one replica each.
        replicas_per_host = max(1.0, call_costs.replicas / max(len(problem.free), 1))
        crowding_price = problem.crowding_price / replicas_per_host**2 * call_costs.per_replica
        native.crowding_price = crowding_price * call_costs.host_gain

    def search(
        self,
        hints: Ints | None,
        *,
        seed: int,
        steps: int,
        time_limit_s: float,
        start_zone: int = -1,
        may_violate_limits: bool = False,
    ) -> SearchResult:
        """Place as many replicas as fit. ``hints`` are the hosts at the start, by replica; -1 for none.

        ``steps`` is the number of steps of annealing; with 0, only the nearest local optimum is found. Replicas are placed first in
        ``start_zone``, unless that is -1. With ``may_violate_limits``, annealing starts so hot that it violates limits on the way.
        """
        host_of = np.full(self._native.replicas, -1, np.int32) if hints is None else hints.astype(np.int32)
        cost = self._plan_search(
            ctypes.byref(self._native), host_of.ctypes.data, seed, steps, start_zone, may_violate_limits, time_limit_s
        )
        return SearchResult(host_of.astype(np.int64), cost)


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(native_library.library_path()))
    except OSError as error:
        raise SearchMissingError(str(error)) from error
    problem, int64, double = ctypes.POINTER(_NativeArrays), ctypes.c_int64, ctypes.c_double
    library.plan_search.restype = double
    library.plan_search.argtypes = [problem, ctypes.c_void_p, ctypes.c_uint64, int64, int64, int64, double]
    return library


def _sizes(problem: Problem, call_costs: _CallCosts) -> dict[str, int]:
    hosts, resources = problem.free.shape
    sizes = {
        "hosts": hosts,
        "resources": resources,
        "zones": len(problem.has_zone_label),
        "classes": len(problem.requests),
        "workloads": problem.workload_count,
        "replicas": len(problem.class_of),
        "edges": len(call_costs.edges),
        "tables": len(problem.tables),
        "rules": len(problem.domain_rules),
        "ends": 2,  # caller and callee
        "fields": 2,  # of `EdgeEnd`
        "rows": len(problem.allowed),
        "fixed": sum(map(len, problem.fixed_hosts)),
        "domains": sum(len(rule.bound_counted) for rule in problem.domain_rules),
        "roles": sum(len(rule.roles) for rule in problem.domain_rules),
    }
    return sizes | {f"{name}+1": size + 1 for name, size in sizes.items()}


def _to_native_array(name: str, values: object, sizes: Mapping[str, int]) -> NDArray[Any]:
    """An array as C reads it; never empty, because C may take its address.

    Raises:
        ValueError: the number of entries differs from the product of the dimensions.
    """
    dtype, dimensions = _ARRAYS[name]
    expected = math.prod(sizes[dimension] for dimension in dimensions.split())
    array = np.ascontiguousarray(values, dtype).reshape(-1)
    if array.size != expected:
        msg = f"{name} has {array.size} entries, but {dimensions} are {expected}"
        raise ValueError(msg)
    return array if array.size else np.zeros(1, dtype)


def _start_indexes(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths, dtype=np.int64).tolist()]


def _concatenate(arrays: list[NDArray[Any]]) -> object:
    return np.concatenate(arrays) if arrays else []


class _CallCosts:
    """Costs of calls, scaled so that all cost `_WORST_COST` if each takes the slowest path.

    Attributes:
        edges: edges between two workloads that both have replicas.
        worst_by_table: [table] highest cost of a call.
        weight_factor: multiplies edges' weights; this scales costs.
        replicas: number of the group's replicas, bound ones included: else the last pods of a rollout would have higher prices.
        per_replica: the *worst cost* of `problem`, in which prices are.
        host_gain: the *host gain* of `problem` as a share of the worst cost, by the table with the highest share. It is measured from the
            fastest zone, so that a slow zone does not drive replicas out of faster ones.
    """

    def __init__(self, problem: Problem) -> None:
        replica_counts = problem.replica_counts
        edges = (edge for edge in problem.edges if edge.caller != edge.callee)
        self.edges = [edge for edge in edges if replica_counts[edge.caller] and replica_counts[edge.callee]]
        tables = problem.tables
        self.worst_by_table = [max(float(t.cost_between_hosts.max(initial=0.0)), t.cost_within_host) for t in tables]
        worst_cost = sum(edge.weight * self.worst_by_table[edge.table] for edge in self.edges)
        self.weight_factor = _WORST_COST / worst_cost if worst_cost else 1.0
        self.replicas = max(int(replica_counts.sum()), 1)
        self.per_replica = _WORST_COST / self.replicas
        gains = [
            (float(np.diagonal(table.cost_between_hosts).min()) - table.cost_within_host) / worst
            for table, worst in zip(tables, self.worst_by_table, strict=True)
            if table.cost_between_hosts.size and worst > 0
        ]
        self.host_gain = min(max([0.0, *gains]), 1.0) or _DEFAULT_HOST_GAIN


def _host_arrays(problem: Problem, call_costs: _CallCosts) -> dict[str, object]:
    return {
        "free": problem.free,
        "inverse_capacity": np.where(problem.capacity > 0, 1.0 / np.maximum(problem.capacity, 1), 0.0),
        "zone_of": problem.zone_of,
        "has_zone_label": problem.has_zone_label,
        "host_price": problem.host_price * call_costs.per_replica,
    }


def _replica_arrays(problem: Problem, call_costs: _CallCosts) -> dict[str, object]:
    workloads = problem.workload_of[problem.class_of]
    host_colocation_price = _host_colocation_prices(problem, call_costs)
    return {
        "workload_of": problem.workload_of,
        "row_of": problem.row_of,
        "allowed": problem.allowed,
        "requests": problem.requests,
        "class_of": problem.class_of,
        "member_start": _start_indexes(np.bincount(workloads, minlength=problem.workload_count).tolist()),
        "member": np.argsort(workloads, kind="stable"),
        "replica_count": problem.replica_counts,
        "must_span_zones": problem.must_span_zones & (problem.replica_counts > 1),
        "host_colocation_price": host_colocation_price,
        "zone_colocation_price": host_colocation_price * _ZONE_PRICE_SHARE,
        "fixed_start": _start_indexes([len(hosts) for hosts in problem.fixed_hosts]),
        "fixed_host": [host for hosts in problem.fixed_hosts for host in hosts],
    }


def _host_colocation_prices(problem: Problem, call_costs: _CallCosts) -> Floats:
    """[workload] half the price of two of its replicas on one host; see `Problem.colocation_price`."""
    traffic = np.zeros(problem.workload_count)  # weighted by the highest cost of a call
    for edge in call_costs.edges:
        for end in (edge.caller, edge.callee):
            traffic[end] += edge.weight * call_costs.worst_by_table[edge.table]
    cost_of_calls = traffic / np.maximum(problem.replica_counts, 1) * call_costs.weight_factor
    shares: Floats = _HALF_COLOCATION_FACTOR * problem.colocation_price
    return shares * np.maximum(cost_of_calls, call_costs.per_replica) * call_costs.host_gain


def _edge_arrays(problem: Problem, call_costs: _CallCosts) -> dict[str, object]:
    edges, tables, replicas = call_costs.edges, problem.tables, problem.replica_counts.tolist()
    weights = [edge.weight * call_costs.weight_factor for edge in edges]
    callers, callees = [edge.caller for edge in edges], [edge.callee for edge in edges]
    ends = sorted(
        (workload, edge, is_callee)
        for is_callee, workloads in enumerate((callers, callees))
        for edge, workload in enumerate(workloads)
    )
    ends_by_workload = Counter(workload for workload, _, _ in ends)
    return {
        "caller": callers,
        "callee": callees,
        "routing": [int(edge.routing) for edge in edges],
        "table": [edge.table for edge in edges],
        "weight": weights,
        "pair_weight": [w / (replicas[e.caller] * replicas[e.callee]) for w, e in zip(weights, edges, strict=True)],
        "edge_end_start": _start_indexes([ends_by_workload[workload] for workload in range(problem.workload_count)]),
        "edge_end": [(edge, is_callee) for _, edge, is_callee in ends],
        "cost_between_hosts": [table.cost_between_hosts for table in tables],
        "cost_within_host": [table.cost_within_host for table in tables],
        "mean_detour": [_mean_detours(table) for table in tables],
        "violates_limit": [table.violates_limit for table in tables],
    }


def _mean_detours(table: CallCostTable) -> Floats:
    """[zone] mean extra cost of a call that leaves the zone; 0 if calls within the zone cost no less."""
    detours = table.cost_between_hosts - np.diagonal(table.cost_between_hosts)[:, np.newaxis]
    # cumsum adds from left to right; np.sum may add in another order and round differently.
    totals: Floats = np.maximum(np.cumsum(detours, axis=1)[:, -1:], 0.0)
    return totals / max(len(detours) - 1, 1)


def _rule_arrays(problem: Problem, call_costs: _CallCosts) -> dict[str, object]:
    rules = problem.domain_rules
    roles_by_class: list[list[tuple[int, int]]] = [[] for _ in problem.requests]
    for rule_index, rule in enumerate(rules):
        for class_, role in rule.roles.items():
            roles_by_class[class_].append((rule_index, role))
    roles = [role for roles_of_class in roles_by_class for role in roles_of_class]
    return {
        "rule_kind": [int(rule.kind) for rule in rules],
        "rule_max_skew": [rule.max_skew for rule in rules],
        "rule_lacks_domains": [rule.lacks_domains for rule in rules],
        "rule_price": [rule.price * call_costs.per_replica for rule in rules],
        "domain_of": [rule.domain_of for rule in rules],
        "domain_start": _start_indexes([len(rule.bound_counted) for rule in rules]),
        "bound_counted": _concatenate([rule.bound_counted for rule in rules]),
        "bound_owners": _concatenate([rule.bound_owners for rule in rules]),
        "counts_for_minimum": _concatenate([rule.counts_for_minimum for rule in rules]),
        "role_start": _start_indexes([len(roles_of_class) for roles_of_class in roles_by_class]),
        "role_rule": [rule for rule, _ in roles],
        "role": [role for _, role in roles],
    }
