"""Cluster M3, dealt to three zones, through `simulate --offline` and through the leader and the real kube-scheduler.

Run by hand (minutes): ``python tests/bench/m3_scheduled.py``. 96 nodes of kwok, 3,485 pods of 547 services with PreferSameZone and
``spread: zone``, the published traffic as weights. Told: what share of the pods is bound where the leader planned them, and what
both placements are worth by the measures of `m3`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.cli.offline import Given, OfflinePlan, plan_offline
from controller.cli.offline_objects import read_cluster
from controller.cluster.pods import GATE, TARGET_ANNOTATION, Target
from controller.cluster.resources import (
    APPGROUP_LABEL,
    APPGROUPS,
    NETWORK_TOPOLOGIES,
    SERVICES,
    WORKLOAD_LABEL,
)
from kubekit.client import Client
from kubekit.wire import NODES, PODS, Node, Object, Resource
from lab.controlplane import PLAYED_BY_KWOK, ControlPlane
from lab.scheduling import build_config
from netperf.contract import REGION_LABEL, ZONE_LABEL
from tests.bench import m3
from tests.bench.control_plane import started
from tests.bench.decision_quality import all_ready, in_batches, until
from tests.bench.throughput import NAMESPACE, Bound, counted, program

GROUP = "m3"
_MILLI, _BYTES = 10**9, 10**12
"""The publisher's amounts are shares of all machines."""
LONGEST_S = 900.0


def name_of(text: str) -> str:
    return text.lower()


def _amounts(cpu: float, memory: float) -> dict[str, str]:
    return {"cpu": f"{int(cpu * _MILLI)}m", "memory": str(int(memory * _BYTES))}


def node_body(number: int, machine: Mapping[str, Any], zone: int) -> dict[str, Any]:
    name = f"m{number:03}"
    labels = {ZONE_LABEL: f"z{zone}", REGION_LABEL: "r", "kubernetes.io/hostname": name}
    # What was rounded off the requests cannot add up to more than what a machine loses here.
    amounts = {**_amounts(machine["TotalCPU"], machine["TotalMem"]), "pods": "1000"}
    metadata = {"name": name, "labels": labels, "annotations": dict([PLAYED_BY_KWOK])}
    return {**NODES.type_meta, "metadata": metadata, "status": {"capacity": amounts, "allocatable": amounts}}


def group_body(data: Mapping[str, Any]) -> dict[str, Any]:
    called: dict[str, list[str]] = {}
    weights: dict[str, dict[str, float]] = {}
    for edge in data["TrafficList"]:
        caller, callee = name_of(edge["Service1"]), name_of(edge["Service2"])
        called.setdefault(caller, []).append(callee)
        weights.setdefault(caller, {})[callee] = edge["Traffic"]
    names = [name_of(service["Service"]) for service in data["ServiceList"]]
    refer = {name: {"kind": "Deployment", "name": name, "selector": name} for name in names}
    workloads = [
        {
            "workload": refer[name],
            "dependencies": [{"workload": refer[callee], "maxNetworkCost": 10_000} for callee in called.get(name, ())],
        }
        for name in names
    ]
    members = sum(len(service["ContainerList"]) for service in data["ServiceList"])
    annotations = {"netaware.io/spread": "zone", "netaware.io/weights": json.dumps(weights)}
    spec = {"numMembers": members, "topologySortingAlgorithm": "KahnSort", "workloads": workloads}
    metadata = {"name": GROUP, "namespace": NAMESPACE, "annotations": annotations}
    return {**APPGROUPS.type_meta, "metadata": metadata, "spec": spec}


def pod_bodies(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """In the order of the problem's replicas."""
    return [
        pod_body(name_of(service["Service"]), number, service)
        for service in data["ServiceList"]
        for number in range(len(service["ContainerList"]))
    ]


def pod_body(workload: str, number: int, service: Mapping[str, Any]) -> dict[str, Any]:
    requests = _amounts(service["RequestCPU"], service["RequestMem"])
    return {
        **PODS.type_meta,
        "metadata": {
            "name": f"{workload}-{number}",
            "namespace": NAMESPACE,
            "labels": {APPGROUP_LABEL: GROUP, WORKLOAD_LABEL: workload},
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "schedulingGates": [{"name": GATE}],
            "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
        },
    }


def service_body(name: str) -> dict[str, Any]:
    spec = {"selector": {WORKLOAD_LABEL: name}, "ports": [{"port": 80}], "trafficDistribution": "PreferSameZone"}
    return {**SERVICES.type_meta, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def topology_body() -> dict[str, Any]:
    """A millisecond between zones, as `m3` has it."""
    zones = [f"z{zone}" for zone in range(3)]
    origins = [
        {"origin": a, "costList": [{"destination": b, "networkCost": 1} for b in zones if a != b]} for a in zones
    ]
    spec = {
        "configmapName": "netperf-metrics",
        "weights": [{"name": "UserDefined", "topologyList": [{"topologyKey": ZONE_LABEL, "originList": origins}]}],
    }
    metadata = {"name": "nt-default", "namespace": NAMESPACE}
    return {
        **NETWORK_TOPOLOGIES.type_meta,
        "metadata": metadata,
        "spec": spec,
    }


@asynccontextmanager
async def cluster(nodes: list[dict[str, Any]]) -> AsyncIterator[tuple[ControlPlane, Client]]:
    async with started("m3", (NAMESPACE, "netaware-system"), kwok=True) as (plane, client):
        await in_batches([client.create(NODES, body, Node) for body in nodes])
        await until(lambda: all_ready(client))
        yield plane, client


def simulate(objects: list[dict[str, Any]], folder: Path) -> OfflinePlan:
    """What the command answers."""
    path = folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    answer, remarks = plan_offline(read_cluster(str(path)), Given())
    assert not remarks, remarks
    return answer


def worth(data: Mapping[str, Any], deal: int, where: Mapping[str, str]) -> dict[str, float]:
    """Of a placement, pod name -> node."""
    names = [body["metadata"]["name"] for body in pod_bodies(data)]
    at = np.array([int(where[name][1:]) if where.get(name) else -1 for name in names], np.int64)
    return {
        key: round(value, 4) for key, value in msgspec.to_builtins(m3.scores(m3.problem_of(data, deal), at)).items()
    }


async def schedule(
    plane: ControlPlane, client: Client, objects: list[tuple[Resource, dict[str, Any]]]
) -> tuple[dict[str, str], dict[str, str], float]:
    """Planned and bound node of each pod, and the seconds from the leader's start on."""
    await in_batches([client.create(kind, body, Object, namespace=NAMESPACE) for kind, body in objects])
    async with AsyncExitStack() as stack:
        mirror = await stack.enter_async_context(counted(client))
        data = build_config(Path("unused"))
        data["clientConnection"] = {"qps": 2000, "burst": 4000}
        running = await plane.start_scheduler(data)
        stack.push_async_callback(plane.programs.stop, running)
        began = time.monotonic()
        await stack.enter_async_context(program(plane, "manager", "affinity"))
        pods = sum(kind is PODS for kind, _ in objects)
        async with asyncio.timeout(LONGEST_S):
            while sum(bool(p.spec.node_name) for p in mirror) < pods:
                await asyncio.sleep(0.5)
        took_s = time.monotonic() - began
        bound = {p.metadata.name: p.spec.node_name for p in mirror}
        planned = {p.metadata.name: _planned(p) for p in mirror}
    return planned, bound, took_s


def _planned(pod: Bound) -> str:
    text = pod.metadata.annotation(TARGET_ANNOTATION)
    return msgspec.json.decode(text, type=Target).node if text else ""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deal", type=int, default=0)
    args = parser.parse_args()
    data = m3.read()
    zones = m3.zones_of(len(data["MachineList"]), args.deal).tolist()
    nodes = [
        node_body(i, machine, zone) for i, (machine, zone) in enumerate(zip(data["MachineList"], zones, strict=True))
    ]
    services = [service_body(name_of(service["Service"])) for service in data["ServiceList"]]
    group, topology, pods = group_body(data), topology_body(), pod_bodies(data)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        answer = simulate([*nodes, *services, group, topology, *pods], Path(folder))
    where = {key.partition("/")[2]: node for key, node in answer.placements.items()}
    figures["simulate"] = {**worth(data, args.deal, where), "seconds": answer.seconds}
    print(figures, file=sys.stderr, flush=True)
    async with cluster(nodes) as (plane, client):
        objects = [
            (APPGROUPS, group),
            (NETWORK_TOPOLOGIES, topology),
            *((SERVICES, body) for body in services),
            *((PODS, body) for body in pods),
        ]
        planned, bound, took_s = await schedule(plane, client, objects)
    as_planned = sum(bool(planned[name]) and planned[name] == node for name, node in bound.items()) / len(bound)
    figures["scheduled"] = {
        **worth(data, args.deal, bound),
        "pods": len(bound),
        "as_planned": round(as_planned, 4),
        "seconds": round(took_s, 1),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
