"""What commands judge by: one look at the cluster, and its state in the scheduler's eyes."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from controller.cli.session import Session
from controller.cluster.hosts import Fleet
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import GroupPod
from controller.cluster.resources import APPGROUP_LABEL
from controller.cluster.volumes import (
    CLAIMS,
    CLASSES,
    VOLUMES,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    Volumes,
)
from controller.diagnosis.facts import Facts
from controller.diagnosis.pods import PodVerdict, judge_pod
from controller.diagnosis.rules import leads
from controller.scheduler.inputs import PlanInputs
from controller.scheduler.state import State
from controller.views.agents import build_agents
from controller.views.model import NetworkView, PairBasis, PairView
from controller.views.network import build_network
from controller.views.overview import read_facts
from controller.views.snapshot import ClusterSnapshot

UNMEASURED: Sequence[PairBasis] = ("stale", "inferred", "absent", "unreachable")
"""What a cost rests on that is no measurement of its own, or none of late."""


def add_costs_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of every command that shows costs."""
    parser.add_argument(
        "--weights", default="", metavar="NAME", help="set of costs (default: the one that the scheduler uses)"
    )
    parser.add_argument("--topology", default="", metavar="NAME", help="NetworkTopology (default: nt-default)")


def count_unmeasured(pairs: Iterable[PairView]) -> str:
    """How many pairs there are of each of `UNMEASURED`; empty for none."""
    counts = Counter(pair.basis for pair in pairs)
    return ", ".join(f"{counts[basis]} {basis}" for basis in UNMEASURED if counts[basis])


def note_unused(session: Session, network: NetworkView) -> None:
    """Say of costs that are shown that the scheduler does not go by them."""
    if network.unused:
        name = " ".join(filter(None, (network.topology, network.weights)))
        session.notes["costs"] = f"the scheduler does not use {name}"


async def look_around(session: Session, pod: GroupPod | None = None) -> tuple[float, Facts]:
    """Now, in unix seconds, and the facts of all namespaces; with ``pod`` also of one that is of no group.

    Raises:
        KubekitError: the nodes cannot be read.
    """
    session.namespace = None
    snapshot = await session.snapshot(groups=True, agents=True, around=True)
    return snapshot.now_s, facts_of(snapshot, pod)


def facts_of(snapshot: ClusterSnapshot, pod: GroupPod | None = None) -> Facts:
    """The facts of a snapshot, and of ``pod`` where it is not in it. Pure."""
    more = () if pod is None or any(pod.metadata.key == there.metadata.key for there in snapshot.pods) else (pod,)
    return read_facts(snapshot, build_network(snapshot, "", ""), build_agents(snapshot), more)


def verdict_on(pod: GroupPod | None, facts: Facts) -> PodVerdict | None:
    """Why a pod of these facts is where it is, or is not; None for none. Pure."""
    if pod is None:
        return None
    return judge_pod(next(fact for fact in facts.pods if fact.key == pod.metadata.key), facts, leads=leads(facts))


def state_of(snapshot: ClusterSnapshot, pods: Iterable[GroupPod]) -> State:
    """Everything that the scheduler's rules look at.

    Args:
        snapshot: nodes, groups, costs, Services and the scheduler's configuration.
        pods: those of AppGroups.
    """
    state = State(snapshot.scheduler, snapshot.home)
    for service in snapshot.services:
        state.take_service(service.metadata.key, None, service)
    for node in snapshot.nodes:
        state.take_node(node.metadata.name, None, node)
    for namespace in snapshot.namespaces:
        state.take_namespace(namespace.metadata.name, None, namespace)
    for group in snapshot.groups:
        state.take_group(group.metadata.key, None, group)
    for topology in snapshot.topologies:
        state.take_topology(topology.metadata.key, None, topology)
    for pod in pods:
        state.take_pod(pod.metadata.key, None, pod)
    return state


def inputs_of(snapshot: ClusterSnapshot, pods: Iterable[PodInfo], volumes: Volumes) -> PlanInputs:
    """What plans are made from, as the leader has it.

    Args:
        snapshot: see `state_of`.
        pods: all pods, those of AppGroups among them.
        volumes: all volumes, claims and classes.
    """
    fleet = Fleet()
    for node in snapshot.nodes:
        fleet.take_node(node.metadata.name, None, node)
    for pod in pods:
        fleet.take_pod(pod.key, None, pod)
    return PlanInputs(state_of(snapshot, snapshot.pods), fleet, volumes, snapshot.prices)


async def read_inputs(session: Session, snapshot: ClusterSnapshot) -> PlanInputs:
    """The same of the cluster, read with the snapshot."""
    pods, volumes, claims, classes = await asyncio.gather(
        session.unfinished_pods(),
        session.list_all(VOLUMES, PersistentVolume),
        session.list_all(CLAIMS, PersistentVolumeClaim),
        session.list_all(CLASSES, StorageClass),
    )
    return inputs_of(snapshot, pods, Volumes.among(volumes, claims, classes))


def belongs_to(state: State, key: str) -> Callable[[PodInfo], bool]:
    """Whether a pod is one of an AppGroup's, by the scheduler's rule."""
    return lambda pod: state.group_of(pod.namespace, pod.labels.get(APPGROUP_LABEL, "")) == key
