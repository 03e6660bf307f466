"""A cluster that changes, without an API server: what the descheduler's program has of its stores."""

from __future__ import annotations

from dataclasses import replace

from controller.cluster.hosts import Host, NodeCache
from controller.cluster.pod_info import PodInfo
from controller.cluster.volumes import Volumes
from controller.descheduler.snapshot import Budget, LoadSnapshot, take_snapshot
from controller.descheduler.usage import NO_USAGE, UsageView
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.state import State
from kubekit.wire import Node


class World:
    """Nodes, pods, disruption budgets and volumes.

    Attributes:
        network: the scheduler's view of AppGroups and costs.
        pods: by key.
    """

    def __init__(self, config: SchedulerConfig | None = None, volumes: Volumes | None = None) -> None:
        self.network = State(config or SchedulerConfig(), "netaware-system")
        self.volumes, self.cache = volumes or Volumes(), NodeCache()
        self.pods: dict[str, PodInfo] = {}
        self.budgets: list[Budget] = []

    @property
    def inputs(self) -> PlanInputs:
        """As the scheduler has it."""
        return PlanInputs(self.network, self.cache, self.volumes)

    @property
    def nodes(self) -> dict[str, Host]:
        """By name."""
        return self.cache.hosts

    def take_node(self, name: str, new: Node | None) -> None:
        """A node changed."""
        self.cache.take_node(name, None, new)
        self.network.take_node(name, None, new)

    def take_pod(self, key: str, new: PodInfo | None) -> None:
        """A pod changed."""
        old = self.pods.pop(key, None)
        self.network.take_pod(key, old.wire if old else None, new.wire if new else None)
        if new is not None:
            self.pods[key] = new

    def snapshot(self, usage: UsageView = NO_USAGE) -> LoadSnapshot:
        """Now, with this usage."""
        return replace(take_snapshot(self.inputs, self.pods, self.budgets), usage=usage)
