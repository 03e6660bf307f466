"""What is shown follows from the objects: bases and doubts of pairs, states of agents, verdicts of groups, bandwidth, findings."""

from __future__ import annotations

import msgspec
import pytest

from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GroupPod
from controller.cluster.zones import to_probe_node
from controller.diagnosis.findings import Finding
from controller.diagnosis.snapshot import ClusterSnapshot, ControlPlaneStatus
from controller.diagnosis.zones import by_pair
from controller.views.overview import build
from kubekit.wire import Condition, NodeStatus
from netperf.contract import AGENT_ANNOTATION, ZONE_LABEL, Announcement, encode_announcement
from netperf.pairs import eligible
from netperf.results import encode_samples
from netperf.sample import Sample
from tests.unit.controller.made_up import BANDWIDTH, HOME, NOW_S, make_node, make_pod, make_snapshot

RESULTS = f"{HOME}/netperf-metrics"


def samples_of(snapshot: ClusterSnapshot) -> list[Sample]:
    return [msgspec.json.decode(value, type=Sample) for value in snapshot.results[RESULTS].values()]


def with_samples(snapshot: ClusterSnapshot, samples: list[Sample]) -> ClusterSnapshot:
    data = {key: value for key, value in encode_samples(samples).items() if value is not None}
    return msgspec.structs.replace(snapshot, results={RESULTS: data})


def bandwidth_pod(pod: GroupPod) -> PodInfo:
    return PodReader().read(pod)


def diagnosed(snapshot: ClusterSnapshot) -> dict[str, Finding]:
    """The findings of a snapshot whose own programs nobody may read, by code."""
    status = ControlPlaneStatus(lease_known=False)
    return {
        finding.code: finding for finding in build(msgspec.structs.replace(snapshot, control_plane=status)).findings
    }


# --- the network -----------------------------------------------------------------------------------------------------


def test_a_healthy_cluster_has_a_measured_cost_for_every_pair_and_its_latencies() -> None:
    network = build(make_snapshot(4)).network
    assert len(network.pairs) == 12
    assert {pair.basis for pair in network.pairs} == {"measured", "mirrored"}
    for pair in network.pairs:
        assert pair.cost is not None
        assert pair.p90_us is not None
        assert pair.cost == max(2, -(-pair.p90_us // 1000))
        assert not pair.quality_flags


def test_what_a_cost_rests_on_follows_from_the_newest_sample() -> None:
    snapshot = make_snapshot(4)
    first, *others = samples_of(snapshot)
    old = msgspec.structs.replace(first, taken_at=NOW_S - 900)
    network = build(with_samples(snapshot, [old, *others])).network
    assert {(p.origin, p.destination) for p in network.pairs if p.basis == "stale"} == {old.zones, old.zones[::-1]}
    assert by_pair(build(with_samples(snapshot, others)).network.pairs)[first.zones].basis == "inferred"
    doubted = msgspec.structs.replace(first, quality_flags=("throttled",))
    shown = by_pair(build(with_samples(snapshot, [doubted, *others])).network.pairs)
    assert shown[doubted.zones].quality_flags == ("throttled",)


def test_without_a_network_topology_there_are_latencies_but_no_costs_and_a_critical_finding() -> None:
    snapshot = msgspec.structs.replace(make_snapshot(4), topologies=())
    assert all(pair.cost is None and pair.p50_us is not None for pair in build(snapshot).network.pairs)
    assert diagnosed(snapshot)["no-topology"].severity == "critical"


@pytest.mark.parametrize("elsewhere", [f"{HOME}/other", "shop/netperf-metrics", f"{HOME}/netperf-metrics-1"])
def test_a_topology_is_priced_from_the_results_that_the_controller_prices_it_from(elsewhere: str) -> None:
    """What another NetworkTopology names, and shards that no agent is told to write to, are not its own."""
    snapshot = make_snapshot(3)
    network = build(msgspec.structs.replace(snapshot, results={elsewhere: snapshot.results[RESULTS]})).network
    assert {pair.basis for pair in network.pairs} == {"stale"}


# --- agents ----------------------------------------------------------------------------------------------------------


def test_agents_are_up_down_or_not_asked_for_and_say_why() -> None:
    not_ready = make_node("n2", "z1", "r1", ready=False)
    cordoned = make_node("n4", "z1", "r1")
    cordoned = msgspec.structs.replace(cordoned, spec=msgspec.structs.replace(cordoned.spec, unschedulable=True))
    nodes = (make_node("n1", "z1", "r1"), not_ready, make_node("n3", "z1", "r1", agent=False), cordoned)
    unready_pod = make_pod("agent-x", node="n1", namespace=HOME)
    unready_pod = msgspec.structs.replace(
        unready_pod, status=msgspec.structs.replace(unready_pod.status, conditions=[Condition("Ready", "False")])
    )
    states = {a.node: (a.state, a.reason) for a in build(ClusterSnapshot(now_s=NOW_S, nodes=nodes)).agents}
    assert {node: state for node, (state, _) in states.items()} == {
        "n1": "up",
        "n2": "away",
        "n3": "down",
        "n4": "away",
    }
    assert all(reason for node, (_, reason) in states.items() if node != "n1")
    (first, *_) = build(ClusterSnapshot(now_s=NOW_S, nodes=nodes, agent_pods=(bandwidth_pod(unready_pod),))).agents
    assert (first.node, first.state) == ("n1", "down")
    reporting = {AGENT_ANNOTATION: encode_announcement(Announcement("10.0.0.1", problem="results are refused"))}
    meta = msgspec.structs.replace(nodes[0].metadata, annotations=reporting)
    nodes = (msgspec.structs.replace(nodes[0], metadata=meta), *nodes[1:])
    (first, *_) = build(ClusterSnapshot(now_s=NOW_S, nodes=nodes, agent_pods=(bandwidth_pod(unready_pod),))).agents
    assert "results are refused" in first.reason


def test_an_agent_is_up_where_the_planner_has_it_measure() -> None:
    announced = make_node("n1", "z1", "r1").metadata.annotations or {}
    nowhere = {key: text.replace("10.0.0.1", "n2.example") for key, text in announced.items()}
    named = make_node("n2", "z1", "r1")
    named = msgspec.structs.replace(named, metadata=msgspec.structs.replace(named.metadata, annotations=nowhere))
    nodes = (make_node("n1", "z1", "r1"), named, make_node("n3", "", ""), make_node("n4", "z1", "r1", agent=False))
    usable, _ = eligible(to_probe_node(node, {}) for node in nodes)
    up = {a.node for a in build(ClusterSnapshot(now_s=NOW_S, nodes=nodes)).agents if a.state == "up"}
    assert up == {name for peers in usable.values() for name in peers} == {"n1"}


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_has_its_order_its_pods_places_and_the_cost_of_every_dependency() -> None:
    snapshot = make_snapshot(4)
    (group,) = build(snapshot).groups
    assert group.order == ("P11", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P1")
    assert {w.selector: w.index for w in group.workloads}["P11"] == 1
    assert len(group.edges) == 15
    zones = {w.selector: w.pods[0].zone for w in group.workloads}
    for edge in group.edges:
        assert (edge.origin, edge.destination) == (zones[edge.dependant], zones[edge.dependency])
        assert edge.cost is not None
        within = edge.cost <= edge.max_cost or edge.origin == edge.destination
        assert edge.state == ("met" if within else "violated")
    assert group.violated == sum(edge.state == "violated" for edge in group.edges)
    assert group.running == 11
    first, elsewhere = snapshot.pods[0], next(n for n in snapshot.nodes if n.metadata.label(ZONE_LABEL) != zones["P1"])
    second = make_pod("second", node=elsewhere.metadata.name, labels=first.metadata.labels)
    (group,) = build(msgspec.structs.replace(snapshot, pods=(*snapshot.pods, second))).groups
    stopped = {workload: loss.zone for loss in group.zone_losses for workload in loss.stops}
    assert stopped == {workload: zone for workload, zone in zones.items() if workload != "P1"}, "P1 has two zones"


# --- bandwidth -------------------------------------------------------------------------------------------------------


def test_bandwidth_is_what_is_asked_and_booked_and_only_agents_say_what_is_enforced() -> None:
    pods = [
        make_pod("a", node="n1", request="1G", annotations={"kubernetes.io/egress-bandwidth": "1G"}),
        make_pod("b", node="n1", annotations={"kubernetes.io/ingress-bandwidth": "ten"}),
        make_pod("c", node="n1", annotations={"kubernetes.io/egress-bandwidth": "998500m"}),
        make_pod("d", node="n1", request="1M", annotations={"kubernetes.io/egress-bandwidth": "10M"}),
        make_pod("e", node="n1", request="9G", phase="Succeeded"),
        make_pod("f", node="n1"),
        make_pod("g", request="2G"),
        make_pod("h", node="n1", annotations={"kubernetes.io/egress-bandwidth": "999500m"}),
    ]
    snapshot = ClusterSnapshot(
        now_s=NOW_S, nodes=(make_node("n1", "z1", "r1"),), bandwidth_pods=tuple(bandwidth_pod(p) for p in pods)
    )
    view = build(snapshot).bandwidth
    assert {p.name: p.problem for p in view.pods} == {
        "a": "",
        "b": "ingress 'ten' is no quantity",
        "c": "egress 998500m is unreasonably small",
        "d": "requests 1 Mbit/s but is limited to 10 Mbit/s",
        "g": "",
        "h": "",
    }
    assert view.pods[-1].egress_asked_bps == 1000, "rounded as the agent rounds"
    assert view.nodes[0].allocated_bps == 1_001_000_000
    assert view.pods[0].egress_verdict is None


def test_a_node_without_a_capacity_shows_none_and_one_with_more_booked_than_it_has_is_a_finding() -> None:
    node = make_node("n1", "z1", "r1", capacity="")
    assert build(ClusterSnapshot(now_s=NOW_S, nodes=(node,))).bandwidth.nodes[0].capacity_bps is None
    small = msgspec.structs.replace(
        node, status=NodeStatus(allocatable={BANDWIDTH: "1G"}, conditions=[Condition("Ready", "True")])
    )
    pod = bandwidth_pod(make_pod("a", node="n1", request="2G"))
    snapshot = msgspec.structs.replace(make_snapshot(2), nodes=(small,), bandwidth_pods=(pod,))
    assert diagnosed(snapshot)["bandwidth-overcommitted"].affects == ("n1",)
    none_left = msgspec.structs.replace(build(snapshot).bandwidth.nodes[0], allocatable_bps=0)
    assert none_left.overcommitted, "a node that offers nothing any more"


# --- findings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_s", "code"), [(0, ""), (900, "pairs-stale"), (20_000, "pairs-unmeasured")])
def test_an_old_sample_is_one_finding(age_s: float, code: str) -> None:
    snapshot = make_snapshot(4)
    samples = [msgspec.structs.replace(each, taken_at=each.taken_at - age_s) for each in samples_of(snapshot)[:1]]
    found = diagnosed(with_samples(snapshot, [*samples, *samples_of(snapshot)[1:]]))
    assert [each.code for each in found.values() if each.severity != "info"] == ([code] if code else [])


def test_a_limit_that_does_not_hold_is_a_finding() -> None:
    verdicts = {"default/a": {"egress": "no-limit"}, "default/b": {"egress": "enforced"}}
    limited = {"kubernetes.io/egress-bandwidth": "1G"}
    pods = tuple(bandwidth_pod(make_pod(name, node="n1", annotations=limited)) for name in "ab")
    found = diagnosed(msgspec.structs.replace(make_snapshot(2), verdicts=verdicts, bandwidth_pods=pods))
    assert found["limits-not-enforced"].affects == ("default/a",)
