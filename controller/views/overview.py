"""The data of ``status`` and the page."""

from __future__ import annotations

from controller.diagnosis.cluster_views import AgentView, BandwidthView, NetworkView, View
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import build_facts
from controller.diagnosis.findings import Finding
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.views.group_views import GroupView, build_group_views


class Overview(View, frozen=True):
    """All data that ``status`` and the page show.

    Attributes:
        read_at: time of the snapshot, unix seconds.
        network, agents: of the whole cluster.
        bandwidth: of all nodes; allocated by the snapshot's pods, which ``status -n`` reads from one namespace only.
        groups: sorted by namespace and name.
        findings: worst first; empty if the state of the control plane was not read.
    """

    read_at: float
    network: NetworkView
    agents: tuple[AgentView, ...]
    groups: tuple[GroupView, ...]
    bandwidth: BandwidthView
    findings: tuple[Finding, ...] = ()


def build_overview(snapshot: ClusterSnapshot, namespace: str | None = None) -> Overview:
    """The overview of a snapshot; ``namespace`` leaves out AppGroups of other namespaces, and findings that affect nothing else."""
    facts = build_facts(snapshot)
    groups = build_group_views(snapshot, facts.network)
    hidden_groups = {g.metadata.key for g in snapshot.groups if namespace not in {None, g.metadata.namespace}}
    findings = () if snapshot.control_plane is None else diagnose(facts)
    return Overview(
        read_at=snapshot.now_s,
        network=facts.network,
        agents=facts.agents,
        groups=tuple(g for g in groups if namespace in {None, g.namespace}),
        bandwidth=facts.bandwidth,
        findings=tuple(f for f in findings if not f.affects or not hidden_groups.issuperset(f.affects)),
    )
