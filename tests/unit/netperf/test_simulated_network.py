"""Costs follow a simulated network through spikes, changes, cuts, slow or lying nodes, and rotations."""

from __future__ import annotations

from typing import Any

import pytest

from netperf import pairs
from netperf.plans import Probe
from tests.support.simulated_network import SimulatedNetwork, draw_rtts_us, forge_results

A, B, C = "zone-000", "zone-001", "zone-002"
LIAR = f"{A}-n0"


def forge_fast_latency(_: Probe, us: float) -> float:
    return us / 15


def make_converged_network(zones: int = 6, nodes: int = 3, **options: Any) -> SimulatedNetwork:
    """A network of zones with this number of nodes each, after enough rounds for full windows."""
    network = SimulatedNetwork(draw_rtts_us(zones), nodes, **options)
    network.run_rounds(8)
    return network


def list_planned_pairs(network: SimulatedNetwork) -> set[tuple[str, str]]:
    """Origin and destination nodes of all planned probes."""
    return {probe.nodes for plan in network.plans.values() for probe in plan.probes}


def get_latencies_us(network: SimulatedNetwork) -> dict[tuple[str, str], int]:
    """The latency of each pair of zones with a cost."""
    return {pair: network.latency_us(*pair) or 0 for pair in network.costs}


def test_a_quiet_network_with_spikes_and_rotations_writes_at_most_twice_an_hour() -> None:
    network = make_converged_network(spike_ratio=0.01)
    assert network.run_rounds(60) <= 2


@pytest.mark.parametrize(("factor", "rounds"), [(1.3, 2), (0.7, 2), (1.05, 10), (0.95, 10)])
def test_a_changed_latency_changes_the_cost_soon(factor: float, rounds: int) -> None:
    network = make_converged_network(noise=0.002)
    network.scale_rtt(A, B, factor)
    assert network.run_rounds(rounds) >= 1
    assert network.latency_us(A, B) == pytest.approx(network.rtt_us[frozenset((A, B))], rel=0.02)
    assert network.latency_us(A, C) == pytest.approx(network.rtt_us[frozenset((A, C))], rel=0.03)


def test_a_rotation_changes_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "ROTATION_S", 60.0)
    network = make_converged_network(nodes=8, noise=0.002)
    costs_before, pairs_before = dict(network.costs), list_planned_pairs(network)
    assert network.run_rounds(20) <= 1
    assert network.costs == costs_before
    assert len(list_planned_pairs(network) - pairs_before) > 15, "a pair of each of 15 pairs of zones, and more"


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_cut_path_is_unreachable_within_three_rounds_and_back_within_one(nodes: int) -> None:
    network = make_converged_network(6, nodes)
    costs_before = dict(network.costs)

    network.cut_zone_pairs.add(frozenset((A, B)))
    network.run_rounds(3)
    bases = {pair: entry.basis for pair, entry in network.zone_costs.by_zone_pair.items()}
    assert {pair for pair, basis in bases.items() if basis == "unreachable"} == {(A, B), (B, A)}
    assert network.costs == {**costs_before, (A, B): 10_001, (B, A): 10_001}
    assert network.latency_us(A, B) is None
    assert (A, B) in network.latencies.unreachable_pairs
    network.run_rounds(20)
    assert network.zone_costs.by_zone_pair[A, B].basis == "unreachable"

    network.cut_zone_pairs.clear()
    network.run_rounds(1)
    assert network.costs == costs_before
    assert network.zone_costs.by_zone_pair[A, B].basis in {"measured", "mirrored"}


def test_a_slow_node_is_reported_and_does_not_change_costs_of_its_zone() -> None:
    network = make_converged_network(6, 6, noise=0.002)
    costs_before = dict(network.costs)
    measured_nodes = [node for plan in network.plans.values() for probe in plan.probes for node in probe.nodes]
    slow_node = max(sorted(set(measured_nodes)), key=measured_nodes.count)
    network.offset_us[slow_node] = 8000.0
    network.run_rounds(6)
    assert network.reported_nodes == {slow_node}
    assert network.zone_costs.error_us_by_outlier[slow_node] == pytest.approx(8000, rel=0.2)
    assert all(abs(network.costs[pair] - cost) <= 1 for pair, cost in costs_before.items())


def test_a_frozen_node_changes_no_cost_of_its_zone() -> None:
    network = make_converged_network(6, 3)
    costs_before = dict(network.costs)
    network.silent_nodes.add(f"{A}-n0")
    network.run_rounds(10)
    assert network.costs == costs_before
    assert "unreachable" not in {entry.basis for entry in network.zone_costs.by_zone_pair.values()}


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_lying_agent_is_reported_and_changes_latencies_by_at_most_a_tenth(nodes: int) -> None:
    network = make_converged_network(5, nodes, noise=0.002)
    latency_us_by_pair = get_latencies_us(network)
    network.forge_by_node[LIAR] = forge_fast_latency
    network.run_rounds(10)
    for pair, us in latency_us_by_pair.items():
        assert network.latency_us(*pair) == pytest.approx(us, rel=0.1 if A in pair else 0.031), pair
    assert network.reported_nodes == {LIAR}


def test_an_agent_that_lies_from_the_start_is_reported() -> None:
    network = SimulatedNetwork(draw_rtts_us(8), 1, noise=0.002)
    network.forge_by_node[LIAR] = forge_fast_latency
    network.run_rounds(5)
    assert network.reported_nodes == {LIAR}
    for zones, us in network.rtt_us.items():
        assert network.latency_us(*sorted(zones)) == pytest.approx(us, rel=0.05)


def test_unplanned_results_are_refused_with_their_writer() -> None:
    network = make_converged_network(6, 3)
    costs_before, planned_pairs = dict(network.costs), list_planned_pairs(network)
    unplanned = [
        location
        for location in network.locations.values()
        if location.zone != A and (LIAR, location.node) not in planned_pairs
    ]
    forged = [(network.locations[LIAR], location, 100.0) for location in unplanned]
    network.foreign_results = forge_results(forged, 10**9, network.now_s)
    network.run_rounds(3)
    assert network.refusal_counts == {"unplanned": len(unplanned)}
    assert network.reported_nodes == {LIAR}
    assert network.costs == costs_before


def test_a_liar_that_writes_most_latencies_of_a_link_is_disputed_and_changes_no_cost() -> None:
    """Its zone has no other node, so it reports two of the three latencies of each link."""
    network = make_converged_network(3, 3, noise=0.002, node_count_by_zone={A: 1})
    latency_us_by_pair = get_latencies_us(network)
    network.forge_by_node[LIAR] = forge_fast_latency
    network.run_rounds(10)
    for pair, us in latency_us_by_pair.items():
        assert network.latency_us(*pair) == pytest.approx(us, rel=0.1), pair
    assert network.zone_costs.disputed_links or network.reported_nodes == {LIAR}


def test_two_writes_within_a_round_are_one_sample() -> None:
    network = make_converged_network(3, 1, noise=0.0)
    before_us = network.latency_us(A, B)
    network.scale_rtt(A, B, 0.2)
    network.run_rounds(1)
    for _ in range(3):
        network.rewrite_within_round()
    assert network.latency_us(A, B) == before_us
    network.run_rounds(1)
    assert network.latency_us(A, B) == pytest.approx(network.rtt_us[frozenset((A, B))], rel=0.03)


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_a_change_that_two_nodes_report_one_after_the_other_causes_no_dispute(factor: float) -> None:
    """Each writes at its own moment of the round, and the controller computes costs in between."""
    network = make_converged_network(4, 1, noise=0.001, staggered=True)
    network.scale_rtt(A, B, factor)
    for _ in range(4):
        network.run_rounds(1)
        assert not network.had_disputed_links
        assert not network.reported_nodes
    assert network.latency_us(A, B) == pytest.approx(network.rtt_us[frozenset((A, B))], rel=0.03)


def test_the_first_full_window_sets_the_cost_without_hysteresis() -> None:
    network = SimulatedNetwork(draw_rtts_us(3), 1, noise=0.0)
    network.rtt_us[frozenset((A, B))] = 95_000.0
    network.run_rounds(1)
    network.rtt_us[frozenset((A, B))] = 87_000.0
    network.run_rounds(8)
    assert network.costs[A, B] == 87
    network.rtt_us[frozenset((A, B))] = 80_000.0
    network.run_rounds(8)
    assert network.costs[A, B] == 87, "from then on it has hysteresis"
