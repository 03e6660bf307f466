"""Cost, violations and latency of a plan, and the routing and weights of the calls that these count, also by annotations."""

from __future__ import annotations

import random

import msgspec
import pytest

from controller.cluster.crds import AppGroup
from controller.cluster.services import Service
from controller.scheduler.placement.planner import Plan, plan_group
from tests.unit.controller import groups

PAIR = groups.make_chain((1, 1))
NEAR_SERVICE = groups.make_service("w1", "PreferSameZone")
TWO_CALLEES = groups.GroupCase((1, 1, 1), ((0, 1, 100), (0, 2, 100)), ((0, 9, 9), (9, 0, 9), (9, 9, 0)), (9, 9, 9))
"""w0 calls w1 and w2."""
MOSTLY_W1, MOSTLY_W2 = '{"w0": {"w1": 900, "w2": 5}}', '{"w0": {"w1": 5, "w2": 900}}'
BANDWIDTHS = ("1M", "900M")


def plan_with_weights(bandwidths: tuple[str, ...] = (), **annotations: str) -> Plan:
    """w1 stays in zone 1, w2 in zone 2; w0 goes where most of its traffic is. Bandwidths are those to w1 and w2."""
    body = msgspec.to_builtins(groups.make_group(TWO_CALLEES, **annotations))
    for dependency, bandwidth in zip(body["spec"]["workloads"][0]["dependencies"], bandwidths, strict=False):
        dependency["minBandwidth"] = bandwidth
    group = msgspec.convert(body, AppGroup)
    pods = [
        groups.make_waiting_pod("w0-0", "w0"),
        groups.make_bound_pod("w1-0", "w1", "n1"),
        groups.make_bound_pod("w2-0", "w2", "n2"),
    ]
    return groups.plan_case(TWO_CALLEES, pods=pods, group=group, objective="time")


@pytest.mark.parametrize("distribution", ["", "PreferSameZone", "PreferSameNode"])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_fits_and_its_values_equal_those_of_its_bound_pods(seed: int, distribution: str) -> None:
    case = groups.draw_case(random.Random(seed))
    tight = msgspec.structs.replace(case, edges=tuple((a, b, limit // 3) for a, b, limit in case.edges))
    services = [groups.make_service(f"w{i}", distribution) for i in range(len(case.replicas))]
    snapshot = groups.make_snapshot(tight, services=services, objective="time" if distribution else "parity")

    plan = plan_group(snapshot)
    for name, host in snapshot.hosts.items():
        pod_count = sum(target.node == name for target in plan.targets.values())
        assert pod_count <= host.allocatable["cpu"] // 1000

    bound = [
        groups.make_bound_pod(pod.metadata.name, pod.workload, plan.targets[pod.metadata.key].node)
        for pod in snapshot.pods
        if pod.metadata.key in plan.targets
    ]
    plan_of_bound = plan_group(msgspec.structs.replace(snapshot, pods=bound))
    assert (plan_of_bound.cost, plan_of_bound.violations) == (plan.cost, plan.violations)


@pytest.mark.parametrize(
    ("nodes", "cost", "violations"),
    [
        (("a", "b", "b"), 0 + 5, 1),
        (("d", "b", "b"), 0 + 1, 0),
        (("a", "c", "c"), 50 + 0, 1),
        (("a", "c", "b"), 5 + 5, 2),
    ],
)
def test_total_cost_sums_all_pairs_and_is_0_within_a_host(nodes: tuple[str, ...], cost: int, violations: int) -> None:
    """Two callers and a callee with limit 4; b and d are hosts of one zone, which costs 1."""
    hosts = [groups.make_zone_node(name, zone) for name, zone in (("a", "z0"), ("b", "z1"), ("c", "z2"), ("d", "z1"))]
    names = ("w0-0", "w0-1", "w1-0")
    pods = [groups.make_bound_pod(name, name[:2], node) for name, node in zip(names, nodes, strict=True)]
    plan = groups.plan_case(groups.make_chain((2, 1), limit=4), hosts, pods=pods)
    assert plan.cost == cost
    assert plan.violations == violations


@pytest.mark.parametrize("objective", ["parity", "time", "both"])
def test_latency_is_reported_for_every_objective(objective: str) -> None:
    plan = groups.plan_case(PAIR, groups.make_nodes(a=1, b=1), objective=objective)
    assert plan.cost == 5
    assert plan.latency_us == 5000.0


@pytest.mark.parametrize(
    ("services", "is_elsewhere", "is_near"),
    [((), False, False), ((NEAR_SERVICE,), False, True), ((NEAR_SERVICE,), True, False)],
    ids=["no Service", "one Service", "pods of a second namespace, where no Service selects them"],
)
def test_services_of_a_workload_decide_the_routing_of_its_calls(
    services: tuple[Service, ...], *, is_elsewhere: bool, is_near: bool
) -> None:
    """With several namespaces the Service with the weakest preference decides, not the first by name."""
    callers = [groups.make_bound_pod("w0-0", "w0", "a"), groups.make_bound_pod("w0-1", "w0", "b")]
    callees = [groups.make_waiting_pod("w1-0", "w1"), groups.make_waiting_pod("w1-1", "w1")]
    if is_elsewhere:
        callees[1] = groups.with_metadata(callees[1], namespace="elsewhere")
    used_by_callers = {"a": {"cpu": 1000}, "b": {"cpu": 1000}}
    plan = groups.plan_case(
        groups.make_chain((2, 2, 0)),
        groups.make_nodes(a=2, b=2),
        used=used_by_callers,
        pods=[*callers, *callees],
        objective="time",
        services=services,
    )
    # Without near routing, half of the calls go to the other zone: more than 5000 µs / 2.
    assert plan.latency_us < 1000.0 if is_near else plan.latency_us > 2000.0


@pytest.mark.parametrize(("caller_count", "zone"), [(3, "z2"), (2, "z3")])
def test_the_weight_of_a_dependency_is_its_number_of_callers(caller_count: int, zone: str) -> None:
    """w1 is called by replicas of w0, which are 5 or 15 away, and by one of w2, which is 30 or 5 away.

    Three callers of w0: 3 * 5 + 30 < 3 * 15 + 5. Two callers: 2 * 5 + 30 > 2 * 15 + 5.
    """
    cost = ((0, 30, 5, 15), (30, 0, 30, 5), (5, 30, 0, 20), (15, 5, 20, 0))
    case = groups.GroupCase((3, 1, 1), ((0, 1, 100), (2, 1, 100)), cost, (9, 9, 9, 9))
    pods = [groups.make_bound_pod(f"w0-{i}", "w0", "a") for i in range(caller_count)]
    pods += [groups.make_bound_pod("w2-0", "w2", "b"), groups.make_waiting_pod("w1-0", "w1")]
    full = {"a": {"cpu": 8000}, "b": {"cpu": 8000}}
    plan = groups.plan_case(case, groups.make_nodes(a=8, b=8, c=8, d=8), used=full, pods=pods, objective="time")
    assert groups.map_zones_by_pod(plan) == {"w1-0": zone}


@pytest.mark.parametrize(("has_topology", "latency_us"), [(True, 100_000), (False, 1000)])
def test_an_unmeasured_path_is_expensive_if_other_paths_are_measured(*, has_topology: bool, latency_us: float) -> None:
    """Without a NetworkTopology, zones count as near."""
    nodes = [groups.make_zone_node("a", "z0", "1"), groups.make_zone_node("b", "z9", "1")]
    assert groups.plan_case(PAIR, nodes, objective="time", has_topology=has_topology).latency_us == latency_us


@pytest.mark.parametrize(
    ("bandwidths", "annotations", "zone"),
    [
        pytest.param((), {"measured_weights": MOSTLY_W1}, "z1", id="measured"),
        pytest.param((), {"measured_weights": MOSTLY_W2}, "z2", id="measured otherwise"),
        pytest.param(BANDWIDTHS, {"measured_weights": MOSTLY_W1}, "z1", id="measured before bandwidths"),
        pytest.param(BANDWIDTHS, {}, "z2", id="bandwidths"),
        pytest.param((), {"measured_weights": MOSTLY_W1, "weights": MOSTLY_W2}, "z2", id="the user's first"),
        pytest.param(BANDWIDTHS, {"measured_weights": "{"}, "z2", id="unreadable"),
        pytest.param((), {"measured_weights": MOSTLY_W2, "weights": '{"x": {"y": 3}}'}, "z2", id="of no dependency"),
    ],
)
def test_the_plan_follows_the_users_weights_then_measured_traffic_then_bandwidths(
    bandwidths: tuple[str, ...], annotations: dict[str, str], zone: str
) -> None:
    assert plan_with_weights(bandwidths, **annotations).targets["default/w0-0"].zone == zone


def test_weights_out_of_range_are_left_out_and_reported() -> None:
    plan = plan_with_weights(weights='{"w0": {"w1": 1.7e308, "w2": -1}}')
    assert plan.latency_us < 1e9
    assert plan.annotation_errors == ("annotation netaware.io/weights: not within 0 to 1e+18: w0 to w1, w0 to w2",)


def test_unreadable_annotations_are_reported_once_and_count_as_absent() -> None:
    pair = groups.make_chain((1, 1))
    group = groups.make_group(pair, spread="everywhere", objective="speed", weights="{")
    pods = [groups.make_waiting_pod("w0-0", "w0"), groups.make_waiting_pod("w1-0", "w1")]
    annotated_pods = [groups.with_metadata(pod, annotations=group.metadata.annotations) for pod in pods]
    plan = groups.plan_case(pair, group=group, pods=annotated_pods)
    assert len(plan.annotation_errors) == len(set(plan.annotation_errors)) == 3
    assert plan.annotation_errors[0].startswith("annotation netaware.io/spread: 'everywhere' is none of")
    assert len({target.node for target in plan.targets.values()}) == 1
