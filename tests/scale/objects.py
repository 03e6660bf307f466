"""What a large cluster holds: nodes of the size that a cloud's have, and the pods on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from lab.controlplane import PLAYED_BY_KWOK
from netperf.contract import (
    AGENT,
    AGENT_ANNOTATION,
    BANDWIDTH,
    NAME_LABEL,
    PART_OF,
    REGION_LABEL,
    ZONE_LABEL,
)
from netperf.plans import PROBE_PORT

ZONES_PER_REGION = 4
CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
_MOMENT = "2026-01-01T00:00:00Z"
# kube-controller-manager's ttl controller: up to so many nodes, so many seconds.
_TTL_S = ((100, 0), (500, 15), (1000, 30), (2000, 60), (10_000, 300))


def zone_name(index: int) -> str:
    """Zones are numbered."""
    return f"zone-{index:03}"


def node_body(name: str, *, zone: int, number: int) -> dict[str, Any]:
    """A node with a dozen labels, five conditions and ten images, about 5 kB, Ready, with an agent that has announced itself.

    Args:
        name: of the node.
        zone: index of its zone; four make a region.
        number: of the node in the cluster, for its address.
    """
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
        **{f"example.com/label-{j}": f"value-{j}" for j in range(6)},
    }
    conditions = [
        {
            "type": type_,
            "status": str(type_ == "Ready"),
            "reason": "KubeletHasSufficient",
            "message": "kubelet is posting its status",
            "lastHeartbeatTime": _MOMENT,
            "lastTransitionTime": _MOMENT,
        }
        for type_ in CONDITIONS
    ]
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi", BANDWIDTH: "10000000000"}
    note = json.dumps({"address": address, "port": PROBE_PORT, "version": "0.1.0", "prober": "netperf"})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {AGENT_ANNOTATION: note, **dict([PLAYED_BY_KWOK])},
        },
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "phase": "Running",
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "images": [
                {"names": [f"registry.example.com/team/image-{j}@sha256:{j:064}"], "sizeBytes": 100_000_000}
                for j in range(10)
            ],
        },
    }


def settled_node(name: str, *, zone: int, number: int, nodes: int) -> dict[str, Any]:
    """The same as a cluster of so many nodes has long had it: with what the controller manager writes to every node that it
    meets, for it would write to all of them at once here.
    """
    body = node_body(name, zone=zone, number=number)
    ttl_s = next((ttl_s for most, ttl_s in _TTL_S if nodes <= most), _TTL_S[-1][1])
    body["metadata"]["annotations"][TTL_ANNOTATION] = str(ttl_s)
    return body


def pod_body(name: str, node: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """A pod that is on its node already."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/team/service:1.0",
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                }
            ],
        },
    }


def running_pod(namespace: str, name: str, node: str, labels: Mapping[str, str], number: int) -> dict[str, Any]:
    """The same as its kubelet has reported it: Running and Ready."""
    body = pod_body(name, node, labels)
    address = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    containers = [(c["name"], c["image"]) for c in body["spec"]["containers"]]
    body["metadata"]["namespace"] = namespace
    return {**body, "status": running_status(containers, address, _MOMENT)}


def running_status(containers: Iterable[tuple[str, str]], address: str, now: str) -> dict[str, Any]:
    """What a kubelet reports of a pod that runs: names and images of its containers."""
    kinds = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "containerStatuses": [
            {
                "name": name,
                "image": image,
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for name, image in containers
        ],
    }


def agent_labels() -> dict[str, str]:
    """Of the pods of the agent's DaemonSet."""
    return {NAME_LABEL: AGENT, **PART_OF}


def group_labels(group: str, workload: str) -> dict[str, str]:
    """Of an AppGroup's pods."""
    return {APPGROUP_LABEL: group, WORKLOAD_LABEL: workload}
