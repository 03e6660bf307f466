"""What `propose` says of an application: what one plan of all of it would give."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from controller.cli.propose import Gain, gain_of
from controller.cli.session import Session
from controller.cli.templates import Controller
from controller.cli.traffic_reading import Traffic
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import GroupPod
from controller.cluster.services import Service
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.flows import WorkloadId
from controller.traffic.graph import ObservedDependency, TrafficGraph
from controller.traffic.proposals import Proposal, Wish, propose
from controller.traffic.workloads import Workloads
from kubekit.wire import Node, Resource

WORKLOADS = [f"w{number}" for number in range(8)]
ENDS = {name: WorkloadId("shop", name, "Deployment") for name in WORKLOADS}
CALLS = [("w0", called) for called in WORKLOADS[1:]]
LABELS = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def node(name: str, cpu: str) -> Node:
    labels = {LABELS[0]: name.replace("n", "z"), LABELS[1]: "r1"}
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": status}, Node)


def deployment(name: str, labels: dict[str, str]) -> Controller:
    requests = {"cpu": "100m"}
    template = {
        "metadata": {"labels": {"app": name, **labels}},
        "spec": {"containers": [{"resources": {"requests": requests}}]},
    }
    spec = {"replicas": 2, "template": template, "strategy": {"type": "RollingUpdate"}}
    made = {"kind": "Deployment", "metadata": {"name": name, "namespace": "shop"}, "spec": spec}
    return msgspec.convert(made, Controller)


def service(name: str) -> Service:
    spec = {"selector": {"app": name}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameZone"}
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, Service)


def old_pod(name: str, number: int, on: str, labels: dict[str, str]) -> GroupPod:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-5d9f", "uid": name, "controller": True}
    metadata = {
        "name": f"{name}-5d9f-{number}",
        "namespace": "shop",
        "labels": {"app": name, "pod-template-hash": "5d9f", **labels},
        "ownerReferences": [owner],
    }
    spec = {"nodeName": on, "containers": [{"resources": {"requests": {"cpu": "100m"}}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}, GroupPod)


class Cluster:
    """The three questions that `gain_of` asks, about three nodes in three zones."""

    def __init__(self, cpu: str, *, labelled: bool = False) -> None:
        own = {"appgroup.diktyo.x-k8s.io": "shop", "appgroup.diktyo.x-k8s.io.workload": ""} if labelled else {}
        labels = {name: {key: value or name for key, value in own.items()} for name in WORKLOADS}
        self.nodes = tuple(node(name, cpu) for name in ("n1", "n2", "n3"))
        self.templates = [deployment(name, labels[name]) for name in WORKLOADS]
        spots = [self.nodes[number % 3].metadata.name for number in range(2 * len(WORKLOADS))]
        self.pods = [old_pod(name, i, spots.pop(), labels[name]) for name in WORKLOADS for i in range(2)]
        self.labels = labels

    async def controllers(self, _: str) -> list[Controller]:
        return self.templates

    async def list_objects(self, _: Resource, __: type[Service]) -> list[Service]:
        return []

    async def unfinished_pods(self) -> list[PodInfo]:
        return [PodReader().read(pod) for pod in self.pods]

    def traffic(self) -> Traffic:
        dependencies = tuple(
            ObservedDependency(ENDS[a], ENDS[b], bytes_per_s=1000.0, peak_bytes_per_s=1000.0) for a, b in CALLS
        )
        zones: dict[str, list[tuple[str, str]]] = {name: [] for name in WORKLOADS}
        for pod in self.pods:
            zones[(pod.metadata.labels or {})["app"]].append(("r1", pod.spec.node_name.replace("n", "z")))
        places = {ENDS[name]: Counter(found) for name, found in zones.items()}
        workloads = Workloads(
            places=places,
            replicas=Counter(dict.fromkeys(ENDS.values(), 2)),
            labels={ENDS[name]: self.labels[name] for name in WORKLOADS},
            schedulers=dict.fromkeys(ENDS.values(), "netaware"),
        )
        snapshot = ClusterSnapshot(now_s=0, nodes=self.nodes, services=tuple(map(service, WORKLOADS)))
        found = SimpleNamespace(graph=TrafficGraph(dependencies, ()), workloads=workloads, snapshot=snapshot, groups=[])
        return cast("Traffic", found)

    async def gain(self) -> tuple[Proposal, Gain]:
        traffic = self.traffic()
        (proposal,) = propose(traffic.graph, traffic.workloads, (), "shop", lambda *_: None, wish=Wish(spread="zone"))
        return proposal, await gain_of(cast("Session", self), proposal, traffic)


@pytest.mark.parametrize("labelled", [False, True])
async def test_the_gain_is_that_of_one_plan_of_the_whole_group(*, labelled: bool) -> None:
    proposal, gain = await Cluster("16", labelled=labelled).gain()
    assert len(proposal.patches) == (0 if labelled else len(WORKLOADS))
    assert gain.planned.latency_us < gain.now.latency_us
    assert gain.planned.zones.keys() == gain.now.zones.keys() == set(gain.planned.nodes)
    assert {len(set(zones)) for zones in gain.planned.zones.values()} == {2}
    assert (gain.now.unplaced, gain.planned.unplaced) == (0, 0)


async def test_pods_without_room_are_counted() -> None:
    _, gain = await Cluster("300m").gain()
    assert gain.planned.unplaced == 2 * len(WORKLOADS) - 9


@pytest.mark.parametrize("first", [True, False])
async def test_a_stateful_set_that_has_a_deployments_name_changes_nothing_of_the_gain(*, first: bool) -> None:
    async def gain_of_cluster(cluster: Cluster) -> Gain:
        _, gain = await cluster.gain()
        return gain

    twin = msgspec.structs.replace(deployment("w1", {}), kind="StatefulSet")
    twin = msgspec.structs.replace(twin, spec=msgspec.structs.replace(twin.spec, replicas=7))
    both = Cluster("16")
    both.templates = [twin, *both.templates] if first else [*both.templates, twin]
    assert await gain_of_cluster(both) == await gain_of_cluster(Cluster("16"))
