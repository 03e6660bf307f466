"""Weights of dependencies from annotations, measured traffic and minBandwidth, and messages about unreadable annotations."""

from __future__ import annotations

import msgspec
import pytest

from controller.cluster.crds import AppGroup
from controller.scheduler.placement.planner import Plan
from controller.traffic.weights import read_weights
from tests.unit.controller import groups

CASE = groups.GroupCase((1, 1, 1), ((0, 1, 100), (0, 2, 100)), ((0, 9, 9), (9, 0, 9), (9, 9, 0)), (9, 9, 9))
"""w0 calls w1 and w2."""
TO_1, TO_2, RATES = '{"w0": {"w1": 900, "w2": 5}}', '{"w0": {"w1": 5, "w2": 900}}', ("1M", "900M")


def plan_of(bandwidths: tuple[str, ...] = (), **annotations: str) -> Plan:
    """w1 stays in zone 1, w2 in zone 2; w0 goes where most of its traffic is."""
    raw = msgspec.to_builtins(groups.make_group(CASE, **annotations))
    for dependency, rate in zip(raw["spec"]["workloads"][0]["dependencies"], bandwidths, strict=False):
        dependency["minBandwidth"] = rate
    group = msgspec.convert(raw, AppGroup)
    pods = [
        groups.make_waiting_pod("w0-0", "w0"),
        groups.make_bound_pod("w1-0", "w1", "n1"),
        groups.make_bound_pod("w2-0", "w2", "n2"),
    ]
    return groups.plan_case(CASE, pods=pods, group=group, objective="time")


@pytest.mark.parametrize(
    ("bandwidths", "annotations", "zone"),
    [
        ((), {"measured_weights": TO_1}, "z1"),
        ((), {"measured_weights": TO_2}, "z2"),
        (RATES, {"measured_weights": TO_1}, "z1"),
        (RATES, {}, "z2"),
        ((), {"measured_weights": TO_1, "weights": TO_2}, "z2"),
        (RATES, {"measured_weights": "{"}, "z2"),
        ((), {"measured_weights": TO_2, "weights": '{"x": {"y": 3}}'}, "z2"),
    ],
    ids=["measured", "measured-otherwise", "before-bandwidth", "bandwidth", "user-first", "unreadable", "of-no-pair"],
)
def test_the_plan_follows_the_users_weights_then_measured_traffic_then_bandwidths(
    bandwidths: tuple[str, ...], annotations: dict[str, str], zone: str
) -> None:
    assert plan_of(bandwidths, **annotations).targets["default/w0-0"].zone == zone


def test_invalid_traffic_is_left_out_and_reported() -> None:
    errors: list[str] = []
    group = groups.make_group(CASE, measured_weights='{"w0": {"w1": -1, "w2": 7.5}}')
    assert read_weights(group, "netaware.io/measured-weights", errors) == {("w0", "w2"): 7.5}
    assert errors == ["annotation netaware.io/measured-weights: not within 0 to 1e+18: w0 to w1"]
    plan = plan_of(weights='{"w0": {"w1": 1.7e308, "w2": 1.7e308}}')
    assert plan.latency_us < 1e9, "a sum of these weights would be infinite"
    assert plan.annotation_errors == ("annotation netaware.io/weights: not within 0 to 1e+18: w0 to w1, w0 to w2",)
    (error,) = plan_of(measured_weights='["w1"]').annotation_errors
    assert "netaware.io/measured-weights" in error
