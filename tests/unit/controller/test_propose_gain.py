"""What `propose` says of an application: where its rollout would end, beside what one plan of all of it would give."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from controller.cli.propose import in_turns
from controller.cli.propose_gain import Gain, gain_of
from controller.cli.session import Session
from controller.cli.templates import Controller
from controller.cli.traffic_reading import Traffic
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GroupPod
from controller.cluster.services import Service
from controller.traffic.flows import WorkloadId
from controller.traffic.graph import ObservedDependency, TrafficGraph
from controller.traffic.proposals import Proposal, Wish, propose
from controller.traffic.workloads import Workloads
from controller.views.snapshot import ClusterSnapshot
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

    async def list_all(self, _: Resource, __: type[Service], ___: str) -> list[Service]:
        return [service(name) for name in WORKLOADS]

    async def room_and_pods(self, _: object) -> tuple[dict[str, dict[str, int]], list[Any]]:
        return {}, [PodReader().read(pod) for pod in self.pods]

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
        snapshot = ClusterSnapshot(now_s=0, nodes=self.nodes)
        found = SimpleNamespace(graph=TrafficGraph(dependencies, ()), workloads=workloads, snapshot=snapshot, groups=[])
        return cast("Traffic", found)

    async def gain(self, *, one_by_one: bool = False) -> tuple[Proposal, Gain]:
        traffic = self.traffic()
        (proposal,) = propose(traffic.graph, traffic.workloads, (), "shop", lambda *_: None, wish=Wish(spread="zone"))
        return proposal, await gain_of(
            cast("Session", self), proposal, traffic, None, one_by_one=one_by_one, longest_s=600.0
        )


async def test_with_room_beside_the_old_pods_the_rollout_ends_where_one_plan_would_have_it() -> None:
    proposal, gain = await Cluster("16").gain()
    assert len(proposal.patches) == len(WORKLOADS)
    assert gain.crossing_now > 0
    assert gain.crossing_then == gain.crossing_most == gain.crossing_anew == 0
    assert {len(zones) for zones in gain.places_then.values()} == {2}
    assert gain.places_now.keys() == gain.places_then.keys()
    crossing = sum(rate for a, row in gain.zones_now.items() for b, rate in row.items() if a != b)
    assert crossing == pytest.approx(gain.crossing_now)
    assert sum(sum(row.values()) for row in gain.zones_then.values()) == pytest.approx(1000.0 * len(CALLS))


async def test_without_room_it_is_foretold_where_pods_stray_and_that_one_by_one_they_do_not() -> None:
    short = Cluster("1100m")
    _, gain = await short.gain()
    assert gain.crossing_anew == 0
    assert gain.crossing_most > 0
    assert gain.unplaced == 0
    _, in_turns = await short.gain(one_by_one=True)
    assert in_turns.crossing_most < gain.crossing_most


async def test_one_by_one_goes_by_the_groups_order() -> None:
    proposal, _ = await Cluster("16").gain()
    shuffled = msgspec.structs.replace(proposal, patches=proposal.patches[::-1])
    turns = [name for _, name, _ in in_turns(shuffled).patches]
    assert turns[0] == "w0", "who calls all others comes first, by KahnSort"
    assert sorted(turns) == WORKLOADS


async def test_workloads_that_nothing_rolls_stay_where_they_are() -> None:
    proposal, gain = await Cluster("16", labelled=True).gain()
    assert proposal.patches == ()
    assert gain.places_then == gain.places_now
    assert gain.crossing_then == pytest.approx(gain.crossing_now)
    assert gain.crossing_anew == 0


@pytest.mark.parametrize("first", [True, False])
async def test_a_stateful_set_that_has_a_deployments_name_changes_nothing_of_what_is_foretold(*, first: bool) -> None:
    async def foretold(cluster: Cluster) -> Gain:
        _, gain = await cluster.gain()
        return gain

    twin = msgspec.structs.replace(deployment("w1", {}), kind="StatefulSet")
    twin = msgspec.structs.replace(twin, spec=msgspec.structs.replace(twin.spec, replicas=7))
    both = Cluster("16")
    both.templates = [twin, *both.templates] if first else [*both.templates, twin]
    assert await foretold(both) == await foretold(Cluster("16"))
