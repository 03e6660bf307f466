"""Builds the overview that ``status`` and the page show."""

from __future__ import annotations

from controller.diagnosis.reading import read_facts
from controller.diagnosis.rules import diagnose
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.views.groups import build_groups
from controller.views.model import Overview


def build(snapshot: ClusterSnapshot, namespace: str | None = None) -> Overview:
    """Build the overview. Pure.

    Args:
        snapshot: the cluster.
        namespace: whose AppGroups are shown; None for all.
    """
    facts = read_facts(snapshot)
    groups = build_groups(snapshot, facts.network)
    hidden = {g.metadata.key for g in snapshot.groups if namespace not in {None, g.metadata.namespace}}
    findings = () if snapshot.control_plane is None else diagnose(facts)
    return Overview(
        at=snapshot.now_s,
        network=facts.network,
        agents=facts.agents,
        groups=tuple(g for g in groups if namespace in {None, g.namespace}),
        bandwidth=facts.bandwidth,
        findings=tuple(f for f in findings if not f.affects or not hidden.issuperset(f.affects)),
    )
