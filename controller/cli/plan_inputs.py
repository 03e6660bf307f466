"""Reads the planner's inputs for a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from controller.cli.session import Session
from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodInfo
from controller.cluster.volumes import (
    CLAIMS,
    CLASSES,
    VOLUMES,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    Volumes,
)
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.state import State
from kubekit.wire import Object


def build_inputs(snapshot: ClusterSnapshot, pods: Iterable[PodInfo], volumes: Volumes) -> PlanInputs:
    """The planner's inputs from lists; ``pods`` and ``volumes`` are all of the cluster, ``snapshot.pods`` only those of AppGroups."""
    node_cache = NodeCache()
    for node in snapshot.nodes:
        node_cache.on_node_change(node.metadata.name, None, node)
    for pod in pods:
        node_cache.on_pod_change(pod.key, None, pod)
    return PlanInputs(build_state(snapshot), node_cache, volumes, snapshot.prices)


async def read_inputs(session: Session, snapshot: ClusterSnapshot) -> tuple[PlanInputs, list[PodInfo]]:
    """The planner's inputs, and all pods that have not finished."""
    pods, volumes, claims, classes = await asyncio.gather(
        session.list_unfinished_pods(),
        session.list_objects(VOLUMES, PersistentVolume),
        session.list_objects(CLAIMS, PersistentVolumeClaim),
        session.list_objects(CLASSES, StorageClass),
    )
    return build_inputs(snapshot, pods, Volumes.from_objects(volumes, claims, classes)), pods


def build_state(snapshot: ClusterSnapshot) -> State:
    """The scheduler's state of a snapshot by `read_snapshot(groups=True)`."""
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
        for item in objects:
            on_change(item.metadata.key, None, item)
    return state


def make_group_filter(state: State, group_key: str) -> Callable[[PodInfo], bool]:
    """A predicate that is true for the pods of an AppGroup, by the scheduler's rule."""
    return lambda pod: state.group_key_of(pod.namespace, pod.labels.get(APPGROUP_LABEL, "")) == group_key
