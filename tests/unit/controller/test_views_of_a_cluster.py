"""What is shown follows from the objects: bases and doubts of pairs, states of agents, verdicts of groups, bandwidth, problems."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cli.bandwidth import Bandwidth, BandwidthAnswer
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GroupPod
from controller.cluster.resources import NETPERF_COSTS, NetworkTopology, TopologyInfo, WeightInfo
from controller.cluster.zones import facts_of
from controller.views.agents import build_agents
from controller.views.bandwidth import build_bandwidth
from controller.views.groups import build_groups
from controller.views.model import BandwidthView, Overview
from controller.views.network import build_network, by_pair, in_order
from controller.views.overview import build
from controller.views.problems import build_problems
from controller.views.snapshot import Alert, ClusterSnapshot, NodeReading, PodReading, Readings
from kubekit.wire import Condition, NodeStatus
from netperf.pairs import eligible
from netperf.results import encode_samples
from netperf.sample import Sample
from tests.unit.controller.made_up import BANDWIDTH, HOME, NOW_S, boutique_pods, make_node, make_pod, make_snapshot

RESULTS = f"{HOME}/netperf-metrics"
ALERTS = Path(__file__).parents[3] / "manifests" / "prometheus" / "alerts.rules.yaml"


def samples_of(snapshot: ClusterSnapshot) -> list[Sample]:
    return [msgspec.json.decode(value, type=Sample) for value in snapshot.results[RESULTS].values()]


def with_samples(snapshot: ClusterSnapshot, samples: list[Sample]) -> ClusterSnapshot:
    data = {key: value for key, value in encode_samples(samples).items() if value is not None}
    return msgspec.structs.replace(snapshot, results={RESULTS: data})


def bandwidth_pod(pod: GroupPod) -> PodInfo:
    return PodReader().read(pod)


def alerts_of(overview: Overview) -> set[str]:
    return {problem.alert for problem in overview.problems}


# --- the network -----------------------------------------------------------------------------------------------------


def test_a_healthy_cluster_has_a_measured_cost_for_every_pair_and_its_latencies() -> None:
    network = build_network(make_snapshot(4))
    assert len(network.pairs) == 12
    assert {pair.basis for pair in network.pairs} == {"measured", "mirrored"}
    for pair in network.pairs:
        assert pair.cost is not None
        assert pair.p90_us is not None
        assert pair.cost == max(2, -(-pair.p90_us // 1000))
        assert not pair.doubts
    assert network.planned == 6


def test_pairs_come_in_the_order_of_the_zones_and_numbers_in_names_count_as_numbers() -> None:
    assert in_order({"z10": "r", "z2": "r", "a1": "", "q": "a"}) == ["q", "z2", "z10", "a1"]
    network = build_network(make_snapshot(12))
    names = [zone.name for zone in network.zones]
    assert [(p.origin, p.destination) for p in network.pairs] == [(a, b) for a in names for b in names if a != b]


def test_an_old_sample_leaves_a_stale_cost_and_the_way_back_is_stale_with_it() -> None:
    snapshot = make_snapshot(4)
    samples = samples_of(snapshot)
    old = msgspec.structs.replace(samples[0], taken_at=NOW_S - 900)
    network = build_network(with_samples(snapshot, [old, *samples[1:]]))
    stale = {(p.origin, p.destination) for p in network.pairs if p.basis == "stale"}
    assert stale == {old.zones, old.zones[::-1]}


def test_a_pair_without_any_sample_is_inferred_from_the_others() -> None:
    snapshot = make_snapshot(4)
    samples = samples_of(snapshot)
    network = build_network(with_samples(snapshot, samples[1:]))
    assert by_pair(network.pairs)[samples[0].zones].basis == "inferred"


def test_a_doubtful_sample_is_shown_with_its_doubt() -> None:
    snapshot = make_snapshot(4)
    samples = samples_of(snapshot)
    doubted = msgspec.structs.replace(samples[0], doubts=("throttled",))
    overview = build(with_samples(snapshot, [doubted, *samples[1:]]))
    assert by_pair(overview.network.pairs)[doubted.zones].doubts == ("throttled",)
    assert "NetawareProbesDoubted" in alerts_of(overview)


def test_without_a_network_topology_there_are_latencies_but_no_costs_and_a_critical_problem() -> None:
    overview = build(msgspec.structs.replace(make_snapshot(4), topologies=()))
    assert all(pair.cost is None and pair.p50_us is not None for pair in overview.network.pairs)
    assert overview.problems[0].severity == "critical"


def test_the_weight_shown_is_the_one_that_the_scheduler_uses() -> None:
    snapshot = make_snapshot(2)
    topology = snapshot.topologies[0]

    def shown(*weights: WeightInfo, ask: str = "") -> str | None:
        spec = msgspec.structs.replace(topology.spec, weights=list(weights))
        changed = msgspec.structs.replace(topology, spec=spec)
        return build_network(msgspec.structs.replace(snapshot, topologies=(changed,)), "", ask).weights

    ours = topology.weight(NETPERF_COSTS)
    assert ours is not None
    empty = WeightInfo(name="UserDefined")
    users = WeightInfo(name="UserDefined", topology_list=[TopologyInfo(topology_key="x")])
    assert shown(ours, empty) == "NetperfCosts"
    assert shown(ours, users) == "UserDefined"
    assert shown(ours, users, ask="NetperfCosts") == "NetperfCosts"
    assert shown(ours, ask="Nothing") is None


def test_of_several_topologies_the_schedulers_is_shown_and_others_on_request() -> None:
    snapshot = make_snapshot(2)
    first = snapshot.topologies[0]
    other = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, name="a-first"))
    both = msgspec.structs.replace(snapshot, topologies=(other, first))
    assert build_network(both).topology == f"{HOME}/nt-default"
    assert build_network(both, "a-first").topology == f"{HOME}/a-first"
    assert build_network(both, "missing").topology is None


def test_a_cost_policy_that_makes_no_sense_shows_the_controllers_own() -> None:
    snapshot = make_snapshot(2)
    spec = msgspec.structs.replace(snapshot.topologies[0].spec, cost_policy=msgspec.Raw(b'{"unitUs": -3}'))
    broken = NetworkTopology(metadata=snapshot.topologies[0].metadata, spec=spec)
    assert build_network(msgspec.structs.replace(snapshot, topologies=(broken,))).unit_us == 1000


@pytest.mark.parametrize("elsewhere", [f"{HOME}/other", "shop/netperf-metrics", f"{HOME}/netperf-metrics-1"])
def test_a_topology_is_priced_from_the_results_that_the_controller_prices_it_from(elsewhere: str) -> None:
    """What another NetworkTopology names, and shards that no agent is told to write to, are not its own."""
    snapshot = make_snapshot(3)
    network = build_network(msgspec.structs.replace(snapshot, results={elsewhere: snapshot.results[RESULTS]}))
    assert {pair.basis for pair in network.pairs} == {"stale"}


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=40), st.text(max_size=60), max_size=8))
def test_whatever_stands_in_the_results_there_is_a_picture(noise: dict[str, str]) -> None:
    snapshot = make_snapshot(3)
    data = {**snapshot.results[RESULTS], **noise}
    overview = build(msgspec.structs.replace(snapshot, results={RESULTS: data}))
    assert len(overview.network.pairs) == 6
    msgspec.json.encode(overview)


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
    states = {a.node: (a.state, a.reason) for a in build_agents(ClusterSnapshot(now_s=NOW_S, nodes=nodes))}
    assert {node: state for node, (state, _) in states.items()} == {
        "n1": "up",
        "n2": "away",
        "n3": "down",
        "n4": "away",
    }
    assert all(reason for node, (_, reason) in states.items() if node != "n1")
    (first, *_) = build_agents(ClusterSnapshot(now_s=NOW_S, nodes=nodes, agent_pods=(bandwidth_pod(unready_pod),)))
    assert (first.node, first.state) == ("n1", "down")


def test_an_agent_is_up_where_the_planner_has_it_measure() -> None:
    announced = make_node("n1", "z1", "r1").metadata.annotations or {}
    nowhere = {key: text.replace("10.0.0.1", "n2.example") for key, text in announced.items()}
    named = make_node("n2", "z1", "r1")
    named = msgspec.structs.replace(named, metadata=msgspec.structs.replace(named.metadata, annotations=nowhere))
    nodes = (make_node("n1", "z1", "r1"), named, make_node("n3", "", ""), make_node("n4", "z1", "r1", agent=False))
    usable, _ = eligible(facts_of(node, {}) for node in nodes)
    up = {a.node for a in build_agents(ClusterSnapshot(now_s=NOW_S, nodes=nodes)) if a.state == "up"}
    assert up == {name for peers in usable.values() for name in peers} == {"n1"}


def test_a_zone_without_any_agent_is_critical() -> None:
    nodes = (make_node("n1", "z1", "r1"), make_node("n2", "z2", "r1", agent=False))
    overview = build(msgspec.structs.replace(make_snapshot(2), nodes=nodes))
    (problem,) = [p for p in overview.problems if p.alert == "NetawareAgentDown"]
    assert problem.severity == "critical"
    assert "z2" in problem.summary


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_has_its_order_its_pods_places_and_the_cost_of_every_dependency() -> None:
    snapshot = make_snapshot(4)
    (group,) = build_groups(snapshot, build_network(snapshot))
    assert group.order == ("P11", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P1")
    assert {w.selector: w.index for w in group.workloads}["P11"] == 1
    assert len(group.edges) == 15
    zones = {w.selector: w.pods[0].zone for w in group.workloads}
    for edge in group.edges:
        assert (edge.origin, edge.destination) == (zones[edge.dependant], zones[edge.dependency])
        assert edge.cost is not None
        within = edge.cost <= edge.max_cost or edge.origin == edge.destination
        assert edge.verdict == ("met" if within else "violated")
    assert group.violated == sum(edge.verdict == "violated" for edge in group.edges)
    assert group.running == 11


def test_finished_pods_do_not_count_and_unplaced_ones_leave_their_dependencies_idle() -> None:
    snapshot = make_snapshot(4)
    pods = list(snapshot.pods)
    frontend = next(i for i, p in enumerate(pods) if "frontend" in p.metadata.name)
    status = msgspec.structs.replace(pods[frontend].status, phase="Failed")
    pods[frontend] = msgspec.structs.replace(pods[frontend], status=status)
    changed = msgspec.structs.replace(snapshot, pods=tuple(pods))
    (group,) = build_groups(changed, build_network(changed))
    assert group.running == 10
    assert {e.verdict for e in group.edges if e.dependant == "P1"} == {"idle"}


# --- bandwidth -------------------------------------------------------------------------------------------------------


def test_bandwidth_is_what_is_asked_and_booked_and_only_agents_say_what_is_enforced() -> None:
    pods = [
        make_pod("a", node="n1", request="1G", annotations={"kubernetes.io/egress-bandwidth": "1G"}),
        make_pod("b", node="n1", annotations={"kubernetes.io/ingress-bandwidth": "ten"}),
        make_pod("c", node="n1", annotations={"kubernetes.io/ingress-bandwidth": "10"}),
        make_pod("d", node="n1", request="1M", annotations={"kubernetes.io/egress-bandwidth": "10M"}),
        make_pod("e", node="n1", request="9G", phase="Succeeded"),
        make_pod("f", node="n1"),
        make_pod("g", request="2G"),
    ]
    snapshot = ClusterSnapshot(
        now_s=NOW_S, nodes=(make_node("n1", "z1", "r1"),), bandwidth_pods=tuple(bandwidth_pod(p) for p in pods)
    )
    view = build_bandwidth(snapshot)
    assert [p.name for p in view.pods] == ["a", "b", "c", "d", "g"]
    assert {p.name: p.problem.split()[0] if p.problem else "" for p in view.pods} == {
        "a": "",
        "b": "ingress",
        "c": "ingress",
        "d": "requests",
        "g": "",
    }
    assert view.nodes[0].allocated_bps == 1_001_000_000
    assert view.pods[0].egress_verdict is None
    readings = Readings(
        source="http://p",
        pods={"default/a": PodReading(egress_verdict="wrapped", egress_used_bps=5.0)},
        nodes={"n1": NodeReading(transmit_bps=7.0)},
    )
    read = build_bandwidth(msgspec.structs.replace(snapshot, readings=readings))
    assert (read.pods[0].egress_verdict, read.pods[0].egress_used_bps) == ("wrapped", 5.0)
    assert read.nodes[0].transmit_bps == 7.0


def test_limits_are_read_as_the_agent_reads_them() -> None:
    asked = {"a": "999500m", "b": "10E", "c": "998500m", "d": "ten"}
    pods = [
        bandwidth_pod(make_pod(name, node="n1", annotations={"kubernetes.io/egress-bandwidth": text}))
        for name, text in asked.items()
    ]
    view = build_bandwidth(msgspec.structs.replace(make_snapshot(2), bandwidth_pods=tuple(pods)))
    assert (view.pods[0].egress_asked_bps, [pod.problem for pod in view.pods]) == (
        1000,
        ["", "egress 10E is unreasonably large", "egress 998500m is unreasonably small", "egress 'ten' is no quantity"],
    )


def test_a_node_without_a_capacity_shows_none_and_one_with_more_booked_than_it_has_is_a_problem() -> None:
    node = make_node("n1", "z1", "r1", capacity="")
    assert build_bandwidth(ClusterSnapshot(now_s=NOW_S, nodes=(node,))).nodes[0].capacity_bps is None
    small = msgspec.structs.replace(
        node, status=NodeStatus(allocatable={BANDWIDTH: "1G"}, conditions=[Condition("Ready", "True")])
    )
    pod = bandwidth_pod(make_pod("a", node="n1", request="2G"))
    snapshot = msgspec.structs.replace(make_snapshot(2), nodes=(small,), bandwidth_pods=(pod,))
    assert "NetawareBandwidthOvercommitted" in alerts_of(build(snapshot))
    none_left = msgspec.structs.replace(build(snapshot).bandwidth.nodes[0], allocatable_bps=0)
    shown = BandwidthAnswer(bandwidth=BandwidthView(nodes=(none_left,), pods=()), readings=False)
    assert Bandwidth().is_bad(shown), "a node that offers nothing any more"


# --- problems --------------------------------------------------------------------------------------------------------


def test_problems_carry_the_names_of_shipped_alerts() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    shipped = {rule["alert"] for group in groups for rule in group["rules"]}
    found = alerts_of(build(msgspec.structs.replace(make_snapshot(4), topologies=())))
    found |= alerts_of(build(make_snapshot(6)))
    found |= {"NetawareMeasurementsStale", "NetawareProbesDoubted", "NetawareAgentDown"}
    assert found <= shipped


def test_a_dead_pair_is_a_problem_of_its_own_and_not_one_without_a_measurement() -> None:
    snapshot = make_snapshot(4)
    network = build_network(snapshot)
    one = network.pairs[0]
    dead = msgspec.structs.replace(network, pairs=(msgspec.structs.replace(one, basis="unreachable"),))
    (problem,) = build_problems(dead, (), (), build_bandwidth(snapshot), Readings())
    assert problem.alert == "NetawareZonePairUnreachable"
    assert problem.examples == (f"{one.origin} to {one.destination}",)


@pytest.mark.parametrize(("error", "firing"), [("", True), ("refused", None)])
def test_prometheus_says_what_fires_and_adds_what_only_it_can_judge(error: str, firing: bool | None) -> None:
    alerts = (
        Alert(name="NetawareDependenciesViolated", severity="warning"),
        Alert(name="NetawareLatencyRegression", severity="warning", labels={"origin_zone": "a", "alertname": "x"}),
        Alert(name="SomebodyElses", severity="critical"),
    )
    readings = Readings(source="http://p", error=error, alerts=alerts)
    overview = build(msgspec.structs.replace(make_snapshot(6), readings=readings))
    by_name = {problem.alert: problem for problem in overview.problems}
    assert by_name["NetawareDependenciesViolated"].firing is firing
    assert ("NetawareLatencyRegression" in by_name) is bool(firing)
    assert "SomebodyElses" not in by_name
    if firing:
        assert by_name["NetawareLatencyRegression"].examples == ("origin_zone=a",)


def test_pods_on_one_node_cost_nothing_and_pods_of_one_zone_something() -> None:
    snapshot = make_snapshot(4)
    group = snapshot.groups[0]
    nodes = [node.metadata.name for node in snapshot.nodes]
    together = msgspec.structs.replace(snapshot, pods=tuple(boutique_pods(nodes[:1], group)))
    apart = msgspec.structs.replace(snapshot, pods=tuple(boutique_pods(nodes[:2], group)))
    assert {edge.cost for edge in build(together).groups[0].edges} == {0}
    assert {edge.cost for edge in build(apart).groups[0].edges} == {0, 1}
