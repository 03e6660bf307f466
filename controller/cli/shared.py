"""Helpers of several commands: facts, scheduler state, and the note on unused costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.cli.session import Session
from controller.cluster.pods import GroupPod
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding, has_leader
from controller.diagnosis.model import NetworkView
from controller.diagnosis.pods import PodDiagnosis, diagnose_pod
from controller.diagnosis.reading import read_facts
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.state import State
from kubekit.wire import Object


def note_unused(session: Session, network: NetworkView) -> None:
    """Add a note if the scheduler does not use the costs that are shown."""
    if network.unused:
        name = " ".join(filter(None, (network.topology, network.weights)))
        session.notes["costs"] = f"the scheduler does not use {name}"


async def read_facts_of(session: Session, pod: GroupPod | None = None) -> Facts:
    """The facts of all namespaces, and of ``pod``, which may belong to no group.

    Raises:
        KubekitError: the nodes cannot be read.
    """
    session.namespace = None
    snapshot = await session.snapshot(everything=True)
    return read_facts(snapshot, pod)


def pod_diagnosis(pod: GroupPod, facts: Facts, findings: Iterable[Finding]) -> PodDiagnosis:
    """Why a pod of these facts is on its node, or pending. Pure."""
    fact = next(fact for fact in facts.pods if fact.key == pod.metadata.key)
    return diagnose_pod(fact, facts, has_leader=has_leader(findings))


def state_of(snapshot: ClusterSnapshot, pods: Iterable[GroupPod]) -> State:
    """The scheduler's state of a snapshot.

    Args:
        snapshot: nodes, groups, costs, Services and the scheduler's configuration.
        pods: those of AppGroups.
    """
    state = State(snapshot.scheduler, snapshot.home)
    handlers: tuple[tuple[Callable[..., object], Iterable[Object]], ...] = (
        (state.on_service_change, snapshot.services),
        (state.on_node_change, snapshot.nodes),
        (state.on_namespace_change, snapshot.namespaces),
        (state.on_group_change, snapshot.groups),
        (state.on_topology_change, snapshot.topologies),
        (state.on_pod_change, pods),
    )
    for on_change, objects in handlers:
        for each in objects:
            on_change(each.metadata.key, None, each)
    return state
