"""Explanations of placements: tables and sentences that agree with the rules."""

from __future__ import annotations

import msgspec
import pytest

from controller.cluster.crds import WORKLOAD_LABEL
from controller.cluster.pods import Pod, Target
from controller.cluster.services import Service
from controller.scheduler.explain import Candidate, Explanation, explain
from controller.scheduler.state import NOTHING_PLACED, State
from tests.unit.controller.scheduler_objects import make_group_state, make_node, make_pod, make_topology

P2_ON_N1 = (("P2", "n1"),)
CALLS = {"P0": {"P1": 5}, "P1": {"P2": 15}, "P2": {}}


def make_example_state(*placements: tuple[str, str]) -> State:
    """n1, n2 in z1 and n3, n4 in z2, 20 apart; P1 depends on P2 (at most 15), P0 on P1 (at most 5)."""
    nodes = [make_node(f"n{i}", "r", f"z{(i + 1) // 2}") for i in range(1, 5)]
    return make_group_state(nodes, make_topology({("z1", "z2"): 20, ("z2", "z1"): 20}), CALLS, placements)


def make_planned_pod(zone: str, target_node: str, node_name: str = "") -> Pod:
    """A pod of P1 whose plan has this target, on this node."""
    target = msgspec.json.encode(Target(zone, "r", target_node)).decode()
    return make_pod("P1", node_name, metadata={"annotations": {"netaware.io/target": target}})


def map_candidates(explanation: Explanation) -> dict[str, Candidate]:
    """Candidates by node, or by zone for those that stand for all other nodes of a zone."""
    return {candidate.node or candidate.zone: candidate for candidate in explanation.candidates}


def test_candidates_have_the_cost_of_each_dependency_and_pass_or_not() -> None:
    explanation = explain(make_example_state(("P2", "n1"), ("P0", "n3")), make_pod("P1"))
    assert [(p.workload, p.direction, p.max_cost, p.pods_by_zone) for p in explanation.peers] == [
        ("P2", "depends-on", 15, {"z1": 1}),
        ("P0", "depended-on-by", 5, {"z2": 1}),
    ]
    candidates = map_candidates(explanation)
    assert list(candidates) == ["n1", "z1", "n3", "z2"]
    assert [(c.nodes, c.passes, c.cost, c.score) for c in candidates.values()] == [
        (1, True, 20, 100),
        (1, True, 21, 0),
        (1, False, 20, None),
        (1, False, 21, None),
    ]
    assert [(c.cost, c.satisfied, c.violated) for c in candidates["z2"].peer_costs] == [(20, 0, 1), (1, 0, 0)]
    assert explanation.conclusion == "best place n1: cost 20 (P2 0 of 15, P0 20 of 5)"
    assert (explanation.group, explanation.topology) == ("default/a1", "default/nt-default")
    assert explanation.weight_name == "UserDefined"


@pytest.mark.parametrize("distribution", ["", "PreferSameZone", "PreferSameNode"])
def test_costs_by_peer_add_up_to_the_cost_of_their_candidate(distribution: str) -> None:
    state = make_example_state(("P2", "n1"), ("P2", "n4"), ("P0", "n3"), ("P0", "n2"))
    spec = {"selector": {WORKLOAD_LABEL: "P2"}, "trafficDistribution": distribution}
    service = msgspec.convert({"metadata": {"name": "p2", "namespace": "default"}, "spec": spec}, Service)
    state.on_service_change("default/p2", None, service)
    explanation = explain(state, make_pod("P1"))
    assert [peer.direction for peer in explanation.peers] == ["depends-on", "depended-on-by"]
    for candidate in explanation.candidates:
        dependency, dependent = candidate.peer_costs
        assert dependency.cost + dependent.cost == candidate.cost
        assert (dependency.satisfied, dependency.violated) == (candidate.satisfied, candidate.violated)


@pytest.mark.parametrize(
    ("placements", "pod", "conclusion"),
    [
        (P2_ON_N1, make_pod("P1", "n2"), "on n2 by NetworkOverhead: cost 1 (P2 1 of 15); 2 nodes refused"),
        (
            P2_ON_N1,
            make_planned_pod("z1", "n1", "n3"),
            (
                "on n3, though n1 was planned: cost 20 (P2 20 of 15, 1 beyond maxNetworkCost); "
                "best in another zone n1 with cost 0; 2 nodes refused"
            ),
        ),
        ((), make_planned_pod("z2", "n3"), "waits for n3, planned with its group"),
        ((), make_pod("P1"), f"any node: {NOTHING_PLACED}"),
    ],
    ids=["by the rule", "elsewhere", "planned", "no placed peer"],
)
def test_the_conclusion_says_why_a_pod_is_on_its_node_or_where_it_will_be(
    placements: tuple[tuple[str, str], ...], pod: Pod, conclusion: str
) -> None:
    assert explain(make_example_state(*placements), pod).conclusion == conclusion


@pytest.mark.parametrize(
    ("ineligible", "conclusion"),
    [
        ({"n1": "insufficient cpu"}, "best place z1: cost 1 (P2 1 of 15)"),
        (
            {"n1": "insufficient cpu", "n2": "taint own"},
            "no node: the nodes that the filter passes may not run the pod, or lack resources",
        ),
    ],
)
def test_ineligible_nodes_are_counted_and_never_the_best_place(ineligible: dict[str, str], conclusion: str) -> None:
    explanation = explain(make_example_state(("P2", "n1")), make_pod("P1"), ineligible)
    assert explanation.conclusion == conclusion
    candidates = map_candidates(explanation)
    assert dict(candidates["n1"].ineligible) == {"insufficient cpu": 1}
    assert candidates["n1"].score is None
    assert candidates["z1"].score == (100 if len(ineligible) == 1 else None)
