"""The whole picture from one snapshot."""

from __future__ import annotations

from controller.diagnosis.rules import diagnose
from controller.views.agents import build_agents
from controller.views.bandwidth import build_bandwidth
from controller.views.changes import build_changes
from controller.views.diagnosing import read_facts
from controller.views.groups import build_groups
from controller.views.model import Overview
from controller.views.network import build_network
from controller.views.problems import build_problems
from controller.views.snapshot import Snapshot


def build(snapshot: Snapshot, topology_name: str = "", weights_name: str = "") -> Overview:
    """Everything that is shown; pure.

    Args:
        snapshot: what there is.
        topology_name: which NetworkTopology; see `controller.views.network.choose_topology`.
        weights_name: which of its weights; see `controller.views.network.choose_weights`.
    """
    network = build_network(snapshot, topology_name, weights_name)
    agents, bandwidth = build_agents(snapshot), build_bandwidth(snapshot)
    groups = build_groups(snapshot, network, asked_for=bool(topology_name or weights_name))
    findings = () if snapshot.around is None else diagnose(read_facts(snapshot, network, agents))
    return Overview(
        at=snapshot.now_s,
        network=network,
        agents=agents,
        groups=groups,
        bandwidth=bandwidth,
        problems=build_problems(network, agents, groups, bandwidth, snapshot.readings),
        prometheus=snapshot.readings.source,
        prometheus_error=snapshot.readings.error,
        findings=findings,
        changes=build_changes(snapshot),
    )
