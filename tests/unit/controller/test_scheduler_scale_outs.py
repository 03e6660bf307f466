"""A workload that is scaled out: its new replicas go where its callers are and where replicas run hot; what runs stays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from controller.cluster.pods import GroupPod
from controller.cluster.services import Service
from controller.scheduler.planner import plan_group
from kubekit.wire import Node
from tests.unit.controller import groups

CASE = groups.Case((3, 3), ((0, 1, 100),), ((0, 9, 9), (9, 0, 9), (9, 9, 0)), (9, 9, 9))
"""w0 calls w1 in three zones."""


def service(field: str) -> Service:
    spec = {"selector": {"appgroup.diktyo.x-k8s.io.workload": "w1"}, "trafficDistribution": field}
    return msgspec.convert({"metadata": {"name": "w1", "namespace": "default"}, "spec": spec}, Service)


def node(zone: int, number: int) -> Node:
    found = groups.node_of(zone, 9)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, name=f"n{zone}-{number}"))


def bound(name: str, workload: str, zone: int) -> GroupPod:
    pod = groups.waiting_pod(name, workload)
    spec = msgspec.structs.replace(pod.spec, node_name=f"n{zone}-0", scheduling_gates=None)
    return msgspec.structs.replace(pod, spec=spec)


def scaled_out(
    callers: tuple[int, ...], callees: tuple[int, ...], more: int, field: str = "PreferSameZone"
) -> Counter[str]:
    """Zones of the new replicas of w1, given the zones of what runs."""
    pods = [bound(f"w0-{i}", "w0", zone) for i, zone in enumerate(callers)]
    pods += [bound(f"w1-{i}", "w1", zone) for i, zone in enumerate(callees)]
    pods += [groups.waiting_pod(f"w1-new-{i}", "w1") for i in range(more)]
    changes: dict[str, Any] = {"pods": pods, "services": [service(field)], "objective": "time", "spread": "soft"}
    hosts = groups.hosts_of(*(node(zone, number) for zone in range(3) for number in range(4)))
    plan = plan_group(msgspec.structs.replace(groups.snapshot_of(CASE), hosts=hosts, **changes))
    assert not plan.unplaced
    return Counter(target.zone for target in plan.targets.values())


@pytest.mark.parametrize(
    ("callers", "callees", "more", "zones"),
    [
        ((0, 1, 2), (0,), 2, {"z1": 1, "z2": 1}),
        ((0, 0, 1), (1,), 2, {"z0": 2}),
        ((0, 0, 0, 0), (0, 1), 1, {"z0": 1}),
        ((0, 0, 0, 1), (0, 1), 2, {"z0": 2}),
        ((1, 1, 2, 2), (1, 1, 2), 1, {"z2": 1}),
    ],
    ids=["where-callers-have-none", "where-most-callers-are", "beside-the-hot-one", "by-shares", "where-it-is-hotter"],
)
def test_new_replicas_go_where_callers_are_and_replicas_run_hot(
    callers: tuple[int, ...], callees: tuple[int, ...], more: int, zones: dict[str, int]
) -> None:
    assert scaled_out(callers, callees, more) == Counter(zones)


def test_new_callers_go_where_replicas_have_room_for_their_calls() -> None:
    pods = [bound("w0-0", "w0", 0), bound("w0-1", "w0", 0), bound("w1-0", "w1", 0), bound("w1-1", "w1", 2)]
    pods.append(groups.waiting_pod("w0-new", "w0"))
    hosts = groups.hosts_of(*(node(zone, number) for zone in range(3) for number in range(4)))
    plan = plan_group(
        msgspec.structs.replace(
            groups.snapshot_of(CASE),
            hosts=hosts,
            pods=pods,
            services=[service("PreferSameZone")],
            objective="time",
            spread="soft",
        )
    )
    assert [target.zone for target in plan.targets.values()] == ["z2"]
