"""What several commands need: a pod's diagnosis, the scheduler's state, and the note on unused costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.cli.session import Session
from controller.cluster.pods import Pod
from controller.diagnosis.cluster_views import NetworkView
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding, has_leader
from controller.diagnosis.pod_diagnosis import PodDiagnosis, diagnose_pod
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.state import State
from kubekit.wire import Object


def note_unused_costs(session: Session, network: NetworkView) -> None:
    """Add a note if the scheduler does not use the costs that are shown."""
    if network.unused:
        name = " ".join(filter(None, (network.topology, network.weights)))
        session.notes.append(f"costs: the scheduler does not use {name}")


def diagnose_listed_pod(pod: Pod, facts: Facts, findings: Iterable[Finding]) -> PodDiagnosis:
    """Diagnose the pod of ``facts`` that has this pod's name. Pure."""
    listed_pod = next(other for other in facts.pods if other.metadata.key == pod.metadata.key)
    return diagnose_pod(listed_pod, facts, has_leader=has_leader(findings))


def build_state(snapshot: ClusterSnapshot) -> State:
    """The scheduler's state for a snapshot that was read with ``groups``."""
    state = State(snapshot.scheduler, snapshot.netaware_namespace)
    handlers: tuple[tuple[Callable[..., object], Iterable[Object]], ...] = (
        (state.on_service_change, snapshot.services),
        (state.on_node_change, snapshot.nodes),
        (state.on_namespace_change, snapshot.namespaces),
        (state.on_group_change, snapshot.groups),
        (state.on_topology_change, snapshot.topologies),
        (state.on_pod_change, snapshot.pods),
    )
    for on_change, objects in handlers:
        for added in objects:
            on_change(added.metadata.key, None, added)
    return state
