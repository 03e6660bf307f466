"""Findings about overcommitted bandwidth and limits without effect."""

from __future__ import annotations

from collections.abc import Iterator

from controller.diagnosis.cluster_views import BandwidthView, NetworkView
from controller.diagnosis.findings import MAX_CAUSES, Finding, PodFinding
from kubekit.text import pluralize


def find_bandwidth_findings(network: NetworkView, bandwidth: BandwidthView) -> Iterator[Finding]:
    """A finding about overcommitted nodes and pairs of zones, and one about limits that agents report as not enforced."""
    overcommitted = [node.node for node in bandwidth.nodes if node.is_overcommitted]
    overcommitted += [f"{p.origin} to {p.destination}" for p in network.pairs if p.is_overcommitted]
    if overcommitted:
        summary = "pods request more bandwidth than there is"
        fix = ("kubectl netaware bandwidth", "lower requests or minBandwidth, or move pods to other nodes")
        alert = "NetawareBandwidthOvercommitted"
        yield Finding("bandwidth-overcommitted", "warning", summary, affects=tuple(overcommitted), fix=fix, alert=alert)
    unenforced = [pod for pod in bandwidth.pods if pod.ineffective_verdicts]
    if unenforced:
        summary = f"bandwidth limits of {pluralize(len(unenforced), 'pod')} are not enforced"
        cause = tuple(
            f"{pod.namespace}/{pod.name}: {direction} {verdict}"
            for pod in unenforced[:MAX_CAUSES]
            for direction, verdict in pod.ineffective_verdicts.items()
        )
        affects = tuple(f"{pod.namespace}/{pod.name}" for pod in unenforced)
        fix = ("kubectl netaware bandwidth pod", "correct what the agent's verdict names: docs/bandwidth.md")
        alert = "NetawareLimitNotEnforced"
        yield PodFinding("limits-not-enforced", "warning", summary, cause, affects=affects, fix=fix, alert=alert)
