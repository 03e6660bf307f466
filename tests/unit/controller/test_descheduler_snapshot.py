"""The snapshot of a round does not change with the cluster, and is freed after the round."""

from __future__ import annotations

import gc
import weakref

import msgspec
import pytest

from controller.cluster.services import Service
from controller.cluster.volumes import PersistentVolumeClaim
from kubekit.wire import ObjectMeta
from tests.support.descheduler_builders import PersistentVolume, UsageView, list_moved_pods, make_budget, to_usage
from tests.unit.controller.misplacement import decide_misplacement, make_shop_world

NODE_BY_POD = {"web-0": "z3-n1", "db-0": "z1-n1", "db-1": "z1-n2"}


def test_a_snapshot_does_not_change_with_the_cluster() -> None:
    world = make_shop_world(NODE_BY_POD)
    world.budgets.append(make_budget("b", "app", 5))
    volume = {"metadata": {"name": "v", "labels": {"topology.kubernetes.io/zone": "z1"}}}
    bound_volume = {**volume, "spec": {"claimRef": {"namespace": "default", "name": "c"}}}
    world.volumes.on_volume_change("v", None, msgspec.convert(bound_volume, PersistentVolume))
    claim = msgspec.convert({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}}, PersistentVolumeClaim)
    world.volumes.on_claim_change("default/c", None, claim)
    service = {"metadata": {"name": "db", "namespace": "default"}, "spec": {"selector": {"app": "db"}}}
    world.network.on_service_change("default/db", None, msgspec.convert(service, Service))
    world.network.score("default", "shop", "web")
    before, view = decide_misplacement(world), world.snapshot()
    assert "web-0" in list_moved_pods(before)

    world.network.on_pod_change("default/db-1", world.pods["default/db-1"].group_pod, None)
    world.network.score("default", "shop", "web")
    assert decide_misplacement(view) == before, "the snapshot has its own scores"

    group = msgspec.structs.replace(world.network.groups["default/shop"], metadata=ObjectMeta(name="x", namespace="y"))
    world.network.on_group_change("y/x", None, group)
    world.network.on_group_change("default/shop", None, None)
    world.network.on_topology_change("default/nt-default", None, None)
    for name in list(world.nodes):
        world.on_node_change(name, None)
    for key in list(world.pods):
        world.on_pod_change(key, None)
    assert list_moved_pods(decide_misplacement(world)) == []
    assert decide_misplacement(view) == before


@pytest.mark.parametrize(("cores_of_db", "strategy"), [(0.1, "NetworkMisplacement"), (3.9, "LowNodeLoad")])
def test_a_round_keeps_no_reference_to_its_snapshot(cores_of_db: float, strategy: str) -> None:
    """The controller's full garbage collections are rare, and a cluster takes tens of megabytes."""
    world = make_shop_world(NODE_BY_POD)
    node_usage = {name: to_usage(cores_of_db if name == "z1-n1" else 0.1, 1) for name in world.nodes}
    view = world.snapshot(UsageView(node_usage, {"default/db-0": to_usage(1, 1)}))
    pods = weakref.ref(view.pods)
    gc.disable()
    try:
        assert [move.strategy for move in decide_misplacement(view).plan.moves] == [strategy]
        del view
        assert pods() is None
    finally:
        gc.enable()
