"""A scale-out: new replicas go near their callers or callees, and to overloaded zones; running replicas stay."""

from __future__ import annotations

import pytest

from tests.unit.controller import groups

CASE = groups.GroupCase(replicas=(3, 3), edges=((0, 1, 100),), cost=((0, 9, 9), (9, 0, 9), (9, 9, 0)), slots=(9, 9, 9))
"""w0 calls w1; there are three zones. Nodes and pods are those of each test."""


def zones_of_new_replicas(workload: str, callers: tuple[int, ...], callees: tuple[int, ...], count: int) -> list[str]:
    """Zones of the new replicas of a workload, given the zones of the running callers and callees."""
    pods = [groups.make_bound_pod(f"w0-{i}", "w0", f"n{zone}-0") for i, zone in enumerate(callers)]
    pods += [groups.make_bound_pod(f"w1-{i}", "w1", f"n{zone}-0") for i, zone in enumerate(callees)]
    pods += [groups.make_waiting_pod(f"{workload}-new-{i}", workload) for i in range(count)]
    nodes = [groups.make_zone_node(f"n{zone}-{number}", f"z{zone}", "9") for zone in range(3) for number in range(4)]
    services = [groups.make_service("w1", "PreferSameZone")]
    plan = groups.plan_case(CASE, nodes, pods=pods, services=services, objective="time", spread="soft")
    assert not plan.unplaced
    return sorted(target.zone for target in plan.targets.values())


SCALE_OUTS = {
    # workload that is scaled out, zones of the callers and of the callees, zones of the new replicas
    "callees go to zones whose callers have none": ("w1", (0, 1, 2), (0,), ["z1", "z2"]),
    "callees go to the zone of most callers": ("w1", (0, 0, 1), (1,), ["z0", "z0"]),
    "a callee goes beside an overloaded one": ("w1", (0, 0, 0, 0), (0, 1), ["z0"]),
    "callees are spread by the share of callers": ("w1", (0, 0, 0, 1), (0, 1), ["z0", "z0"]),
    "a callee goes to the zone with more load per callee": ("w1", (1, 1, 2, 2), (1, 1, 2), ["z2"]),
    "a caller goes near a callee without load": ("w0", (0, 0), (0, 2), ["z2"]),
}


@pytest.mark.parametrize(("workload", "callers", "callees", "zones"), SCALE_OUTS.values(), ids=SCALE_OUTS)
def test_new_replicas_go_where_callers_are_and_replicas_are_overloaded(
    workload: str, callers: tuple[int, ...], callees: tuple[int, ...], zones: list[str]
) -> None:
    assert zones_of_new_replicas(workload, callers, callees, len(zones)) == zones
