"""Bandwidth requested, allocated and enforced, per node and per pod, and findings about it.

Requests and allocations come from the API's objects, agents' verdicts from Prometheus; without it verdicts are empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from controller.cluster.pod_info import PodInfo
from controller.diagnosis.findings import MAX_AFFECTED, MAX_CAUSES, Finding, PodFinding
from controller.diagnosis.model import BandwidthView, NetworkView, NodeBandwidthView, PodBandwidthView
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.diagnosis.zones import rate_of
from kubekit.errors import QuantityError
from kubekit.text import pluralize
from kubekit.wire import Node
from netperf.bandwidth_limits import UnreasonableLimitError, parse_limit
from netperf.contract import BANDWIDTH_RESOURCE, ZONE_LABEL


def build_bandwidth(snapshot: ClusterSnapshot) -> BandwidthView:
    """All nodes, and all unfinished pods that request bandwidth or have a limit."""
    pods = [pod for pod in snapshot.bandwidth_pods if not pod.is_finished and has_bandwidth_spec(pod)]
    views = sorted((_pod(pod, snapshot.verdicts.get(pod.key, {})) for pod in pods), key=lambda p: (p.namespace, p.name))
    requested: dict[str, list[int]] = defaultdict(list)
    for view in views:
        if view.node and view.requested_bps:
            requested[view.node].append(view.requested_bps)
    nodes = sorted(snapshot.nodes, key=lambda n: n.metadata.name)
    return BandwidthView(
        nodes=tuple(_node(node, requested.get(node.metadata.name, [])) for node in nodes),
        pods=tuple(views),
    )


def find_bandwidth_findings(network: NetworkView, bandwidth: BandwidthView) -> Iterator[Finding]:
    """Findings about overcommitted bandwidth, and about limits that agents report as not enforced."""
    overcommitted = [node.node for node in bandwidth.nodes if node.is_overcommitted]
    overcommitted += [f"{p.origin} to {p.destination}" for p in network.pairs if p.is_overcommitted]
    if overcommitted:
        summary = "pods request more bandwidth than there is"
        fix = ("kubectl netaware bandwidth", "lower requests or minBandwidth, or move pods to other nodes")
        alert = "NetawareBandwidthOvercommitted"
        yield Finding(
            "bandwidth-overcommitted", "warning", summary, (), None, tuple(overcommitted[:MAX_AFFECTED]), fix, alert
        )
    unenforced = [pod for pod in bandwidth.pods if pod.unenforced_verdicts]
    if unenforced:
        summary = f"bandwidth limits of {pluralize(len(unenforced), 'pod')} are not enforced"
        cause = tuple(
            f"{pod.namespace}/{pod.name}: {direction} {verdict}"
            for pod in unenforced[:MAX_CAUSES]
            for direction, verdict in pod.unenforced_verdicts.items()
        )
        affects = tuple(f"{pod.namespace}/{pod.name}" for pod in unenforced[:MAX_AFFECTED])
        fix = ("kubectl netaware bandwidth pod", "correct what the agent's verdict names: docs/bandwidth.md")
        yield PodFinding(
            "limits-not-enforced", "warning", summary, cause, None, affects, fix, "NetawareLimitNotEnforced"
        )


def has_bandwidth_spec(pod: PodInfo) -> bool:
    """Whether a pod requests bandwidth or has an annotation with a limit."""
    return pod.ingress is not None or pod.egress is not None or pod.requests.get(BANDWIDTH_RESOURCE, 0) > 0


def _pod(pod: PodInfo, verdicts: Mapping[str, str]) -> PodBandwidthView:
    ingress, egress = pod.ingress, pod.egress
    requested = pod.requests.get(BANDWIDTH_RESOURCE, 0)
    return PodBandwidthView(
        namespace=pod.namespace,
        name=pod.name,
        node=pod.node,
        requested_bps=requested,
        ingress_limit=ingress,
        egress_limit=egress,
        ingress_limit_bps=rate_of(ingress),
        egress_limit_bps=rate_of(egress),
        ingress_verdict=verdicts.get("ingress"),
        egress_verdict=verdicts.get("egress"),
        problem=_problem(requested, {"ingress": ingress, "egress": egress}, pod.host_network),
    )


def _problem(requested: int, limits: dict[str, str | None], host_network: bool) -> str:
    """The first inconsistency of a pod's request and limits; empty without one."""
    for direction, text in limits.items():
        try:
            if text is not None:
                parse_limit(text)
        except UnreasonableLimitError as error:
            return f"{direction} {text} is unreasonably {error.size}"
        except QuantityError:
            return f"{direction} {text!r} is not a quantity"
    if host_network and any(limits.values()):
        return "limits do not apply to hostNetwork pods"
    egress_bps = rate_of(limits["egress"])
    if requested and egress_bps and requested != egress_bps:
        return f"requests {requested / 1e6:g} Mbit/s but is limited to {egress_bps / 1e6:g} Mbit/s"
    return ""


def _node(node: Node, requested: list[int]) -> NodeBandwidthView:
    return NodeBandwidthView(
        node=node.metadata.name,
        zone=node.metadata.label(ZONE_LABEL),
        capacity_bps=rate_of((node.status.capacity or {}).get(BANDWIDTH_RESOURCE)),
        allocatable_bps=rate_of((node.status.allocatable or {}).get(BANDWIDTH_RESOURCE)),
        allocated_bps=sum(requested),
        pods=len(requested),
    )
