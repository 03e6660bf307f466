"""What an AppGroup says of its traffic, and who says it when several do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.graph import build_graph
from controller.cluster.pods import GroupPod
from controller.cluster.resources import AppGroup
from controller.scheduler.planner import Plan, plan_group
from controller.traffic.weights import measured_traffic
from tests.unit.controller import groups

CASE = groups.Case((1, 1, 1), ((0, 1, 100), (0, 2, 100)), ((0, 9, 9), (9, 0, 9), (9, 9, 0)), (9, 9, 9))
"""w0 calls w1 and w2."""


def bound(name: str, workload: str, node: str) -> GroupPod:
    waiting = groups.waiting_pod(name, workload)
    spec = msgspec.structs.replace(waiting.spec, node_name=node, scheduling_gates=None)
    return msgspec.structs.replace(waiting, spec=spec)


def group_with(bandwidths: tuple[str, str] | None = None, **annotations: str) -> AppGroup:
    group = groups.group_of(CASE)
    named = {f"netaware.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    raw: dict[str, Any] = msgspec.to_builtins(group)
    raw["metadata"]["annotations"] = named
    for dependency, rate in zip(raw["spec"]["workloads"][0]["dependencies"], bandwidths or (), strict=False):
        dependency["minBandwidth"] = rate
    return msgspec.convert(raw, AppGroup)


def plan_of(group: AppGroup) -> Plan:
    """w1 stays in zone 1, w2 in zone 2; w0 goes where most of its traffic is."""
    pods = [groups.waiting_pod("w0-0", "w0"), bound("w1-0", "w1", "n1"), bound("w2-0", "w2", "n2")]
    base = groups.snapshot_of(CASE)
    graph = build_graph(group.spec)
    return plan_group(msgspec.structs.replace(base, graph=graph, pods=pods, group=group, objective="time"))


TO_1, TO_2 = '{"w0": {"w1": 900, "w2": 5}}', '{"w0": {"w1": 5, "w2": 900}}'


@pytest.mark.parametrize(
    ("group", "zone"),
    [
        (group_with(measured_weights=TO_1), "z1"),
        (group_with(measured_weights=TO_2), "z2"),
        (group_with(("1M", "900M"), measured_weights=TO_1), "z1"),
        (group_with(("1M", "900M")), "z2"),
        (group_with(measured_weights=TO_1, weights=TO_2), "z2"),
        (group_with(("1M", "900M"), measured_weights="{"), "z2"),
        (group_with(measured_weights=TO_2, weights='{"x": {"y": 3}}'), "z2"),
    ],
    ids=["measured", "measured-otherwise", "before-bandwidth", "bandwidth", "user-first", "unreadable", "of-no-pair"],
)
def test_the_plan_follows_the_users_weights_then_measured_traffic_then_bandwidths(group: AppGroup, zone: str) -> None:
    assert plan_of(group).targets["default/w0-0"].zone == zone


def test_measured_traffic_that_makes_no_sense_is_left_out_and_told() -> None:
    problems: list[str] = []
    assert measured_traffic(group_with(measured_weights='{"w0": {"w1": -1, "w2": 7.5}}'), problems) == {
        ("w0", "w2"): 7.5
    }
    assert problems == ["annotation netaware.io/measured-weights: not within 0 to 1e+18: w0 to w1"]
    huge = plan_of(group_with(weights='{"w0": {"w1": 1.7e308, "w2": 1.7e308}}'))
    assert huge.latency_us < 1e9, "no latency comes of sums that are infinite"
    assert huge.problems == ("annotation netaware.io/weights: not within 0 to 1e+18: w0 to w1, w0 to w2",)
    plan = plan_of(group_with(measured_weights='["w1"]'))
    assert len(plan.problems) == 1
    assert "netaware.io/measured-weights" in plan.problems[0]
