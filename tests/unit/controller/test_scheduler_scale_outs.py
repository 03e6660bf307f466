"""A scale-out: new replicas go near their callers or callees, and to overloaded zones; running replicas stay."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.unit.controller import groups

CASE = groups.GroupCase(replicas=(3, 3), edges=((0, 1, 100),), cost=((0, 9, 9), (9, 0, 9), (9, 9, 0)), slots=(9, 9, 9))
"""w0 calls w1; there are three zones. Nodes and pods are those of each test."""


class ScaleOut(NamedTuple):
    """Zones of the running callers and callees, and those of the new replicas of the workload that is scaled out."""

    workload: str
    callers: tuple[int, ...]
    callees: tuple[int, ...]
    new_zones: list[str]


SCALE_OUTS = {
    "callees go to zones whose callers have none": ScaleOut("w1", (0, 1, 2), (0,), ["z1", "z2"]),
    "callees go to the zone of most callers": ScaleOut("w1", (0, 0, 1), (1,), ["z0", "z0"]),
    "a callee goes beside an overloaded one": ScaleOut("w1", (0, 0, 0, 0), (0, 1), ["z0"]),
    "callees are spread by the share of callers": ScaleOut("w1", (0, 0, 0, 1), (0, 1), ["z0", "z0"]),
    "a callee goes to the zone with more load per callee": ScaleOut("w1", (1, 1, 2, 2), (1, 1, 2), ["z2"]),
    "a caller goes near a callee without load": ScaleOut("w0", (0, 0), (0, 2), ["z2"]),
}


def plan_new_replicas(case: ScaleOut) -> list[str]:
    """Zones of the new replicas in the plan."""
    pods = [groups.make_bound_pod(f"w0-{i}", "w0", f"n{zone}-0") for i, zone in enumerate(case.callers)]
    pods += [groups.make_bound_pod(f"w1-{i}", "w1", f"n{zone}-0") for i, zone in enumerate(case.callees)]
    pods += [groups.make_waiting_pod(f"{case.workload}-new-{i}", case.workload) for i in range(len(case.new_zones))]
    nodes = [groups.make_zone_node(f"n{zone}-{number}", f"z{zone}", "9") for zone in range(3) for number in range(4)]
    services = [groups.make_service("w1", "PreferSameZone")]
    plan = groups.plan_case(CASE, nodes, pods=pods, services=services, objective="time", spread="soft")
    assert not plan.unplaced
    return sorted(target.zone for target in plan.targets.values())


@pytest.mark.parametrize("case", SCALE_OUTS.values(), ids=SCALE_OUTS)
def test_new_replicas_go_where_callers_are_and_replicas_are_overloaded(case: ScaleOut) -> None:
    assert plan_new_replicas(case) == case.new_zones
