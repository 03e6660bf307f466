"""The compiled search: each rule on a small problem, and the best of all placements of small clusters."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import host_of
from controller.cluster.pods import Pod
from controller.cluster.services import Routing
from controller.scheduler.placement import native_library
from controller.scheduler.placement.evaluation import evaluate
from controller.scheduler.placement.native_search import FIELD_NAMES, NativeProblem
from controller.scheduler.placement.pod_topology import DomainRuleBuilder, unschedulable_reasons
from controller.scheduler.placement.problem import (
    COUNTED,
    OWNER,
    CallCostTable,
    CallEdge,
    DomainRule,
    Ints,
    Problem,
    RuleKind,
)
from controller.scheduler.placement.solve import solve
from kubekit.wire import Node
from tests.unit.controller.oracle_cluster import matches_node, tolerates


def make_problem(
    zone_of: list[int],
    replicas: list[int],
    *edges: tuple[int, int, Routing],
    free_cpu: int = 9,
    far_us: float = 1000.0,
    limit_us: float = 1e9,
    **changes: object,
) -> Problem:
    """Workloads of one-cpu replicas on hosts of one size; edges of weight 1."""
    zones, hosts = max(zone_of) + 1, len(zone_of)
    latency = np.full((zones, zones), far_us)
    np.fill_diagonal(latency, 100.0)
    problem = Problem(
        free=np.full((hosts, 1), free_cpu, np.int64),
        capacity=np.full((hosts, 1), free_cpu, np.int64),
        zone_of=np.array(zone_of, np.int64),
        has_zone_label=np.ones(zones, np.bool_),
        workload_of=np.arange(len(replicas)),
        requests=np.ones((len(replicas), 1), np.int64),
        row_of=np.zeros(len(replicas), np.int64),
        allowed=np.ones((1, hosts), np.bool_),
        class_of=np.repeat(np.arange(len(replicas)), replicas),
        fixed_hosts=((),) * len(replicas),
        must_span_zones=np.zeros(len(replicas), np.bool_),
        colocation_price=np.zeros(len(replicas)),
        host_price=np.zeros(hosts),
        edges=tuple(CallEdge(a, b, 1.0, routing) for a, b, routing in edges),
        tables=(CallCostTable(latency, 30.0, latency > limit_us),),
    )
    return msgspec.structs.replace(problem, **changes)


def on_hosts(*hosts: int) -> Ints:
    return np.array(hosts, np.int64)


def test_c_has_the_fields_of_the_problem_in_the_same_order() -> None:
    header = native_library.SOURCES.joinpath("problem.h").read_text()
    fields = header.partition("} Problem;")[0].rpartition("typedef struct {")[2]
    struct = re.sub(r"/\*.*?\*/", "", fields, flags=re.DOTALL)
    declared = [name for line in struct.split(";") for name in re.findall(r"\*?(\w+)(?=,|\s*$)", line.strip())]
    assert declared == list(FIELD_NAMES)


def test_an_array_of_wrong_length_is_refused() -> None:
    problem = make_problem([0, 1], [1, 1])
    with pytest.raises(ValueError, match="row_of has 1 entries"):
        NativeProblem(msgspec.structs.replace(problem, row_of=np.zeros(1, np.int64)))


def test_one_seed_gives_one_placement_alone_and_in_parallel_threads() -> None:
    calls = [(a, b, Routing.ZONE) for b in range(12) for a in range(b) if (a * b) % 3 == 1]
    problem = make_problem([host % 4 for host in range(16)], [3] * 12, *calls, free_cpu=3)
    alone = solve(problem, seed=3)
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(lambda _: solve(problem, seed=3), range(4)))
    assert all((alone == other).all() for other in others)


def test_an_expired_deadline_still_gives_a_placement_within_capacity() -> None:
    problem = make_problem([0, 0, 1, 1], [20, 10], (0, 1, Routing.NODE))
    host_of = solve(problem, time_limit_s=0.0)
    assert (np.bincount(host_of[host_of >= 0], minlength=4) <= 9).all()
    assert len(host_of) == 30


def test_a_search_beyond_its_deadline_keeps_the_hinted_hosts() -> None:
    """Each replica is on another host than its peer; with time left, all would move to one host."""
    hints = on_hosts(0, 0, 0, 2, 2, 2)
    native_problem = NativeProblem(make_problem([0, 0, 1, 1], [3, 3], (0, 1, Routing.ANY)))
    assert native_problem.search(hints, seed=0, steps=0, time_limit_s=-1.0).host_of.tolist() == hints.tolist()
    assert len(set(native_problem.search(hints, seed=0, steps=0, time_limit_s=9.0).host_of.tolist())) == 1


def test_flexible_replicas_free_the_only_host_of_a_constrained_replica() -> None:
    """Each replica fills a host. The constrained workload fits only host 0, which the first workload would take."""
    allowed = np.array([[True, True, True], [True, False, False]], np.bool_)
    problem = make_problem(
        [0, 1, 2], [2, 1], free_cpu=2, requests=np.array([[2], [2]], np.int64), allowed=allowed, row_of=np.array([0, 1])
    )
    assert sorted(solve(problem).tolist()[:2]) == [1, 2]
    assert solve(problem).tolist()[2] == 0


def test_an_overcommitted_host_takes_no_more_replicas() -> None:
    problem = make_problem([0, 0], [2], free=np.array([[-3], [1]], np.int64))
    assert sorted(solve(problem).tolist()) == [-1, 1]


def test_a_hint_is_kept_unless_another_placement_is_better() -> None:
    problem = make_problem([0, 0, 1, 1], [1, 1], (0, 1, Routing.ANY))
    for host in range(4):
        assert solve(problem, on_hosts(host, host)).tolist() == [host, host]
    two_zones = solve(problem, on_hosts(0, 2)).tolist()
    assert two_zones[0] == two_zones[1]
    assert solve(problem, on_hosts(1, -1)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("routing", "hosts", "latency", "max_load_ratio"),
    [
        # Hosts 0, 1 in zone 0, 2, 3 in zone 1, and 4 in none; two callers, then the replicas of the callee.
        (Routing.ANY, (0, 2, 0, 2), (30 + 1000) / 2, 1.0),
        (Routing.ZONE, (0, 2, 0, 2), 30.0, 1.0),
        (Routing.ZONE, (0, 2, 1, 3), 100.0, 1.0),
        (Routing.ZONE, (0, 2, 0, 1), ((30 + 100) / 2 + 1000) / 2, 1.0),
        (Routing.ZONE, (0, 1, 0, 2), (30 + 100) / 2, 2.0),
        (Routing.ZONE, (4, 4, 0, 2), 1000.0, 1.0),
        (Routing.ZONE, (0, 2, 0, 2, 4), (30 + 2 * 1000) / 3, 1.0),
        (Routing.NODE, (0, 2, 0, 2, 4), 30.0, 1.5),
        (Routing.NODE, (0, 0, 0, 1), 30.0, 2.0),
        (Routing.NODE, (0, 1, 0, 2), (30 + 100) / 2, 2.0),
        (Routing.NODE, (2, 2, 0, 1), 1000.0, 1.0),
    ],
)
def test_calls_are_routed_as_by_kube_proxy(
    routing: Routing, hosts: tuple[int, ...], latency: float, max_load_ratio: float
) -> None:
    has_zone_label = np.array([True, True, False])
    problem = make_problem([0, 0, 1, 1, 2], [2, len(hosts) - 2], (0, 1, routing), has_zone_label=has_zone_label)
    evaluation = evaluate(problem, on_hosts(*hosts))
    assert (evaluation.latency, evaluation.max_load_ratio) == pytest.approx((latency, max_load_ratio))


def test_only_replicas_that_may_answer_violate_a_limit() -> None:
    for routing, expected_violations in ((Routing.ANY, 2), (Routing.ZONE, 0), (Routing.NODE, 0)):
        problem = make_problem([0, 1], [2, 2], (0, 1, routing), limit_us=500.0)
        assert evaluate(problem, on_hosts(0, 1, 0, 1)).violations == expected_violations
        assert evaluate(problem, on_hosts(0, 0, 1, 1)).violations == 4


def test_callers_are_spread_so_that_no_replica_is_overloaded() -> None:
    """Three callers per callee's replica: locality alone would send all to one."""
    problem = make_problem(
        [0, 0, 1, 1], [4, 2], (0, 1, Routing.ZONE), free_cpu=3, must_span_zones=np.array([False, True])
    )
    assert evaluate(problem, solve(problem)).max_load_ratio == 1.0


def zones_of_first_workload(problem: Problem) -> set[int]:
    """Zones of the three replicas of the first workload."""
    return set(problem.zone_of[solve(problem)[:3]].tolist())


def test_a_workload_that_must_span_zones_is_not_in_one_zone() -> None:
    problem = make_problem([0, 0, 1], [3, 1], (0, 1, Routing.ANY))
    assert len(zones_of_first_workload(problem)) == 1
    spread = msgspec.structs.replace(problem, must_span_zones=np.array([True, True]))
    assert len(zones_of_first_workload(spread)) == 2


def rule(kind: RuleKind, domain_of: list[int], roles: dict[int, int], **changes: object) -> DomainRule:
    domains = max(domain_of) + 1
    no_pods = np.zeros(domains, np.int64)
    default = DomainRule(kind, roles, np.array(domain_of, np.int64), no_pods, no_pods, np.ones(domains, np.bool_))
    return msgspec.structs.replace(default, **changes)


BOTH = COUNTED | OWNER
ZONES, HOSTS = [0, 0, 1, 1], [0, 1, 2, 3]
FIRST_ZONE, FIRST_DOMAIN = np.array([[True, True, False, False]]), np.array([True, False])


@pytest.mark.parametrize(
    ("replicas", "domain_rule", "changes", "holds"),
    [
        (
            [4],
            rule(RuleKind.SPREAD, ZONES, {0: BOTH}),
            {},
            lambda hosts: sorted(ZONES[host] for host in hosts) == [0, 0, 1, 1],
        ),
        (
            [2],
            rule(RuleKind.SPREAD, ZONES, {0: OWNER}, bound_counted=np.array([2, 0])),
            {},
            lambda hosts: {ZONES[host] for host in hosts} == {1},
        ),
        ([4], rule(RuleKind.SPREAD, ZONES, {0: BOTH}, lacks_domains=True), {}, lambda hosts: hosts.count(-1) == 2),
        ([4], rule(RuleKind.SPREAD, ZONES, {0: BOTH}), {"allowed": FIRST_ZONE}, lambda hosts: hosts.count(-1) == 3),
        (
            [4],
            rule(RuleKind.SPREAD, ZONES, {0: BOTH}, counts_for_minimum=FIRST_DOMAIN),
            {"allowed": FIRST_ZONE},
            lambda hosts: -1 not in hosts,
        ),
        ([5], rule(RuleKind.ANTI_AFFINITY, HOSTS, {0: BOTH}), {}, lambda hosts: sorted(hosts) == [-1, *HOSTS]),
        (
            [1, 3],
            rule(RuleKind.ANTI_AFFINITY, ZONES, {0: OWNER, 1: COUNTED}),
            {},
            lambda hosts: {ZONES[host] for host in hosts[1:]} == {1 - ZONES[hosts[0]]},
        ),
        (
            [2, 1],
            rule(RuleKind.AFFINITY, HOSTS, {0: OWNER, 1: COUNTED}),
            {"free_cpu": 2},
            lambda hosts: sorted(hosts[:2]) == [-1, hosts[2]],
        ),
        ([4], rule(RuleKind.PREFERENCE, HOSTS, {0: BOTH}, price=1.0), {}, lambda hosts: sorted(hosts) == HOSTS),
    ],
)
def test_a_rule_about_other_pods_holds(replicas: list[int], domain_rule: DomainRule, changes: Any, holds: Any) -> None:
    """On two hosts in each of two zones. A spread counts missing domains as empty, and leaves out ineligible ones."""
    hosts = solve(make_problem(ZONES, replicas, domain_rules=(domain_rule,), **changes)).tolist()
    assert holds(hosts), hosts


def spread_allows(pod: dict[str, Any], node: dict[str, Any], nodes: Any, bound: Any) -> bool:
    """kube-scheduler's filter (plugins/podtopologyspread/filtering.go), for a pod whose selectors are ``matchLabels``."""
    constraints = pod["spec"]["topologySpreadConstraints"]
    for constraint in constraints:
        key, selector = constraint["topologyKey"], constraint["labelSelector"]["matchLabels"].items()
        counts: dict[str, int] = {}
        for other in nodes:
            labels = other["metadata"]["labels"]
            if any(c["topologyKey"] not in labels for c in constraints):
                continue
            if constraint["nodeAffinityPolicy"] == "Honor" and not matches_node(pod["spec"], other):
                continue
            if constraint["nodeTaintsPolicy"] == "Honor" and not tolerates(pod["spec"], other):
                continue
            counted = sum(
                bool(selector)
                and other is on
                and "deletionTimestamp" not in each["metadata"]
                and each["metadata"]["namespace"] == pod["metadata"]["namespace"]
                and selector <= each["metadata"]["labels"].items()
                for on, each in bound
            )
            counts[labels[key]] = counts.get(labels[key], 0) + counted
        least = 0 if len(counts) < constraint.get("minDomains", 1) else min(counts.values())
        domain, is_selected = node["metadata"]["labels"].get(key), selector <= pod["metadata"]["labels"].items()
        if domain is None or counts.get(domain, 0) + is_selected - least > constraint["maxSkew"]:
            return False
    return matches_node(pod["spec"], node) and tolerates(pod["spec"], node)


def test_topology_spread_allows_the_nodes_that_kube_scheduler_allows() -> None:
    rng, refusals = random.Random(1), 0
    for _ in range(200):
        nodes: list[dict[str, Any]] = []
        for i in range(rng.randint(1, 6)):
            labels = {k: rng.choice("abc") for k in ("zone", "rack", "pool") if rng.random() < 0.8}
            taints = [{"key": "t", "effect": "NoSchedule"}] if rng.random() < 0.2 else []
            nodes.append({"metadata": {"name": f"n{i}", "labels": labels}, "spec": {"taints": taints}})

        def draw_pod(name: str) -> dict[str, Any]:
            labels = {k: rng.choice("xy") for k in ("app", "tier") if rng.random() < 0.8}
            metadata = {"name": name, "namespace": rng.choice(("a", "a", "b")), "labels": labels}
            if name != "new" and rng.random() < 0.2:
                metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return {"metadata": metadata, "spec": {}}

        bound = [(rng.choice(nodes), draw_pod(f"p{i}")) for i in range(rng.randint(0, 8))]
        pod = draw_pod("new")
        constraints = [
            {
                "topologyKey": rng.choice(("zone", "rack")),
                "maxSkew": rng.randint(1, 2),
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {
                    "matchLabels": rng.choice(({"app": "x"}, {"app": "y"}, {"tier": "x", "app": "x"}, {}))
                },
                "nodeAffinityPolicy": rng.choice(("Honor", "Ignore")),
                "nodeTaintsPolicy": rng.choice(("Honor", "Ignore")),
                **({"minDomains": rng.randint(1, 4)} if rng.random() < 0.5 else {}),
            }
            for _ in range(rng.randint(1, 2))
        ]
        pod["spec"]["topologySpreadConstraints"] = constraints
        if rng.random() < 0.4:
            pod["spec"]["nodeSelector"] = {"pool": rng.choice("abc")}
        hosts = [host_of(msgspec.convert(node, Node)) for node in nodes]
        decoded = msgspec.convert(pod, Pod)
        others = [(nodes.index(on), msgspec.convert(each, Pod)) for on, each in bound]
        is_allowed = [not host.unschedulable_reason(Constraints(decoded.spec)) for host in hosts]
        expected = [spread_allows(pod, node, nodes, bound) for node in nodes]
        reasons = unschedulable_reasons(decoded, hosts, others)
        assert [a and i not in reasons for i, a in enumerate(is_allowed)] == expected, (nodes, pod, bound)
        rules = DomainRuleBuilder([decoded], hosts, others).build()
        for i, allowed in enumerate(is_allowed):
            only_host = np.arange(len(hosts)) == i
            problem = make_problem([0] * len(hosts), [1], domain_rules=rules, allowed=(only_host & allowed)[None])
            assert (solve(problem).tolist() == [i]) == expected[i], (nodes, pod, bound)
        refusals += sum(is_allowed) - sum(expected)
    assert refusals > 50


def test_the_target_of_an_affinity_moves_to_the_zone_of_its_owner() -> None:
    """The owner may only be in zone 1, and must be in the zone of its target. Calls attract the target to zone 0."""
    zones = [0, 0, 1, 1]
    allowed = np.array([[True, True, True, True], [False, False, True, True], [True, True, False, False]])
    affinity = rule(RuleKind.AFFINITY, zones, {1: OWNER, 0: COUNTED})
    problem = make_problem(
        zones,
        [1, 1, 3],
        (0, 2, Routing.ANY),
        allowed=allowed,
        row_of=np.array([0, 1, 2]),
        domain_rules=(affinity,),
        free_cpu=2,
    )
    host_of = solve(problem)
    assert (host_of >= 0).all()
    assert zones[host_of[0]] == zones[host_of[1]] == 1


def test_replicas_without_calls_take_the_emptier_hosts() -> None:
    problem = make_problem([0, 0, 0, 0], [1, 1, 1, 1], crowding_price=0.1, balance_price=0.02)
    assert sorted(solve(problem).tolist()) == [0, 1, 2, 3]
    uneven = make_problem([0, 0], [1], free=np.array([[2], [8]], np.int64), balance_price=0.02)
    assert solve(uneven).tolist() == [1]


def test_replicas_prefer_different_hosts_if_a_zone_has_less_latency_than_a_host() -> None:
    latency = np.full((1, 1), 10.0)
    fast_zone = CallCostTable(latency, 30.0, latency > 100.0)
    problem = make_problem([0] * 4, [2, 2], (0, 1, Routing.ZONE), colocation_price=np.ones(2), tables=(fast_zone,))
    assert sorted(solve(problem).tolist()) == [0, 1, 2, 3]


def test_colocation_has_the_same_price_for_the_rest_of_a_rollout() -> None:
    """The plan of all pods of eleven workloads uses two of three hosts, and so does the plan of the last two pods."""
    workloads = 11
    calls = [(0, callee, Routing.ZONE) for callee in range(1, workloads)]
    must_span = np.ones(workloads, np.bool_)
    problem = make_problem(
        [0, 1, 2],
        [2] * workloads,
        *calls,
        free_cpu=40,
        crowding_price=0.1,
        balance_price=0.02,
        must_span_zones=must_span,
    )
    used = sorted(set(solve(problem).tolist()))
    assert len(used) == 2
    bound_hosts = tuple(() if workload == workloads - 1 else tuple(used) for workload in range(workloads))
    free = np.array([[40 - sum(host in hosts for hosts in bound_hosts)] for host in range(3)], np.int64)
    last = np.array([workloads - 1] * 2)
    rest = msgspec.structs.replace(problem, free=free, class_of=last, fixed_hosts=bound_hosts)
    assert sorted(solve(rest).tolist()) == used


def test_compile_errors_name_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(OSError, match="install gcc, or"):
        native_library.compile_library(tmp_path / "lib.so")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(OSError, match="did not compile, set CC"):
        native_library.compile_library(tmp_path / "lib.so")
    monkeypatch.setenv("CC", "sh -c 'sleep 60'")
    monkeypatch.setattr(native_library, "_TIMEOUT_S", 0.1)
    with pytest.raises(OSError, match=r"did not compile within 0\.1 s: set CC"):
        native_library.compile_library(tmp_path / "lib.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.solver
@pytest.mark.parametrize("seed", range(12))
def test_the_search_finds_the_best_of_all_placements_with_nodes_without_a_zone(seed: int) -> None:
    """kube-proxy ignores all zone hints while a replica is on a node without a zone (pkg/proxy/topology.go)."""
    rng = random.Random(seed)
    zone_of = [0, 1, 2, 2]
    edges = [(0, 1, Routing.ZONE), (1, 2, rng.choice((Routing.ANY, Routing.ZONE)))]
    problem = make_problem(
        zone_of,
        [2, 2, 1],
        *edges,
        free_cpu=rng.randint(2, 3),
        has_zone_label=np.array([True, True, False]),
        fixed_hosts=((), (rng.randrange(4),) if seed % 2 else (), ()),
        overload_price=0.0,
        balance_price=1e-9,
    )
    far = np.array(
        [[100.0, rng.randint(200, 900), 500.0], [rng.randint(200, 900), 100.0, 500.0], [400.0, 600.0, 100.0]]
    )
    problem = msgspec.structs.replace(problem, tables=(CallCostTable(far, 30.0, far > rng.randint(300, 700)),))

    def objective(host_of: Ints) -> tuple[int, float]:
        evaluation = evaluate(problem, host_of)
        return evaluation.violations, evaluation.latency

    placements = (np.array(hosts, np.int64) for hosts in product(range(4), repeat=5))
    feasible = (p for p in placements if (np.bincount(p, minlength=4) <= problem.free[:, 0]).all())
    best = min(map(objective, feasible))
    assert objective(solve(problem, seed=seed)) == pytest.approx(best)
