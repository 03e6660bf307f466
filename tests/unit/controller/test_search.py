"""The compiled search: values of placements on small problems, the hosts that it chooses, its library, deadline and threads."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controller.cluster.services import Routing
from controller.scheduler.placement import native_library
from controller.scheduler.placement.evaluation import evaluate
from controller.scheduler.placement.native_search import FIELD_NAMES, NativeProblem
from controller.scheduler.placement.problem import COUNTED, OWNER, CallCostTable, DomainRule, Ints, Problem, RuleKind
from controller.scheduler.placement.solve import solve
from tests.unit.controller.search_problems import FAR_US, IN_ZONE_US, ON_HOST_US, make_hosts, make_problem

ZONES = [0, 0, 1, 1]
"""[host] its zone."""


def evaluate_hosts(problem: Problem, hosts: Ints) -> tuple[int, float]:
    """Violations and latency, the goals of the search in this order."""
    evaluation = evaluate(problem, hosts)
    return evaluation.violations, evaluation.cost_per_call


def draw_problem_without_a_zone(seed: int) -> Problem:
    """Three workloads, of two, two and one replicas, on four hosts; the last two hosts have no zone."""
    rng = random.Random(seed)
    edges = [(0, 1, Routing.ZONE), (1, 2, rng.choice((Routing.ANY, Routing.ZONE)))]
    problem = make_problem(
        [0, 1, 2, 2],
        [2, 2, 1],
        *edges,
        free_cpu=rng.randint(2, 3),
        has_zone_label=np.array([True, True, False]),
        fixed_hosts=((), (rng.randrange(4),) if seed % 2 else (), ()),
        overload_price=0.0,
        balance_price=1e-9,
    )
    there_us, back_us = rng.randint(200, 900), rng.randint(200, 900)
    latency_us = np.array([[100.0, there_us, 500.0], [back_us, 100.0, 500.0], [400.0, 600.0, 100.0]])
    table = CallCostTable(latency_us, ON_HOST_US, latency_us > rng.randint(300, 700))
    return msgspec.structs.replace(problem, tables=(table,))


def make_rule(kind: RuleKind, roles: dict[int, int]) -> DomainRule:
    """A rule about two zones; ``roles`` says by workload whether its pods have the rule, or count for it."""
    no_pods = np.zeros(2, np.int64)
    return DomainRule(
        kind,
        roles,
        domain_of=np.array(ZONES, np.int64),
        bound_counted=no_pods,
        bound_owners=no_pods,
        counts_for_minimum=np.ones(2, np.bool_),
    )


def list_zones(hosts: list[int]) -> list[int]:
    """Zones of placed replicas, sorted."""
    return sorted(ZONES[host] for host in hosts if host >= 0)


@pytest.mark.parametrize(
    ("routing", "hosts", "latency_us", "max_load_ratio"),
    [
        # Hosts 0, 1 in zone 0, 2, 3 in zone 1, and 4 in none; two callers, then the replicas of the callee.
        (Routing.ANY, (0, 2, 0, 2), (ON_HOST_US + FAR_US) / 2, 1.0),
        (Routing.ZONE, (0, 2, 0, 2), ON_HOST_US, 1.0),
        (Routing.ZONE, (0, 2, 1, 3), IN_ZONE_US, 1.0),
        # The caller of zone 1 has no replica there: half of the calls are far.
        (Routing.ZONE, (0, 2, 0, 1), ((ON_HOST_US + IN_ZONE_US) / 2 + FAR_US) / 2, 1.0),
        # Both callers call the replica of zone 0, which takes twice its share.
        (Routing.ZONE, (0, 1, 0, 2), (ON_HOST_US + IN_ZONE_US) / 2, 2.0),
        (Routing.ZONE, (4, 4, 0, 2), FAR_US, 1.0),
        # A replica without a zone turns zone hints off: each caller calls all three.
        (Routing.ZONE, (0, 2, 0, 2, 4), (ON_HOST_US + 2 * FAR_US) / 3, 1.0),
        (Routing.NODE, (0, 2, 0, 2, 4), ON_HOST_US, 1.5),
        (Routing.NODE, (0, 0, 0, 1), ON_HOST_US, 2.0),
        # Without a replica on its host, a caller calls those of its zone.
        (Routing.NODE, (0, 1, 0, 2), (ON_HOST_US + IN_ZONE_US) / 2, 2.0),
        (Routing.NODE, (2, 2, 0, 1), FAR_US, 1.0),
    ],
)
def test_calls_are_routed_as_by_kube_proxy(
    routing: Routing, hosts: tuple[int, ...], latency_us: float, max_load_ratio: float
) -> None:
    has_zone_label = np.array([True, True, False])
    problem = make_problem([0, 0, 1, 1, 2], [2, len(hosts) - 2], (0, 1, routing), has_zone_label=has_zone_label)
    evaluation = evaluate(problem, make_hosts(*hosts))
    assert evaluation.cost_per_call == pytest.approx(latency_us)
    assert evaluation.max_load_ratio == pytest.approx(max_load_ratio)


def test_flexible_replicas_free_the_only_host_of_a_constrained_replica() -> None:
    """Each replica fills a host. The constrained workload fits only host 0, which the first workload would take."""
    allowed = np.array([[True, True, True], [True, False, False]], np.bool_)
    requests = np.array([[2], [2]], np.int64)
    problem = make_problem([0, 1, 2], [2, 1], free_cpu=2, requests=requests, allowed=allowed, row_of=np.array([0, 1]))
    *flexible, constrained = solve(problem).tolist()
    assert sorted(flexible) == [1, 2]
    assert constrained == 0


def test_an_overcommitted_host_takes_no_more_replicas() -> None:
    problem = make_problem([0, 0], [2], free=np.array([[-3], [1]], np.int64))
    assert sorted(solve(problem).tolist()) == [-1, 1]


def test_a_hint_is_kept_unless_another_placement_is_better() -> None:
    problem = make_problem([0, 0, 1, 1], [1, 1], (0, 1, Routing.ANY))
    for host in range(4):
        assert solve(problem, make_hosts(host, host)).tolist() == [host, host]
    assert len(set(solve(problem, make_hosts(0, 2)).tolist())) == 1
    assert solve(problem, make_hosts(1, -1)).tolist() == [1, 1]


def test_callers_are_spread_so_that_no_replica_is_overloaded() -> None:
    """Three callers per callee's replica: locality alone would send all to one."""
    must_span_zones = np.array([False, True])
    problem = make_problem([0, 0, 1, 1], [4, 2], (0, 1, Routing.ZONE), free_cpu=3, must_span_zones=must_span_zones)
    assert evaluate(problem, solve(problem)).max_load_ratio == 1.0


def test_replicas_without_calls_take_the_emptier_hosts() -> None:
    problem = make_problem([0, 0, 0, 0], [1, 1, 1, 1], crowding_price=0.1, balance_price=0.02)
    assert sorted(solve(problem).tolist()) == [0, 1, 2, 3]
    uneven_problem = make_problem([0, 0], [1], free=np.array([[2], [8]], np.int64), balance_price=0.02)
    assert solve(uneven_problem).tolist() == [1]


def test_replicas_prefer_different_hosts_if_a_zone_has_less_latency_than_a_host() -> None:
    latency_us = np.full((1, 1), ON_HOST_US / 3)
    fast_zone = CallCostTable(latency_us, ON_HOST_US, latency_us > 100.0)
    problem = make_problem([0] * 4, [2, 2], (0, 1, Routing.ZONE), colocation_price=np.ones(2), tables=(fast_zone,))
    assert sorted(solve(problem).tolist()) == [0, 1, 2, 3]


def test_colocation_has_the_same_price_for_the_rest_of_a_rollout() -> None:
    """The plan of all pods of eleven workloads uses two of three hosts, and so does the plan of the last two pods."""
    workload_count, cpu = 11, 40
    problem = make_problem(
        [0, 1, 2],
        [2] * workload_count,
        *((0, callee, Routing.ZONE) for callee in range(1, workload_count)),
        free_cpu=cpu,
        crowding_price=0.1,
        balance_price=0.02,
        must_span_zones=np.ones(workload_count, np.bool_),
    )
    used_hosts = sorted(set(solve(problem).tolist()))
    assert len(used_hosts) == 2

    fixed_hosts = (*[tuple(used_hosts)] * (workload_count - 1), ())
    free = np.array([[cpu - (workload_count - 1) * (host in used_hosts)] for host in range(3)], np.int64)
    last_two = np.full(2, workload_count - 1)
    rest = msgspec.structs.replace(problem, free=free, class_of=last_two, fixed_hosts=fixed_hosts)
    assert sorted(solve(rest).tolist()) == used_hosts


def test_replicas_of_a_spread_are_in_both_zones() -> None:
    rule = make_rule(RuleKind.SPREAD, {0: COUNTED | OWNER})
    assert list_zones(solve(make_problem(ZONES, [4], domain_rules=(rule,))).tolist()) == [0, 0, 1, 1]


def test_a_workload_with_anti_affinity_to_another_is_in_the_other_zone() -> None:
    rule = make_rule(RuleKind.ANTI_AFFINITY, {0: OWNER, 1: COUNTED})
    owner, *others = solve(make_problem(ZONES, [1, 3], domain_rules=(rule,))).tolist()
    assert set(list_zones(others)) == {1 - ZONES[owner]}


def test_the_target_of_an_affinity_moves_to_the_zone_of_its_owner() -> None:
    """The owner may only be in zone 1, and must be in the zone of its target. Calls attract the target to zone 0."""
    allowed = np.array([[True, True, True, True], [False, False, True, True], [True, True, False, False]])
    problem = make_problem(
        ZONES,
        [1, 1, 3],
        (0, 2, Routing.ANY),
        allowed=allowed,
        row_of=np.array([0, 1, 2]),
        domain_rules=(make_rule(RuleKind.AFFINITY, {1: OWNER, 0: COUNTED}),),
        free_cpu=2,
    )
    hosts = solve(problem).tolist()
    assert -1 not in hosts
    assert list_zones(hosts[:2]) == [1, 1]


def test_c_has_the_fields_of_the_problem_in_the_same_order() -> None:
    header = native_library.SOURCES.joinpath("problem.h").read_text()
    fields = header.partition("} Problem;")[0].rpartition("typedef struct {")[2]
    struct = re.sub(r"/\*.*?\*/", "", fields, flags=re.DOTALL)
    declared = [name for line in struct.split(";") for name in re.findall(r"\*?(\w+)(?=,|\s*$)", line.strip())]
    assert declared == list(FIELD_NAMES)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler", "install gcc, or"),
        ("false", "did not compile, set CC"),
        ("sh -c 'sleep 60'", r"did not compile within 0\.1 s: set CC"),
    ],
    ids=["no compiler", "a compiler that fails", "a compiler that hangs"],
)
def test_compile_errors_name_the_fix(
    compiler: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native_library, "COMPILE_TIMEOUT_S", 0.1 if "sleep" in compiler else 60.0)
    with pytest.raises(OSError, match=message):
        native_library.compile_library(tmp_path / "lib.so")
    assert not list(tmp_path.iterdir())


def test_one_seed_gives_one_placement_alone_and_in_parallel_threads() -> None:
    calls = [(a, b, Routing.ZONE) for b in range(12) for a in range(b) if (a * b) % 3 == 1]
    problem = make_problem([host % 4 for host in range(16)], [3] * 12, *calls, free_cpu=3)
    hosts_alone = solve(problem, seed=3)
    with ThreadPoolExecutor(4) as pool:
        hosts_by_thread = list(pool.map(lambda _: solve(problem, seed=3), range(4)))
    assert all((hosts == hosts_alone).all() for hosts in hosts_by_thread)


def test_a_search_beyond_its_deadline_keeps_the_hinted_hosts() -> None:
    """Each replica is on another host than its peer; with time left, all would move to one host."""
    hints = make_hosts(0, 0, 0, 2, 2, 2)
    native_problem = NativeProblem(make_problem([0, 0, 1, 1], [3, 3], (0, 1, Routing.ANY)))
    assert native_problem.search(hints, seed=0, steps=0, time_limit_s=-1.0).host_of.tolist() == hints.tolist()
    assert len(set(native_problem.search(hints, seed=0, steps=0, time_limit_s=9.0).host_of.tolist())) == 1


@pytest.mark.solver
@pytest.mark.parametrize("seed", range(12))
def test_the_search_finds_the_best_of_all_placements_with_nodes_without_a_zone(seed: int) -> None:
    """kube-proxy ignores all zone hints while a replica is on a node without a zone (pkg/proxy/topology.go)."""
    problem = draw_problem_without_a_zone(seed)
    placements = (make_hosts(*hosts) for hosts in product(range(4), repeat=5))
    feasible = (hosts for hosts in placements if (np.bincount(hosts, minlength=4) <= problem.free[:, 0]).all())
    best = min(evaluate_hosts(problem, hosts) for hosts in feasible)
    assert evaluate_hosts(problem, solve(problem, seed=seed)) == pytest.approx(best)
