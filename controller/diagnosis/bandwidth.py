"""Bandwidth requested, allocated and enforced, per node and per pod.

Requests and allocations come from objects of the API, the agents' verdicts from Prometheus; without it, they are None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from controller.cluster.pod_info import PodInfo
from controller.diagnosis.cluster_views import BandwidthView, NodeBandwidthView, PodBandwidthView
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit import quantity
from kubekit.errors import QuantityError
from kubekit.wire import Node
from netperf.bandwidth_limits import UnreasonableLimitError, parse_limit
from netperf.contract import BANDWIDTH_RESOURCE, ZONE_LABEL


def build_bandwidth(snapshot: ClusterSnapshot) -> BandwidthView:
    """All nodes, and all unfinished pods that request bandwidth or have a limit."""
    pods = [
        _build_pod(pod, snapshot.verdicts_by_pod.get(pod.key, {}))
        for pod in snapshot.bandwidth_pods
        if not pod.is_finished and _has_bandwidth_spec(pod)
    ]
    requests_by_node: dict[str, list[int]] = defaultdict(list)
    for pod in pods:
        if pod.node and pod.requested_bps:
            requests_by_node[pod.node].append(pod.requested_bps)
    nodes = sorted(snapshot.nodes, key=lambda node: node.metadata.name)
    return BandwidthView(
        nodes=tuple(_build_node(node, requests_by_node.get(node.metadata.name, [])) for node in nodes),
        pods=tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name))),
    )


def _has_bandwidth_spec(pod: PodInfo) -> bool:
    return pod.ingress_limit is not None or pod.egress_limit is not None or pod.requests.get(BANDWIDTH_RESOURCE, 0) > 0


def _build_pod(pod: PodInfo, verdicts: Mapping[str, str]) -> PodBandwidthView:
    return PodBandwidthView(
        namespace=pod.namespace,
        name=pod.name,
        node=pod.node,
        requested_bps=pod.requests.get(BANDWIDTH_RESOURCE, 0),
        ingress_limit=pod.ingress_limit,
        egress_limit=pod.egress_limit,
        ingress_limit_bps=quantity.parse_int_or_none(pod.ingress_limit),
        egress_limit_bps=quantity.parse_int_or_none(pod.egress_limit),
        ingress_verdict=verdicts.get("ingress"),
        egress_verdict=verdicts.get("egress"),
        problem=_find_problem(pod),
    )


def _find_problem(pod: PodInfo) -> str:
    """The first inconsistency of a pod's request and limits; empty without one."""
    limits = {"ingress": pod.ingress_limit, "egress": pod.egress_limit}
    for direction, text in limits.items():
        try:
            if text is not None:
                parse_limit(text)
        except UnreasonableLimitError as error:
            return f"{direction} {text} is unreasonably {error.size}"
        except QuantityError:
            return f"{direction} {text!r} is not a quantity"
    if pod.host_network and any(limits.values()):
        return "limits do not apply to hostNetwork pods"
    requested_bps, egress_bps = pod.requests.get(BANDWIDTH_RESOURCE, 0), quantity.parse_int_or_none(limits["egress"])
    if requested_bps and egress_bps and requested_bps != egress_bps:
        return f"requests {requested_bps / 1e6:.15g} Mbit/s but is limited to {egress_bps / 1e6:.15g} Mbit/s"
    return ""


def _build_node(node: Node, requests_bps: list[int]) -> NodeBandwidthView:
    return NodeBandwidthView(
        node=node.metadata.name,
        zone=node.metadata.label(ZONE_LABEL),
        capacity_bps=quantity.parse_int_or_none((node.status.capacity or {}).get(BANDWIDTH_RESOURCE)),
        allocatable_bps=quantity.parse_int_or_none((node.status.allocatable or {}).get(BANDWIDTH_RESOURCE)),
        allocated_bps=sum(requests_bps),
        pods=len(requests_bps),
    )
