"""Fills an empty control plane with a large cluster: nodes, pods, AppGroups, and the objects that our programs need."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import yaml

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL
from controller.cluster.pods import OUR_SCHEDULER
from kubekit.client import Client
from kubekit.wire import DEPLOYMENTS, NAMESPACES, SERVICE_ACCOUNTS, Object
from lab import boutique
from lab.cluster import Lab
from lab.controlplane import ControlPlane, object_exists
from lab.errors import BootError
from lab.installation import OVERLAY
from lab.polling import poll_until
from lab.progress import ProgressPrinter
from netperf.contract import (
    AGENT,
    AGENT_ANNOTATION,
    BANDWIDTH_RESOURCE,
    NAME_LABEL,
    NETAWARE_NAMESPACE,
    PART_OF_LABELS,
    REGION_LABEL,
    ZONE_LABEL,
)
from netperf.plans import CONTROL_PORT
from tests.support.etcd import Item, write_objects

ROLLED_OUT_SHARE = 0.1
"""Share of AppGroups whose Deployments are rolled out; pods of the others never change."""
_OMITTED_KINDS = frozenset({"DaemonSet", "Deployment", "PodDisruptionBudget", "NetworkPolicy", "Service"})
OTHER_NAMESPACES = 10
"""Number of namespaces of the pods that belong to no AppGroup."""
_TIMEOUT_S = 120.0
ZONES_PER_REGION = 4
NODE_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
POD_CONDITIONS = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_TIME = "2026-01-01T00:00:00Z"


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the cluster; ``pods`` include agents and pods of AppGroups."""

    zones: int = 100
    nodes_per_zone: int = 100
    pods: int = 30_000
    groups: int = 200
    minutes: float = 30.0

    @property
    def rolled_out_groups(self) -> int:
        """Number of AppGroups whose Deployments are rolled out."""
        return min(self.groups, max(1, round(self.groups * ROLLED_OUT_SHARE)))


def zone_name(index: int) -> str:
    return f"zone-{index:03}"


def make_node(name: str, *, zone: int, number: int) -> dict[str, Any]:
    """A ready node of about 5 kB with labels, conditions, images and an agent; ``number`` sets its address."""
    address = f"10.{number >> 14 & 255}.{number >> 7 & 127}.{number & 127}"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "n2-standard-8",
        ZONE_LABEL: zone_name(zone),
        REGION_LABEL: f"region-{zone // ZONES_PER_REGION:02}",
        **{f"example.com/label-{i}": f"value-{i}" for i in range(6)},
    }
    conditions = [
        {
            "type": type_,
            "status": str(type_ == "Ready"),
            "reason": "KubeletHasSufficient",
            "message": "kubelet is posting its status",
            "lastHeartbeatTime": _TIME,
            "lastTransitionTime": _TIME,
        }
        for type_ in NODE_CONDITIONS
    ]
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi", BANDWIDTH_RESOURCE: "10G"}
    announcement = json.dumps({"address": address, "port": CONTROL_PORT, "version": "0.1.0", "prober": "netperf"})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {AGENT_ANNOTATION: announcement}},
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "phase": "Running",
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "images": [
                {"names": [f"registry.example.com/team/image-{i}@sha256:{i:064}"], "sizeBytes": 100_000_000}
                for i in range(10)
            ],
        },
    }


def make_running_pod(namespace: str, name: str, node: str, labels: Mapping[str, str], number: int) -> dict[str, Any]:
    """A running and ready pod; ``number`` sets its address."""
    container = {"name": "main", "image": "registry.example.com/team/service:1.0"}
    address = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    state = {"running": {"startedAt": _TIME}}
    container_status = {**container, "imageID": "", "ready": True, "started": True, "restartCount": 0, "state": state}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{**container, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": type_, "status": "True", "lastTransitionTime": _TIME} for type_ in POD_CONDITIONS],
            "startTime": _TIME,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": [container_status],
        },
    }


async def install_rules(lab: Lab) -> None:
    """Apply the shipped definitions, rights and policies, without programs.

    The policies that restrict an agent to its own node are left out, because simulated agents share one token.
    """
    overlay = await lab.control_plane.run_kubectl("kustomize", OVERLAY, timeout_s=_TIMEOUT_S)
    objects = [body for body in yaml.safe_load_all(overlay) if body and body["kind"] not in _OMITTED_KINDS]
    applied_objects = [
        body
        for body in objects
        if not (body["kind"] == "ValidatingAdmissionPolicyBinding" and body["metadata"]["name"].startswith(AGENT))
    ]
    path = lab.paths.state_dir / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(applied_objects, sort_keys=False))
    await lab.control_plane.run_kubectl("apply", "--server-side", "-f", path, timeout_s=_TIMEOUT_S)


async def put_nodes_and_pods(plane: ControlPlane, sizes: Sizes, print_progress: ProgressPrinter) -> list[list[str]]:
    """Write nodes, and pods of agents, of lasting AppGroups, and of others; return the nodes' names by zone."""
    names_by_zone = [[f"node-{zone:03}-{i:03}" for i in range(sizes.nodes_per_zone)] for zone in range(sizes.zones)]
    keys = [(i, zone) for i in range(sizes.nodes_per_zone) for zone in range(sizes.zones)]
    bodies = (make_node(names_by_zone[zone][i], zone=zone, number=number) for number, (i, zone) in enumerate(keys))
    nodes = ((f"minions/{body['metadata']['name']}", body) for body in bodies)
    print_progress(f"{await write_objects(plane, nodes)} nodes")
    print_progress(f"{await write_objects(plane, _iter_pods(sizes, names_by_zone))} pods")
    return names_by_zone


def _iter_pods(sizes: Sizes, names_by_zone: list[list[str]]) -> Iterator[Item]:
    node_names, appgroup = [name for names in names_by_zone for name in names], _load_application().group
    workloads = [entry["workload"]["selector"] for entry in appgroup["spec"]["workloads"]]
    numbers = itertools.count()

    def make_item(namespace: str, name: str, node: str, labels: Mapping[str, str]) -> Item:
        return f"pods/{namespace}/{name}", make_running_pod(namespace, name, node, labels, next(numbers))

    for node in node_names:
        yield make_item(NETAWARE_NAMESPACE, f"agent-{node}", node, {NAME_LABEL: AGENT, **PART_OF_LABELS})
    for group in range(sizes.rolled_out_groups, sizes.groups):
        for position, workload in enumerate(workloads):
            # A group's pods are in three neighbouring zones, as in a plan.
            names = names_by_zone[(group + position % 3) % len(names_by_zone)]
            node = names[(group * 7 + position) % len(names)]
            labels = {APPGROUP_LABEL: appgroup["metadata"]["name"], WORKLOAD_LABEL: workload}
            yield make_item(group_namespace(group), f"pod-{workload.lower()}", node, labels)
    other_pods = max(0, sizes.pods - len(node_names) - sizes.groups * len(workloads))
    for number in range(other_pods):
        namespace, node = f"scale-{number % OTHER_NAMESPACES}", node_names[number % len(node_names)]
        yield make_item(namespace, f"pod-{number}", node, {"app": f"app-{number % 500}"})


async def create_namespaces(client: Client, sizes: Sizes) -> None:
    """Create the namespaces of groups and other pods; wait for their default service accounts."""
    names = [*map(group_namespace, range(sizes.groups)), *(f"scale-{i}" for i in range(OTHER_NAMESPACES))]
    for name in names:
        await client.create(NAMESPACES, {"metadata": {"name": name}}, Object)
    for name in (*names, NETAWARE_NAMESPACE):
        account = partial(object_exists, client, SERVICE_ACCOUNTS, "default", name)
        await poll_until(account, f"the default account of {name}", _TIMEOUT_S, every_s=0.2, error=BootError)


async def create_groups(client: Client, sizes: Sizes) -> list[tuple[str, str]]:
    """Create all AppGroups, and the Deployments of those that are rolled out; returns their namespaces and names."""
    application, deployment_keys = _load_application(), []
    for group in range(sizes.groups):
        await client.create(APPGROUPS, application.group, Object, namespace=group_namespace(group))
        for body in application.deployments.values() if group < sizes.rolled_out_groups else ():
            # No kubelet terminates a pod or reports that it is ready.
            body["spec"]["strategy"] = {"type": "Recreate"}
            body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
            await client.create(DEPLOYMENTS, body, Object, namespace=group_namespace(group))
            deployment_keys.append((group_namespace(group), str(body["metadata"]["name"])))
    return deployment_keys


def group_namespace(index: int) -> str:
    return f"scale-group-{index}"


def _load_application() -> boutique.Application:
    return boutique.load_application(scheduler=OUR_SCHEDULER, cpu="100m")
