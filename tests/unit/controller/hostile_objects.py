"""Thousands of objects with hostile texts in all fields that tenants and agents may write.

In templates, a string that starts with @ stands for a hostile text.
"""

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
from tests.unit.controller.cluster_facts import NOW_S
from tests.unit.controller.components import CONFIG_HEAD, HOME, Components, FakeClient

PAYLOAD = "x$(touch pwned)`touch pwned`; touch pwned '; touch pwned; ' \x1b]0;pwned\x07\x9b2J\u202e"
FORGED = "fix: touch forged"
PAYLOADS = (
    PAYLOAD,  # shell
    f"a\n  {FORGED}\n✓ nothing is wrong",  # forged lines
    f"a\r{FORGED}\u2028✓ nothing is wrong\u2029\x85",  # Unicode's line separators
    "\x1b]0;pwned\x07\x1b[2J\x9b2J\x7f\x00\x08",  # terminal
    "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>\"'&",  # HTML
    "\u202egnp.exe\u2066\u200f\ufeff\U000e0041",  # direction of text
    "l" * 400,  # length
)
APPLICATIONS = range(250)
"""Numbers of the applications."""
Json = dict[str, Any]


def hostile_text(word: str, number: int) -> str:
    """A payload followed by the word; over as many numbers as there are payloads, each word gets every one."""
    return PAYLOADS[(zlib.crc32(word.encode()) + number) % len(PAYLOADS)] + f"{word}{number}"


def fill_template(template: Any, number: int) -> Any:
    """The template with hostile texts for strings that start with @."""
    if isinstance(template, dict):
        return {fill_template(key, number): fill_template(value, number) for key, value in template.items()}
    if isinstance(template, list):
        return [fill_template(value, number) for value in template]
    is_marked = isinstance(template, str) and template.startswith("@")
    return hostile_text(template[1:], number) if is_marked else template


def make_reference(word: str) -> Json:
    """A workload of an AppGroup."""
    fields = {"kind": "@kind", "apiVersion": "@v1", "name": f"@name {word}"}
    return {**fields, "selector": f"@{word}", "namespace": "@ns"}


def make_pod(name: str, selector: str, *, annotations: Json | None = None, **fields: Any) -> Json:
    """A pod of the group; ``fields`` are those of its spec and status."""
    labels = {APPGROUP_LABEL: "@shop", WORKLOAD_LABEL: selector, "@label": "@value"}
    owner = {"apiVersion": "apps/v1", "kind": "@kind", "name": "@owner", "uid": "@uid", "controller": True}
    metadata: Json = {
        "name": name,
        "namespace": "@ns",
        "labels": labels,
        "annotations": annotations or {},
        "uid": name,
        "ownerReferences": [owner],
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    status = {"phase": fields.pop("phase", "Pending"), "conditions": fields.pop("conditions", [])}
    spec = {"schedulerName": "network-aware-scheduler", "containers": [{"name": "c"}], **fields}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def make_unschedulable(message: str) -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


def make_node(name: str, index: int, number: int) -> Json:
    """A node with the texts that its agent may write; an odd ``index`` has a hostile address."""
    words = ("version", "prober", "problem", *(("address",) if index % 2 else ()))
    announcement = {word: hostile_text(word, number + i) for i, word in enumerate(words)}
    annotations = {
        AGENT_ANNOTATION: json.dumps({"port": 1, **announcement}),
        "netaware.io/bandwidth-source": "@source",
    }
    labels = {ZONE_LABEL: f"z{index}", REGION_LABEL: "r"}
    status = {
        "capacity": {BANDWIDTH_RESOURCE: "@capacity"},
        "allocatable": {BANDWIDTH_RESOURCE: "10G"},
        "conditions": [{"type": "Ready", "status": "True", "message": "@message"}],
    }
    return {"kind": "Node", "metadata": {"name": name, "labels": labels, "annotations": annotations}, "status": status}


METADATA = {
    "name": "@shop",
    "namespace": "@ns",
    "uid": "@uid",
    "labels": {"@label": "@value"},
    "annotations": {f"netaware.io/{name}": f"@{name}" for name in ("weights", "spread", "objective")},
}
CALLEES = [
    {"workload": make_reference("b"), "minBandwidth": "@much", "maxNetworkCost": 1},
    {"workload": make_reference("absent")},
]
WORKLOADS = [
    {"workload": make_reference("a"), "dependencies": CALLEES},
    {"workload": make_reference("b"), "dependencies": [{"workload": make_reference("a")}]},
]
GROUP_SPEC = {"numMembers": 40, "topologySortingAlgorithm": "@sort", "workloads": WORKLOADS}
OTHER_METADATA = {**METADATA, "name": "@other", "namespace": "@elsewhere"}
GROUPS = [
    {"kind": "AppGroup", "metadata": METADATA, "spec": GROUP_SPEC},
    {"kind": "AppGroup", "metadata": OTHER_METADATA, "spec": {**GROUP_SPEC, "topologySortingAlgorithm": "KahnSort"}},
]
POD_LABELS = {APPGROUP_LABEL: "@shop", WORKLOAD_LABEL: "@a", "@label": "@value"}
DEPLOYMENT = {
    "kind": "Deployment",
    "metadata": {"name": "@name a", "namespace": "@ns"},
    "spec": {"template": {"metadata": {"labels": POD_LABELS}}},
}
SERVICES = [
    {
        "kind": "Service",
        "metadata": {"name": f"@svc{i}", "namespace": "@ns"},
        "spec": {"selector": {WORKLOAD_LABEL: "@b"}, "trafficDistribution": "@near"},
    }
    for i in range(4)
]
GATE = {"name": "netaware.io/topological-order"}
LIMITS = {f"kubernetes.io/{direction}-bandwidth": f"@{direction}" for direction in ("ingress", "egress")}
ODD_POD_FIELDS: list[Json] = [
    {"schedulingGates": [GATE]},
    {"schedulingGates": [{"name": "@gate"}, GATE]},
    {"schedulerName": "@scheduler"},
    {
        "nodeSelector": {"@key": "@value"},
        "conditions": make_unschedulable("0/9 nodes are available: 9 Insufficient cpu. @why"),
    },
    {
        "conditions": make_unschedulable("@message"),
        "tolerations": [{"key": "@key", "operator": "@op", "value": "@value"}],
    },
    {"conditions": make_unschedulable("0/9 nodes are available: 9 node(s) had untolerated taint {@key: @value}.")},
    {"nodeName": "n0-0", "phase": "@phase"},
    {"nodeName": "@node", "phase": "Running", "volumes": [{"persistentVolumeClaim": {"claimName": "@claim"}}]},
]
ODD_PODS = [
    make_pod(f"@odd{i}", ("@a", "@b", "@wrong")[i % 3], annotations=LIMITS, **fields)
    for i, fields in enumerate(ODD_POD_FIELDS)
]


def make_objects(number: int) -> list[Json]:
    """The objects of an application, and six nodes for every tenth number."""
    running_pods = [
        make_pod(f"@p{i}", ("@b", "@a")[i % 2], nodeName=f"n{number // 10 * 10}-{i % 6}", phase="Running")
        for i in range(25)
    ]
    nodes = [make_node(f"n{number}-{i}", i, number) for i in range(6)] if number % 10 == 0 else []
    templates = [*GROUPS, DEPLOYMENT, *ODD_PODS, *running_pods, *SERVICES, *nodes]
    return [fill_template(template, number) for template in templates]


def make_results() -> dict[str, str]:
    """Data of a results ConfigMap, for pairs of the nodes and for others."""
    data: dict[str, str] = {}
    for number in APPLICATIONS:
        zone, node = hostile_text("zone", number), hostile_text("node", number)
        sample = {
            "origin": {"node": f"n{number}-0", "zone": "z0", "region": "r"},
            # A node's name has at most 253 characters, and a zone's 63.
            "destination": {"node": node[:200], "zone": zone[:60], "region": "r"},
            "sequence": 1,
            "measurement": {"prober": "netperf", "test": "TCP_RR", "p50_us": 9.0},
            "taken_at": NOW_S,
        }
        data |= {
            f"n{number}-0_{node}_tcp-rr": json.dumps(sample),
            hostile_text("key", number): hostile_text("value", number),
        }
    return data


class HostileCluster(Components):
    """Hostile objects, as commands and the page read them."""

    async def read_snapshot(self) -> None:
        """Read ``snapshot``, which sessions return."""
        client = cast("Client", HostileClient(self.objects, CONFIG_HEAD))
        snapshot = await Session(client, None, None, HOME).read_snapshot(everything=True)
        self.snapshot = msgspec.structs.replace(snapshot, now_s=NOW_S)

    def session(self, namespace: str | None) -> Session:
        """A session that has read the cluster."""
        session = Session(cast("Client", HostileClient(self.objects, CONFIG_HEAD)), None, namespace, HOME)

        async def return_snapshot(**_: bool) -> ClusterSnapshot:
            return self.snapshot

        session.read_snapshot = return_snapshot  # type: ignore[method-assign]
        return session


class HostileClient(FakeClient):
    """A client of an API server with these objects, without pods of netaware."""

    async def list_pages(
        self, resource: Resource, *, namespace: str | None = None, **options: Any
    ) -> AsyncIterator[RawPage]:
        if "app.kubernetes.io" not in options.get("label_selector", ""):
            async for page in super().list_pages(resource, namespace=namespace):
                yield page

    async def get(self, resource: Resource, name: str, type_: type[Any], **options: Any) -> Any:
        if resource is CONFIGMAPS and name.startswith("netperf"):
            return ConfigMap(data=make_results())
        if resource is PODS:
            return next(pod for pod in await self.list(PODS, type_) if pod.metadata.name == name)
        return await super().get(resource, name, type_, **options)


async def read_hostile_traffic(session: Session, *_: object) -> Traffic:
    """Traffic of every application between its workloads, and to external addresses."""
    pairs = [
        [WorkloadId(hostile_text("ns", n), hostile_text(word, n), "Deployment") for word in ("name a", "name b")]
        for n in APPLICATIONS
    ]
    dependencies = (ObservedDependency(a, b, bytes_per_s=9.0, peak_bytes_per_s=9.0) for a, b in pairs)
    omitted = (OmittedTraffic("external", hostile_text("name a", n), hostile_text("out", n), 1.0) for n in APPLICATIONS)
    ids = [workload for pair in pairs for workload in pair]
    workloads = Workloads(
        location_counts={workload: Counter({Location("r", "z1"): 1}) for workload in ids},
        replica_counts=Counter(ids),
        labels_by_workload={workload: {hostile_text("label", 1): hostile_text("value", 1)} for workload in ids},
    )
    snapshot = await session.read_snapshot(groups=True)
    return Traffic(TrafficGraph(tuple(dependencies), tuple(omitted)), workloads, SOURCES[0], 60, snapshot)
