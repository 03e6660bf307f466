"""Builds nodes as large as those of clouds, and the pods on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from netperf.contract import AGENT_ANNOTATION, BANDWIDTH_RESOURCE, REGION_LABEL, ZONE_LABEL
from netperf.plans import CONTROL_PORT

ZONES_PER_REGION = 4
NODE_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
POD_CONDITIONS = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_TIME = "2026-01-01T00:00:00Z"


def zone_name(index: int) -> str:
    """Name of the zone with this index."""
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
