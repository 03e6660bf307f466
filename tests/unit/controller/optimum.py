"""Random clusters as arrays, and their best placement as CP-SAT proves it: what the planner's search is judged against.

The model is written from the meaning of `plan.problem.Problem`, by counts per host and zone, and shares no code with the search.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
from ortools.sat.python import cp_model

from controller.cluster.services import Routing
from controller.scheduler.plan.problem import COUNTED, OWNER, CallEdge, Ints, Problem, Rule, RuleKind, Table


class Score(msgspec.Struct, frozen=True, order=True):
    """Lower is better, field by field."""

    unplaced: int
    together: int
    beyond: int
    cost: int


def random_cluster(rng: random.Random, *, spread: bool = True, parity: bool = False) -> Problem:
    """4 to 9 hosts of several sizes in 2 or 3 zones, 3 to 6 workloads of several sizes; hosts that some may not use, pods that are
    there already, replicas that must be apart or even over zones, and Services of each kind.
    """
    hosts, zones, workloads = rng.randint(4, 9), rng.randint(2, 3), rng.randint(3, 6)
    zone_of = np.array([h % zones for h in range(hosts)], np.int64)
    replicas = [rng.randint(1, 4) for _ in range(workloads)]
    asks = np.array([[rng.choice((1, 1, 2, 3, 4)), rng.choice((1, 2, 4))] for _ in replicas], np.int64)
    fixed = tuple(tuple(sorted({rng.randrange(hosts) for _ in range(rng.choice((0, 0, 0, 1, 2)))})) for _ in replicas)
    rows = [np.ones(hosts, np.bool_)]
    row_of = []
    for _ in replicas:
        if rng.random() < 0.35:
            rows.append(np.array([rng.random() < 0.6 for _ in range(hosts)], np.bool_))
            rows[-1][rng.randrange(hosts)] = True
            row_of.append(len(rows) - 1)
        else:
            row_of.append(0)
    need = (asks * np.array(replicas)[:, None]).sum(axis=0)
    slack = rng.choice((1.05, 1.3, 2.0))
    share = np.array([rng.choice((1.0, 1.0, 2.0, 4.0)) for _ in range(hosts)])
    capacity = np.ceil(need[None, :] * slack * (share / share.sum())[:, None]).astype(np.int64)
    totals = [n + len(f) for n, f in zip(replicas, fixed, strict=True)]
    edges, tables = _edges(rng, zones, totals, parity=parity)
    return Problem(
        free=capacity,
        capacity=capacity,
        zone_of=zone_of,
        zoned=np.ones(zones, np.bool_),
        workload_of=np.arange(workloads),
        asks=asks,
        row_of=np.array(row_of, np.int64),
        allowed=np.array(rows, np.bool_),
        class_of=np.repeat(np.arange(workloads), replicas),
        fixed=fixed,
        edges=edges,
        tables=tables,
        rules=_rules(rng, zone_of, fixed) if spread else (),
        survives=np.array([spread and rng.random() < 0.3 for _ in replicas], np.bool_),
        load=0.0 if parity else 1.0,
        balance=1e-6,
    )


def _edges(
    rng: random.Random, zones: int, totals: list[int], *, parity: bool
) -> tuple[tuple[CallEdge, ...], tuple[Table, ...]]:
    """Whole prices: weights are multiples of the pairs, latencies even, and a host gains nothing over its zone by zone."""
    points = [(rng.random(), rng.random()) for _ in range(zones)]
    near, local = (1, 0) if parity else (100, 30)
    far = np.array(
        [
            [near if a == b else near + 2 * max(1, int(15 * abs(a[0] - b[0]) + 15 * abs(a[1] - b[1]))) for b in points]
            for a in points
        ],
        np.float64,
    )
    pairs = [(rng.randrange(j), j) for j in range(1, len(totals))]
    pairs += [(i, j) for j in range(len(totals)) for i in range(len(totals)) if i < j and rng.random() < 0.2]
    edges: list[CallEdge] = []
    tables: list[Table] = []
    for caller, callee in dict.fromkeys(pairs):
        if not totals[caller] or not totals[callee]:
            continue
        routing = Routing.ANY if parity else rng.choice(list(Routing))
        limit = rng.choice(sorted(set(far.flatten().tolist())))
        beyond = far > limit if rng.random() < 0.5 else np.zeros((zones, zones), np.bool_)
        inside = float(near if routing is Routing.ZONE else local)
        weight = totals[caller] * totals[callee] * (1 if parity else rng.randint(1, 5))
        edges.append(CallEdge(caller, callee, float(weight), routing, len(tables)))
        tables.append(Table(far, inside, beyond))
    return tuple(edges), tuple(tables)


def _rules(rng: random.Random, zone_of: Ints, fixed: tuple[tuple[int, ...], ...]) -> tuple[Rule, ...]:
    """One workload's replicas even over zones, another's apart over hosts."""
    rules = []
    for workload, hosts in enumerate(fixed):
        lot = rng.random()
        if lot < 0.4:
            domain_of = zone_of if lot < 0.2 else np.arange(len(zone_of))
            domains = int(domain_of.max()) + 1
            held = np.bincount(domain_of[list(hosts)], minlength=domains) if hosts else np.zeros(domains, np.int64)
            rules.append(
                Rule(
                    kind=RuleKind.SPREAD if lot < 0.2 else RuleKind.APART,
                    roles={workload: COUNTED | OWNER},
                    domain_of=domain_of,
                    standing=held,
                    owned=held,
                    eligible=np.ones(domains, np.bool_),
                    skew=rng.randint(1, 2),
                )
            )
    return tuple(rules)


def score(problem: Problem, at: Ints) -> Score:
    """Of a placement, by counts.

    Raises:
        AssertionError: it breaks a capacity, a host that is not allowed, or a rule.
    """
    hosts, zones, workloads = len(problem.free), len(problem.zoned), problem.workloads
    on = np.zeros((workloads, hosts), np.int64)
    used = np.zeros_like(problem.free)
    moved = np.zeros((workloads, hosts), np.int64)
    for class_, host in zip(problem.class_of.tolist(), at.tolist(), strict=True):
        if host >= 0:
            assert problem.allowed[problem.row_of[class_], host], "a host that the replica may not use"
            used[host] += problem.asks[class_]
            moved[problem.workload_of[class_], host] += 1
    assert (used <= problem.free).all(), "more than a host has"
    on += moved
    for workload, fixed in enumerate(problem.fixed):
        for host in fixed:
            on[workload, host] += 1
    _assert_rules(problem, moved)
    in_zone = np.zeros((workloads, zones), np.int64)
    for host in range(hosts):
        in_zone[:, problem.zone_of[host]] += on[:, host]
    survives = np.zeros(workloads, np.bool_) if problem.survives is None else problem.survives
    totals = problem.totals
    together = sum(
        bool(survives[w]) and totals[w] > 1 and int(in_zone[w].max()) == int(totals[w]) for w in range(workloads)
    )
    beyond = cost = 0
    for edge in problem.edges:
        more_beyond, more_cost = _edge_score(problem, edge, on, in_zone)
        beyond, cost = beyond + more_beyond, cost + more_cost
    return Score(int((at < 0).sum()), together, beyond, cost)


def _assert_rules(problem: Problem, moved: Ints) -> None:
    for rule in problem.rules:
        (class_,) = rule.roles
        placed = np.zeros_like(rule.standing)
        np.add.at(placed, rule.domain_of, moved[problem.workload_of[class_]])
        counts = rule.standing + placed
        if rule.kind is RuleKind.APART:
            assert (counts[placed > 0] <= 1).all(), "replicas that must be apart share a domain"
        else:
            assert (counts[placed > 0] - counts.min() <= rule.skew).all(), "replicas are not even"


def _edge_score(problem: Problem, edge: CallEdge, on: Ints, in_zone: Ints) -> tuple[int, int]:
    table, totals = problem.tables[edge.table], problem.totals
    n_a, n_b = int(totals[edge.caller]), int(totals[edge.callee])
    unit = round(edge.weight / (n_a * n_b))
    a, b = in_zone[edge.caller], in_zone[edge.callee]
    zones = range(len(a))
    far = table.latency.astype(np.int64)
    beyond = cost = 0
    for z in zones:
        near, gain = int(far[z, z]), int(far[z, z] - table.local)
        here = [h for h in range(on.shape[1]) if problem.zone_of[h] == z]
        pairs = sum(int(on[edge.caller, h] * on[edge.callee, h]) for h in here)
        if edge.routing is Routing.ANY or not b[z]:
            cost += unit * sum(int(a[z] * b[y] * far[z, y]) for y in zones) - unit * gain * pairs
            beyond += sum(int(a[z] * b[y]) for y in zones if table.beyond[z, y])
            continue
        cost += unit * n_b * int(a[z]) * near
        if edge.routing is Routing.NODE:
            stay = sum(min(int(on[edge.caller, h]) * n_b, int(on[edge.callee, h]) * n_a) for h in here)
            cost -= unit * gain * stay
        away = sum(int(far[z, y]) - near for y in zones if y != z) // (len(a) - 1)
        cost += round(problem.load) * unit * away * max(0, int(a[z]) * n_b - int(b[z]) * n_a)
    return beyond, cost


class _Model:
    """The same as constraints: how many of each class are on each host."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.model = problem, cp_model.CpModel()
        count = np.bincount(problem.class_of, minlength=len(problem.asks)).tolist()
        hosts, zones = len(problem.free), len(problem.zoned)
        allowed = problem.allowed[problem.row_of]
        self.n = [
            [self.model.new_int_var(0, count[k] if allowed[k, h] else 0, "") for h in range(hosts)]
            for k in range(len(count))
        ]
        for k, of in enumerate(count):
            self.model.add(sum(self.n[k]) <= of)
        for h in range(hosts):
            for r in range(problem.free.shape[1]):
                self.model.add(
                    sum(int(problem.asks[k, r]) * self.n[k][h] for k in range(len(count))) <= int(problem.free[h, r])
                )
        self.on = [[self.n[w][h] + problem.fixed[w].count(h) for h in range(hosts)] for w in range(len(count))]
        self.most = problem.totals.tolist()
        self.in_zone: list[list[Any]] = []
        for w in range(len(count)):
            row = []
            for z in range(zones):
                var = self.model.new_int_var(0, self.most[w], "")
                self.model.add(var == sum(self.on[w][h] for h in range(hosts) if problem.zone_of[h] == z))
                row.append(var)
            self.in_zone.append(row)
        self.unplaced = sum(count) - sum(var for row in self.n for var in row)
        self.beyond: list[Any] = []
        self.cost: list[Any] = []
        self._rules()
        self.together = [self._is_together(w) for w in range(len(count)) if self._survives(w)]
        for edge in problem.edges:
            self._edge(edge)

    def _survives(self, workload: int) -> bool:
        return self.problem.survives is not None and bool(self.problem.survives[workload]) and self.most[workload] > 1

    def _is_together(self, workload: int) -> Any:
        whole = []
        for var in self.in_zone[workload]:
            literal = self.model.new_bool_var("")
            self.model.add(var == self.most[workload]).only_enforce_if(literal)
            self.model.add(var < self.most[workload]).only_enforce_if(literal.Not())
            whole.append(literal)
        return sum(whole)

    def _rules(self) -> None:
        for rule in self.problem.rules:
            (k,) = rule.roles
            domains = len(rule.standing)
            counts, placed = [], []
            for d in range(domains):
                here = sum(self.n[k][h] for h in range(len(rule.domain_of)) if rule.domain_of[h] == d)
                placed.append(here)
                counts.append(here + int(rule.standing[d]))
            least = self.model.new_int_var(0, 100, "")
            for d in range(domains):
                used = self.model.new_bool_var("")
                self.model.add(placed[d] == 0).only_enforce_if(used.Not())
                if rule.kind is RuleKind.APART:
                    self.model.add(counts[d] <= 1).only_enforce_if(used)
                else:
                    self.model.add(least <= counts[d])
                    self.model.add(counts[d] <= least + rule.skew).only_enforce_if(used)

    def _edge(self, edge: CallEdge) -> None:
        problem, model = self.problem, self.model
        table = problem.tables[edge.table]
        n_a, n_b = self.most[edge.caller], self.most[edge.callee]
        unit = round(edge.weight / (n_a * n_b))
        a, b = self.in_zone[edge.caller], self.in_zone[edge.callee]
        far = table.latency.astype(np.int64)
        for z in range(len(a)):
            products = [self._product(a[z], b[y], n_a * n_b) for y in range(len(a))]
            here = [h for h in range(len(problem.free)) if problem.zone_of[h] == z]
            gain, near = int(far[z, z] - table.local), int(far[z, z])
            pairs = [self._product(self.on[edge.caller][h], self.on[edge.callee][h], n_a * n_b) for h in here if gain]
            over_all = unit * sum(int(far[z, y]) * products[y] for y in range(len(a))) - unit * gain * sum(pairs)
            broken = sum(products[y] for y in range(len(a)) if table.beyond[z, y])
            if edge.routing is Routing.ANY:
                self.cost.append(over_all)
                self.beyond.append(broken)
                continue
            served = model.new_bool_var("")
            model.add(b[z] >= 1).only_enforce_if(served)
            model.add(b[z] == 0).only_enforce_if(served.Not())
            price, broke = model.new_int_var(-(10**7), 10**7, ""), model.new_int_var(0, n_a * n_b, "")
            model.add(price >= over_all).only_enforce_if(served.Not())
            model.add(broke >= broken).only_enforce_if(served.Not())
            stay = self._staying(edge, here) if edge.routing is Routing.NODE else 0
            away = sum(int(far[z, y]) - near for y in range(len(a)) if y != z) // (len(a) - 1)
            excess = model.new_int_var(0, n_a * n_b, "")
            model.add(excess >= n_b * a[z] - n_a * b[z])
            by_zone = unit * n_b * near * a[z] - unit * gain * stay + round(problem.load) * unit * away * excess
            model.add(price >= by_zone).only_enforce_if(served)
            self.cost.append(price)
            self.beyond.append(broke)

    def _staying(self, edge: CallEdge, here: list[int]) -> Any:
        n_a, n_b = self.most[edge.caller], self.most[edge.callee]
        parts = []
        for h in here:
            var = self.model.new_int_var(0, n_a * n_b, "")
            self.model.add(var <= n_b * self.on[edge.caller][h])
            self.model.add(var <= n_a * self.on[edge.callee][h])
            parts.append(var)
        return sum(parts)

    def _product(self, one: Any, other: Any, most: int) -> Any:
        var = self.model.new_int_var(0, most, "")
        self.model.add_multiplication_equality(var, [one, other])
        return var


def optimum(problem: Problem, *, seconds: float = 20.0) -> Score | None:
    """Fewest unplaced, then fewest workloads together, then fewest broken limits, then the lowest cost; None when CP-SAT could not
    prove it in time.
    """
    built = _Model(problem)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    found = []
    for goal in (built.unplaced, sum(built.together), sum(built.beyond), sum(built.cost)):
        if isinstance(goal, int):
            found.append(goal)
            continue
        built.model.minimize(goal)
        if solver.solve(built.model) != cp_model.OPTIMAL:
            return None
        best = round(solver.objective_value)
        found.append(best)
        built.model.add(goal <= best)
    return Score(*found)
