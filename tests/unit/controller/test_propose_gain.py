"""`propose` shows what one plan of the proposed group would gain."""

from __future__ import annotations

from typing import Any

from controller.cli.propose import Gain, gain_of
from controller.cluster.costs import CostTable, Location
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.traffic.graph import ObservedDependency, TrafficGraph, WorkloadId
from controller.traffic.proposals import Proposal, propose
from controller.traffic.workloads import Workloads
from tests.unit.controller.test_one_answer import HEAD, node, session_of

Json = dict[str, Any]
WORKLOADS = [f"w{number}" for number in range(8)]
LOCATIONS = {f"n{number}": Location("west", f"z{number}") for number in range(3)}
SMALL = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]}


def manifest(kind: str, name: str, spec: Json, **metadata: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": "shop", **metadata}, "spec": spec}


def controller(kind: str, name: str, labels: Json, replicas: int = 2) -> Json:
    return manifest(kind, name, {"replicas": replicas, "template": {"metadata": {"labels": labels}, "spec": SMALL}})


def workload(name: str, number: int, *, labelled: bool) -> list[Json]:
    """A Deployment with its Service and two pods, each in another zone."""
    labels = {"app": name, **({APPGROUP_LABEL: "shop", WORKLOAD_LABEL: name} if labelled else {})}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-5d9f", "uid": name, "controller": True}
    own = {"labels": {**labels, "pod-template-hash": "5d9f"}, "ownerReferences": [owner]}
    pods = [
        {**manifest("Pod", f"{name}-5d9f-{i}", {**SMALL, "nodeName": f"n{(number + i) % 3}"}, **own), "status": {}}
        for i in (1, 2)
    ]
    service = {"selector": {"app": name}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameZone"}
    return [controller("Deployment", name, labels), manifest("Service", name, service), *pods]


async def gained(cpu: str, *more: Json, labelled: bool = False) -> tuple[Proposal, Gain]:
    """The gain of w0, which calls the seven others, on three nodes of three zones."""
    room = {"status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}}
    nodes = [{**node(name, zone), **room} for name, (_, zone) in LOCATIONS.items()]
    objects = [each for i, name in enumerate(WORKLOADS) for each in workload(name, i, labelled=labelled)]
    ends = [WorkloadId("shop", name, "Deployment") for name in WORKLOADS]
    calls = [ObservedDependency(ends[0], end, bytes_per_s=1000.0, peak_bytes_per_s=1000.0) for end in ends[1:]]
    first = {"workload": {"kind": "Deployment", "name": "w0", "selector": "w0"}}
    spread = {"annotations": {"netaware.io/spread": "zone"}}
    group = manifest("AppGroup", "shop", {"numMembers": 1, "workloads": [first]}, **spread)
    session = session_of(HEAD, *nodes, *more, *objects, group)
    workloads = Workloads.from_objects(await session.unfinished_pods(), LOCATIONS)
    snapshot, graph = await session.snapshot(groups=True), TrafficGraph(tuple(calls), ())
    (proposal,) = propose(graph, workloads, snapshot.groups, "shop", CostTable())
    return proposal, await gain_of(session, proposal, snapshot)


async def test_the_gain_is_that_of_one_plan_of_the_whole_group() -> None:
    proposal, gain = await gained("16")
    labelled, same = await gained("16", labelled=True)
    assert (len(proposal.patches), len(labelled.patches)) == (len(WORKLOADS), 0)
    assert same == gain
    assert gain.planned.latency_us < gain.now.latency_us
    assert gain.planned.zones.keys() == gain.now.zones.keys() == set(gain.planned.nodes)
    assert {len(set(zones)) for zones in gain.planned.zones.values()} == {2}
    assert (gain.now.unplaced, gain.planned.unplaced) == (0, 0)
    twin = controller("StatefulSet", "w1", {"app": "w1"}, 7)
    assert (await gained("16", twin))[1] == gain, "a StatefulSet with a Deployment's name is another workload"


async def test_pods_without_a_place_are_counted() -> None:
    _, gain = await gained("300m")
    assert gain.planned.unplaced == 2 * len(WORKLOADS) - 9
