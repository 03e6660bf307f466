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
from controller.scheduler.state import NOTHING_PLACED, State
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import make_weight_body as weight
from tests.unit.controller import scheduler_objects
from tests.unit.controller.scheduler_objects import (
    GROUP,
    WORKLOAD,
    make_app_group,
    make_node,
    make_state,
    make_weighted_topology,
)


def pod(name: str, workload: str, node: str = "", *, phase: str = "Running", **meta: Any) -> Pod:
    return scheduler_objects.make_pod(workload, node, name=name, metadata=meta, status={"phase": phase})


def extender_of(state: State, config: SchedulerConfig) -> Extender:
    return Extender(state, config, ExtenderMetrics(CollectorRegistry()), lambda: "")


SEED_NODES = [make_node(f"N{i}", "us-west-1" if i <= 4 else "us-east-1", f"z{(i + 1) // 2}") for i in range(1, 9)]
SEED_COSTS = weight(
    {("z1", "z2"): 5, ("z2", "z1"): 5, ("z3", "z4"): 10, ("z4", "z3"): 10},
    {("us-west-1", "us-east-1"): 20, ("us-east-1", "us-west-1"): 20},
)
OURS, UPSTREAM = SchedulerConfig(), SchedulerConfig(parity="upstream")


def seed_state(config: SchedulerConfig, *pods: Pod) -> State:
    """Seed 001: P1 depends on P2 with maxNetworkCost 15, on eight nodes in four zones of two regions."""
    group = make_app_group({"P1": {"P2": 15}, "P2": {}})
    return make_state(config, *SEED_NODES, group, make_weighted_topology(SEED_COSTS), *pods)


def call_extender(extender: Extender, verb: str, workload: str, names: list[str]) -> Any:
    meta = {"name": "p", "namespace": "default", "uid": "u", "labels": {GROUP: "a1", WORKLOAD: workload}}
    body = msgspec.json.encode({"pod": {"metadata": meta}, "nodes": None, "nodenames": names})
    answer = extender.answer_filter(body) if verb == "filter" else extender.answer_prioritize(body)
    return msgspec.json.decode(answer)


@pytest.mark.parametrize("config", [UPSTREAM, OURS], ids=["parity", "ours"])
def test_the_worked_example_of_the_contract(config: SchedulerConfig) -> None:
    extender = extender_of(seed_state(config, pod("p2-one", "P2", "N1")), config)
    answer = call_extender(extender, "filter", "P1", [n.metadata.name for n in SEED_NODES])
    assert sorted(answer["nodenames"]) == ["N1", "N2", "N3", "N4"]
    assert answer["error"] == ""
    assert set(answer["failedNodes"]) == set(answer["failedAndUnresolvableNodes"]) == {"N5", "N6", "N7", "N8"}
    scores = call_extender(extender, "prioritize", "P1", answer["nodenames"])
    assert {s["host"]: s["score"] for s in scores} == {"N1": 100, "N2": 80, "N3": 0, "N4": 0}


class ContractTable(NamedTuple):
    """The contract's table of costs between two different nodes, row by row."""

    zones: dict[tuple[str, str], int]
    regions: dict[tuple[str, str], int]

    def compare(self, candidate: Location, peer: Location, max_cost: int) -> tuple[str, int]:
        """Whether a peer's pod satisfies or violates the limit, and its cost."""
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
        return ("satisfied" if cost <= max_cost else "violated"), cost


def expected_score(
    candidate: str,
    location_of: Mapping[str, Location],
    dependencies: list[PeerWorkload],
    dependents: list[PeerWorkload],
    table: ContractTable,
) -> tuple[int, int, int, int]:
    """Satisfied, violated, cost and unknown of one node, replica by replica, by the replicas that answer."""
    results: Counter[str] = Counter()
    total_cost = 0
    location = location_of[candidate]
    for peer in dependencies:
        replicas = [node for node, count in peer.pods_by_node.items() for _ in range(count)]
        on_node = [node for node in replicas if node == candidate]
        has_zone_hints = all(location_of[node].zone for node in replicas)
        in_zone = [node for node in replicas if has_zone_hints and location_of[node] == location]
        if peer.routing is Routing.NODE and on_node:
            results["satisfied"] += len(on_node)
        elif peer.routing is not Routing.ANY and in_zone:
            results["satisfied"] += len(in_zone)
            total_cost += len(replicas) - round(len(replicas) * len(on_node) / len(in_zone))
        else:
            for node in replicas:
                result, cost = table.compare(location, location_of[node], peer.max_cost)
                results["satisfied" if node == candidate else result] += 1
                total_cost += 0 if node == candidate else cost
    for peer in dependents:
        for node, count in peer.pods_by_node.items():
            if node != candidate:
                result, cost = table.compare(location_of[node], location, peer.max_cost)
                results["unknown"] += count * (result == "unknown")
                total_cost += count * cost
    return results["satisfied"], results["violated"], total_cost, results["unknown"]


def expected_priorities(costs: list[int]) -> list[int]:
    low, high = min(costs, default=0), max(costs, default=0)
    if low == high:
        return [0 if high == 0 else 100] * len(costs)
    return [100 - int(100 * (cost - low) / (high - low)) for cost in costs]


REGIONS, ZONES = ("", "r1", "r2", "r3"), ("", "z1", "z2", "z3", "z4")


def random_cost(rng: random.Random) -> int:
    return rng.choice((0, 1, 99, 100, 101, rng.randint(0, 300)))


def random_costs(rng: random.Random, names: tuple[str, ...], max_pairs: int) -> dict[tuple[str, str], int]:
    pairs = [(rng.choice(names), rng.choice(names)) for _ in range(rng.randint(0, max_pairs))]
    return {pair: random_cost(rng) for pair in pairs}


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 2000), marks=pytest.mark.fuzz)], ids=["few", "many"]
)
def test_filter_and_scores_follow_the_table_of_the_contract(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        monkeypatch.setattr(encoding, "MAX_NODE_REASONS", seed % 5)
        check_extender_against_the_table(random.Random(seed), f"seed {seed}")


def check_extender_against_the_table(rng: random.Random, seed: str) -> None:
    location_of = {f"n{i}": Location(rng.choice(REGIONS), rng.choice(ZONES)) for i in range(rng.randint(1, 10))}
    pods = [(rng.choice("ABCD"), rng.choice([*location_of])) for _ in range(rng.randint(0, 12))]
    max_costs = {selector: random_cost(rng) for selector in rng.sample("BCD", rng.randint(0, 3))}
    table = ContractTable(random_costs(rng, ZONES, 12), random_costs(rng, REGIONS[1:], 8))
    extender = extender_of(
        make_state(
            UPSTREAM,
            *(make_node(name, *location) for name, location in location_of.items()),
            *(pod(f"p{i}", selector, name) for i, (selector, name) in enumerate(pods)),
            make_app_group({"A": max_costs, "B": {}, "C": {}, "D": {}}),
            make_weighted_topology(weight(*table)),
        ),
        UPSTREAM,
    )
    dependencies = [
        PeerWorkload(selector, max_cost, Counter(name for other, name in pods if other == selector))
        for selector, max_cost in max_costs.items()
    ]
    names = rng.sample([*location_of], rng.randint(0, len(location_of)))
    expected_scores = {name: expected_score(name, location_of, dependencies, [], table) for name in names}
    passing = [name for name, (satisfied, violated, *_) in expected_scores.items() if violated <= satisfied]
    answer = call_extender(extender, "filter", "A", names)
    assert sorted(answer["nodenames"]) == sorted(passing), seed
    assert set(answer["failedAndUnresolvableNodes"]) == set(names) - set(passing), seed
    for name, reason in answer["failedNodes"].items():
        satisfied, violated, *_ = expected_scores[name]
        assert reason == (
            f"Node {name} does not meet several network requirements from Workload dependencies: "
            f"Satisfied: {satisfied} Violated: {violated}"
        ), seed
    # kube-scheduler sends the filter's answer; a list that the filter did not give is scored, too.
    for scored_names in (answer["nodenames"], names):
        scores = {s["host"]: s["score"] for s in call_extender(extender, "prioritize", "A", scored_names)}
        expected = expected_priorities([expected_scores[name][2] for name in scored_names])
        assert scores == dict(zip(scored_names, expected, strict=True)), seed


def test_finished_pods_and_pods_on_deleted_nodes_count_only_in_upstream_parity() -> None:
    finished, on_deleted_node = pod("done", "P2", "N1", phase="Succeeded"), pod("lost", "P2", "gone")
    terminating = pod("leaving", "P2", "N1", deletionTimestamp="2026-01-01T00:00:00Z")
    ours = seed_state(OURS, finished, terminating, on_deleted_node)
    assert ours.score("default", "a1", "P1").neutral_reason == NOTHING_PLACED

    def filter_answer(placed: Pod) -> Any:
        return call_extender(extender_of(seed_state(UPSTREAM, placed), UPSTREAM), "filter", "P1", ["N1", "N8"])

    assert "N8" in filter_answer(finished)["failedNodes"]
    assert "gone" in filter_answer(on_deleted_node)["error"]


def test_counts_follow_added_moved_and_deleted_pods() -> None:
    state = seed_state(OURS)
    waiting, bound = pod("p2", "P2", phase="Pending"), pod("p2", "P2", "N1")
    state.on_pod_change("default/p2", None, waiting)
    assert state.score("default", "a1", "P1").neutral_reason
    state.on_pod_change("default/p2", waiting, bound)
    assert state.pod_counts("default/a1") == {"P2": Counter({"N1": 1})}
    assert not state.score("default", "a1", "P1").neutral_reason
    state.on_pod_change("default/p2", bound, None)
    assert state.score("default", "a1", "P1").neutral_reason


def cost_on_n8(state: State) -> int:
    """Cost of N8 for a pod of P1."""
    return state.score("default", "a1", "P1").node_score("N8", state.location_index["N8"]).cost


def test_a_relabelled_node_is_scored_by_its_new_location() -> None:
    state = seed_state(OURS, pod("p2", "P2", "N1"))
    assert cost_on_n8(state) == 20
    state.on_node_change("N8", SEED_NODES[7], make_node("N8", "us-west-1", "z1"))
    assert cost_on_n8(state) == 1


def test_a_copy_of_the_state_does_not_change_with_it() -> None:
    """A thread reads the copy while the event loop changes the state."""
    state = seed_state(OURS, pod("p2", "P2", "N1"))
    copied = state.copy()
    state.on_pod_change("default/p2", pod("p2", "P2", "N1"), pod("p2", "P2", "N8"))
    assert [cost_on_n8(state), cost_on_n8(copied), cost_on_n8(state)] == [0, 20, 0]


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
    assert make_state(SchedulerConfig(), make_weighted_topology(*weights)).costs("default").weight_name == expected
    parity = make_state(UPSTREAM, make_weighted_topology(*weights)).costs("default").weight_name
    assert parity == ("UserDefined" if expected == "UserDefined" else "")


def test_groups_are_found_by_namespace_then_by_list_then_by_namespaces_of_workloads() -> None:
    config = SchedulerConfig(network_overhead=NetworkOverheadArgs(namespaces=("infra", "default")))
    listed, own = make_app_group({"P": {}}), make_app_group({"P": {}}, "shop")
    with_namespaces = msgspec.convert(
        {
            "metadata": {"name": "a1", "namespace": "central"},
            "spec": {"workloads": [{"workload": {"kind": "D", "name": "p", "selector": "P", "namespace": "branch"}}]},
        },
        AppGroup,
    )
    state = make_state(config, listed, own, with_namespaces)
    consent = ObjectMeta(name="branch", labels={"netaware.io/appgroups-from": "central"})
    version = state.version
    state.on_namespace_change("branch", None, Object(metadata=consent))
    assert state.version > version
    assert state.group_key_of("shop", "a1") == "shop/a1"
    assert state.group_key_of("branch", "a1") == "default/a1"
    assert state.group_key_of("elsewhere", "a1") == "default/a1"
    state.on_group_change("default/a1", listed, None)
    assert state.group_key_of("branch", "a1") == "central/a1"
    assert state.group_key_of("elsewhere", "a1") == ""
    assert state.group_key_of("shop", "unknown") == ""
    assert make_state(UPSTREAM, own).group_key_of("shop", "a1") == ""


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


LOCATIONS = [Location(), Location("r1", ""), Location("r1", "z1"), Location("r1", "z2"), Location("r2", "z3")]


@pytest.mark.parametrize(
    "seeds", [range(300), pytest.param(range(300, 3000), marks=pytest.mark.fuzz)], ids=["few", "many"]
)
def test_a_node_is_scored_by_the_replicas_that_answer(seeds: range) -> None:
    """With every traffic distribution, also with nodes without a zone and without any placed pod."""
    for seed in seeds:
        rng = random.Random(seed)
        location_of = {f"n{i}": rng.choice(LOCATIONS) for i in range(rng.randint(1, 6))}
        pairs = [(a, b) for a in ("", "z1", "z2") for b in ("", "z1", "z2")]
        zones = {pair: rng.randint(0, 40) for pair in pairs if rng.random() < 0.8}
        table = ContractTable(zones, {("r1", "r2"): 50, ("r2", "r1"): 9} if rng.random() < 0.7 else {})
        peers = []
        for _ in range(rng.randint(0, 4)):
            pods_by_node = {name: rng.randint(1, 3) for name in location_of if rng.random() < 0.5}
            peers.append(PeerWorkload("w", rng.randint(0, 40), pods_by_node, rng.choice(list(Routing))))
        dependencies, dependents = peers[::2], peers[1::2]
        location_index = {name: LOCATIONS.index(location) for name, location in location_of.items()}
        costs = CostTable(msgspec.convert(weight(*table), WeightInfo))
        scores = score_locations(dependencies, dependents, LOCATIONS, location_index, costs)
        for name, index in location_index.items():
            expected = expected_score(name, location_of, dependencies, dependents, table)
            assert scores.node_score(name, index) == expected, (seed, name)
        assert set(scores.by_node) <= {name for peer in peers for name in peer.pods_by_node}
        assert scores.neutral_reason == ""
