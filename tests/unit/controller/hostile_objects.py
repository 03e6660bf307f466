"""Thousands of objects with hostile texts in all fields that tenants and agents may write."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from controller.cli.session import Session
from controller.cli.traffic import Traffic
from controller.cluster.costs import Location
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.graph import ObservedDependency, OmittedTraffic, TrafficGraph, WorkloadId
from controller.traffic.sources import SOURCES
from controller.traffic.workloads import Workloads
from kubekit.client import Client
from kubekit.responses import RawPage
from kubekit.wire import CONFIGMAPS, PODS, ConfigMap, Resource
from netperf.contract import AGENT_ANNOTATION, BANDWIDTH_RESOURCE, REGION_LABEL, ZONE_LABEL
from tests.unit.controller.components import HEAD, HOME, Components, FakeClient
from tests.unit.controller.situations import NOW_S

PAYLOAD = "x$(touch pwned)`touch pwned`; touch pwned '; touch pwned; ' \x1b]0;pwned\x07\x9b2J\u202e"
FORGED = "fix: touch forged"
PAYLOADS = (
    PAYLOAD,
    f"a\n  {FORGED}\n✓ nothing is wrong",
    f"a\r{FORGED}\u2028✓ nothing is wrong\u2029\x85",
    "\x1b]0;pwned\x07\x1b[2J\x9b2J\x7f\x00\x08",
    "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>\"'&",
    "\u202egnp.exe\u2066\u200f\ufeff\U000e0041",
    "l" * 400,
)
NUMBERS = range(250)


def hostile_text(word: str, number: int) -> str:
    """A payload followed by the word; over seven numbers each word gets every payload."""
    return PAYLOADS[(zlib.crc32(word.encode()) + number) % len(PAYLOADS)] + f"{word}{number}"


def replace_marked(data: Any, number: int) -> Any:
    """The data with hostile texts for strings that begin with @."""
    if isinstance(data, dict):
        return {replace_marked(key, number): replace_marked(value, number) for key, value in data.items()}
    if isinstance(data, list):
        return [replace_marked(value, number) for value in data]
    return hostile_text(data[1:], number) if isinstance(data, str) and data.startswith("@") else data


def pod_of_group(
    name: str, selector: str, *, labels: Any = None, annotations: Any = None, **more: Any
) -> dict[str, Any]:
    """A pod of the group; ``more`` are fields of its spec and status."""
    known = {APPGROUP_LABEL: "@shop", WORKLOAD_LABEL: selector, "@label": "@value", **(labels or {})}
    owner = [{"apiVersion": "apps/v1", "kind": "@kind", "name": "@owner", "uid": "@uid", "controller": True}]
    meta = {"name": name, "namespace": "@ns", "labels": known, "annotations": annotations or {}, "uid": name}
    meta |= {"ownerReferences": owner, "creationTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": more.pop("phase", "Pending"), "conditions": more.pop("conditions", [])}
    spec = {"schedulerName": "network-aware-scheduler", "containers": [{"name": "c"}], **more}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def unschedulable(message: str) -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


def objects_of(number: int) -> list[dict[str, Any]]:
    """Objects of an application, and for every tenth number six nodes."""

    def ref(word: str) -> dict[str, str]:
        return {
            "kind": "@kind",
            "apiVersion": "@v1",
            "name": f"@name {word}",
            "selector": f"@{word}",
            "namespace": "@ns",
        }

    calls = [{"workload": ref("b"), "minBandwidth": "@much", "maxNetworkCost": 1}, {"workload": ref("absent")}]
    meta = {"name": "@shop", "namespace": "@ns", "uid": "@uid", "labels": {"@label": "@value"}}
    meta["annotations"] = {f"netaware.io/{name}": f"@{name}" for name in ("weights", "spread", "objective")}
    workloads = [
        {"workload": ref("a"), "dependencies": calls},
        {"workload": ref("b"), "dependencies": [{"workload": ref("a")}]},
    ]
    spec = {"numMembers": 40, "topologySortingAlgorithm": "@sort", "workloads": workloads}
    other = {**meta, "name": "@other", "namespace": "@elsewhere"}
    known_sort = {**spec, "topologySortingAlgorithm": "KahnSort"}
    node = f"n{number}"
    odd_pods: list[dict[str, Any]] = [
        {"schedulingGates": [{"name": "netaware.io/topological-order"}]},
        {"schedulingGates": [{"name": "@gate"}, {"name": "netaware.io/topological-order"}]},
        {"schedulerName": "@scheduler"},
        {
            "nodeSelector": {"@key": "@value"},
            "conditions": unschedulable("0/9 nodes are available: 9 Insufficient cpu. @why"),
        },
        {
            "conditions": unschedulable("@message"),
            "tolerations": [{"key": "@key", "operator": "@op", "value": "@value"}],
        },
        {"conditions": unschedulable("0/9 nodes are available: 9 node(s) had untolerated taint {@key: @value}.")},
        {"nodeName": "n0-0", "phase": "@phase"},
        {"nodeName": "@node", "phase": "Running", "volumes": [{"persistentVolumeClaim": {"claimName": "@claim"}}]},
    ]
    limits = {f"kubernetes.io/{way}-bandwidth": f"@{way}" for way in ("ingress", "egress")}
    pods = [
        pod_of_group(f"@odd{i}", ("@a", "@b", "@wrong")[i % 3], annotations=limits, **spec)
        for i, spec in enumerate(odd_pods)
    ]
    pods += [
        pod_of_group(f"@p{i}", "@ab"[::2] if i % 2 else "@b", nodeName=f"n{number // 10 * 10}-{i % 6}", phase="Running")
        for i in range(25)
    ]
    services = [
        {
            "kind": "Service",
            "metadata": {"name": f"@svc{i}", "namespace": "@ns"},
            "spec": {"selector": {WORKLOAD_LABEL: "@b"}, "trafficDistribution": "@near"},
        }
        for i in range(4)
    ]
    made = {
        "kind": "Deployment",
        "metadata": {"name": "@name a", "namespace": "@ns"},
        "spec": {
            "template": {"metadata": {"labels": {APPGROUP_LABEL: "@shop", WORKLOAD_LABEL: "@a", "@label": "@value"}}}
        },
    }
    groups = [
        {"kind": "AppGroup", "metadata": meta, "spec": spec},
        {"kind": "AppGroup", "metadata": other, "spec": known_sort},
    ]
    agents = [agent_of(f"{node}-{i}", i, number) for i in range(6)] if number % 10 == 0 else []
    objects: list[dict[str, Any]] = replace_marked([*groups, made, *pods, *services, *agents], number)
    return objects


def agent_of(node: str, place: int, number: int) -> dict[str, Any]:
    """A node with the texts that its agent may write."""
    words = ("address", "version", "prober", "problem")
    announced = {word: hostile_text(word, number + i) for i, word in enumerate(words) if word != "address" or place % 2}
    annotations = {AGENT_ANNOTATION: json.dumps({"port": 1, **announced}), "netaware.io/bandwidth-source": "@source"}
    labels = {ZONE_LABEL: f"z{place}", REGION_LABEL: "r"}
    ready = {"type": "Ready", "status": "True", "message": "@message"}
    status = {
        "capacity": {BANDWIDTH_RESOURCE: "@capacity"},
        "allocatable": {BANDWIDTH_RESOURCE: "10G"},
        "conditions": [ready],
    }
    return {"kind": "Node", "metadata": {"name": node, "labels": labels, "annotations": annotations}, "status": status}


def results() -> dict[str, str]:
    """Data of a results ConfigMap, for pairs of the agents and for others."""
    data: dict[str, str] = {}
    for number in NUMBERS:
        place = {"node": hostile_text("node", number)[:200], "zone": hostile_text("zone", number)[:60], "region": "r"}
        measured = {"prober": "netperf", "test": "TCP_RR", "p50_us": 9.0}
        sample = {"origin": {**place, "node": f"n{number}-0", "zone": "z0"}, "destination": place, "sequence": 1}
        value = json.dumps({**sample, "measurement": measured, "taken_at": NOW_S})
        data |= {
            f"n{number}-0_{hostile_text('node', number)}_tcp-rr": value,
            hostile_text("key", number): hostile_text("value", number),
        }
    return data


class HostileCluster(Components):
    """Hostile objects, as commands and the page read them."""

    async def read(self) -> None:
        client = cast("Client", HostileClient(self.objects, HEAD))
        whole = await Session(client, None, None, HOME).read_snapshot(everything=True)
        self.snapshot = msgspec.structs.replace(whole, now_s=NOW_S)

    def session(self, namespace: str | None) -> Session:
        """A session that has read the cluster."""
        session = Session(cast("Client", HostileClient(self.objects, HEAD)), None, namespace, HOME)

        async def read(**_: bool) -> ClusterSnapshot:
            return self.snapshot

        session.read_snapshot = read  # type: ignore[method-assign]
        return session


class HostileClient(FakeClient):
    """A client of an API server with these objects, without pods of netaware."""

    async def list_pages(
        self, resource: Resource, *, namespace: str | None = None, **more: Any
    ) -> AsyncIterator[RawPage]:
        if "app.kubernetes.io" not in more.get("label_selector", ""):
            async for page in super().list_pages(resource, namespace=namespace):
                yield page

    async def get(self, resource: Resource, name: str, type_: type[Any], **more: Any) -> Any:
        if resource is CONFIGMAPS and name.startswith("netperf"):
            return ConfigMap(data=results())
        if resource is PODS:
            return next(pod for pod in await self.list(PODS, type_) if pod.metadata.name == name)
        return await super().get(resource, name, type_, **more)


async def traffic_of(session: Session, *_: object) -> Traffic:
    """Traffic of every application between its workloads and to external addresses."""
    found = [
        [WorkloadId(hostile_text("ns", n), hostile_text(word, n), "Deployment") for word in ("name a", "name b")]
        for n in NUMBERS
    ]
    calls = tuple(ObservedDependency(a, b, bytes_per_s=9.0, peak_bytes_per_s=9.0) for a, b in found)
    left = tuple(OmittedTraffic("external", hostile_text("name a", n), hostile_text("out", n), 1.0) for n in NUMBERS)
    ends = [end for pair in found for end in pair]
    workloads = Workloads(
        location_counts={end: Counter({Location("r", "z1"): 1}) for end in ends},
        replica_counts=Counter(ends),
        labels_by_workload={end: {hostile_text("label", 1): hostile_text("value", 1)} for end in ends},
    )
    snapshot = await session.read_snapshot(groups=True)
    return Traffic(TrafficGraph(calls, left), workloads, SOURCES[0], 60, snapshot)
