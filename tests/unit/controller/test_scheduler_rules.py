"""NetworkOverhead and NodeResourcesAllocatable score as the tables of docs/contracts.md say, in examples and random clusters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import AppGroup, WeightInfo
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import parse_amounts
from controller.cluster.services import Routing
from controller.scheduler.config import AllocatableArgs, ResourceWeight, SchedulerConfig
from controller.scheduler.extender import encoding
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.rules import PeerWorkload, normalise_allocatable_score, raw_allocatable_score, score_locations
from controller.scheduler.state import State
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import weight_body as weight
from tests.unit.controller import scheduling
from tests.unit.controller.scheduling import GROUP, WORKLOAD, app_group, node, state_with, topology_of


def pod(name: str, workload: str, node: str = "", *, phase: str = "Running", **meta: Any) -> Pod:
    return scheduling.pod(workload, node, name=name, metadata=meta, status={"phase": phase})


def extender_of(state: State, config: SchedulerConfig) -> Extender:
    return Extender(state, config, ExtenderMetrics(CollectorRegistry()), lambda: "")


SEED_NODES = [node(f"N{i}", "us-west-1" if i <= 4 else "us-east-1", f"z{(i + 1) // 2}") for i in range(1, 9)]
SEED_COSTS = weight(
    {("z1", "z2"): 5, ("z2", "z1"): 5, ("z3", "z4"): 10, ("z4", "z3"): 10},
    {("us-west-1", "us-east-1"): 20, ("us-east-1", "us-west-1"): 20},
)
UPSTREAM = SchedulerConfig(parity="upstream")


def call_extender(extender: Extender, verb: str, workload: str, names: list[str], **metadata: Any) -> Any:
    meta = {"name": "p", "namespace": "default", "uid": "u", "labels": {GROUP: "a1", WORKLOAD: workload}, **metadata}
    body = msgspec.json.encode({"pod": {"metadata": meta}, "nodes": None, "nodenames": names})
    answer = extender.answer_filter(body) if verb == "filter" else extender.answer_prioritize(body)
    return msgspec.json.decode(answer)


@pytest.mark.parametrize("config", [UPSTREAM, SchedulerConfig()], ids=["parity", "ours"])
def test_the_worked_example_of_the_contract(config: SchedulerConfig) -> None:
    """Seed 001: P1 depends on P2 with maxNetworkCost 15, P2 runs on N1."""
    state = state_with(
        config, *SEED_NODES, pod("p2-one", "P2", "N1"), app_group({"P1": {"P2": 15}, "P2": {}}), topology_of(SEED_COSTS)
    )
    extender = extender_of(state, config)
    answer = call_extender(extender, "filter", "P1", [n.metadata.name for n in SEED_NODES])
    assert sorted(answer["nodenames"]) == ["N1", "N2", "N3", "N4"]
    assert answer["error"] == ""
    reason = "Node N5 does not meet several network requirements from Workload dependencies: Satisfied: 0 Violated: 1"
    assert answer["failedNodes"]["N5"] == answer["failedAndUnresolvableNodes"]["N5"] == reason
    assert set(answer["failedNodes"]) == {"N5", "N6", "N7", "N8"}
    scores = call_extender(extender, "prioritize", "P1", answer["nodenames"])
    assert {s["host"]: s["score"] for s in scores} == {"N1": 100, "N2": 80, "N3": 0, "N4": 0}


class Costs(NamedTuple):
    """The contract's table for two different nodes, row by row."""

    zones: dict[tuple[str, str], int]
    regions: dict[tuple[str, str], int]

    def check(self, candidate: Location, peer: Location, most: int) -> tuple[str, int]:
        if peer == Location():
            return "violated", 100
        if candidate == peer:
            return "satisfied", 1
        if candidate.region == peer.region:
            cost = self.zones.get((candidate.zone, peer.zone))
        else:
            cost = self.regions.get((candidate.region, peer.region))
        if cost is None:
            return "unknown", 100
        return ("satisfied" if cost <= most else "violated"), cost


def expected_score(
    name: str,
    where: Mapping[str, Location],
    dependencies: list[PeerWorkload],
    dependents: list[PeerWorkload],
    costs: Costs,
) -> tuple[int, int, int, int]:
    """Satisfied, violated, cost and unknown of one node, replica by replica, by who answers."""
    satisfied = violated = total = unknown = 0
    me = where[name]
    for peer in dependencies:
        replicas = [node for node, count in peer.pods_by_node.items() for _ in range(count)]
        local = [node for node in replicas if node == name]
        hinted = all(where[node].zone for node in replicas)
        near = [node for node in replicas if hinted and where[node] == me]
        if peer.routing is Routing.NODE and local:
            satisfied += len(local)
        elif peer.routing is not Routing.ANY and near:
            satisfied += len(near)
            total += len(replicas) - round(len(replicas) * len(local) / len(near))
        else:
            for node in replicas:
                verdict, cost = ("satisfied", 0) if node == name else costs.check(me, where[node], peer.max_cost)
                satisfied, violated = satisfied + (verdict == "satisfied"), violated + (verdict == "violated")
                total, unknown = total + cost, unknown + (verdict == "unknown")
    for peer in dependents:
        for node, count in peer.pods_by_node.items():
            verdict, cost = ("satisfied", 0) if node == name else costs.check(where[node], me, peer.max_cost)
            total, unknown = total + count * cost, unknown + count * (verdict == "unknown")
    return satisfied, violated, total, unknown


def naive_scores(costs: list[int]) -> list[int]:
    low, high = min(costs), max(costs)
    if low == high:
        return [0 if high == 0 else 100] * len(costs)
    return [100 - int(100 * (cost - low) / (high - low)) for cost in costs]


REGIONS, ZONES = ("", "r1", "r2", "r3"), ("", "z1", "z2", "z3", "z4")


class Case(NamedTuple):
    """A small cluster and a question about it; numbers of nodes are taken modulo their count."""

    places: list[tuple[str, str]]
    placed: list[tuple[str, int]]
    dependencies: dict[str, int]
    zones: dict[tuple[str, str], int]
    regions: dict[tuple[str, str], int]
    asked: list[int]
    limit: int


def random_case(chance: random.Random) -> Case:
    def pairs(names: tuple[str, ...], most: int) -> dict[tuple[str, str], int]:
        return {(chance.choice(names), chance.choice(names)): cost() for _ in range(chance.randint(0, most))}

    def cost() -> int:
        return chance.choice((0, 1, 99, 100, 101, chance.randint(0, 300)))

    return Case(
        places=[(chance.choice(REGIONS), chance.choice(ZONES)) for _ in range(chance.randint(1, 10))],
        placed=[(chance.choice("ABCD"), chance.randrange(10)) for _ in range(chance.randint(0, 12))],
        dependencies={name: cost() for name in chance.sample("BCD", chance.randint(0, 3))},
        zones=pairs(ZONES, 12),
        regions=pairs(REGIONS[1:], 8),
        asked=[chance.randrange(10) for _ in range(chance.randint(0, 10))],
        limit=chance.randint(0, 4),
    )


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 2000), marks=pytest.mark.fuzz)], ids=["few", "many"]
)
def test_scores_follow_the_table_of_the_contract(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        case = random_case(random.Random(seed))
        monkeypatch.setattr(encoding, "MAX_NODE_REASONS", case.limit)
        try:
            check_against_the_table(case)
        except AssertionError as error:
            error.add_note(f"seed {seed}: {case}")
            raise


def check_against_the_table(case: Case) -> None:
    places, placed, dependencies, zones, regions, asked, _ = case
    nodes = [(f"n{i}", region, zone) for i, (region, zone) in enumerate(places)]
    pods = [(selector, nodes[i % len(nodes)]) for selector, i in placed]
    state = state_with(
        UPSTREAM,
        *(node(*n) for n in nodes),
        *(pod(f"p{i}", selector, where[0]) for i, (selector, where) in enumerate(pods)),
        app_group({"A": dependencies, "B": {}, "C": {}, "D": {}}),
        topology_of(weight(zones, regions)),
    )
    extender = extender_of(state, UPSTREAM)
    candidates = [nodes[i] for i in dict.fromkeys(i % len(nodes) for i in asked)]
    names = [name for name, _, _ in candidates]
    held = {name: Counter(n for selector, (n, *_) in pods if selector == name) for name in dependencies}
    peers = [PeerWorkload(name, most, held[name]) for name, most in dependencies.items()]
    where = {name: Location(region, zone) for name, region, zone in nodes}
    expected_scores = {c[0]: expected_score(c[0], where, peers, [], Costs(zones, regions)) for c in candidates}
    passing = [name for name in names if expected_scores[name][1] <= expected_scores[name][0]]
    answer = call_extender(extender, "filter", "A", names)
    assert sorted(answer["nodenames"]) == sorted(passing)
    assert set(answer["failedAndUnresolvableNodes"]) == set(names) - set(passing)
    for name, reason in answer["failedNodes"].items():
        satisfied, violated, *_ = expected_scores[name]
        assert reason == (
            f"Node {name} does not meet several network requirements from Workload dependencies: "
            f"Satisfied: {satisfied} Violated: {violated}"
        )
    # kube-scheduler sends the filter's answer; a list that the filter did not give is scored, too.
    for given_names in (answer["nodenames"], names):
        scores = {s["host"]: s["score"] for s in call_extender(extender, "prioritize", "A", given_names)}
        if given_names:
            expected = naive_scores([expected_scores[name][2] for name in given_names])
            assert scores == dict(zip(given_names, expected, strict=True))
        else:
            assert scores == {}


def test_finished_pods_and_pods_on_deleted_nodes_do_not_count() -> None:
    config = SchedulerConfig()
    state = state_with(
        config,
        *SEED_NODES,
        pod("done", "P2", "N1", phase="Succeeded"),
        pod("leaving", "P2", "N1", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("lost", "P2", "gone"),
        app_group({"P1": {"P2": 15}, "P2": {}}),
        topology_of(SEED_COSTS),
    )
    assert state.score("default", "a1", "P1").neutral_reason
    answer = call_extender(extender_of(state, config), "filter", "P1", ["N1", "N8"])
    assert answer["nodenames"] == ["N1", "N8"]


def test_upstream_parity_counts_finished_pods_and_fails_on_deleted_nodes() -> None:
    called, costs = app_group({"P1": {"P2": 15}, "P2": {}}), topology_of(SEED_COSTS)
    finished = state_with(UPSTREAM, *SEED_NODES, called, costs, pod("done", "P2", "N1", phase="Succeeded"))
    assert "N8" in call_extender(extender_of(finished, UPSTREAM), "filter", "P1", ["N1", "N8"])["failedNodes"]
    lost = state_with(UPSTREAM, *SEED_NODES, called, costs, pod("lost", "P2", "gone"))
    assert "gone" in call_extender(extender_of(lost, UPSTREAM), "filter", "P1", ["N1", "N8"])["error"]


def test_counts_follow_added_moved_and_deleted_pods() -> None:
    state = state_with(SchedulerConfig(), *SEED_NODES, app_group({"P1": {"P2": 15}, "P2": {}}), topology_of(SEED_COSTS))
    waiting, bound = pod("p2", "P2", phase="Pending"), pod("p2", "P2", "N1")
    state.on_pod_change("default/p2", None, waiting)
    assert state.score("default", "a1", "P1").neutral_reason
    state.on_pod_change("default/p2", waiting, bound)
    assert state.pod_counts("default/a1") == {"P2": Counter({"N1": 1})}
    assert not state.score("default", "a1", "P1").neutral_reason
    state.on_pod_change("default/p2", bound, None)
    assert state.score("default", "a1", "P1").neutral_reason


def test_a_relabelled_node_is_scored_by_its_new_location() -> None:
    state = state_with(
        SchedulerConfig(),
        *SEED_NODES,
        pod("p2", "P2", "N1"),
        app_group({"P1": {"P2": 15}, "P2": {}}),
        topology_of(SEED_COSTS),
    )
    assert state.score("default", "a1", "P1").node_score("N8", state.location_index["N8"]).cost == 20
    state.on_node_change("N8", SEED_NODES[7], node("N8", "us-west-1", "z1"))
    assert state.score("default", "a1", "P1").node_score("N8", state.location_index["N8"]).cost == 1


def test_a_copy_of_the_state_keeps_its_own_answers() -> None:
    """A thread reads the copy while the event loop changes the state."""
    called = app_group({"P1": {"P2": 15}, "P2": {}})
    state = state_with(SchedulerConfig(), *SEED_NODES, pod("p2", "P2", "N1"), called, topology_of(SEED_COSTS))
    copied = state.copy()
    state.on_pod_change("default/p2", pod("p2", "P2", "N1"), pod("p2", "P2", "N8"))

    def cost(of: State) -> int:
        return of.score("default", "a1", "P1").node_score("N8", of.location_index["N8"]).cost

    assert [cost(state), cost(copied), cost(state)] == [0, 20, 0]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((weight({("z1", "z2"): 9}, {}, "NetperfCosts"),), "NetperfCosts"),
        ((weight({("z1", "z2"): 9}, {}, "NetperfCosts"), SEED_COSTS), "UserDefined"),
        ((weight({}, {}, "Other"),), ""),
    ],
)
def test_the_configured_weight_wins_over_the_measured_weight(
    weights: tuple[dict[str, Any], ...], expected: str
) -> None:
    assert state_with(SchedulerConfig(), topology_of(*weights)).costs("default").weight_name == expected
    parity = state_with(UPSTREAM, topology_of(*weights)).costs("default").weight_name
    assert parity == ("UserDefined" if expected == "UserDefined" else "")


def test_groups_are_found_by_namespace_then_by_list_then_by_namespaces_of_workloads() -> None:
    config = SchedulerConfig(network_overhead=NetworkOverheadArgs(namespaces=("infra", "default")))
    shared = app_group({"P": {}})
    own = app_group({"P": {}}, "shop")
    named = msgspec.convert(
        {
            "metadata": {"name": "a1", "namespace": "central"},
            "spec": {"workloads": [{"workload": {"kind": "D", "name": "p", "selector": "P", "namespace": "branch"}}]},
        },
        AppGroup,
    )
    state = state_with(config, shared, own, named)
    lets_in = ObjectMeta(name="branch", labels={"netaware.io/appgroups-from": "central"})
    before = state.version
    state.on_namespace_change("branch", None, Object(metadata=lets_in))
    assert state.version > before
    assert state.group_key_of("shop", "a1") == "shop/a1"
    assert state.group_key_of("branch", "a1") == "default/a1"
    assert state.group_key_of("elsewhere", "a1") == "default/a1"
    state.on_group_change("default/a1", shared, None)
    assert state.group_key_of("branch", "a1") == "central/a1"
    assert state.group_key_of("elsewhere", "a1") == ""
    assert state.group_key_of("shop", "unknown") == ""
    assert state_with(UPSTREAM, own).group_key_of("shop", "a1") == ""


def normalise_all(raw: list[int]) -> list[int]:
    low, high = min(raw, default=0), max(raw, default=0)
    return [normalise_allocatable_score(value, low, high) for value in raw]


@pytest.mark.parametrize(("mode", "scores"), [("Least", [100, 0]), ("Most", [0, 100])])
def test_allocatable_prefers_small_or_large_nodes(mode: Any, scores: list[int]) -> None:
    """Seed 002: nodes of 10 and 200."""
    args = AllocatableArgs(mode=mode)
    raw = [raw_allocatable_score(parse_amounts({"cpu": f"{size}", "memory": f"{size}Gi"}), args) for size in (10, 200)]
    assert normalise_all(raw) == scores


def test_allocatable_truncates_toward_zero_and_counts_absent_resources_as_0() -> None:
    args = AllocatableArgs(resources=(ResourceWeight(name="a", weight=2), ResourceWeight(name="b", weight=1)))
    assert raw_allocatable_score({"a": 5}, args) == -3  # -10/3, and not -4
    assert raw_allocatable_score({"a": 5}, msgspec.structs.replace(args, mode="Most")) == 3
    assert raw_allocatable_score({}, args) == 0
    cpu = AllocatableArgs(mode="Most", resources=(ResourceWeight(name="cpu", weight=1),))
    assert raw_allocatable_score(parse_amounts({"cpu": "500m"}), cpu) == 500
    assert normalise_all([4, 4]) == [0, 0]
    assert normalise_all([0, 1, 3]) == [0, 33, 100]
    assert normalise_all([]) == []


HERE = [Location(), Location("r1", ""), Location("r1", "z1"), Location("r1", "z2"), Location("r2", "z3")]


@pytest.mark.parametrize(
    "seeds", [range(300), pytest.param(range(300, 3000), marks=pytest.mark.fuzz)], ids=["few", "many"]
)
def test_a_node_is_scored_by_the_replicas_that_answer(seeds: range) -> None:
    """Whatever the Service's traffic distribution, with nodes that have no zone, or nothing at all."""
    for seed in seeds:
        chance = random.Random(seed)
        where = {f"n{i}": chance.choice(HERE) for i in range(chance.randint(1, 6))}
        zones = {
            (a, b): chance.randint(0, 40) for a in ("", "z1", "z2") for b in ("", "z1", "z2") if chance.random() < 0.8
        }
        regions = {("r1", "r2"): 50, ("r2", "r1"): 9} if chance.random() < 0.7 else {}
        costs = CostTable(msgspec.convert(weight(zones, regions), WeightInfo))

        def peer(chance: random.Random = chance, names: list[str] = [*where]) -> PeerWorkload:  # noqa: B006 - of this round
            pods = {name: chance.randint(1, 3) for name in names if chance.random() < 0.5}
            return PeerWorkload("w", chance.randint(0, 40), pods, chance.choice(list(Routing)))

        dependencies = [peer() for _ in range(chance.randint(0, 2))]
        dependents = [peer() for _ in range(chance.randint(0, 2))]
        location_index = {name: HERE.index(place) for name, place in where.items()}
        found = score_locations(dependencies, dependents, HERE, location_index, costs)
        for name, index in location_index.items():
            wanted = expected_score(name, where, dependencies, dependents, Costs(zones, regions))
            assert found.node_score(name, index) == wanted, (seed, name)
        assert set(found.by_node) <= {n for peer in (*dependencies, *dependents) for n in peer.pods_by_node}
        assert found.neutral_reason == ""
