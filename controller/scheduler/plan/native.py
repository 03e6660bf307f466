"""The compiled search: a `Problem` as C sees it, and the one call into it.

The library is plain C without Python's headers, so that one build serves every Python; ctypes lets go of the interpreter's lock
for as long as the search runs. `compile` says where it comes from.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.scheduler.plan import compile as compiler
from controller.scheduler.plan.problem import Floats, Ints, Problem

_COUNTS = ("hosts", "resources", "zones", "classes", "workloads", "replicas", "edges", "tables", "rules")
_ARRAYS = (
    ("free", np.int64),
    ("inverse", np.float64),
    ("zone_of", np.int32),
    ("zoned", np.uint8),
    ("workload_of", np.int32),
    ("row_of", np.int32),
    ("allowed", np.uint8),
    ("ask_start", np.int64),
    ("ask_resource", np.int32),
    ("ask_amount", np.int64),
    ("class_of", np.int32),
    ("total", np.int64),
    ("survives", np.uint8),
    ("survivors", np.int64),
    ("leaving", np.int64),
    ("host_wish", np.float64),
    ("zone_wish", np.float64),
    ("fixed_start", np.int64),
    ("fixed_host", np.int32),
    ("caller", np.int32),
    ("callee", np.int32),
    ("routing", np.int32),
    ("table", np.int32),
    ("weight", np.float64),
    ("latency", np.float64),
    ("local", np.float64),
    ("beyond", np.uint8),
    ("rule_kind", np.int32),
    ("rule_skew", np.int32),
    ("rule_domains", np.int32),
    ("rule_short", np.uint8),
    ("rule_price", np.float64),
    ("domain_of", np.int32),
    ("domain_start", np.int64),
    ("standing", np.int64),
    ("owned", np.int64),
    ("eligible", np.uint8),
    ("role_start", np.int64),
    ("role_rule", np.int32),
    ("role", np.uint8),
)
_PRICES = ("beyond_price", "together_price", "load_price", "balance_price", "crowd_price")

_WHOLE = 1e6
"""What all calls together cost at worst, once scaled: prices above it come first, whatever the unit of weights."""
BEYOND_PRICE = 4 * _WHOLE
TOGETHER_PRICE = 1e4 * BEYOND_PRICE


class _Problem(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_void_p) for name, _ in _ARRAYS),
        *((name, ctypes.c_double) for name in _PRICES),
    ]


class Found(NamedTuple):
    """Where every replica goes, a host or -1, and the price of it all by the search's own scale."""

    at: Ints
    cost: float


class Prepared:
    """A problem in C's arrays; kept while searches run on it, several at once if need be."""

    def __init__(self, problem: Problem) -> None:
        self.replicas = len(problem.class_of)
        self._arrays = {name: _as(kind, found) for (name, kind), found in zip(_ARRAYS, _arrays(problem), strict=True)}
        self._raw = _Problem()
        counts = (*problem.free.shape, len(problem.zoned), len(problem.asks), problem.workloads)
        counts += (self.replicas, len(_edges(problem)), len(problem.tables), len(problem.rules))
        for name, count in zip(_COUNTS, counts, strict=True):
            setattr(self._raw, name, count)
        for name, array in self._arrays.items():
            setattr(self._raw, name, array.ctypes.data)
        self._raw.beyond_price, self._raw.together_price = BEYOND_PRICE, TOGETHER_PRICE
        self._raw.load_price = problem.load
        self._raw.balance_price = problem.balance * _per_replica(problem)
        crowd = problem.crowd / max(1.0, _everybody(problem) / max(len(problem.free), 1)) ** 2
        self._raw.crowd_price = crowd * _per_replica(problem) * _gain_of_host(problem)

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
    ) -> Found:
        """Place all replicas.

        Args:
            hints: [replica] host to begin with, or -1.
            seed: the same problem, hints and seed give the same answer, unless the deadline cuts the search short.
            steps: of annealing.
            room_turns: of making room for replicas that find none.
            hot: temperature to begin with, as a share of what a step typically changes; negative: of a broken limit.
            cold: to end with, as a share of what a step typically changes.
            deadline_s: seconds from now.
            home: zone where everything begins that fits there; -1 for none.
        """
        at = np.ascontiguousarray(hints, np.int32).copy()
        cost = _library().plan_search(
            ctypes.byref(self._raw), at.ctypes.data, seed & (2**64 - 1), steps, room_turns, home, hot, cold, deadline_s
        )
        return Found(at.astype(np.int64), cost)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiler.library()))
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


def _as(kind: Any, found: object) -> NDArray[Any]:
    array = np.ascontiguousarray(found, kind).reshape(-1)
    return array if array.size else np.zeros(1, kind)


def _starts(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths, dtype=np.int64).tolist()]


def _edges(problem: Problem) -> list[int]:
    """Numbers of the edges whose ends both have replicas."""
    totals = problem.totals
    return [
        i
        for i, edge in enumerate(problem.edges)
        if totals[edge.caller] and totals[edge.callee] and edge.caller != edge.callee
    ]


def _arrays(problem: Problem) -> list[object]:
    return [*_host_arrays(problem), *_replica_arrays(problem), *_edge_arrays(problem), *_rule_arrays(problem)]


def _host_arrays(problem: Problem) -> list[object]:
    inverse = np.where(problem.capacity > 0, 1.0 / np.maximum(problem.capacity, 1), 0.0)
    return [problem.free, inverse, problem.zone_of, problem.zoned]


def _replica_arrays(problem: Problem) -> list[object]:
    asking = problem.asks > 0
    classes, resources = np.nonzero(asking)
    survives = np.zeros(problem.workloads, np.bool_) if problem.survives is None else problem.survives
    leaving = (
        np.zeros((problem.workloads, len(problem.zoned)), np.int64) if problem.leaving is None else problem.leaving
    )
    survivors = problem.totals - leaving.sum(axis=1)
    return [
        problem.workload_of,
        problem.row_of,
        problem.allowed,
        _starts(asking.sum(axis=1).tolist()),
        resources,
        problem.asks[classes, resources],
        problem.class_of,
        problem.totals,
        survives & (survivors > 1),
        survivors,
        leaving,
        *_wishes(problem),
        _starts([len(hosts) for hosts in problem.fixed]),
        [host for hosts in problem.fixed for host in hosts],
    ]


def _per_replica(problem: Problem) -> float:
    """What the calls of a replica cost at worst, in the mean."""
    return _WHOLE / _everybody(problem)


def _everybody(problem: Problem) -> int:
    """Replicas, those that stay included: the calls are everybody's, and the last pod of a group weighs no more than its first."""
    return max(int(problem.totals.sum()), 1)


def _gain_of_host(problem: Problem) -> float:
    """What a call gains by staying on its host, as a share of what it costs at worst."""
    gains = [
        (float(np.diagonal(table.latency).min()) - table.local) / worst
        for number, table in enumerate(problem.tables)
        if table.latency.size and (worst := _worst(problem, number)) > 0
    ]
    return min(max(gains, default=0.0), 1.0) or 0.05


def _wishes(problem: Problem) -> tuple[Floats, Floats]:
    """[workload] prices of pairs on one host and in one zone."""
    totals = np.maximum(problem.totals, 1)
    traffic = np.zeros(problem.workloads)
    for i in _edges(problem):
        edge = problem.edges[i]
        for end in (edge.caller, edge.callee):
            traffic[end] += edge.weight * _worst(problem, edge.table)
    calls = traffic / totals * _scale(problem)
    apart = np.zeros(problem.workloads) if problem.apart is None else problem.apart
    hosts: Floats = 0.75 * apart * np.maximum(calls, _per_replica(problem)) * _gain_of_host(problem)
    return hosts, hosts * 1e-3


def _scale(problem: Problem) -> float:
    worst = sum(problem.edges[i].weight * _worst(problem, problem.edges[i].table) for i in _edges(problem))
    return _WHOLE / worst if worst else 1.0


def _edge_arrays(problem: Problem) -> list[object]:
    edges = [problem.edges[i] for i in _edges(problem)]
    scale = _scale(problem)
    return [
        [edge.caller for edge in edges],
        [edge.callee for edge in edges],
        [int(edge.routing) for edge in edges],
        [edge.table for edge in edges],
        [edge.weight * scale for edge in edges],
        [table.latency for table in problem.tables],
        [table.local for table in problem.tables],
        [table.beyond for table in problem.tables],
    ]


def _worst(problem: Problem, table: int) -> float:
    found = problem.tables[table]
    return max(float(found.latency.max(initial=0.0)), found.local)


def _rule_arrays(problem: Problem) -> list[object]:
    rules = problem.rules
    by_class: list[list[tuple[int, int]]] = [[] for _ in problem.asks]
    for number, rule in enumerate(rules):
        for class_, role in rule.roles.items():
            by_class[class_].append((number, role))
    domains = [len(rule.standing) for rule in rules]
    joined: list[object] = [
        np.concatenate([getattr(rule, name) for rule in rules]) if rules else [] for name in _PER_DOMAIN
    ]
    return [
        [int(rule.kind) for rule in rules],
        [rule.skew for rule in rules],
        domains,
        [rule.short for rule in rules],
        [rule.price * _per_replica(problem) for rule in rules],
        [rule.domain_of for rule in rules],
        _starts(domains),
        *joined,
        _starts([len(roles) for roles in by_class]),
        [rule for roles in by_class for rule, _ in roles],
        [role for roles in by_class for _, role in roles],
    ]


_PER_DOMAIN = ("standing", "owned", "eligible")
