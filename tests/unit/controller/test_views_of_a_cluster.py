"""The overview of a simulated cluster: pairs of zones, agents, AppGroups, bandwidth and findings."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.diagnosis.control_plane import ControlPlaneStatus
from controller.diagnosis.findings import Finding
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.topology.probe_nodes import to_probe_node
from controller.views.overview import build_overview
from kubekit.wire import Condition, NodeStatus
from netperf.contract import ZONE_LABEL
from netperf.pairs import select_probe_nodes
from tests.unit.controller.healthy_cluster import (
    BANDWIDTH,
    HOME,
    NOW_S,
    RESULTS,
    make_cluster_snapshot,
    make_node,
    make_pod,
    read_pod_info,
    read_samples,
    replace_samples,
)

SNAPSHOT = make_cluster_snapshot(4)
"""A healthy cluster of four zones."""


def read_findings(snapshot: ClusterSnapshot) -> dict[str, Finding]:
    """The findings of a snapshot, by code; the state of netaware's programs is unknown."""
    status = ControlPlaneStatus(is_lease_conclusive=False)
    overview = build_overview(replace(snapshot, control_plane=status))
    return {finding.code: finding for finding in overview.findings}


def test_the_basis_of_a_cost_follows_from_the_newest_sample_and_the_topology() -> None:
    sample, *others = read_samples(SNAPSHOT)
    zones = sample.zones

    old_sample = replace(sample, taken_at=NOW_S - 900)
    network = build_overview(replace_samples(SNAPSHOT, [old_sample, *others])).network
    assert {ends for ends, pair in network.pairs_by_zones.items() if pair.basis == "stale"} == {zones, zones[::-1]}

    assert build_overview(replace_samples(SNAPSHOT, others)).network.pairs_by_zones[zones].basis == "inferred"

    flagged_sample = replace(sample, quality_flags=("throttled",))
    network = build_overview(replace_samples(SNAPSHOT, [flagged_sample, *others])).network
    assert network.pairs_by_zones[zones].quality_flags == ("throttled",)


def test_without_a_topology_pairs_have_latencies_but_no_costs() -> None:
    without_topology = replace(SNAPSHOT, topologies=())
    pairs = build_overview(without_topology).network.pairs
    assert all(pair.cost is None and pair.p50_us is not None for pair in pairs)
    assert read_findings(without_topology)["no-topology"].severity == "critical"


def test_a_pair_shows_the_round_trips_of_the_measurement_that_gives_its_cost() -> None:
    sample, *others = read_samples(SNAPSHOT)
    # Too few datagrams for a p99, so the cost would use netperf's.
    datagrams = replace(sample.measurement, prober="datagrams", p50_us=1500.0, p90_us=1700.0, transactions=60)
    sample = replace(sample, datagrams=datagrams, cost_source="datagrams")
    pair = build_overview(replace_samples(SNAPSHOT, [sample, *others])).network.pairs_by_zones[sample.zones]
    assert (pair.prober, pair.p50_us, pair.p90_us) == ("datagrams", 1500.0, 1700.0)
    assert pair.p99_us == sample.measurement.p99_us


@pytest.mark.parametrize("unused_key", [f"{HOME}/other", "shop/netperf-metrics", f"{HOME}/netperf-metrics-1"])
def test_results_that_the_topology_does_not_use_are_not_shown(unused_key: str) -> None:
    network = build_overview(replace(SNAPSHOT, results={unused_key: SNAPSHOT.results[RESULTS]})).network
    assert {pair.basis for pair in network.pairs} == {"stale"}


def test_agents_are_up_if_the_probe_plan_uses_them_and_down_or_excluded_with_a_reason() -> None:
    cordoned = make_node("n4", "z1", "r1")
    nodes = (
        make_node("n1", "z1", "r1"),
        make_node("n2", "z1", "r1", ready=False),
        make_node("n3", "z1", "r1", agent=False),
        replace(cordoned, spec=replace(cordoned.spec, unschedulable=True)),
        make_node("n5", "z1", "r1", address="n5.example"),
        make_node("n6", "", ""),
    )
    agents = build_overview(ClusterSnapshot(now_s=NOW_S, nodes=nodes)).agents
    assert {agent.node: agent.state for agent in agents} == {
        "n1": "up",
        "n2": "excluded",
        "n3": "down",
        "n4": "excluded",
        "n5": "down",
        "n6": "excluded",
    }
    assert all(agent.reason for agent in agents if agent.node != "n1")
    usable, _ = select_probe_nodes(to_probe_node(node, {}) for node in nodes)
    assert [name for peers in usable.values() for name in peers] == ["n1"]


def test_an_agent_is_down_for_the_reason_that_it_announces_while_its_pod_is_not_ready() -> None:
    pod = make_pod("agent-x", node="n1", namespace=HOME)
    not_ready = replace(pod.status, conditions=[Condition("Ready", "False")])
    agent_pod = read_pod_info(replace(pod, status=not_ready))
    for problem in ("", "results are refused"):
        node = make_node("n1", "z1", "r1", problem=problem)
        (agent,) = build_overview(ClusterSnapshot(now_s=NOW_S, nodes=(node,), agent_pods=(agent_pod,))).agents
        assert agent.state == "down"
        assert problem in agent.reason


def test_an_agent_that_only_answers_probes_has_no_result() -> None:
    sample = read_samples(SNAPSHOT)[0]
    newest_at = {agent.node: agent.newest_at for agent in build_overview(replace_samples(SNAPSHOT, [sample])).agents}
    assert (newest_at[sample.origin.node], newest_at[sample.destination.node]) == (sample.taken_at, None)


def test_a_group_has_its_order_the_zones_of_its_pods_and_the_cost_of_every_dependency() -> None:
    (group,) = build_overview(SNAPSHOT).groups
    assert group.order == ("P11", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P1")
    assert {workload.selector: workload.index for workload in group.workloads}["P11"] == 1
    assert len(group.dependencies) == 15
    zones = {workload.selector: workload.pods[0].zone for workload in group.workloads}
    for edge in group.dependencies:
        assert (edge.origin, edge.destination) == (zones[edge.caller], zones[edge.callee])
        assert edge.cost is not None
        within = edge.cost <= edge.max_cost or edge.origin == edge.destination
        assert edge.verdict == ("met" if within else "violated")
    assert group.violated_dependencies == sum(edge.verdict == "violated" for edge in group.dependencies)
    assert group.running_pods == 11


def test_the_loss_of_a_zone_stops_workloads_that_are_in_no_other() -> None:
    (group,) = build_overview(SNAPSHOT).groups
    zones = {workload.selector: workload.pods[0].zone for workload in group.workloads}
    other_node = next(node for node in SNAPSHOT.nodes if node.metadata.label(ZONE_LABEL) != zones["P1"])
    second_pod = make_pod("second", node=other_node.metadata.name, labels=SNAPSHOT.pods[0].metadata.labels)
    (group,) = build_overview(replace(SNAPSHOT, pods=(*SNAPSHOT.pods, second_pod))).groups
    stopped = {workload: loss.zone for loss in group.zone_losses for workload in loss.stopped_workloads}
    assert stopped == {workload: zone for workload, zone in zones.items() if workload != "P1"}, "P1 has two zones"


def test_bandwidth_shows_limits_requests_and_their_problems() -> None:
    pods = [
        make_pod("a", node="n1", request="1G", annotations={"kubernetes.io/egress-bandwidth": "1G"}),
        make_pod("b", node="n1", annotations={"kubernetes.io/ingress-bandwidth": "ten"}),
        make_pod("c", node="n1", annotations={"kubernetes.io/egress-bandwidth": "998500m"}),
        make_pod("d", node="n1", request="1G", annotations={"kubernetes.io/egress-bandwidth": "1000000001"}),
        make_pod("e", node="n1", request="9G", phase="Succeeded"),
        make_pod("f", node="n1"),
        make_pod("g", request="2G"),
        make_pod("h", node="n1", annotations={"kubernetes.io/egress-bandwidth": "999500m"}),
    ]
    snapshot = ClusterSnapshot(
        now_s=NOW_S, nodes=(make_node("n1", "z1", "r1"),), bandwidth_pods=tuple(map(read_pod_info, pods))
    )
    view = build_overview(snapshot).bandwidth
    assert {pod.name: pod.problem for pod in view.pods} == {
        "a": "",
        "b": "ingress 'ten' is not a quantity",
        "c": "egress 998500m is unreasonably small",
        "d": "requests 1000 Mbit/s but is limited to 1000.000001 Mbit/s",
        "g": "",
        "h": "",
    }
    assert view.pods[-1].egress_limit_bps == 1000, "rounded as the agent rounds"
    assert view.nodes[0].allocated_bps == 2_000_000_000, "a and d; e is over, and g on no node"
    assert view.pods[0].egress_verdict is None


def test_a_missing_capacity_is_none_and_an_overcommitted_node_is_a_finding() -> None:
    node = make_node("n1", "z1", "r1", capacity="")
    assert build_overview(ClusterSnapshot(now_s=NOW_S, nodes=(node,))).bandwidth.nodes[0].capacity_bps is None
    small_node = replace(
        node, status=NodeStatus(allocatable={BANDWIDTH: "1G"}, conditions=[Condition("Ready", "True")])
    )
    pod = read_pod_info(make_pod("a", node="n1", request="2G"))
    snapshot = replace(SNAPSHOT, nodes=(small_node,), bandwidth_pods=(pod,))
    assert read_findings(snapshot)["bandwidth-overcommitted"].affects == ("n1",)
    node_view = replace(build_overview(snapshot).bandwidth.nodes[0], allocatable_bps=0)
    assert node_view.is_overcommitted, "allocatable 0 with requests"


@pytest.mark.parametrize(("age_s", "code"), [(0, ""), (900, "pairs-stale"), (20_000, "pairs-unmeasured")])
def test_an_old_sample_is_one_finding(age_s: float, code: str) -> None:
    sample, *others = read_samples(SNAPSHOT)
    old_sample = replace(sample, taken_at=sample.taken_at - age_s)
    findings = read_findings(replace_samples(SNAPSHOT, [old_sample, *others])).values()
    assert [finding.code for finding in findings if finding.severity != "info"] == ([code] if code else [])


def test_an_unenforced_limit_is_a_finding() -> None:
    verdicts = {"default/a": {"egress": "no-limit"}, "default/b": {"egress": "enforced"}}
    annotations = {"kubernetes.io/egress-bandwidth": "1G"}
    pods = tuple(read_pod_info(make_pod(name, node="n1", annotations=annotations)) for name in "ab")
    snapshot = replace(SNAPSHOT, verdicts_by_pod=verdicts, bandwidth_pods=pods)
    assert read_findings(snapshot)["limits-not-enforced"].affects == ("default/a",)
