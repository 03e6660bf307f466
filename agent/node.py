"""The agent's own node, and listeners for its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kubekit.wire import NodeStatus, Object, Wire
from netperf.contract import ZONE_LABEL


class NodeInfo(Wire, frozen=True):
    """The part of status.nodeInfo that the agent reads."""

    kubelet_version: str = ""


class OwnNodeStatus(NodeStatus, frozen=True):
    """The part of the node's status that the agent reads."""

    node_info: NodeInfo = NodeInfo()


class OwnNode(Object, frozen=True):
    """The agent's own v1 Node, with the parts that the agent reads."""

    status: OwnNodeStatus = OwnNodeStatus()

    @property
    def zone(self) -> str:
        """The value of the zone label; empty if the label is missing."""
        return self.metadata.label(ZONE_LABEL)


class OwnNodeWatch:
    """The latest state of the agent's own node, and listeners for its changes.

    Attributes:
        node: None before the first read and after the node's deletion.
        changed: set at the next change, after which it is another event.
    """

    def __init__(self) -> None:
        self.node: OwnNode | None = None
        self.changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change; it must be quick and must not raise."""
        self._listeners.append(listener)

    def on_change(self, _key: str, _old: OwnNode | None, new: OwnNode | None) -> None:
        """Record a new state and notify listeners. This is the handler for a reflector."""
        self.node = new
        self.changed.set()
        self.changed = asyncio.Event()
        for listener in self._listeners:
            listener()

    async def wait_for_node(self) -> OwnNode:
        """Wait until the node is known, and return it."""
        while self.node is None:
            await self.changed.wait()
        return self.node
