"""Conditions RoutedNear and Balanced: advice for Services, replicas in one zone, and overloaded replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from controller.cluster.services import Service
from controller.scheduler.advice import PlacedGroup, advice_conditions, copy_placed_group
from controller.scheduler.config import SchedulerConfig
from tests.unit.controller.groups import (
    GroupCase,
    make_bound_pod,
    make_group,
    make_service,
    make_weight,
    make_zone_node,
)
from tests.unit.controller.scheduler_objects import make_state, make_topology_with_weights

CASE = GroupCase(
    replicas=(3, 3, 1), edges=((0, 1, 100), (1, 2, 100)), cost=((0, 5, 5), (5, 0, 5), (5, 5, 0)), slots=(9, 9, 9)
)
"""w0 calls w1, which calls w2; zones are 5 ms apart."""
NO_ADVICE = ("True", "NoBetterRouting", "no trafficDistribution would bring calls nearer")
IS_BALANCED = ("True", "Balanced", "replicas are in as many zones as they should be, and none is overloaded")
ONE_PER_ZONE = (("a1", "b1", "c1"), ("a2", "b2", "c2"))
ALL_CALLERS_IN_ONE_ZONE = (("a1", "a1", "a2"), ("a2", "b2", "c2"))
ZONE_BY_LETTER = {"a": "z0", "b": "z1", "c": "z2", "-": ""}


def make_placed_group(
    nodes_by_workload: Sequence[Sequence[str]], *services: Service, **annotations: str
) -> PlacedGroup:
    """A group with pods on these nodes: ``a1`` is a node of zone a, ``-1`` a node without a zone."""
    nodes = [make_zone_node(name, ZONE_BY_LETTER[name[0]]) for name in ("a1", "a2", "b1", "b2", "c1", "c2", "-1")]
    pods = [
        make_bound_pod(f"w{workload}-{replica}", f"w{workload}", name)
        for workload, names in enumerate(nodes_by_workload)
        for replica, name in enumerate(names)
    ]
    costs = make_topology_with_weights(msgspec.to_builtins(make_weight(CASE)))
    group = make_group(CASE, **annotations)
    return copy_placed_group(make_state(SchedulerConfig(), group, costs, *nodes, *services, *pods), "default/g")


def read_routed_near(placed: PlacedGroup) -> tuple[str, str, str]:
    """Status, reason and message of RoutedNear, which has advice if its status is False."""
    condition, _ = advice_conditions(placed)
    return condition.status, condition.reason, condition.message


def read_balanced(placed: PlacedGroup) -> tuple[str, str, str]:
    """Status, reason and message of Balanced."""
    _, condition = advice_conditions(placed)
    return condition.status, condition.reason, condition.message


@pytest.mark.parametrize(
    ("distribution", "fields", "expected_reason"),
    [
        ("", {}, "NoTrafficDistribution"),
        ("Unknown", {}, "NoTrafficDistribution"),
        ("PreferSameZone", {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}, "HintsIgnored"),
    ],
    ids=["none", "unknown", "automatic-hints"],
)
def test_a_service_without_traffic_distribution_gets_advice(
    distribution: str, fields: dict[str, Any], expected_reason: str
) -> None:
    placed = make_placed_group(ONE_PER_ZONE, make_service("w1", distribution, **fields))
    status, reason, message = read_routed_near(placed)
    assert (status, reason) == ("False", expected_reason)
    assert "default/svc-w1" in message
    # Two of three replicas are in other zones: (100 + 2 * 5000) / 3, rounded.
    assert "with PreferSameZone a call would take 100 µs instead of 3400 µs" in message


@pytest.mark.parametrize(
    ("nodes", "advised"), [(("a1", "b1", "c1"), "with PreferSameZone"), (("a1", "a2"), "with PreferSameNode")]
)
def test_same_node_is_advised_only_if_it_gains_enough_more(nodes: tuple[str, ...], advised: str) -> None:
    assert advised in read_routed_near(make_placed_group((nodes, nodes), make_service("w1")))[2]


@pytest.mark.parametrize(
    ("nodes_by_workload", "services"),
    [
        (ONE_PER_ZONE, ()),
        (ONE_PER_ZONE, (make_service("w1", "PreferSameZone"),)),
        (ONE_PER_ZONE, (make_service("w1", clusterIP="None"),)),
        (ONE_PER_ZONE, (make_service("w1", internalTrafficPolicy="Local"),)),
        (ALL_CALLERS_IN_ONE_ZONE, (make_service("w1"),)),
        ((("a1", "b1"), ("a2", "b2", "-1")), (make_service("w1"),)),
    ],
    ids=["no-service", "near-already", "headless", "local", "would-overload-a-replica", "hints-would-be-ignored"],
)
def test_no_advice_if_traffic_distribution_would_gain_nothing_or_overload(
    nodes_by_workload: Sequence[Sequence[str]], services: tuple[Service, ...]
) -> None:
    assert read_routed_near(make_placed_group(nodes_by_workload, *services)) == NO_ADVICE


def test_an_overloaded_replica_is_reported() -> None:
    placed = make_placed_group(ALL_CALLERS_IN_ONE_ZONE, make_service("w1", "PreferSameZone"))
    status, reason, message = read_balanced(placed)
    assert (status, reason) == ("False", "OverloadedReplica")
    assert "takes 3.0 times its fair share" in message


@pytest.mark.parametrize("distribution", ["PreferClose", "PreferSameZone", "PreferSameNode"])
def test_a_replica_on_a_node_without_zone_disables_zone_hints(distribution: str) -> None:
    placed = make_placed_group((("a1", "b1"), ("a2", "b2", "-1")), make_service("w1", distribution))
    status, reason, message = read_routed_near(placed)
    assert (status, reason) == ("False", "HintsIgnored")
    assert message.startswith(f"Service default/svc-w1 has {distribution}, but kube-proxy ignores zones")


def test_both_conditions_hold_of_a_dependency_without_traffic() -> None:
    weights = '{"w0": {"w1": 0}, "w1": {"w2": 1}}'
    placed = make_placed_group((*ONE_PER_ZONE, ("a1",)), make_service("w1"), weights=weights)
    assert read_routed_near(placed) == NO_ADVICE
    assert read_balanced(placed) == IS_BALANCED


def test_the_conditions_are_unknown_without_placed_pods() -> None:
    without_callees = make_placed_group((("a1",), ()), make_service("w1"))
    assert read_routed_near(without_callees)[:2] == ("Unknown", "NothingPlaced")
    assert read_balanced(make_placed_group(((), ())))[:2] == ("Unknown", "NothingPlaced")


@pytest.mark.parametrize(
    ("spread", "nodes", "message"),
    [
        ("zone", ("c1", "c2"), "all 2 replicas of w1 are in z2, but its spread is zone"),
        ("zone", ("-1", "-1"), "all 2 replicas of w1 are on nodes without a zone, but its spread is zone"),
        ("soft", ("c1", "c2"), ""),
        ("zone", ("c1",), ""),
    ],
    ids=["one zone", "no zone", "another spread", "one replica"],
)
def test_a_workload_with_spread_zone_in_one_zone_is_reported(spread: str, nodes: tuple[str, ...], message: str) -> None:
    placed = make_placed_group((("a1", "b1"), nodes), spread=spread)
    assert read_balanced(placed) == (("False", "OneZone", message) if message else IS_BALANCED)
