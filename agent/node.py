"""The agent's own node, kept by a watch, with listeners for changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kubekit.wire import NodeStatus, Object, Wire
from netperf.contract import ZONE_LABEL


class NodeInfo(Wire, frozen=True):
    """The part of status.nodeInfo that we read."""

    kubelet_version: str = ""


class OwnNodeStatus(NodeStatus, frozen=True):
    """The part of the own node's status that we read."""

    node_info: NodeInfo = NodeInfo()


class OwnNode(Object, frozen=True):
    """v1 Node, with what an agent needs of its own."""

    status: OwnNodeStatus = OwnNodeStatus()

    @property
    def zone(self) -> str:
        """The zone label; empty without one."""
        return self.metadata.label(ZONE_LABEL)


class NodeView:
    """The latest state of the own node; ``node`` is None before the first read and after the node's deletion."""

    def __init__(self) -> None:
        self.node: OwnNode | None = None
        self._listeners: list[Callable[[], None]] = []
        self._changed = asyncio.Event()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change; it must be quick and must not raise."""
        self._listeners.append(listener)

    def on_change(self, _key: str, _old: OwnNode | None, new: OwnNode | None) -> None:
        """Record a new state; the signature is that of a reflector's handler."""
        self.node = new
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener()

    async def wait_for_change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    async def wait_for_node(self) -> OwnNode:
        """Wait until the node was read."""
        while self.node is None:
            await self.wait_for_change()
        return self.node
