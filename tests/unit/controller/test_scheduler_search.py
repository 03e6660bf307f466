"""The compiled search by its rules, and against every placement of small clusters."""

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
from controller.scheduler.placement import compile as compiler
from controller.scheduler.placement.evaluation import evaluate
from controller.scheduler.placement.native import Prepared, fields
from controller.scheduler.placement.problem import COUNTED, OWNER, CallEdge, Ints, Problem, Rule, RuleKind, Table
from controller.scheduler.placement.solve import solve


def made(
    zone_of: list[int],
    replicas: list[int],
    *edges: tuple[int, int, Routing],
    room: int = 9,
    far_us: float = 1000.0,
    limit_us: float = 1e9,
    **changes: object,
) -> Problem:
    """Workloads of one-cpu replicas on hosts of one size; edges of weight 1."""
    zones, hosts = max(zone_of) + 1, len(zone_of)
    latency = np.full((zones, zones), far_us)
    np.fill_diagonal(latency, 100.0)
    problem = Problem(
        free=np.full((hosts, 1), room, np.int64),
        capacity=np.full((hosts, 1), room, np.int64),
        zone_of=np.array(zone_of, np.int64),
        zoned=np.ones(zones, np.bool_),
        workload_of=np.arange(len(replicas)),
        asks=np.ones((len(replicas), 1), np.int64),
        row_of=np.zeros(len(replicas), np.int64),
        allowed=np.ones((1, hosts), np.bool_),
        class_of=np.repeat(np.arange(len(replicas)), replicas),
        fixed=((),) * len(replicas),
        edges=tuple(CallEdge(a, b, 1.0, routing) for a, b, routing in edges),
        tables=(Table(latency, 30.0, latency > limit_us),),
    )
    return msgspec.structs.replace(problem, **changes)


def on_hosts(*hosts: int) -> Ints:
    return np.array(hosts, np.int64)


def test_c_has_the_fields_of_the_problem_in_the_same_order() -> None:
    header = compiler.SOURCES.joinpath("state.h").read_text()
    struct = re.sub(
        r"/\*.*?\*/", "", header.partition("typedef struct {")[2].partition("} Problem;")[0], flags=re.DOTALL
    )
    declared = [name for line in struct.split(";") for name in re.findall(r"\*?(\w+)(?=,|\s*$)", line.strip())]
    assert declared == list(fields())


def test_an_array_of_another_length_than_its_counts_is_refused() -> None:
    problem = made([0, 1], [1, 1])
    with pytest.raises(ValueError, match="row_of has 1 entries"):
        Prepared(msgspec.structs.replace(problem, row_of=np.zeros(1, np.int64)))


def test_same_seed_same_answer_alone_or_beside_others() -> None:
    calls = [(a, b, Routing.ZONE) for b in range(12) for a in range(b) if (a * b) % 3 == 1]
    problem = made([host % 4 for host in range(16)], [3] * 12, *calls, room=3)
    alone = solve(problem, seed=3)
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(lambda _: solve(problem, seed=3), range(4)))
    assert all((alone == other).all() for other in others)


def test_a_deadline_that_is_over_still_gives_a_placement_within_the_rules() -> None:
    problem = made([0, 0, 1, 1], [20, 10], (0, 1, Routing.NODE))
    at = solve(problem, deadline_s=0.0)
    assert (np.bincount(at[at >= 0], minlength=4) <= 9).all()
    assert len(at) == 30


def test_no_hosts_and_no_replicas_are_answered() -> None:
    problem = made([0], [2])
    nobody = msgspec.structs.replace(problem, class_of=np.zeros(0, np.int64))
    assert len(solve(nobody)) == 0
    nowhere = msgspec.structs.replace(
        problem,
        free=np.zeros((0, 1), np.int64),
        capacity=np.zeros((0, 1), np.int64),
        zone_of=np.zeros(0, np.int64),
        zoned=np.zeros(0, np.bool_),
        allowed=np.zeros((1, 0), np.bool_),
    )
    assert solve(nowhere).tolist() == [-1, -1]


def test_room_is_made_by_moving_others_who_have_a_choice() -> None:
    """The picky one's only host is what the first comer would take; sizes leave no host to spare."""
    allowed = np.array([[True, True, True], [True, False, False]], np.bool_)
    problem = made(
        [0, 1, 2], [2, 1], room=2, asks=np.array([[2], [2]], np.int64), allowed=allowed, row_of=np.array([0, 1])
    )
    assert sorted(solve(problem).tolist()[:2]) == [1, 2]
    assert solve(problem).tolist()[2] == 0


def test_an_overcommitted_host_takes_nothing_more() -> None:
    problem = made([0, 0], [2], free=np.array([[-3], [1]], np.int64))
    assert sorted(solve(problem).tolist()) == [-1, 1]


def test_hints_are_kept_unless_something_is_better() -> None:
    problem = made([0, 0, 1, 1], [1, 1], (0, 1, Routing.ANY))
    for host in range(4):
        assert solve(problem, on_hosts(host, host)).tolist() == [host, host]
    apart = solve(problem, on_hosts(0, 2)).tolist()
    assert apart[0] == apart[1]
    assert solve(problem, on_hosts(1, -1)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("routing", "at", "latency", "hottest"),
    [
        # Hosts 0, 1 in zone 0 and 2, 3 in zone 1; two callers, then two replicas of the callee.
        (Routing.ANY, (0, 2, 0, 2), (30 + 1000) / 2, 1.0),
        (Routing.ZONE, (0, 2, 0, 2), 30.0, 1.0),
        (Routing.ZONE, (0, 2, 1, 3), 100.0, 1.0),
        (Routing.ZONE, (0, 2, 0, 1), ((30 + 100) / 2 + 1000) / 2, 1.0),
        (Routing.ZONE, (0, 1, 0, 2), (30 + 100) / 2, 2.0),
        (Routing.NODE, (0, 0, 0, 1), 30.0, 2.0),
        (Routing.NODE, (0, 1, 0, 2), (30 + 100) / 2, 2.0),
        (Routing.NODE, (2, 2, 0, 1), 1000.0, 1.0),
    ],
)
def test_who_answers_a_call_is_as_kube_proxy_has_it(
    routing: Routing, at: tuple[int, ...], latency: float, hottest: float
) -> None:
    problem = made([0, 0, 1, 1], [2, 2], (0, 1, routing))
    found = evaluate(problem, on_hosts(*at))
    assert (found.latency, found.hottest) == pytest.approx((latency, hottest))


def test_a_node_without_a_zone_label_sends_anywhere() -> None:
    problem = made([0, 1], [1, 2], (0, 1, Routing.ZONE), zoned=np.array([False, True]))
    assert evaluate(problem, on_hosts(0, 0, 1)).latency == (30 + 1000) / 2
    assert evaluate(problem, on_hosts(0, 1, 1)).latency == 1000


def test_limits_are_broken_only_by_replicas_that_may_answer() -> None:
    for routing, beyond in ((Routing.ANY, 2), (Routing.ZONE, 0), (Routing.NODE, 0)):
        problem = made([0, 1], [2, 2], (0, 1, routing), limit_us=500.0)
        assert evaluate(problem, on_hosts(0, 1, 0, 1)).violations == beyond
        assert evaluate(problem, on_hosts(0, 0, 1, 1)).violations == 4


def test_a_call_that_would_overload_a_replica_is_priced_as_if_it_went_elsewhere() -> None:
    """Three callers per callee's replica: locality alone would send all to one."""
    problem = made([0, 0, 1, 1], [4, 2], (0, 1, Routing.ZONE), room=3, must_span_zones=np.array([False, True]))
    assert evaluate(problem, solve(problem)).hottest == 1.0


def zones_of_first(problem: Problem) -> set[int]:
    """Of the three replicas of the first workload."""
    return set(problem.zone_of[solve(problem)[:3]].tolist())


def test_spread_zone_never_leaves_all_replicas_in_one_zone() -> None:
    problem = made([0, 0, 1], [3, 1], (0, 1, Routing.ANY))
    assert len(zones_of_first(problem)) == 1
    spread = msgspec.structs.replace(problem, must_span_zones=np.array([True, True]))
    assert len(zones_of_first(spread)) == 2


def rule(kind: RuleKind, domain_of: list[int], roles: dict[int, int], **changes: object) -> Rule:
    domains = max(domain_of) + 1
    nothing = np.zeros(domains, np.int64)
    made_rule = Rule(kind, roles, np.array(domain_of, np.int64), nothing, nothing, np.ones(domains, np.bool_))
    return msgspec.structs.replace(made_rule, **changes)


def test_rules_bind() -> None:
    both = COUNTED | OWNER
    zones = [0, 0, 1, 1]
    even = made(zones, [4], rules=(rule(RuleKind.SPREAD, zones, {0: both}),))
    assert np.bincount(np.array(zones)[solve(even)]).tolist() == [2, 2]
    apart = made(zones, [5], rules=(rule(RuleKind.ANTI_AFFINITY, [0, 1, 2, 3], {0: both}),))
    assert sorted(solve(apart).tolist()) == [-1, 0, 1, 2, 3]
    guarded = made(zones, [1, 3], rules=(rule(RuleKind.ANTI_AFFINITY, zones, {0: OWNER, 1: COUNTED}),))
    at = solve(guarded)
    assert {zones[h] for h in at[1:]} == {1 - zones[at[0]]}, "anti-affinity holds against who carries none"
    pair = made(zones, [2, 1], room=2, rules=(rule(RuleKind.AFFINITY, [0, 1, 2, 3], {0: OWNER, 1: COUNTED}),))
    at = solve(pair)
    assert sorted([at[0], at[1]]) == [-1, at[2]], "one fits beside whom it needs, the other may be nowhere else"
    wish = made(zones, [4], rules=(rule(RuleKind.PREFERENCE, [0, 1, 2, 3], {0: both}, price=1.0),))
    assert sorted(solve(wish).tolist()) == [0, 1, 2, 3]


def test_who_is_needed_for_company_is_brought_to_where_it_is_needed() -> None:
    """The second may be in zone 1 alone, and only beside the first; a third keeps the first busy in zone 0."""
    zones = [0, 0, 1, 1]
    allowed = np.array([[True, True, True, True], [False, False, True, True], [True, True, False, False]])
    company = rule(RuleKind.AFFINITY, zones, {1: OWNER, 0: COUNTED})
    problem = made(
        zones,
        [1, 1, 3],
        (0, 2, Routing.ANY),
        allowed=allowed,
        row_of=np.array([0, 1, 2]),
        rules=(company,),
        room=2,
    )
    at = solve(problem)
    assert (at >= 0).all()
    assert zones[at[0]] == zones[at[1]] == 1


def test_a_spread_holds_for_an_owner_that_its_own_selector_does_not_select() -> None:
    zones = [0, 0, 1, 1]
    held = np.array([2, 0])
    strict = rule(RuleKind.SPREAD, zones, {0: OWNER}, bound=held)
    at = solve(made(zones, [2], rules=(strict,)))
    assert {zones[h] for h in at} == {1}, "zone 0 has two more of those it looks at than zone 1"


def test_a_spread_counts_from_zero_where_domains_are_missing_and_not_from_domains_nobody_may_use() -> None:
    zones = [0, 0, 1, 1]
    both = COUNTED | OWNER
    short = made(zones, [4], rules=(rule(RuleKind.SPREAD, zones, {0: both}, short=True),))
    assert (solve(short) >= 0).sum() == 2
    allowed = np.array([[True, True, False, False]])
    closed = made(zones, [4], allowed=allowed, rules=(rule(RuleKind.SPREAD, zones, {0: both}),))
    assert (solve(closed) >= 0).sum() == 1
    left_out = rule(RuleKind.SPREAD, zones, {0: both}, eligible=np.array([True, False]))
    assert (solve(made(zones, [4], allowed=allowed, rules=(left_out,))) >= 0).sum() == 4


def test_without_edges_replicas_take_the_emptier_hosts() -> None:
    problem = made([0, 0, 0, 0], [1, 1, 1, 1], crowd=0.1, balance=0.02)
    assert sorted(solve(problem).tolist()) == [0, 1, 2, 3]
    uneven = made([0, 0], [1], free=np.array([[2], [8]], np.int64), balance=0.02)
    assert solve(uneven).tolist() == [1]


def test_the_last_pods_of_a_rollout_weigh_crowds_no_heavier_than_the_first() -> None:
    """Eleven workloads of two replicas, a host a zone: a whole plan shares two of them, and so does one for what is left of it."""
    workloads = 11
    calls = [(0, callee, Routing.ZONE) for callee in range(1, workloads)]
    apart = np.ones(workloads, np.bool_)
    problem = made([0, 1, 2], [2] * workloads, *calls, room=40, crowd=0.1, balance=0.02, must_span_zones=apart)
    used = sorted(set(solve(problem).tolist()))
    assert len(used) == 2
    standing = tuple(() if workload == workloads - 1 else tuple(used) for workload in range(workloads))
    free = np.array([[40 - sum(host in hosts for hosts in standing)] for host in range(3)], np.int64)
    last = np.array([workloads - 1] * 2)
    left = msgspec.structs.replace(problem, free=free, class_of=last, fixed=standing)
    assert sorted(solve(left).tolist()) == used


def test_a_missing_compiler_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(OSError, match="install gcc, or"):
        compiler.compile_library(tmp_path / "lib.so")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(OSError, match="did not compile"):
        compiler.compile_library(tmp_path / "lib.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.solver
@pytest.mark.parametrize("seed", range(12))
def test_no_zones_hints_count_while_a_replica_is_on_a_node_without_a_zone_whatever_is_moved(seed: int) -> None:
    """As kube-proxy has it (pkg/proxy/topology.go); the best of all placements of three workloads on hosts with and without zones."""
    rng = random.Random(seed)
    zone_of = [0, 1, 2, 2]
    edges = [(0, 1, Routing.ZONE), (1, 2, rng.choice((Routing.ANY, Routing.ZONE)))]
    problem = made(
        zone_of,
        [2, 2, 1],
        *edges,
        room=rng.randint(2, 3),
        zoned=np.array([True, True, False]),
        fixed=((), (rng.randrange(4),) if seed % 2 else (), ()),
        load=0.0,
        balance=1e-9,
    )
    far = np.array(
        [[100.0, rng.randint(200, 900), 500.0], [rng.randint(200, 900), 100.0, 500.0], [400.0, 600.0, 100.0]]
    )
    problem = msgspec.structs.replace(problem, tables=(Table(far, 30.0, far > rng.randint(300, 700)),))

    def worth(at: Ints) -> tuple[int, float]:
        found = evaluate(problem, at)
        return found.violations, found.latency

    placements = (np.array(p, np.int64) for p in product(range(4), repeat=5))
    best = min(worth(at) for at in placements if (np.bincount(at, minlength=4) <= problem.free[:, 0]).all())
    assert worth(solve(problem, seed=seed)) == pytest.approx(best)


def test_a_replica_without_a_zone_takes_the_hints_of_all() -> None:
    for routing, latency in ((Routing.ZONE, (30 + 2 * 1000) / 3), (Routing.NODE, 30.0)):
        problem = made([0, 1, 2], [2, 3], (0, 1, routing), zoned=np.array([True, True, False]))
        assert evaluate(problem, on_hosts(0, 1, 0, 1, 2)).latency == pytest.approx(latency)
        labelled = msgspec.structs.replace(problem, zoned=np.ones(3, np.bool_))
        assert evaluate(labelled, on_hosts(0, 1, 0, 1, 2)).latency == 30.0
