"""Conditions RoutedNear and Balanced: advice for Services, replicas in one zone, and overloaded replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from controller.cluster.services import Service
from controller.scheduler.advice import PlacedGroup, advice_conditions, copy_placed_group
from controller.scheduler.config import SchedulerConfig
from tests.unit.controller import groups
from tests.unit.controller.scheduling import state_with, topology_of

CASE = groups.GroupCase((3, 3, 1), ((0, 1, 100), (1, 2, 100)), ((0, 5, 5), (5, 0, 5), (5, 5, 0)), (9, 9, 9))
"""w0 calls w1, which calls w2; zones are 5 ms apart."""
ZONES = {"a": "z0", "b": "z1", "c": "z2", "-": ""}


def make_placed_group(where: Sequence[Sequence[str]], *services: Service, **annotations: str) -> PlacedGroup:
    """A group with pods on these nodes, by workload: ``a1`` is a node of zone a, ``-1`` a node without a zone."""
    nodes = [groups.node(name, ZONES[name[0]]) for name in ("a1", "a2", "b1", "b2", "c1", "c2", "-1")]
    pods = [
        groups.bound_pod(f"w{workload}-{number}", f"w{workload}", name)
        for workload, names in enumerate(where)
        for number, name in enumerate(names)
    ]
    costs = topology_of(msgspec.to_builtins(groups.weight_of(CASE)))
    group = groups.group_of(CASE, **annotations)
    return copy_placed_group(state_with(SchedulerConfig(), group, costs, *nodes, *services, *pods), "default/g")


def advice(current: PlacedGroup) -> tuple[str, str] | None:
    """Reason and message of RoutedNear; None unless it is False."""
    found, _ = advice_conditions(current)
    return (found.reason, found.message) if found.status == "False" else None


def message(current: PlacedGroup) -> str:
    found = advice(current)
    assert found is not None
    return found[1]


ONE_PER_ZONE = (("a1", "b1", "c1"), ("a2", "b2", "c2"))


@pytest.mark.parametrize(
    ("field", "more"),
    [("", {}), ("Nearby", {}), ("PreferSameZone", {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}})],
    ids=["none", "unknown", "hints-win"],
)
def test_a_service_without_traffic_distribution_gets_advice(field: str, more: dict[str, Any]) -> None:
    reason, text = advice(make_placed_group(ONE_PER_ZONE, groups.service("w1", field, **more))) or ("", "")
    assert reason == ("HintsIgnored" if more else "NoTrafficDistribution")
    assert "default/svc-w1" in text
    assert "with PreferSameZone a call would take 100 µs instead of 3400 µs" in text


def test_same_node_is_advised_only_if_it_gains_enough_more() -> None:
    beside = (("a1", "b1", "c1"), ("a1", "b1", "c1"))
    assert "with PreferSameZone" in message(make_placed_group(beside, groups.service("w1")))
    pairs = (("a1", "a2"), ("a1", "a2"))
    assert "with PreferSameNode" in message(make_placed_group(pairs, groups.service("w1")))


@pytest.mark.parametrize(
    "services",
    [
        (),
        (groups.service("w1", "PreferSameZone"),),
        (groups.service("w1", clusterIP="None"),),
        (groups.service("w1", internalTrafficPolicy="Local"),),
    ],
    ids=["no-service", "near-already", "headless", "local"],
)
def test_no_advice_if_traffic_distribution_would_gain_nothing(services: tuple[Service, ...]) -> None:
    assert advice(make_placed_group(ONE_PER_ZONE, *services)) is None


def test_no_advice_that_would_overload_a_replica() -> None:
    """All callers in one zone, one of three replicas there: it would take all calls."""
    assert advice(make_placed_group((("a1", "a1", "a2"), ("a2", "b2", "c2")), groups.service("w1"))) is None


def test_an_overloaded_replica_is_reported() -> None:
    _, state = advice_conditions(
        make_placed_group((("a1", "a1", "a2"), ("a2", "b2", "c2")), groups.service("w1", "PreferSameZone"))
    )
    assert (state.status, state.reason) == ("False", "OverloadedReplica")
    assert "takes 3.0 times its fair share" in state.message


@pytest.mark.parametrize("field", ["PreferClose", "PreferSameZone", "PreferSameNode"])
def test_a_replica_on_a_node_without_zone_disables_zone_hints(field: str) -> None:
    found = make_placed_group((("a1", "b1"), ("a2", "b2", "-1")), groups.service("w1", field))
    assert (advice(found) or [""])[0] == "HintsIgnored"
    assert message(found).startswith(f"Service default/svc-w1 has {field}, but kube-proxy ignores zones")


def test_zone_hints_that_would_be_ignored_are_not_advised() -> None:
    assert advice(make_placed_group((("a1", "b1"), ("a2", "b2", "-1")), groups.service("w1"))) is None


def statuses(current: PlacedGroup) -> list[tuple[str, str]]:
    """Of RoutedNear and Balanced."""
    return [(found.status, found.reason) for found in advice_conditions(current)]


def test_conditions_have_advice_or_hold() -> None:
    well = make_placed_group(ONE_PER_ZONE, groups.service("w1", "PreferSameZone"), spread="zone")
    assert statuses(well) == [("True", "NoBetterRouting"), ("True", "Balanced")]
    assert statuses(make_placed_group((("a1",), ()), groups.service("w1")))[0] == ("Unknown", "NothingPlaced")
    assert statuses(make_placed_group(((), ())))[1] == ("Unknown", "NothingPlaced")
    assert statuses(make_placed_group(ONE_PER_ZONE, groups.service("w1")))[0] == ("False", "NoTrafficDistribution")


def test_a_dependency_without_traffic_gets_no_advice() -> None:
    weights = '{"w0": {"w1": 0}, "w1": {"w2": 1}}'
    silent = make_placed_group((*ONE_PER_ZONE, ("a1",)), groups.service("w1"), weights=weights)
    assert advice(silent) is None
    assert statuses(silent) == [("True", "NoBetterRouting"), ("True", "Balanced")]


@pytest.mark.parametrize(
    ("spread", "where", "found"),
    [
        ("zone", ("c1", "c2"), "all 2 replicas of w1 are in z2, but its spread is zone"),
        ("zone", ("-1", "-1"), "all 2 replicas of w1 are on nodes without a zone, but its spread is zone"),
        ("soft", ("c1", "c2"), ""),
        ("zone", ("c1",), ""),
    ],
    ids=["in one zone", "in none", "need not survive", "one replica cannot be spread"],
)
def test_a_workload_with_spread_zone_in_one_zone_is_reported(spread: str, where: tuple[str, ...], found: str) -> None:
    _, state = advice_conditions(make_placed_group((("a1", "b1"), where), spread=spread))
    assert (state.status, state.reason) == (("False", "OneZone") if found else ("True", "Balanced"))
    assert not found or state.message == found
