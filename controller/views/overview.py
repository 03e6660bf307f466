"""Builds the data of ``status`` and the page."""

from __future__ import annotations

from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import build_facts
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.views.group_views import Overview
from controller.views.groups import build_groups


def build_overview(snapshot: ClusterSnapshot, namespace: str | None = None) -> Overview:
    """The overview of a snapshot. Pure.

    Args:
        snapshot: the cluster.
        namespace: limits AppGroups, and findings that only affect AppGroups; None for all namespaces.
    """
    facts = build_facts(snapshot)
    groups = build_groups(snapshot, facts.network)
    hidden_groups = {g.metadata.key for g in snapshot.groups if namespace not in {None, g.metadata.namespace}}
    findings = () if snapshot.control_plane is None else diagnose(facts)
    return Overview(
        at=snapshot.now_s,
        network=facts.network,
        agents=facts.agents,
        groups=tuple(g for g in groups if namespace in {None, g.namespace}),
        bandwidth=facts.bandwidth,
        findings=tuple(f for f in findings if not f.affects or not hidden_groups.issuperset(f.affects)),
    )
