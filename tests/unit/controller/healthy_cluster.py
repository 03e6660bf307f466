"""Healthy clusters with any number of zones, measured costs and the Online Boutique, for tests of commands and the page."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from controller.appgroups.status import build_status, compute_group_state
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostTable
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup, NetworkTopology
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.encoding import encode_overview
from controller.topology.probe_nodes import to_probe_node
from controller.topology.weights import Bandwidths, build_weight
from controller.views.overview import build_overview
from kubekit.wire import Node
from netperf.contract import AGENT_ANNOTATION, REGION_LABEL, ZONE_LABEL, Announcement, encode_announcement
from netperf.cost_state import update_state
from netperf.costs import compute_costs
from netperf.measurement import Measurement
from netperf.pairs import PlanOptions, plan_probes
from netperf.policy import CostPolicy
from netperf.results import encode_samples
from netperf.sample import Sample
from tests.support.samples import make_sample
from tests.unit.controller import scheduler_objects
from tests.unit.netperf.builders import drop_removals

EXAMPLE = Path(__file__).parents[3] / "manifests" / "examples" / "online-boutique" / "appgroup.yaml"
BANDWIDTH = "network.aware.com/bandwidth"
HOME = "netaware-system"
NOW_S = 1_800_000_000.0
REGIONS = ("ap-south", "eu-central", "eu-west", "sa-east", "us-east", "us-west")
RESULTS = f"{HOME}/netperf-metrics"


def make_node(
    name: str,
    zone: str,
    region: str,
    *,
    ready: bool = True,
    agent: bool = True,
    capacity: str = "10G",
    **announced: str,
) -> Node:
    """A node with an address of its own; ``announced`` are other fields of its agent's announcement."""
    number = zlib.crc32(name.encode())
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    fields = {"address": address, "version": "0.1.0", "prober": "netperf", **announced}
    announcement = encode_announcement(msgspec.convert(fields, Announcement))
    amounts = {BANDWIDTH: capacity} if capacity else {}
    body = {
        "metadata": {
            "name": name,
            "labels": {ZONE_LABEL: zone, REGION_LABEL: region} if zone else {},
            "annotations": {AGENT_ANNOTATION: announcement, "netaware.io/bandwidth-source": "ethtool"} if agent else {},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }
    return msgspec.convert(body, Node)


def make_pod(
    name: str,
    *,
    node: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    request: str = "",
    namespace: str = "default",
    phase: str = "",
) -> Pod:
    requests = {BANDWIDTH: request} if request else {}
    metadata = {"namespace": namespace, "labels": labels or {}, "annotations": annotations or {}}
    status = {"phase": phase} if phase else {}
    containers = [{"resources": {"requests": requests}}]
    return scheduler_objects.make_pod("", node, name=name, metadata=metadata, status=status, containers=containers)


def make_boutique() -> AppGroup:
    """The shipped AppGroup with a computed status."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["topologySortingAlgorithm"] = "ReverseKahn"
    document["metadata"]["namespace"] = "default"
    group = msgspec.convert(document, AppGroup)
    membership = Membership.from_objects([group], (), NetworkOverheadArgs())
    state = compute_group_state(group, (), {}, CostTable(), membership)
    return msgspec.structs.replace(group, status=build_status(group, state, NOW_S))


def make_boutique_pods(nodes: Sequence[str], group: AppGroup) -> list[Pod]:
    """One pod per workload, on these nodes in turn."""
    workloads = group.spec.workloads or []
    return [
        make_pod(
            f"{item.workload.name}-{index:x}7c9",
            node=nodes[index % len(nodes)],
            labels={APPGROUP_LABEL: group.metadata.name, WORKLOAD_LABEL: item.workload.selector},
        )
        for index, item in enumerate(workloads)
    ]


def make_nodes(zones: int, per_zone: int = 2) -> list[Node]:
    """Nodes of zones in up to six regions."""
    nodes = []
    for index in range(zones):
        region = REGIONS[index * min(len(REGIONS), max(1, zones // 2)) // zones]
        zone = f"{region}-{index + 1}"
        nodes += [make_node(f"{zone}-n{i + 1}", zone, region) for i in range(per_zone)]
    return nodes


def make_samples(nodes: Iterable[Node], plans: Iterable[Any]) -> list[Sample]:
    """A sample of each planned probe; zones of a region are close to each other."""
    rng = random.Random(1)
    regions = sorted({node.metadata.label(REGION_LABEL) for node in nodes})
    centres = {region: (rng.uniform(0, 80), rng.uniform(0, 40)) for region in regions}
    points: dict[str, tuple[float, float]] = {}
    samples = []
    for plan in sorted(plans, key=lambda p: p.zone):
        for probe in plan.probes:
            for peer in (probe.origin, probe.destination):
                x, y = centres[peer.region]
                points.setdefault(peer.zone, (x + rng.uniform(-1.2, 1.2), y + rng.uniform(-1.2, 1.2)))
            p50_us = 400 + 1000 * math.dist(points[probe.origin.zone], points[probe.destination.zone])
            measurement = Measurement(
                prober="netperf",
                test="TCP_RR",
                p50_us=p50_us,
                p90_us=p50_us * 1.05,
                p99_us=p50_us * 1.3,
                jitter_us=p50_us * 0.02,
                transactions=1000,
                loss_ratio=0.0,
            )
            samples.append(make_sample(probe, measurement, 7, NOW_S - rng.uniform(1, 58)))
    return samples


def make_cluster_snapshot(zones: int, per_zone: int = 2) -> ClusterSnapshot:
    """A healthy cluster whose plans and costs are computed by the product."""
    nodes = make_nodes(zones, per_zone)
    probe_nodes = [to_probe_node(node, {}) for node in nodes]
    plans = tuple(plan_probes(probe_nodes, PlanOptions(node_pairs=1), {}, NOW_S).plan_by_zone.values())
    samples = make_samples(nodes, plans)
    state = update_state(samples, {}, CostPolicy(), NOW_S, NOW_S)
    table, _ = compute_costs(state, {node.zone: node.region for node in probe_nodes}, CostPolicy(), NOW_S)
    body = {
        "metadata": {"name": "nt-default", "namespace": HOME},
        "spec": {
            "configmapName": "netperf-metrics",
            "weights": [msgspec.to_builtins(build_weight(table, Bandwidths(), Bandwidths()))],
        },
    }
    topology = msgspec.convert(body, NetworkTopology)
    group = make_boutique()
    snapshot = ClusterSnapshot(
        now_s=NOW_S,
        nodes=tuple(nodes),
        topologies=(topology,),
        groups=(group,),
        pods=tuple(make_boutique_pods([node.name for node in probe_nodes], group)),
        plans=plans,
    )
    return replace_samples(snapshot, samples)


def read_samples(snapshot: ClusterSnapshot) -> list[Sample]:
    return [msgspec.json.decode(value, type=Sample) for value in snapshot.results[RESULTS].values()]


def replace_samples(snapshot: ClusterSnapshot, samples: list[Sample]) -> ClusterSnapshot:
    return msgspec.structs.replace(snapshot, results={RESULTS: drop_removals(encode_samples(samples))})


def read_pod_info(pod: Pod) -> PodInfo:
    return PodReader().read(pod)


def make_healthy_snapshot() -> ClusterSnapshot:
    """Six zones, and pods with limits and verdicts."""
    snapshot = make_cluster_snapshot(6)
    nodes = [node.metadata.name for node in snapshot.nodes]
    limits = {"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "1G"}
    pods = [
        make_pod("frontend-1", node=nodes[0], annotations=limits, request="8G"),
        make_pod("frontend-2", node=nodes[0], annotations=limits, request="4G"),
        make_pod("cache-1", node=nodes[3], annotations={"kubernetes.io/egress-bandwidth": "10M"}),
        make_pod("typo", node=nodes[4], annotations={"kubernetes.io/egress-bandwidth": "ten"}),
        make_pod("pending", request="1G"),
    ]
    verdicts_by_pod = {
        "default/frontend-1": {"ingress": "enforced", "egress": "enforced"},
        "default/frontend-2": {"ingress": "enforced", "egress": "no-limit"},
    }
    pod_infos = tuple(map(read_pod_info, pods))
    return msgspec.structs.replace(snapshot, bandwidth_pods=pod_infos, verdicts_by_pod=verdicts_by_pod)


def make_unhealthy_snapshot() -> ClusterSnapshot:
    """The healthy cluster without one agent, with old samples, and with a pair that was never measured."""
    snapshot = make_healthy_snapshot()
    samples = read_samples(snapshot)
    old_samples = [msgspec.structs.replace(sample, taken_at=sample.taken_at - 20_000) for sample in samples[:4]]
    node = snapshot.nodes[2]
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations={}))
    snapshot = msgspec.structs.replace(snapshot, nodes=(*snapshot.nodes[:2], node, *snapshot.nodes[3:]))
    return replace_samples(snapshot, [*old_samples, *samples[5:]])


def encode_page_data(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """The page's data of a cluster, as the browser decodes it."""
    overview = build_overview(snapshot)
    encoded = msgspec.json.encode({"readAt": overview.read_at, **encode_overview(overview)})
    data: dict[str, Any] = msgspec.json.decode(encoded)
    return data
