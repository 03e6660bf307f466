"""The best placement of a cluster's objects by CP-SAT, which `simulate --offline` is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from ortools.sat.python import cp_model

from tests.unit.controller.oracle_cluster import Json, OracleCluster, matches_node, requests, selects, tolerates

SCALE = 5040
"""Factor of latencies, so that they stay integers when up to ten replicas share them."""


class PlacementValue(msgspec.Struct, frozen=True, order=True):
    """Value of a placement; lower is better, compared field by field.

    Attributes:
        unplaced: pods that are not placed.
        unspread_workloads: workloads that must span zones and do not.
        violations: calls that exceed their limit.
        cost: of all calls, times `SCALE` unless the objective is ``parity``; 0 if replicas are spread.
    """

    unplaced: int
    unspread_workloads: int
    violations: int
    cost: int

    @property
    def limits(self) -> tuple[int, int, int]:
        """The fields that take precedence over the cost."""
        return self.unplaced, self.unspread_workloads, self.violations


class BrokenRuleError(AssertionError):
    """A placement breaks a rule of Kubernetes."""


def evaluate(cluster: OracleCluster, placements: Mapping[str, str]) -> PlacementValue:
    """The value of a placement; raises BrokenRuleError."""
    formulation = _Formulation(cluster)
    formulation.fix(placements)
    goals = formulation.goals()
    # The goals' helper variables have a bound on one side only, so they are exact only at the minimum.
    formulation.solver_model.minimize(sum(goals[:3]))
    solver = formulation.make_solver(10.0)
    status = solver.solve(formulation.solver_model)
    if status == cp_model.INFEASIBLE:
        raise BrokenRuleError(placements)
    assert status == cp_model.OPTIMAL, "the time was too short"
    return PlacementValue(*(solver.value(goal) for goal in goals))


def find_best(
    cluster: OracleCluster, placements: Mapping[str, str], seconds_per_goal: float
) -> tuple[PlacementValue, bool]:
    """The best value that CP-SAT finds from these placements, and whether it is proven."""
    formulation = _Formulation(cluster)
    formulation.hint(placements)
    is_proven, best_placements = True, dict(placements)
    for goal in formulation.goals():
        if isinstance(goal, int):
            continue
        formulation.solver_model.minimize(goal)
        solver = formulation.make_solver(seconds_per_goal)
        status = solver.solve(formulation.solver_model)
        is_proven &= status == cp_model.OPTIMAL
        if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
            break
        best_placements = formulation.placements(solver)
        formulation.solver_model.add(goal <= round(solver.objective_value))
        formulation.hint(best_placements)
    return evaluate(cluster, best_placements), is_proven


def place_most_pods(cluster: OracleCluster, time_limit_s: float) -> dict[str, str]:
    """A placement of as many pods as CP-SAT can place within the limit."""
    formulation = _Formulation(cluster)
    formulation.solver_model.minimize(formulation.unplaced)
    solver = formulation.make_solver(time_limit_s)
    solver.solve(formulation.solver_model)
    return formulation.placements(solver)


class _Replicas(NamedTuple):
    """Number of a workload's replicas: in all, [host] and [zone], as expressions of the model."""

    total: int
    on_host: list[Any]
    in_zone: list[Any]


class _Formulation:
    """The CP-SAT model: a variable for the number of pods of each class on each host, constraints and goals."""

    def __init__(self, cluster: OracleCluster) -> None:
        self.cluster, self.solver_model = cluster, cp_model.CpModel()
        hosts = range(len(cluster.nodes))
        self.pod_count = [
            [self.solver_model.new_int_var(0, len(keys) if cluster.allowed[k][h] else 0, "") for h in hosts]
            for k, keys in enumerate(cluster.pod_keys_by_class)
        ]
        for row, keys in zip(self.pod_count, cluster.pod_keys_by_class, strict=True):
            self.solver_model.add(sum(row) <= len(keys))
        self._add_resources()
        for k, pod in enumerate(cluster.classes):
            spec = pod["spec"]
            for constraint in spec.get("topologySpreadConstraints", ()):
                self._add_spread(constraint, pod)
            affinity = spec.get("affinity", {})
            for kind in ("podAntiAffinity", "podAffinity"):
                for term in affinity.get(kind, {}).get("requiredDuringSchedulingIgnoredDuringExecution", ()):
                    self._add_affinity(term, k, is_anti=kind == "podAntiAffinity")
        for host, pod in cluster.bound_pods:
            affinity = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
            for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
                same = self._domain(term["topologyKey"], host)
                self.solver_model.add(sum(self._placed_vars(term["labelSelector"], same)) == 0)

    def make_solver(self, time_limit_s: float) -> cp_model.CpSolver:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = time_limit_s
        return solver

    def _add_resources(self) -> None:
        cluster = self.cluster
        requests_by_class = [requests(pod) for pod in cluster.classes]
        for h, free in enumerate(cluster.free):
            for resource in {r for requested in requests_by_class for r, n in requested.items() if n}:
                is_port = resource.startswith("port ")
                available = int((h, resource) not in cluster.taken_ports) if is_port else free[resource]
                used = [
                    requested[resource] * row[h]
                    for requested, row in zip(requests_by_class, self.pod_count, strict=True)
                    if requested[resource]
                ]
                # An overcommitted host takes no pod that requests the resource.
                self.solver_model.add(sum(used) <= max(available, 0))

    def _domain(self, key: str, host: int) -> list[int]:
        """The hosts that share a host's value of a label."""
        values = [node["metadata"]["labels"].get(key) for node in self.cluster.nodes]
        return [h for h, value in enumerate(values) if value == values[host]]

    def _domains(self, key: str) -> list[list[int]]:
        return [list(d) for d in dict.fromkeys(tuple(self._domain(key, h)) for h in range(len(self.cluster.nodes)))]

    def _placed_vars(self, selector: Json, hosts: Iterable[int]) -> list[Any]:
        """Variables for the selected waiting pods on these hosts."""
        matching = [k for k, p in enumerate(self.cluster.classes) if selects(selector, p["metadata"]["labels"])]
        return [self.pod_count[k][h] for k in matching for h in hosts]

    def _count_bound(self, selector: Json, hosts: Iterable[int], *, with_terminating: bool = True) -> int:
        within = set(hosts)
        return sum(
            h in within
            and selects(selector, p["metadata"]["labels"])
            and (with_terminating or "deletionTimestamp" not in p["metadata"])
            for h, p in self.cluster.bound_pods
        )

    def _is_any_placed(self, parts: list[Any]) -> Any:
        used = self.solver_model.new_bool_var("")
        self.solver_model.add(sum(parts) == 0).only_enforce_if(used.Not())
        return used

    def _add_spread(self, constraint: Json, pod: Json) -> None:
        """PodTopologySpread: nodes that the node policies exclude do not count."""
        cluster, selector = self.cluster, constraint["labelSelector"]
        honours_affinity = constraint.get("nodeAffinityPolicy", "Honor") == "Honor"
        honours_taints = constraint.get("nodeTaintsPolicy", "Ignore") == "Honor"
        counted = [
            h
            for h, node in enumerate(cluster.nodes)
            if (not honours_affinity or matches_node(pod["spec"], node))
            and (not honours_taints or tolerates(pod["spec"], node))
        ]
        domains = [[h for h in d if h in counted] for d in self._domains(constraint["topologyKey"])]
        domains = [d for d in domains if d]
        bound = [self._count_bound(selector, d, with_terminating=False) for d in domains]
        totals = [count + sum(self._placed_vars(selector, d)) for count, d in zip(bound, domains, strict=True)]
        least = self.solver_model.new_int_var(0, len(cluster.bound_pods) + len(cluster.waiting_pods), "")
        if len(domains) < constraint.get("minDomains", 0):
            self.solver_model.add(least == 0)
        classes_with_constraint = [
            k for k, p in enumerate(cluster.classes) if constraint in p["spec"].get("topologySpreadConstraints", ())
        ]
        for total, domain in zip(totals, domains, strict=True):
            self.solver_model.add(least <= total)
            used = self._is_any_placed(
                [
                    self.pod_count[k][h]
                    for k in classes_with_constraint
                    for h in domain
                    if self._have_same_eligible_nodes(cluster.classes[k], pod)
                ]
            )
            self.solver_model.add(total <= least + constraint["maxSkew"]).only_enforce_if(used)

    def _have_same_eligible_nodes(self, pod: Json, other: Json) -> bool:
        return all(matches_node(pod["spec"], n) == matches_node(other["spec"], n) for n in self.cluster.nodes)

    def _add_affinity(self, term: Json, owner: int, *, is_anti: bool) -> None:
        selector = term["labelSelector"]
        counts_itself = selects(selector, self.cluster.classes[owner]["metadata"]["labels"])
        for domain in self._domains(term["topologyKey"]):
            counted = self._count_bound(selector, domain) + sum(self._placed_vars(selector, domain))
            is_owner_placed = self._is_any_placed([self.pod_count[owner][h] for h in domain])
            rule = counted <= int(counts_itself) if is_anti else counted >= 1
            self.solver_model.add(rule).only_enforce_if(is_owner_placed)

    @property
    def unplaced(self) -> Any:
        """Number of pods without a place."""
        return len(self.cluster.waiting_pods) - sum(var for row in self.pod_count for var in row)

    def goals(self) -> list[Any]:
        """The fields of `PlacementValue`."""
        cluster = self.cluster
        replicas = [self._count_replicas(workload) for workload in range(len(cluster.workloads))]
        spread = [counts for workload, counts in enumerate(replicas) if cluster.must_span_zones(workload)]
        in_one_zone = [self._is_all_in(counts.total, in_zone) for counts in spread for in_zone in counts.in_zone]
        violations, cost = [], []
        for edge in cluster.edges:
            callers, callees = replicas[edge[0]], replicas[edge[1]]
            if callers.total and callees.total:
                pairs = [
                    [self._product(x, y, callers.total * callees.total) for y in callees.in_zone]
                    for x in callers.in_zone
                ]
                violations += self._list_violations(edge, callees, pairs)
                if cluster.spread == "none":
                    cost += self._list_costs(edge, callers, callees, pairs)
        return [self.unplaced, sum(in_one_zone), sum(violations), sum(cost)]

    def _count_replicas(self, workload: int) -> _Replicas:
        cluster, total = self.cluster, self.cluster.replicas(workload)
        rows = [
            row for row, pod in zip(self.pod_count, cluster.classes, strict=True) if cluster.workload(pod) == workload
        ]
        bound = cluster.bound_replicas()[workload]
        on_host = [bound[h] + sum(row[h] for row in rows) for h in range(len(cluster.nodes))]
        in_zone = [
            self._var(sum(n for n, zone in zip(on_host, cluster.zone_index_by_host, strict=True) if zone == z), total)
            for z in range(len(cluster.zones))
        ]
        return _Replicas(total, on_host, in_zone)

    def _is_all_in(self, total: int, in_zone: Any) -> Any:
        """Whether all of several replicas are in a zone."""
        is_all = self.solver_model.new_bool_var("")
        if total > 1:
            self.solver_model.add(in_zone < total).only_enforce_if(is_all.Not())
        return is_all

    def _list_violations(self, edge: tuple[int, int, int], callees: _Replicas, pairs: list[list[Any]]) -> list[Any]:
        """Numbers of violations by the caller's zone; with zone routing, calls leave a zone only if it has no callee."""
        violations = []
        for z, row in enumerate(pairs):
            from_zone = sum(pair for y, pair in enumerate(row) if self.cluster.exceeds_limit(edge, z, y))
            if self.cluster.routing(edge[1]) and not isinstance(from_zone, int):
                has_own_replica = self.solver_model.new_bool_var("")
                self.solver_model.add(callees.in_zone[z] >= 1).only_enforce_if(has_own_replica)
                by_routing = self.solver_model.new_int_var(0, callees.total * self.cluster.replicas(edge[0]), "")
                self.solver_model.add(by_routing >= from_zone).only_enforce_if(has_own_replica.Not())
                from_zone = by_routing
            violations.append(from_zone)
        return violations

    def _list_costs(
        self, edge: tuple[int, int, int], callers: _Replicas, callees: _Replicas, pairs: list[list[Any]]
    ) -> list[Any]:
        """Costs of calls: each pair of caller and replica has the mean cost of its calls; pairs on one host cost less."""
        cluster, pair_count = self.cluster, callers.total * callees.total
        unit = 1 if cluster.has_parity else round(SCALE * cluster.weight(edge, callers.total) / pair_count)
        costs = [unit * cluster.call_cost(z, y) * pair for z, row in enumerate(pairs) for y, pair in enumerate(row)]
        for zone, x, y in zip(cluster.zone_index_by_host, callers.on_host, callees.on_host, strict=True):
            gain = unit * (cluster.call_cost(zone, zone) - cluster.host_cost)
            costs.append(-gain * self._product(x, y, pair_count))
        return costs

    def _var(self, value: Any, maximum: int) -> Any:
        var = self.solver_model.new_int_var(0, maximum, "")
        self.solver_model.add(var == value)
        return var

    def _product(self, factor: Any, other: Any, maximum: int) -> Any:
        var = self.solver_model.new_int_var(0, maximum, "")
        self.solver_model.add_multiplication_equality(var, [factor, other])
        return var

    def _counts(self, placements: Mapping[str, str]) -> Iterable[tuple[Any, int]]:
        for row, keys in zip(self.pod_count, self.cluster.pod_keys_by_class, strict=True):
            count_by_host = Counter(
                self.cluster.host_index_by_name[placements[key]] for key in keys if key in placements
            )
            for h, var in enumerate(row):
                yield var, count_by_host[h]

    def fix(self, placements: Mapping[str, str]) -> None:
        for var, value in self._counts(placements):
            self.solver_model.add(var == value)

    def hint(self, placements: Mapping[str, str]) -> None:
        self.solver_model.clear_hints()
        for var, value in self._counts(placements):
            self.solver_model.add_hint(var, value)

    def placements(self, solver: cp_model.CpSolver) -> dict[str, str]:
        node_by_pod: dict[str, str] = {}
        for row, keys in zip(self.pod_count, self.cluster.pod_keys_by_class, strict=True):
            hosts = [h for h, var in enumerate(row) for _ in range(solver.value(var))]
            for key, h in zip(keys, hosts, strict=False):
                node_by_pod[key] = self.cluster.nodes[h]["metadata"]["name"]
        return node_by_pod
