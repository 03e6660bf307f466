"""Weights of dependencies from annotations, measured traffic and minBandwidth, and messages about unreadable annotations."""

from __future__ import annotations

import msgspec
import pytest

from controller.cluster.crds import AppGroup
from controller.scheduler.placement.planner import Plan
from tests.unit.controller.groups import (
    GroupCase,
    make_bound_pod,
    make_chain,
    make_group,
    make_waiting_pod,
    plan_case,
    with_metadata,
)

CASE = GroupCase((1, 1, 1), ((0, 1, 100), (0, 2, 100)), ((0, 9, 9), (9, 0, 9), (9, 9, 0)), (9, 9, 9))
"""w0 calls w1 and w2."""
MOSTLY_W1, MOSTLY_W2 = '{"w0": {"w1": 900, "w2": 5}}', '{"w0": {"w1": 5, "w2": 900}}'
BANDWIDTHS = ("1M", "900M")


def plan_with_weights(bandwidths: tuple[str, ...] = (), **annotations: str) -> Plan:
    """w1 stays in zone 1, w2 in zone 2; w0 goes where most of its traffic is. Bandwidths are those to w1 and w2."""
    body = msgspec.to_builtins(make_group(CASE, **annotations))
    for dependency, bandwidth in zip(body["spec"]["workloads"][0]["dependencies"], bandwidths, strict=False):
        dependency["minBandwidth"] = bandwidth
    group = msgspec.convert(body, AppGroup)
    pods = [make_waiting_pod("w0-0", "w0"), make_bound_pod("w1-0", "w1", "n1"), make_bound_pod("w2-0", "w2", "n2")]
    return plan_case(CASE, pods=pods, group=group, objective="time")


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
    pair = make_chain((1, 1))
    group = make_group(pair, spread="everywhere", objective="speed", weights="{")
    pods = [make_waiting_pod("w0-0", "w0"), make_waiting_pod("w1-0", "w1")]
    annotated_pods = [with_metadata(pod, annotations=group.metadata.annotations) for pod in pods]
    plan = plan_case(pair, group=group, pods=annotated_pods)
    assert len(plan.annotation_errors) == len(set(plan.annotation_errors)) == 3
    assert plan.annotation_errors[0].startswith("annotation netaware.io/spread: 'everywhere' is none of")
    assert len({target.node for target in plan.targets.values()}) == 1
