"""The cluster in the scheduler's eyes, for commands that answer by its rules."""

from __future__ import annotations

from collections.abc import Iterable

from controller.cluster.pods import GroupPod
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import State
from controller.views.snapshot import Snapshot


def state_of(snapshot: Snapshot, pods: Iterable[GroupPod], config: SchedulerConfig) -> State:
    """Everything that the scheduler's rules look at.

    Args:
        snapshot: nodes, groups, costs and Services.
        pods: those of AppGroups.
        config: the running controller's.
    """
    state = State(config, snapshot.home)
    for service in snapshot.services:
        state.take_service(service.metadata.key, None, service)
    for node in snapshot.nodes:
        state.take_node(node.metadata.name, None, node)
    for group in snapshot.groups:
        state.take_group(group.metadata.key, None, group)
    for topology in snapshot.topologies:
        state.take_topology(topology.metadata.key, None, topology)
    for pod in pods:
        state.take_pod(pod.metadata.key, None, pod)
    return state
