"""NetworkOverhead and NodeResourcesAllocatable score as the tables of docs/contracts.md say, in examples and random clusters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, WeightInfo
from controller.cluster.pods import Pod
from controller.cluster.resource_requests import parse_amounts
from controller.cluster.services import Routing
from controller.scheduler.config import AllocatableArgs, ResourceWeight, SchedulerConfig
from controller.scheduler.extender import encoding
from controller.scheduler.extender.handler import Extender
from controller.scheduler.metrics import ExtenderMetrics
from controller.scheduler.rules import (
    NodeScore,
    PeerWorkload,
    normalise_allocatable_score,
    raw_allocatable_score,
    score_locations,
)
from tests.support.bodies import make_weight_body
from tests.unit.controller.extender_service import make_pod_body
from tests.unit.controller.scheduler_objects import (
    make_app_group,
    make_node,
    make_pod,
    make_state,
    make_topology_with_weights,
)

OURS, UPSTREAM = SchedulerConfig(), SchedulerConfig(parity="upstream")
SEED_NODES = [make_node(f"N{i}", "us-west-1" if i <= 4 else "us-east-1", f"z{(i + 1) // 2}") for i in range(1, 9)]
SEED_COSTS = make_weight_body(
    {("z1", "z2"): 5, ("z2", "z1"): 5, ("z3", "z4"): 10, ("z4", "z3"): 10},
    {("us-west-1", "us-east-1"): 20, ("us-east-1", "us-west-1"): 20},
)
REGIONS, ZONES = ("", "r1", "r2", "r3"), ("", "z1", "z2", "z3", "z4")
LOCATIONS = [Location(), Location("r1", ""), Location("r1", "z1"), Location("r1", "z2"), Location("r2", "z3")]


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


class PlacedPeers(NamedTuple):
    """Nodes, and the peers of a pod that runs on one of them."""

    location_of: Mapping[str, Location]
    dependencies: list[PeerWorkload]
    dependents: list[PeerWorkload]


def make_seed_extender(config: SchedulerConfig, *pods: Pod) -> Extender:
    """Seed 001: P1 depends on P2 with maxNetworkCost 15, on eight nodes in four zones of two regions."""
    group = make_app_group({"P1": {"P2": 15}, "P2": {}})
    return make_extender(config, *SEED_NODES, group, make_topology_with_weights(SEED_COSTS), *pods)


def make_extender(config: SchedulerConfig, *objects: Any) -> Extender:
    return Extender(make_state(config, *objects), config, ExtenderMetrics(CollectorRegistry()), lambda: "")


def encode_request(workload: str, nodes: list[str]) -> bytes:
    pod = make_pod_body(labels={APPGROUP_LABEL: "a1", WORKLOAD_LABEL: workload})
    return msgspec.json.encode({"pod": pod, "nodes": None, "nodenames": nodes})


def call_filter(extender: Extender, workload: str, nodes: list[str]) -> Any:
    return msgspec.json.decode(extender.answer_filter(encode_request(workload, nodes)))


def read_scores(extender: Extender, workload: str, nodes: list[str]) -> dict[str, int]:
    answer = msgspec.json.decode(extender.answer_prioritize(encode_request(workload, nodes)))
    return {entry["host"]: entry["score"] for entry in answer}


def compute_expected_score(candidate: str, peers: PlacedPeers, table: ContractTable) -> NodeScore:
    """The score of one node, replica by replica, by the replicas that answer."""
    location = peers.location_of[candidate]
    total, total_cost = Counter[str](), 0
    for peer in peers.dependencies:
        counts, cost = compute_dependency_score(candidate, peer, peers.location_of, table)
        total += counts
        total_cost += cost
    for peer in peers.dependents:
        for node, count in peer.pods_by_node.items():
            if node != candidate:
                result, cost = table.compare(peers.location_of[node], location, peer.max_cost)
                total["unknown"] += count * (result == "unknown")
                total_cost += count * cost
    return NodeScore(total["satisfied"], total["violated"], total_cost, total["unknown"])


def compute_dependency_score(
    candidate: str, peer: PeerWorkload, location_of: Mapping[str, Location], table: ContractTable
) -> tuple[Counter[str], int]:
    """Numbers of replicas by result, and their cost."""
    location = location_of[candidate]
    replicas = list(Counter(peer.pods_by_node).elements())
    on_node = [node for node in replicas if node == candidate]
    has_zone_hints = all(location_of[node].zone for node in replicas)
    in_zone = [node for node in replicas if has_zone_hints and location_of[node] == location]
    if peer.routing is Routing.NODE and on_node:
        return Counter(satisfied=len(on_node)), 0
    if peer.routing is not Routing.ANY and in_zone:
        cost = len(replicas) - round(len(replicas) * len(on_node) / len(in_zone))
        return Counter(satisfied=len(in_zone)), cost
    others = [table.compare(location, location_of[node], peer.max_cost) for node in replicas if node != candidate]
    counts = Counter(result for result, _ in others) + Counter(satisfied=len(on_node))
    return counts, sum(cost for _, cost in others)


def compute_expected_priorities(costs: list[int]) -> list[int]:
    low, high = min(costs, default=0), max(costs, default=0)
    if low == high:
        return [0 if high == 0 else 100] * len(costs)
    return [100 - int(100 * (cost - low) / (high - low)) for cost in costs]


def normalise_all(raw_scores: list[int]) -> list[int]:
    low, high = min(raw_scores, default=0), max(raw_scores, default=0)
    return [normalise_allocatable_score(score, low, high) for score in raw_scores]


def draw_cost(rng: random.Random) -> int:
    return rng.choice((0, 1, 99, 100, 101, rng.randint(0, 300)))


def draw_costs(rng: random.Random, names: tuple[str, ...], max_pairs: int) -> dict[tuple[str, str], int]:
    pairs = [(rng.choice(names), rng.choice(names)) for _ in range(rng.randint(0, max_pairs))]
    return {pair: draw_cost(rng) for pair in pairs}


def assert_extender_follows_the_table(rng: random.Random, seed: int) -> None:
    location_of = {f"n{i}": Location(rng.choice(REGIONS), rng.choice(ZONES)) for i in range(rng.randint(1, 10))}
    pods = [(rng.choice("ABCD"), rng.choice([*location_of])) for _ in range(rng.randint(0, 12))]
    max_costs = {selector: draw_cost(rng) for selector in rng.sample("BCD", rng.randint(0, 3))}
    table = ContractTable(draw_costs(rng, ZONES, 12), draw_costs(rng, REGIONS[1:], 8))
    extender = make_extender(
        UPSTREAM,
        *(make_node(name, *location) for name, location in location_of.items()),
        *(make_pod(selector, node, name=f"p{i}") for i, (selector, node) in enumerate(pods)),
        make_app_group({"A": max_costs, "B": {}, "C": {}, "D": {}}),
        make_topology_with_weights(make_weight_body(*table)),
    )
    dependencies = [
        PeerWorkload(selector, max_cost, Counter(node for other, node in pods if other == selector))
        for selector, max_cost in max_costs.items()
    ]
    peers = PlacedPeers(location_of, dependencies, [])
    nodes = rng.sample([*location_of], rng.randint(0, len(location_of)))
    expected_scores = {node: compute_expected_score(node, peers, table) for node in nodes}

    answer = call_filter(extender, "A", nodes)
    passing = {node for node, score in expected_scores.items() if score.violated <= score.satisfied}
    assert sorted(answer["nodenames"]) == sorted(passing), seed
    assert set(answer["failedAndUnresolvableNodes"]) == set(nodes) - passing, seed
    for node, reason in answer["failedNodes"].items():
        counts = f"Satisfied: {expected_scores[node].satisfied} Violated: {expected_scores[node].violated}"
        requirements = "several network requirements from Workload dependencies"
        assert reason == f"Node {node} does not meet {requirements}: {counts}", seed

    # kube-scheduler sends the filter's answer; a list that the filter did not give is scored, too.
    for scored_nodes in (answer["nodenames"], nodes):
        expected = compute_expected_priorities([expected_scores[node].cost for node in scored_nodes])
        assert read_scores(extender, "A", scored_nodes) == dict(zip(scored_nodes, expected, strict=True)), seed


@pytest.mark.parametrize("config", [UPSTREAM, OURS], ids=["parity", "ours"])
def test_the_worked_example_of_the_contract(config: SchedulerConfig) -> None:
    extender = make_seed_extender(config, make_pod("P2", "N1"))
    answer = call_filter(extender, "P1", [node.metadata.name for node in SEED_NODES])
    assert sorted(answer["nodenames"]) == ["N1", "N2", "N3", "N4"]
    assert answer["error"] == ""
    assert set(answer["failedNodes"]) == set(answer["failedAndUnresolvableNodes"]) == {"N5", "N6", "N7", "N8"}
    assert read_scores(extender, "P1", answer["nodenames"]) == {"N1": 100, "N2": 80, "N3": 0, "N4": 0}


def test_in_parity_finished_pods_count() -> None:
    extender = make_seed_extender(UPSTREAM, make_pod("P2", "N1", status={"phase": "Succeeded"}))
    assert "N8" in call_filter(extender, "P1", ["N1", "N8"])["failedNodes"]


def test_in_parity_a_pod_on_a_deleted_node_is_an_error() -> None:
    assert "gone" in call_filter(make_seed_extender(UPSTREAM, make_pod("P2", "gone")), "P1", ["N1", "N8"])["error"]


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 2000), marks=pytest.mark.fuzz)], ids=["few", "many"]
)
def test_filter_and_scores_follow_the_table_of_the_contract(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        monkeypatch.setattr(encoding, "MAX_NODE_REASONS", seed % 5)
        assert_extender_follows_the_table(random.Random(seed), seed)


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
            pods_by_node = {node: rng.randint(1, 3) for node in location_of if rng.random() < 0.5}
            peers.append(PeerWorkload("w", rng.randint(0, 40), pods_by_node, rng.choice(list(Routing))))

        location_index = {node: LOCATIONS.index(location) for node, location in location_of.items()}
        costs = CostTable(msgspec.convert(make_weight_body(*table), WeightInfo))
        scores = score_locations(peers[::2], peers[1::2], LOCATIONS, location_index, costs)
        for node, index in location_index.items():
            expected = compute_expected_score(node, PlacedPeers(location_of, peers[::2], peers[1::2]), table)
            assert scores.node_score(node, index) == expected, (seed, node)
        assert set(scores.by_node) <= {node for peer in peers for node in peer.pods_by_node}
        assert scores.neutral_reason == ""


@pytest.mark.parametrize(("mode", "scores"), [("Least", [100, 0]), ("Most", [0, 100])])
def test_allocatable_prefers_small_or_large_nodes(mode: Any, scores: list[int]) -> None:
    """Seed 002 of the contract: nodes of 10 and 200."""
    args = AllocatableArgs(mode=mode)
    amounts = [parse_amounts({"cpu": f"{size}", "memory": f"{size}Gi"}) for size in (10, 200)]
    assert normalise_all([raw_allocatable_score(of_node, args) for of_node in amounts]) == scores


def test_raw_scores_are_truncated_toward_zero_and_absent_resources_count_as_0() -> None:
    args = AllocatableArgs(resources=(ResourceWeight(name="a", weight=2), ResourceWeight(name="b", weight=1)))
    assert raw_allocatable_score({"a": 5}, args) == -3  # -(2 * 5 + 1 * 0) / (2 + 1), and not -4
    assert raw_allocatable_score({"a": 5}, msgspec.structs.replace(args, mode="Most")) == 3
    assert raw_allocatable_score({}, args) == 0


def test_cpu_is_scored_in_thousandths() -> None:
    args = AllocatableArgs(mode="Most", resources=(ResourceWeight(name="cpu", weight=1),))
    assert raw_allocatable_score(parse_amounts({"cpu": "500m"}), args) == 500


@pytest.mark.parametrize(("raw", "normalised"), [([4, 4], [0, 0]), ([0, 1, 3], [0, 33, 100]), ([], [])])
def test_scores_are_normalised_to_0_to_100(raw: list[int], normalised: list[int]) -> None:
    assert normalise_all(raw) == normalised
