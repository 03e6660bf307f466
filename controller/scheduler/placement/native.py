"""ctypes binding of the compiled search.

The library is plain C without Python's headers, so that one build serves every Python. ctypes releases the interpreter's lock
during a search. `native_library` builds the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.scheduler.placement import native_library
from controller.scheduler.placement.problem import Floats, Ints, Problem
from kubekit.errors import KubekitError

_COUNTS = ("hosts", "resources", "zones", "classes", "workloads", "replicas", "edges", "tables", "rules")
_ARRAYS: Mapping[str, tuple[type[np.generic], str]] = {
    "free": (np.int64, "hosts resources"),
    "inverse_capacity": (np.float64, "hosts resources"),
    "zone_of": (np.int32, "hosts"),
    "has_zone_label": (np.uint8, "zones"),
    "host_price": (np.float64, "hosts"),
    "workload_of": (np.int32, "classes"),
    "row_of": (np.int32, "classes"),
    "allowed": (np.uint8, "rows hosts"),
    "request_start": (np.int64, "classes+1"),
    "request_resource": (np.int32, "requests"),
    "request_amount": (np.int64, "requests"),
    "class_of": (np.int32, "replicas"),
    "total": (np.int64, "workloads"),
    "must_span_zones": (np.uint8, "workloads"),
    "host_penalty": (np.float64, "workloads"),
    "zone_penalty": (np.float64, "workloads"),
    "fixed_start": (np.int64, "workloads+1"),
    "fixed_host": (np.int32, "fixed"),
    "caller": (np.int32, "edges"),
    "callee": (np.int32, "edges"),
    "routing": (np.int32, "edges"),
    "table": (np.int32, "edges"),
    "weight": (np.float64, "edges"),
    "latency": (np.float64, "tables zones zones"),
    "host_latency": (np.float64, "tables"),
    "violates_limit": (np.uint8, "tables zones zones"),
    "rule_kind": (np.int32, "rules"),
    "rule_max_skew": (np.int32, "rules"),
    "rule_lacks_domains": (np.uint8, "rules"),
    "rule_price": (np.float64, "rules"),
    "domain_of": (np.int32, "rules hosts"),
    "domain_start": (np.int64, "rules+1"),
    "bound_counted": (np.int64, "domains"),
    "bound_owners": (np.int64, "domains"),
    "eligible": (np.uint8, "domains"),
    "role_start": (np.int64, "classes+1"),
    "role_rule": (np.int32, "roles"),
    "role": (np.uint8, "roles"),
}
"""The arrays of `Problem` in state.h, in its order: type, and dimensions whose product is the number of entries."""
_PRICES = ("limit_price", "one_zone_price", "overload_price", "balance_price", "crowding_price")

_TOTAL_COST = 1e6
"""Scaled cost of all calls at worst. Higher prices come first, whatever the unit of weights is."""
LIMIT_PRICE = 4 * _TOTAL_COST
ONE_ZONE_PRICE = 1e4 * LIMIT_PRICE


class SearchMissingError(KubekitError):
    """The search is not compiled, and its compilation failed; the message says what to do."""


class _Problem(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_double) for name in _PRICES),
    ]


def fields() -> Iterator[str]:
    """Names of the fields of `Problem` in state.h, in its order."""
    yield from (*_COUNTS, *_ARRAYS, *_PRICES)


class SearchResult(NamedTuple):
    """A placement: [replica] host or -1, and its cost."""

    host_of: Ints
    cost: float


class NativeProblem:
    """A problem as the arrays of the compiled search. Searches may run on it concurrently."""

    def __init__(self, problem: Problem) -> None:
        costs = _Costs(problem)
        counts = _counts(problem, costs)
        arrays = _host_arrays(problem, costs) | _replica_arrays(problem, costs)
        arrays |= _edge_arrays(problem, costs) | _rule_arrays(problem, costs)
        self._arrays = {name: _checked(name, arrays.pop(name), counts) for name in _ARRAYS}
        assert not arrays, f"state.h has no field {', '.join(arrays)}"
        self._raw = _Problem()
        for name in _COUNTS:
            setattr(self._raw, name, counts[name])
        for name, array in self._arrays.items():
            setattr(self._raw, name, array.ctypes.data)
        self._raw.limit_price, self._raw.one_zone_price = LIMIT_PRICE, ONE_ZONE_PRICE
        self._raw.overload_price = problem.overload_price
        self._raw.balance_price = problem.balance_price * costs.per_replica
        crowd = problem.crowding_price / max(1.0, costs.replicas / max(len(problem.free), 1)) ** 2
        self._raw.crowding_price = crowd * costs.per_replica * costs.host_gain

    def search(
        self,
        hints: Ints,
        *,
        seed: int,
        steps: int,
        room_turns: int,
        hot: float,
        cold: float,
        deadline_s: float,
        home: int = -1,
    ) -> SearchResult:
        """Place all replicas.

        Args:
            hints: [replica] host to start with, or -1.
            seed: the same problem, hints and seed give the same placement, unless the deadline cuts the search short.
            steps: of annealing.
            room_turns: attempts to free capacity for replicas without a place.
            hot: first temperature, as a share of the typical change of the cost by a step; negative: of a broken limit.
            cold: last temperature, as a share of the typical change of the cost by a step.
            deadline_s: seconds from now.
            home: zone that replicas are placed in first; -1 for none.
        """
        host_of = np.ascontiguousarray(hints, np.int32).copy()
        cost = _library().plan_search(
            ctypes.byref(self._raw), host_of.ctypes.data, seed, steps, room_turns, home, hot, cold, deadline_s
        )
        return SearchResult(host_of.astype(np.int64), cost)


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(native_library.library_path()))
    except OSError as error:
        raise SearchMissingError(str(error)) from error
    library.plan_search.restype = ctypes.c_double
    library.plan_search.argtypes = [
        ctypes.POINTER(_Problem),
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_double,
        ctypes.c_double,
        ctypes.c_double,
    ]
    return library


def _counts(problem: Problem, costs: _Costs) -> dict[str, int]:
    hosts, resources = problem.free.shape
    return {
        "hosts": hosts,
        "resources": resources,
        "zones": len(problem.has_zone_label),
        "classes": len(problem.requests),
        "workloads": problem.workloads,
        "replicas": len(problem.class_of),
        "edges": len(costs.edges),
        "tables": len(problem.tables),
        "rules": len(problem.rules),
        "rows": len(problem.allowed),
        "requests": int((problem.requests > 0).sum()),
        "fixed": sum(map(len, problem.fixed)),
        "domains": sum(len(rule.bound_counted) for rule in problem.rules),
        "roles": sum(len(rule.roles) for rule in problem.rules),
    }


def _checked(name: str, values: object, counts: Mapping[str, int]) -> NDArray[Any]:
    """An array as C reads it; never empty, because C may take its address.

    Raises:
        ValueError: the number of entries differs from the product of the dimensions.
    """
    dtype, dimensions = _ARRAYS[name]
    expected = 1
    for dimension in dimensions.split():
        count, _, extra = dimension.partition("+")
        expected *= counts[count] + int(extra or 0)
    array = np.ascontiguousarray(values, dtype).reshape(-1)
    if array.size != expected:
        msg = f"{name} has {array.size} entries, but {dimensions} are {expected}"
        raise ValueError(msg)
    return array if array.size else np.zeros(1, dtype)


def _starts(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths, dtype=np.int64).tolist()]


def _joined(arrays: list[NDArray[Any]]) -> object:
    return np.concatenate(arrays) if arrays else []


class _Costs:
    """The scale of all costs, by which all calls together cost `_TOTAL_COST` at worst.

    Attributes:
        edges: edges whose ends both have replicas.
        worst: [table] highest cost of a call.
        scale: factor of an edge's weight.
        replicas: number of the group's replicas, bound ones included, so that its last pod counts no more than its first.
        per_replica: mean of the worst cost of a replica's calls.
        host_gain: gain of a call that stays on its host, as a share of its worst cost.
    """

    def __init__(self, problem: Problem) -> None:
        totals = problem.totals
        self.edges = [e for e in problem.edges if totals[e.caller] and totals[e.callee] and e.caller != e.callee]
        self.worst = [max(float(table.latency.max(initial=0.0)), table.host_latency) for table in problem.tables]
        total = sum(edge.weight * self.worst[edge.table] for edge in self.edges)
        self.scale = _TOTAL_COST / total if total else 1.0
        self.replicas = max(int(totals.sum()), 1)
        self.per_replica = _TOTAL_COST / self.replicas
        gains = [
            (float(np.diagonal(table.latency).min()) - table.host_latency) / worst
            for table, worst in zip(problem.tables, self.worst, strict=True)
            if table.latency.size and worst > 0
        ]
        self.host_gain = min(max(gains, default=0.0), 1.0) or 0.05


def _host_arrays(problem: Problem, costs: _Costs) -> dict[str, object]:
    inverse = np.where(problem.capacity > 0, 1.0 / np.maximum(problem.capacity, 1), 0.0)
    return {
        "free": problem.free,
        "inverse_capacity": inverse,
        "zone_of": problem.zone_of,
        "has_zone_label": problem.has_zone_label,
        "host_price": problem.host_price * costs.per_replica,
    }


def _replica_arrays(problem: Problem, costs: _Costs) -> dict[str, object]:
    is_requested = problem.requests > 0
    classes, resources = np.nonzero(is_requested)
    host_penalty = _host_penalties(problem, costs)
    return {
        "workload_of": problem.workload_of,
        "row_of": problem.row_of,
        "allowed": problem.allowed,
        "request_start": _starts(is_requested.sum(axis=1).tolist()),
        "request_resource": resources,
        "request_amount": problem.requests[classes, resources],
        "class_of": problem.class_of,
        "total": problem.totals,
        "must_span_zones": problem.must_span_zones & (problem.totals > 1),
        "host_penalty": host_penalty,
        "zone_penalty": host_penalty * 1e-3,
        "fixed_start": _starts([len(hosts) for hosts in problem.fixed]),
        "fixed_host": [host for hosts in problem.fixed for host in hosts],
    }


def _host_penalties(problem: Problem, costs: _Costs) -> Floats:
    """[workload] cost of two of its replicas on one host, over 2."""
    traffic = np.zeros(problem.workloads)
    for edge in costs.edges:
        for end in (edge.caller, edge.callee):
            traffic[end] += edge.weight * costs.worst[edge.table]
    calls = traffic / np.maximum(problem.totals, 1) * costs.scale
    penalties: Floats = 0.75 * problem.colocation_penalty * np.maximum(calls, costs.per_replica) * costs.host_gain
    return penalties


def _edge_arrays(problem: Problem, costs: _Costs) -> dict[str, object]:
    edges = costs.edges
    return {
        "caller": [edge.caller for edge in edges],
        "callee": [edge.callee for edge in edges],
        "routing": [int(edge.routing) for edge in edges],
        "table": [edge.table for edge in edges],
        "weight": [edge.weight * costs.scale for edge in edges],
        "latency": [table.latency for table in problem.tables],
        "host_latency": [table.host_latency for table in problem.tables],
        "violates_limit": [table.violates_limit for table in problem.tables],
    }


def _rule_arrays(problem: Problem, costs: _Costs) -> dict[str, object]:
    rules = problem.rules
    by_class: list[list[tuple[int, int]]] = [[] for _ in problem.requests]
    for number, rule in enumerate(rules):
        for class_, role in rule.roles.items():
            by_class[class_].append((number, role))
    domains = [len(rule.bound_counted) for rule in rules]
    roles = [role for of_class in by_class for role in of_class]
    return {
        "rule_kind": [int(rule.kind) for rule in rules],
        "rule_max_skew": [rule.max_skew for rule in rules],
        "rule_lacks_domains": [rule.lacks_domains for rule in rules],
        "rule_price": [rule.price * costs.per_replica for rule in rules],
        "domain_of": [rule.domain_of for rule in rules],
        "domain_start": _starts(domains),
        "bound_counted": _joined([rule.bound_counted for rule in rules]),
        "bound_owners": _joined([rule.bound_owners for rule in rules]),
        "eligible": _joined([rule.eligible for rule in rules]),
        "role_start": _starts([len(of_class) for of_class in by_class]),
        "role_rule": [rule for rule, _ in roles],
        "role": [role for _, role in roles],
    }
