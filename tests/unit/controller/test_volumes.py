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


def terms(key: str, *values: str) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]}


def volume(
    name: str = "pv", *, claim: str = "", zones: tuple[str, ...] = ("z1",), labels: Any = None, **spec: Any
) -> PersistentVolume:
    if zones:
        spec["nodeAffinity"] = {"required": terms(ZONE, *zones)}
    if claim:
        spec["claimRef"] = {"namespace": "d", "name": claim}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec}, PersistentVolume)


def available(
    name: str, node: str, size: str = "10Gi", *, phase: str = "Available", labels: Any = None, **spec: Any
) -> Any:
    spec = {**OF_CLASS_LOCAL, "capacity": {"storage": size}, "nodeAffinity": {"required": terms(HOST, node)}, **spec}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"phase": phase}}
    return msgspec.convert(body, PersistentVolume)


def claim(name: str, bound: str = "", annotations: Any = None, **spec: Any) -> PersistentVolumeClaim:
    meta = {"name": name, "namespace": "d", "uid": "new", "annotations": annotations}
    return msgspec.convert({"metadata": meta, "spec": {"volumeName": bound, **spec}}, PersistentVolumeClaim)


def unbound_claim(name: str = "data", annotations: Any = None, size: str = "5Gi", **spec: Any) -> PersistentVolumeClaim:
    return claim(name, "", annotations, **{**OF_CLASS_LOCAL, "resources": {"requests": {"storage": size}}, **spec})


def class_(*label_values: dict[str, Any], provisioner: str = "csi", mode: str = "WaitForFirstConsumer") -> StorageClass:
    body = {
        "metadata": {"name": "local"},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        "allowedTopologies": [{"matchLabelExpressions": [values]} for values in label_values] or None,
    }
    return msgspec.convert(body, StorageClass)


def pod(**volume_of: Any) -> Pod:
    body = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"volumes": [{"name": "v", **volume_of}]}}
    return msgspec.convert(body, Pod)


def matching_nodes(selectors: Iterable[NodeSelector]) -> str:
    any_pod = Constraints(PodSpec())
    return "".join(
        n for n, labels in NODES.items() if not any_pod.unmet_constraint(n, labels, volume_selectors=selectors)
    )


def nodes_for(index: Volumes, waiting_pod: Pod) -> str:
    return matching_nodes(index.node_selectors_of_pod(waiting_pod))


BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
WITH_CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "data"}}
EPHEMERAL: dict[str, Any] = {"ephemeral": {}}
ANYWHERE = "n0n1n2"
BOUND_TO_DELETED_CLAIM: dict[str, Any] = {"claimRef": {"namespace": "d", "name": "data", "uid": "old"}}


@pytest.mark.parametrize(
    ("volumes", "claims", "of_pod", "nodes"),
    [
        ([volume()], [claim("data", "pv")], WITH_CLAIM, "n1"),
        ([volume()], [claim("p-v", "pv")], EPHEMERAL, "n1"),
        ([volume(claim="data")], [], WITH_CLAIM, "n1"),  # a file without claims
        ([volume(claim="data")], [claim("data")], WITH_CLAIM, "n1"),  # the claim's side lags behind
        ([volume(**BOUND_TO_DELETED_CLAIM)], [claim("data")], WITH_CLAIM, ANYWHERE),
        ([volume(zones=(), labels={ZONE: "z1__z2"})], [claim("data", "pv")], WITH_CLAIM, "n1n2"),
        ([volume(zones=(), labels={BETA_ZONE: "z1"})], [claim("data", "pv")], WITH_CLAIM, "n1"),
        ([volume(zones=("z1", "z2"), labels={ZONE: "z2"})], [claim("data", "pv")], WITH_CLAIM, "n2"),
        ([volume(claim="other")], [claim("data")], WITH_CLAIM, ANYWHERE),
        ([volume()], [claim("data", "pv")], {"emptyDir": {}}, ANYWHERE),
        ([], [claim("data", "pv")], WITH_CLAIM, ANYWHERE),
        ([volume(zones=())], [claim("data", "pv")], WITH_CLAIM, ANYWHERE),
    ],
)
def test_nodes_for_a_pod_with_a_bound_claim(volumes: Any, claims: Any, of_pod: Any, nodes: str) -> None:
    assert nodes_for(Volumes.from_objects(volumes, claims), pod(**of_pod)) == nodes


LOCAL = class_(provisioner="kubernetes.io/no-provisioner")
OFFERED = [available("a", "n0"), available("b", "n2")]
SELECTED = {"volume.kubernetes.io/selected-node": "n1"}


@pytest.mark.parametrize(
    ("storage_class", "volumes", "unbound", "nodes"),
    [
        (LOCAL, OFFERED, unbound_claim(), "n0n2"),
        (LOCAL, OFFERED, unbound_claim(size="20Gi"), ""),
        (LOCAL, [], unbound_claim(), ""),
        (LOCAL, [available("a", "n0", phase="Released"), available("b", "n2", "5Gi")], unbound_claim(), "n2"),
        (LOCAL, [available("a", "n0", volumeMode="Block"), available("b", "n2", accessModes=["ReadWriteMany"])], unbound_claim(), ""),
        (LOCAL, [available("a", "n0", storageClassName="other"), volume(claim="other")], unbound_claim(), ""),
        (LOCAL, [available("a", "n0", labels={"disk": "ssd"}), available("b", "n1")], unbound_claim(selector={"matchLabels": {"disk": "ssd"}}), "n0"),
        (LOCAL, [available("a", "n0", nodeAffinity=None)], unbound_claim(), ANYWHERE),
        (class_(), [], unbound_claim(), ANYWHERE),
        (class_({"key": ZONE, "values": ["z1"]}), [], unbound_claim(), "n1"),
        (class_({"key": ZONE, "values": ["z1"]}), OFFERED[:1], unbound_claim(), "n0n1"),
        (class_({"key": ZONE, "values": ["z0"]}, {"key": HOST, "values": ["n2"]}), [], unbound_claim(), "n0n2"),
        (class_(), [], unbound_claim(annotations=SELECTED), "n1"),
        (class_(provisioner="kubernetes.io/no-provisioner", mode="Immediate"), [], unbound_claim(), ANYWHERE),
        (LOCAL, [], unbound_claim(storageClassName="unknown"), ANYWHERE),
    ],
)  # fmt: skip
def test_nodes_for_a_claim_with_wait_for_first_consumer(
    storage_class: StorageClass, volumes: Any, unbound: PersistentVolumeClaim, nodes: str
) -> None:
    assert nodes_for(Volumes.from_objects(volumes, [unbound], [storage_class]), pod(**WITH_CLAIM)) == nodes


def test_the_version_counts_changes_of_node_selectors_only() -> None:
    index, waiting_pod = Volumes(), pod(**WITH_CLAIM)
    first, other = volume(claim="data"), volume(claim="data", zones=("z2",))
    index.on_volume_change("pv", None, first)
    version = index.version
    rewritten = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, resource_version="2"))
    index.on_volume_change("pv", first, rewritten)
    assert (index.version, nodes_for(index, waiting_pod)) == (version, "n1")
    index.on_volume_change("pv", rewritten, other)
    assert index.version > version
    assert nodes_for(index, waiting_pod) == "n2"
    index.on_volume_change("pv", other, None)
    assert nodes_for(index, waiting_pod) == ANYWHERE
    index.on_claim_change("d/data", None, claim("data", "pv2"))
    index.on_volume_change("pv2", None, volume("pv2"))
    assert nodes_for(index, waiting_pod) == "n1"
    index.on_claim_change("d/data", claim("data", "pv2"), unbound_claim())
    index.on_storage_class_change("local", None, LOCAL)
    assert nodes_for(index, waiting_pod) == ""
    for offer in OFFERED:
        index.on_volume_change(offer.metadata.name, None, offer)
    assert nodes_for(index.copy(), waiting_pod) == nodes_for(index, waiting_pod) == "n0n2"
    index.on_volume_change("b", OFFERED[1], volume("b", claim="other"))
    assert nodes_for(index, waiting_pod) == "n0"
    index.on_claim_change("d/data", unbound_claim(), None)
    assert nodes_for(index, waiting_pod) == ANYWHERE


@pytest.mark.parametrize(
    ("volumes", "zones"),
    [([available("a", "n02"), available("b", "n05")], {"z2"}), ([available("a", "n02", "1Gi")], set())],
)
async def test_leader_and_file_place_a_pod_where_its_claim_can_be_bound(volumes: Any, zones: set[str]) -> None:
    cluster = Planners()
    cluster.add_volumes(LOCAL, [unbound_claim()], volumes)
    assert await cluster.zones({"volumes": [{"name": "v", **WITH_CLAIM}]}) == zones


@pytest.mark.parametrize(
    ("name", "volume_of", "nodes"),
    [
        ("data-p", {"persistentVolumeClaim": {"claimName": "data-p"}}, "n0n2"),  # the claim of a StatefulSet's pod
        ("p-v", EPHEMERAL, "n0n2"),
        ("p-data", {"persistentVolumeClaim": {"claimName": "p-data"}}, "n1"),  # a claim that all replicas share
    ],
)
def test_another_replica_has_its_own_claims_and_shares_those_of_the_template(
    name: str, volume_of: Any, nodes: str
) -> None:
    index = Volumes.from_objects([volume(claim=name), *OFFERED], [claim(name, "pv", **OF_CLASS_LOCAL)], [LOCAL])
    assert matching_nodes(index.node_selectors_of_next_replica(pod(**volume_of))) == nodes


async def test_future_replicas_are_planned_where_their_claims_can_be_bound() -> None:
    cluster = Planners()
    cluster.add_volumes(
        LOCAL, [claim("data-p1-0", "pv", **OF_CLASS_LOCAL)], [volume(claim="data-p1-0"), available("a", "n02")]
    )
    cluster.declared.by_workload = {"P1": 5}
    cluster.add_group("d/g", 6)
    cluster.add_pod("d/g", "p1-0", "P1", 1)
    cluster.update_pod("d/p1-0", spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data-p1-0"}}]})
    cluster.bind("d/p1-0", "n01")
    cluster.count_on_node("d/p1-0")
    cluster.add_pod("d/g", "p2-0", "P2", 1)
    await cluster.plans.make_plan("d/g")
    plan = cluster.plans.get_or_request("d/g", cluster.list_pods("d/g")).plan
    assert plan is not None
    assert plan.targets["d/p2-0"].zone == "z2"
