"""Costs follow a simulated network through spikes, changes, cuts, slow or lying nodes, and rotations."""

from __future__ import annotations

import pytest

from netperf import pairs
from tests.support.simulated_network import SimulatedNetwork, draw_rtts_us, forge_results

A, B, C = "zone-000", "zone-001", "zone-002"


def make_converged_network(zones: int = 6, nodes: int = 3, **options: object) -> SimulatedNetwork:
    network = SimulatedNetwork(draw_rtts_us(zones), nodes, **options)  # type: ignore[arg-type]
    network.run_rounds(8)
    return network


def test_a_quiet_network_with_spikes_and_rotations_writes_at_most_twice_an_hour() -> None:
    network = make_converged_network(spike_ratio=0.01)
    assert network.run_rounds(60) <= 2


def planned_pairs(network: SimulatedNetwork) -> set[tuple[str, str]]:
    """Origin and destination nodes of all planned probes."""
    return {p.nodes for plan in network.plans.values() for p in plan.probes}


@pytest.mark.parametrize(("factor", "rounds"), [(1.3, 2), (0.7, 2), (1.05, 10), (0.95, 10)])
def test_a_changed_latency_changes_the_cost_soon(factor: float, rounds: int) -> None:
    network = make_converged_network(noise=0.002)
    before = network.latency_us(A, B)
    assert before is not None
    network.scale_rtt(A, B, factor)
    assert network.run_rounds(rounds) >= 1
    after = network.latency_us(A, B)
    assert after == pytest.approx(before * factor, rel=0.02)
    assert network.latency_us(A, C) == pytest.approx(network.rtt_us[frozenset((A, C))], rel=0.03)


def test_a_rotation_changes_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "ROTATION_S", 60.0)
    network = make_converged_network(nodes=8, noise=0.002)
    before = dict(network.costs)
    planned = planned_pairs(network)
    assert network.run_rounds(20) <= 1
    assert network.costs == before
    assert len(planned_pairs(network) - planned) > 15


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_cut_path_is_unreachable_within_three_rounds_and_back_within_one(nodes: int) -> None:
    network = make_converged_network(6, nodes)
    before = dict(network.costs)
    network.cut_zone_pairs.add(frozenset((A, B)))
    network.run_rounds(3)
    unreachable_pairs = {
        pair for pair, entry in network.zone_costs.by_zone_pair.items() if entry.basis == "unreachable"
    }
    assert unreachable_pairs == {(A, B), (B, A)}
    assert {network.costs[pair] for pair in unreachable_pairs} == {10_001}
    assert network.latency_us(A, B) is None
    assert (A, B) in network.latencies.unreachable_pairs
    assert {p for p in before if network.costs[p] != before[p]} == unreachable_pairs
    network.run_rounds(20)
    assert network.zone_costs.by_zone_pair[A, B].basis == "unreachable"
    network.cut_zone_pairs.clear()
    network.run_rounds(1)
    assert network.costs == before
    assert network.zone_costs.by_zone_pair[A, B].basis in {"measured", "mirrored"}


def test_a_slow_node_is_reported_and_does_not_change_costs_of_its_zone() -> None:
    network = make_converged_network(6, 6, noise=0.002)
    before = dict(network.costs)
    measured_nodes = [node for plan in network.plans.values() for probe in plan.probes for node in probe.nodes]
    victim = max(sorted(set(measured_nodes)), key=measured_nodes.count)
    network.offset_us[victim] = 8000.0
    network.run_rounds(6)
    assert network.reported_nodes == {victim}
    assert network.zone_costs.error_us_by_outlier[victim] == pytest.approx(8000, rel=0.2)
    assert {p for p in before if abs(network.costs[p] - before[p]) > 1} == set()


def test_a_frozen_node_changes_no_cost_of_its_zone() -> None:
    network = make_converged_network(6, 3)
    before = dict(network.costs)
    network.silent_nodes.add(f"{A}-n0")
    network.run_rounds(10)
    assert network.costs == before
    assert "unreachable" not in {entry.basis for entry in network.zone_costs.by_zone_pair.values()}


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_lying_agent_is_reported_and_changes_latencies_by_at_most_a_tenth(nodes: int) -> None:
    network = make_converged_network(5, nodes, noise=0.002)
    before = {pair: network.latency_us(*pair) for pair in network.costs}
    liar = f"{A}-n0"
    network.forge_by_node[liar] = lambda _probe, us: us / 15
    network.run_rounds(10)
    for pair, before_us in before.items():
        now_us = network.latency_us(*pair)
        assert before_us is not None
        assert now_us is not None
        assert abs(now_us - before_us) <= (0.1 if A in pair else 0.031) * before_us, pair
    assert network.reported_nodes == {liar}


def test_an_agent_that_lies_from_the_start_is_reported() -> None:
    network = SimulatedNetwork(draw_rtts_us(8), 1, noise=0.002)
    liar = f"{A}-n0"
    network.forge_by_node[liar] = lambda _probe, us: us / 15
    network.run_rounds(5)
    assert network.reported_nodes == {liar}
    for zones, us in network.rtt_us.items():
        a, b = sorted(zones)
        assert network.latency_us(a, b) == pytest.approx(us, rel=0.05)


def test_unplanned_results_are_refused_with_their_writer() -> None:
    network = make_converged_network(6, 3)
    before = dict(network.costs)
    liar = network.locations[f"{A}-n0"]
    planned = planned_pairs(network)
    others = [at for at in network.locations.values() if at.zone != A and (liar.node, at.node) not in planned]
    network.foreign_results = forge_results([(liar, place, 100.0) for place in others], 10**9, network.now_s)
    network.run_rounds(3)
    assert network.refusal_counts == {"unplanned": len(others)}
    assert network.reported_nodes == {liar.node}
    assert network.costs == before


def test_a_liar_that_writes_most_latencies_of_a_link_is_disputed_and_changes_no_cost() -> None:
    """Its zone has no other node, so it reports two of the three latencies of each link."""
    network = make_converged_network(3, 3, noise=0.002, node_count_by_zone={A: 1})
    liar = f"{A}-n0"
    reporters = [
        p.origin.node
        for plan in network.plans.values()
        for p in plan.probes
        if {A, B} == {p.origin.zone, p.destination.zone}
    ]
    assert len(reporters) == 3
    before = {pair: network.latency_us(*pair) for pair in network.costs}
    network.forge_by_node[liar] = lambda _probe, us: us / 15
    network.run_rounds(10)
    for pair, before_us in before.items():
        assert network.latency_us(*pair) == pytest.approx(before_us, rel=0.1), pair
    assert network.zone_costs.disputed_links or network.reported_nodes == {liar}


def test_two_writes_within_a_round_are_one_sample() -> None:
    network = make_converged_network(3, 1, noise=0.0)
    before = network.latency_us(A, B)
    network.scale_rtt(A, B, 0.2)
    network.run_rounds(1)
    for _ in range(3):
        network.rewrite_within_round()
    assert network.latency_us(A, B) == before
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
