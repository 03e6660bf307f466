"""The nodes that reach a pod's volumes, or on which its claims can be bound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from controller.cluster.eligibility import Constraints
from controller.cluster.pods import NodeSelector, Pod, PodSpec
from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass, Volumes
from tests.unit.controller.planners import HOST, ZONE, Planners

NODES = {f"n{i}": {ZONE: f"z{i}", HOST: f"n{i}"} for i in range(3)}
OF_CLASS_LOCAL: dict[str, Any] = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]}


def make_terms(key: str, *values: str) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]}


def make_volume(
    name: str = "pv", *, claim: str = "", zones: tuple[str, ...] = ("z1",), labels: Any = None, **spec: Any
) -> PersistentVolume:
    """A volume that is reached from these zones, and bound to a claim if one is given."""
    if zones:
        spec["nodeAffinity"] = {"required": make_terms(ZONE, *zones)}
    if claim:
        spec["claimRef"] = {"namespace": "d", "name": claim}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec}, PersistentVolume)


def make_local_volume(
    name: str, node: str, size: str = "10Gi", *, phase: str = "Available", labels: Any = None, **spec: Any
) -> PersistentVolume:
    """A volume of class local on a node."""
    affinity = {"required": make_terms(HOST, node)}
    spec = {**OF_CLASS_LOCAL, "capacity": {"storage": size}, "nodeAffinity": affinity, **spec}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"phase": phase}}
    return msgspec.convert(body, PersistentVolume)


def make_claim(name: str, volume: str = "", annotations: Any = None, **spec: Any) -> PersistentVolumeClaim:
    metadata = {"name": name, "namespace": "d", "uid": "new", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": {"volumeName": volume, **spec}}, PersistentVolumeClaim)


def make_unbound_claim(annotations: Any = None, size: str = "5Gi", **spec: Any) -> PersistentVolumeClaim:
    """The claim data of class local."""
    resources = {"requests": {"storage": size}}
    return make_claim("data", annotations=annotations, **{**OF_CLASS_LOCAL, "resources": resources, **spec})


def make_class(
    *topologies: dict[str, Any], provisioner: str = "csi", mode: str = "WaitForFirstConsumer"
) -> StorageClass:
    """The class local, which is allowed in these topologies."""
    body = {
        "metadata": {"name": "local"},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        "allowedTopologies": [{"matchLabelExpressions": [values]} for values in topologies] or None,
    }
    return msgspec.convert(body, StorageClass)


def make_pod(**source: Any) -> Pod:
    """A pod with one volume of this source."""
    body = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"volumes": [{"name": "v", **source}]}}
    return msgspec.convert(body, Pod)


def list_matching_nodes(selectors: Iterable[NodeSelector]) -> str:
    """The names of the nodes that all selectors select, joined."""
    constraints = Constraints(PodSpec())
    return "".join(
        name
        for name, labels in NODES.items()
        if not constraints.unmet_constraint(name, labels, volume_selectors=selectors)
    )


def list_nodes_for(index: Volumes, pod: Pod) -> str:
    return list_matching_nodes(index.node_selectors_of_pod(pod))


BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
WITH_CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "data"}}
EPHEMERAL: dict[str, Any] = {"ephemeral": {}}
ANYWHERE = "n0n1n2"
BOUND_TO_DELETED_CLAIM: dict[str, Any] = {"claimRef": {"namespace": "d", "name": "data", "uid": "old"}}


BOUND_CLAIM, UNBOUND_CLAIM = make_claim("data", "pv"), make_unbound_claim()
SELECTED = {"volume.kubernetes.io/selected-node": "n1"}
SSD = {"disk": "ssd"}
DYNAMIC_CLASS, LOCAL_CLASS = make_class(), make_class(provisioner="kubernetes.io/no-provisioner")
IMMEDIATE_CLASS = make_class(provisioner="kubernetes.io/no-provisioner", mode="Immediate")
CLASS_OF_Z1 = make_class({"key": ZONE, "values": ["z1"]})
CLASS_OF_Z0_OR_N2 = make_class({"key": ZONE, "values": ["z0"]}, {"key": HOST, "values": ["n2"]})
ON_N0, ON_N2 = make_local_volume("a", "n0"), make_local_volume("b", "n2")


@pytest.mark.parametrize(
    ("volumes", "claims", "source", "nodes"),
    [
        pytest.param([make_volume()], [BOUND_CLAIM], WITH_CLAIM, "n1", id="bound"),
        pytest.param([make_volume()], [make_claim("p-v", "pv")], EPHEMERAL, "n1", id="ephemeral"),
        pytest.param([make_volume(claim="data")], [], WITH_CLAIM, "n1", id="a file without claims"),
        pytest.param([make_volume(claim="data")], [make_claim("data")], WITH_CLAIM, "n1", id="the claim's side lags behind"),
        pytest.param([make_volume(**BOUND_TO_DELETED_CLAIM)], [make_claim("data")], WITH_CLAIM, ANYWHERE, id="bound to a deleted claim"),
        pytest.param([make_volume(zones=(), labels={ZONE: "z1__z2"})], [BOUND_CLAIM], WITH_CLAIM, "n1n2", id="label of two zones"),
        pytest.param([make_volume(zones=(), labels={BETA_ZONE: "z1"})], [BOUND_CLAIM], WITH_CLAIM, "n1", id="old label"),
        pytest.param([make_volume(zones=("z1", "z2"), labels={ZONE: "z2"})], [BOUND_CLAIM], WITH_CLAIM, "n2", id="affinity and label"),
        pytest.param([make_volume(claim="other")], [make_claim("data")], WITH_CLAIM, ANYWHERE, id="bound to another claim"),
        pytest.param([make_volume()], [BOUND_CLAIM], {"emptyDir": {}}, ANYWHERE, id="no claim"),
        pytest.param([], [BOUND_CLAIM], WITH_CLAIM, ANYWHERE, id="unknown volume"),
        pytest.param([make_volume(zones=())], [BOUND_CLAIM], WITH_CLAIM, ANYWHERE, id="reached from everywhere"),
    ],
)  # fmt: skip
def test_nodes_for_a_pod_with_a_bound_claim(
    volumes: list[PersistentVolume], claims: list[PersistentVolumeClaim], source: dict[str, Any], nodes: str
) -> None:
    assert list_nodes_for(Volumes.from_objects(volumes, claims), make_pod(**source)) == nodes


@pytest.mark.parametrize(
    ("storage_class", "volumes", "claim", "nodes"),
    [
        pytest.param(LOCAL_CLASS, [ON_N0, ON_N2], UNBOUND_CLAIM, "n0n2", id="two volumes"),
        pytest.param(LOCAL_CLASS, [ON_N0, ON_N2], make_unbound_claim(size="20Gi"), "", id="too small"),
        pytest.param(LOCAL_CLASS, [], UNBOUND_CLAIM, "", id="no volume"),
        pytest.param(LOCAL_CLASS, [make_local_volume("a", "n0", phase="Released"), make_local_volume("b", "n2", "5Gi")], UNBOUND_CLAIM, "n2", id="one is released"),
        pytest.param(LOCAL_CLASS, [make_local_volume("a", "n0", volumeMode="Block")], UNBOUND_CLAIM, "", id="another mode"),
        pytest.param(LOCAL_CLASS, [make_local_volume("a", "n0", accessModes=["ReadWriteMany"])], UNBOUND_CLAIM, "", id="another access mode"),
        pytest.param(LOCAL_CLASS, [make_local_volume("a", "n0", storageClassName="other")], UNBOUND_CLAIM, "", id="another class"),
        pytest.param(LOCAL_CLASS, [make_volume(claim="other")], UNBOUND_CLAIM, "", id="bound to another claim"),
        pytest.param(LOCAL_CLASS, [make_local_volume("a", "n0", labels=SSD), ON_N2], make_unbound_claim(selector={"matchLabels": SSD}), "n0", id="selected"),
        pytest.param(LOCAL_CLASS, [make_local_volume("a", "n0", nodeAffinity=None)], UNBOUND_CLAIM, ANYWHERE, id="no affinity"),
        pytest.param(DYNAMIC_CLASS, [], UNBOUND_CLAIM, ANYWHERE, id="provisioned"),
        pytest.param(CLASS_OF_Z1, [], UNBOUND_CLAIM, "n1", id="provisioned in one zone"),
        pytest.param(CLASS_OF_Z1, [ON_N0], UNBOUND_CLAIM, "n0n1", id="provisioned or available"),
        pytest.param(CLASS_OF_Z0_OR_N2, [], UNBOUND_CLAIM, "n0n2", id="provisioned in one of two topologies"),
        pytest.param(DYNAMIC_CLASS, [], make_unbound_claim(annotations=SELECTED), "n1", id="kube-scheduler selected a node"),
        pytest.param(IMMEDIATE_CLASS, [], UNBOUND_CLAIM, ANYWHERE, id="bound at once"),
        pytest.param(LOCAL_CLASS, [], make_unbound_claim(storageClassName="unknown"), ANYWHERE, id="unknown class"),
    ],
)  # fmt: skip
def test_nodes_for_a_claim_with_wait_for_first_consumer(
    storage_class: StorageClass, volumes: list[PersistentVolume], claim: PersistentVolumeClaim, nodes: str
) -> None:
    assert list_nodes_for(Volumes.from_objects(volumes, [claim], [storage_class]), make_pod(**WITH_CLAIM)) == nodes


def test_nodes_follow_changes_of_volumes_claims_and_classes() -> None:
    index, pod = Volumes(), make_pod(**WITH_CLAIM)
    index.on_volume_change("pv", None, make_volume(claim="data"))
    assert list_nodes_for(index, pod) == "n1"
    index.on_volume_change("pv", make_volume(claim="data"), None)
    assert list_nodes_for(index, pod) == ANYWHERE

    index.on_claim_change("d/data", None, BOUND_CLAIM)
    index.on_volume_change("pv", None, make_volume())
    assert list_nodes_for(index, pod) == "n1"
    index.on_claim_change("d/data", BOUND_CLAIM, UNBOUND_CLAIM)
    index.on_storage_class_change("local", None, LOCAL_CLASS)
    assert list_nodes_for(index, pod) == ""

    index.on_volume_change("a", None, ON_N0)
    index.on_volume_change("b", None, ON_N2)
    assert list_nodes_for(index.copy(), pod) == list_nodes_for(index, pod) == "n0n2"
    index.on_volume_change("b", ON_N2, make_volume("b", claim="other"))
    assert list_nodes_for(index, pod) == "n0"
    index.on_claim_change("d/data", UNBOUND_CLAIM, None)
    assert list_nodes_for(index, pod) == ANYWHERE


def test_the_version_counts_changes_of_node_selectors_only() -> None:
    index, old = Volumes(), make_volume(claim="data")
    index.on_volume_change("pv", None, old)
    version = index.version
    rewritten = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, resource_version="2"))
    index.on_volume_change("pv", old, rewritten)
    assert index.version == version
    index.on_volume_change("pv", rewritten, make_volume(claim="data", zones=("z2",)))
    assert index.version > version


@pytest.mark.parametrize(
    ("claim", "volumes", "zones"),
    [
        (UNBOUND_CLAIM, [make_local_volume("a", "n02"), make_local_volume("b", "n05")], {"z2"}),
        (UNBOUND_CLAIM, [make_local_volume("a", "n02", "1Gi")], set()),
        (BOUND_CLAIM, [make_local_volume("pv", "n04")], {"z1"}),
    ],
    ids=["unbound", "no volume is large enough", "bound to a local volume"],
)
async def test_all_planners_place_a_pod_where_its_claim_is_or_can_be_bound(
    claim: PersistentVolumeClaim, volumes: list[PersistentVolume], zones: set[str]
) -> None:
    cluster = Planners()
    cluster.add_volumes(LOCAL_CLASS, [claim], volumes)
    assert await cluster.find_zones({"volumes": [{"name": "v", **WITH_CLAIM}]}) == zones


@pytest.mark.parametrize(
    ("claim", "source", "nodes"),
    [
        pytest.param("data-p", {"persistentVolumeClaim": {"claimName": "data-p"}}, "n0n2", id="a StatefulSet's claim"),
        pytest.param("p-v", EPHEMERAL, "n0n2", id="ephemeral"),
        pytest.param("p-data", {"persistentVolumeClaim": {"claimName": "p-data"}}, "n1", id="shared by all replicas"),
    ],
)
def test_another_replica_has_its_own_claims_and_shares_those_of_the_template(
    claim: str, source: dict[str, Any], nodes: str
) -> None:
    volumes, bound_claim = [make_volume(claim=claim), ON_N0, ON_N2], make_claim(claim, "pv", **OF_CLASS_LOCAL)
    index = Volumes.from_objects(volumes, [bound_claim], [LOCAL_CLASS])
    assert list_matching_nodes(index.node_selectors_of_next_replica(make_pod(**source))) == nodes


async def test_future_replicas_are_planned_where_their_claims_can_be_bound() -> None:
    """P1's next replicas need a volume on n02, in z2, so P2, which they call, is planned there."""
    cluster = Planners()
    bound_claim = make_claim("data-p1-0", "pv", **OF_CLASS_LOCAL)
    cluster.add_volumes(LOCAL_CLASS, [bound_claim], [make_volume(claim="data-p1-0"), make_local_volume("a", "n02")])
    cluster.declared.by_workload = {"P1": 5}
    cluster.add_group("d/g", 6)
    cluster.add_pod("d/g", "p1-0", "P1", 1)
    cluster.update_pod("d/p1-0", spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data-p1-0"}}]})
    cluster.bind_and_count("d/p1-0", "n01")
    cluster.add_pod("d/g", "p2-0", "P2", 1)
    assert cluster.node_cache.hosts[(await cluster.plan_nodes("d/g"))["d/p2-0"]].location.zone == "z2"
