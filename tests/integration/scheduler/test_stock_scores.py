"""kube-scheduler binds every pod to one of the hosts with the best score of our model of it, in random clusters."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from controller.cluster.hosts import Host, host_of
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.scheduler.default_scheduler import DefaultSchedulerModel
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Node, Object, Resource
from lab.controlplane import ControlPlane
from lab.scheduler_config import build_scheduler_config
from netperf.contract import REGION_LABEL, ZONE_LABEL

pytestmark = pytest.mark.slow

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
SEEDS = range(1, 7)


class Binding(NamedTuple):
    """Hosts with the best score of the model for a pod, and the host to which kube-scheduler binds it."""

    best_hosts: set[str]
    host: str


async def create_hosts(client: Client, rng: random.Random, prefix: str) -> list[Host]:
    hosts = []
    for i in range(rng.randint(4, 14)):
        name = f"{prefix}n{i:02}"
        zone, disk = f"z{rng.randint(0, 3)}", rng.choice(["ssd", "hdd"])
        labels = {REGION_LABEL: "r", "kubernetes.io/hostname": name, "disk": disk}
        if rng.random() < 0.85:
            labels[ZONE_LABEL] = zone
        amounts = {"cpu": rng.choice(["4", "8", "16"]), "memory": rng.choice(["16Gi", "32Gi", "64Gi"]), "pods": "110"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        await client.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status}, Node)
        # Admission taints every new node as not ready, and no node controller runs here.
        taints = [{"key": "soft", "effect": "PreferNoSchedule"}] if rng.random() < 0.15 else None
        node = await client.patch(NODES, name, {"spec": {"taints": taints}}, Node, patch_type=MERGE_PATCH)
        hosts.append(host_of(node))
    return hosts


def make_random_spec(rng: random.Random, app: str, hosts: list[Host]) -> dict[str, Any]:
    """A random pod spec, restricted to these hosts, because the control plane has hosts of other clusters too."""
    requests = {}
    if rng.random() < 0.8:
        requests = {"cpu": rng.choice(["100m", "250m", "1", "1500m"]), "memory": rng.choice(["128Mi", "512Mi", "2Gi"])}
    on_hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": [host.name for host in hosts]}
    affinity: dict[str, Any] = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [on_hosts]}]}
    }
    if rng.random() < 0.3:
        preference = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}]}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 50, "preference": preference}]
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
        "affinity": {"nodeAffinity": affinity},
    }
    if rng.random() < 0.3 and any(host.labels["disk"] == "ssd" for host in hosts):
        spec["nodeSelector"] = {"disk": "ssd"}
    if rng.random() < 0.3:
        constraint = {"maxSkew": 1, "topologyKey": ZONE_LABEL, "whenUnsatisfiable": "ScheduleAnyway"}
        spec["topologySpreadConstraints"] = [{**constraint, "labelSelector": {"matchLabels": {"app": app}}}]
    return spec


class Cluster:
    """Pods of some workloads, which the real scheduler binds one after the other."""

    def __init__(self, client: Client, namespace: str, hosts: list[Host]) -> None:
        self._client, self._namespace = client, namespace
        self._hosts = sorted(hosts, key=lambda host: host.name)
        self._reader, self._bound = PodReader(), list[PodInfo]()

    def compute_best_hosts(self, pod: PodInfo) -> set[str]:
        """Hosts with the best score of the model, of those with capacity for the pod."""
        requested: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for other in self._bound:
            for resource, amount in other.requests.items():
                requested[other.node][resource] += amount
        is_feasible = np.array(
            [
                not pod.constraints.unmet_constraint(host.name, host.labels, host.taints)
                and all(
                    amount + requested[host.name][resource] <= host.allocatable.get(resource, 0)
                    for resource, amount in pod.requests.items()
                )
                for host in self._hosts
            ],
            np.bool_,
        )
        siblings = [other for other in self._bound if other.workload == pod.workload]
        model = DefaultSchedulerModel(self._hosts)
        for other in self._bound:
            model.add_pod(other, other.node)
        scores = np.where(is_feasible, model.scores(pod, siblings, self._bound, is_feasible), -1)
        return {self._hosts[index].name for index in np.flatnonzero(scores == scores.max()).tolist()}

    async def schedule_pod(self, name: str, app: str, spec: dict[str, Any]) -> Binding:
        """Create a pod, and wait until it is bound."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": True}
        metadata = {"name": name, "labels": {"app": app}, "ownerReferences": [owner]}
        await self._client.create(PODS, {"metadata": metadata, "spec": spec}, Pod, namespace=self._namespace)
        body = {"metadata": {**metadata, "namespace": self._namespace}, "spec": spec, "status": {"phase": "Pending"}}
        best_hosts = self.compute_best_hosts(self._reader.read(msgspec.convert(body, Pod)))
        async with asyncio.timeout(60):
            while not (node := (await self._client.get(PODS, name, Pod, namespace=self._namespace)).spec.node_name):
                await asyncio.sleep(0.02)
        bound = {**body, "spec": {**spec, "nodeName": node}, "status": {"phase": "Running"}}
        self._bound.append(self._reader.read(msgspec.convert(bound, Pod)))
        return Binding(best_hosts, node)


async def schedule_random_cluster(client: Client, seed: int) -> list[Binding]:
    """Schedule the pods of a random cluster."""
    rng, namespace = random.Random(seed), f"stock-{seed}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, Object, namespace=namespace)
    hosts = await create_hosts(client, rng, f"s{seed}")
    specs = {app: make_random_spec(rng, app, hosts) for app in (f"w{i}" for i in range(rng.randint(2, 5)))}
    for app, spec in specs.items():
        labels = {"app": app}
        template = {"metadata": {"labels": labels}, "spec": spec}
        body = {"metadata": {"name": app}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
        await client.create(REPLICA_SETS, body, Object, namespace=namespace)
    # The scheduler reads a pod's owner from a watch of its own, which may lag behind.
    await asyncio.sleep(1.0)
    apps_in_order = [app for app in specs for _ in range(rng.randint(2, 6))]
    rng.shuffle(apps_in_order)
    cluster = Cluster(client, namespace, hosts)
    return [await cluster.schedule_pod(f"{app}-{i}", app, specs[app]) for i, app in enumerate(apps_in_order)]


async def test_every_pod_is_bound_to_a_host_with_the_best_score_of_the_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            start = ControlPlane.start("stock", state_dir=Path(folder) / "state", components=())
            plane = await stack.enter_async_context(start)
            client = await stack.enter_async_context(Client(plane.client_config))
            config = build_scheduler_config() | {"clientConnection": {"qps": 500, "burst": 1000}}
            await plane.start_scheduler(config)
            bindings = [binding for seed in SEEDS for binding in await schedule_random_cluster(client, seed)]
    assert len(bindings) > 50
    mean_best_hosts = sum(len(binding.best_hosts) for binding in bindings) / len(bindings)
    assert mean_best_hosts < 2.5, "else the model would allow most hosts, and the test would show little"
    assert [binding for binding in bindings if binding.host not in binding.best_hosts] == []
