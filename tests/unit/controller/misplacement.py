"""A world with an AppGroup, for tests of NetworkMisplacement and ZoneSurvival."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroup
from tests.support.bodies import make_appgroup_spec, make_symmetric_costs
from tests.support.descheduler_builders import (
    NOW_S,
    DescheduleDecision,
    DeschedulerSnapshot,
    History,
    PodInfo,
    ReasonDurations,
    SchedulerConfig,
    UsageView,
    World,
    decide_once,
    make_config,
    make_node,
    make_pod_info,
)
from tests.unit.controller.scheduler_objects import make_topology

ZONES = ("z1", "z2", "z3")
APART = {"web-1": "z3-n1", "db-1": "z1-n1"}
"""Pods whose nodes cost 40, more than their dependency allows."""
COSTS = {("z1", "z2"): 5, ("z1", "z3"): 40, ("z2", "z3"): 40}


def make_shop_world(
    node_by_pod: dict[str, str],
    *,
    costs: dict[tuple[str, str], int] | None = None,
    members: int = 0,
    max_cost: int = 15,
    not_ready: frozenset[str] = frozenset(),
    cpu: str = "100m",
    cordoned: frozenset[str] = frozenset(),
    score_dependents: bool = True,
    spread: str = "",
) -> World:
    """Two nodes per zone, and AppGroup shop with these pods, in which workload ``web`` depends on ``db``."""
    world = World(SchedulerConfig(network_overhead=NetworkOverheadArgs(score_dependents=score_dependents)))
    for zone in ZONES:
        labels = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "r1"}
        for name in (f"{zone}-n1", f"{zone}-n2"):
            world.on_node_change(name, make_node(name, pods="10", labels=labels, unschedulable=name in cordoned))
    world.network.on_topology_change("default/nt-default", None, make_topology(make_symmetric_costs(costs or COSTS)))
    annotations = {"netaware.io/spread": spread} if spread else {}
    metadata = {"name": "shop", "namespace": "default", "annotations": annotations}
    spec = make_appgroup_spec({"web": {"db": max_cost}, "db": {}}, members=members or len(node_by_pod))
    group = msgspec.convert({"metadata": metadata, "spec": spec}, AppGroup)
    world.network.on_group_change("default/shop", None, group)
    for name, node_name in node_by_pod.items():
        world.on_pod_change(f"default/{name}", make_shop_pod(name, node_name, ready=name not in not_ready, cpu=cpu))
    return world


def make_shop_pod(name: str, node_name: str, **fields: Any) -> PodInfo:
    """A pod of the group, of the workload that its name begins with."""
    workload = name.partition("-")[0]
    labels = {"appgroup.diktyo.x-k8s.io": "shop", "appgroup.diktyo.x-k8s.io.workload": workload}
    defaults = {"owner": f"ReplicaSet/{workload}-rs", "labels": labels, "cpu": "100m", "created_s": NOW_S - 1000}
    return make_pod_info(name, node_name, **{**defaults, **fields})


def decide_misplacement(
    cluster: World | DeschedulerSnapshot,
    *,
    ignore_durations: bool = True,
    history: History | None = None,
    durations: ReasonDurations | None = None,
    now: float = NOW_S,
    usage: dict[str, dict[str, float]] | None = None,
    policy: dict[str, Any] | None = None,
    **misplacement: Any,
) -> DescheduleDecision:
    """The decision with NetworkMisplacement and ZoneSurvival; ``misplacement`` are other fields of their settings."""
    config = make_config(policy, misplacement={"enabled": True, **misplacement})
    view = cluster.snapshot(UsageView(usage or {}, {})) if isinstance(cluster, World) else cluster
    return decide_once(view, config, history=history, durations=durations, now=now, ignore_durations=ignore_durations)
