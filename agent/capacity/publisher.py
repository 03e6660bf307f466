"""Publishes the node's capacity, after changes of the node or a link, and after a read of the links each minute.

A kubelet that restarts may set foreign resources to 0. The watch of the node shows the change at once, and the value is written again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter

from agent.capacity.links import LinkSnapshot
from agent.capacity.node_capacity import HardwareCapacity, NodeCapacity, choose_capacity, update_peak_bps
from agent.capacity.publication import Writes, bandwidth_owner_of, find_foreign_capacity, plan_writes
from agent.capacity.rules import find_capacity
from agent.config import AgentConfig
from agent.disputes import DISPUTE_THRESHOLD, DISPUTE_WINDOW_S, FIRST_BACKOFF_S, MAX_BACKOFF_S
from agent.netlink import KernelError
from agent.node import OwnNode, OwnNodeWatch
from kubekit import logs
from kubekit.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from kubekit.errors import KubekitError
from kubekit.waiting import Backoff, backoff_delay_s, wait_until_set
from kubekit.wire import NODES
from netperf.contract import AGENT

log = logs.get("agent.capacity")

POLL_S = 60.0
"""Longest time between reads of links."""
MIN_READ_PAUSE_S = 2.0
"""Shortest time between reads of links, because every pod that starts or ends causes link events."""
DEBOUNCE_S = 0.5
"""Changes within this time are handled together."""
MIN_WRITE_PAUSE_S = 1.0
"""Shortest time between writes, so that a dispute with another writer costs little."""
WATCH_LAG_S = 2.0
"""Longest wait until the watch shows our own write. If it does not, writes are planned again from the old state."""


class DisputeDetector:
    """Counts how often another writer replaced our value. In a dispute, our writes are delayed with back-off.

    Attributes:
        written_bps: the value that we wrote last; None if it was replaced since, or never written.
    """

    def __init__(self) -> None:
        self.written_bps: int | None = None
        self._replaced_at_s: list[float] = []
        self._wait_until_s = 0.0

    def check_dispute(self, node: OwnNode, node_capacity: NodeCapacity, now_s: float) -> str:
        """Count a replacement of our value that the node shows; returns why nothing may be written now, or ""."""
        if now_s < self._wait_until_s:
            return self._description
        self._replaced_at_s = [at_s for at_s in self._replaced_at_s if now_s - at_s < DISPUTE_WINDOW_S]
        is_ours = bandwidth_owner_of(node) == AGENT and self.written_bps == node_capacity.rate_bps
        if not is_ours or not find_foreign_capacity(node, self.written_bps):
            return ""
        self.written_bps = None  # Count each replacement once.
        self._replaced_at_s.append(now_s)
        repeats = len(self._replaced_at_s) - DISPUTE_THRESHOLD + 1
        if repeats < 1:
            return ""
        self._wait_until_s = now_s + backoff_delay_s(repeats, FIRST_BACKOFF_S, MAX_BACKOFF_S)
        return self._description

    @property
    def _description(self) -> str:
        count, minutes = len(self._replaced_at_s), DISPUTE_WINDOW_S / 60
        return f"another writer replaced the published value {count} times within {minutes:.0f} minutes"


class Publisher:
    """Publishes the capacity of one node; ``node_capacity`` is None until the first choice.

    ``instance_type`` comes from the firmware. It counts if the node has no label with its type.
    """

    def __init__(
        self,
        client: Client,
        node_watch: OwnNodeWatch,
        config: AgentConfig,
        read_links: Callable[[], Awaitable[LinkSnapshot]],
        *,
        instance_type: str = "",
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.node_capacity: NodeCapacity | None = None
        self._client, self._node_watch, self._config = client, node_watch, config
        self._read_links, self._instance_type = read_links, instance_type
        self._hardware = HardwareCapacity(None, "links were not read yet")
        self._have_links_changed = True
        self._read_at_s = -math.inf
        self._peak_bps: int | None = None
        self._planned_version, self._planned_until_s = "", -math.inf
        self._disputes = DisputeDetector()
        self._backoff = Backoff(base_s=0.2, cap_s=30.0)
        self._wake = asyncio.Event()
        node_watch.subscribe(self._wake.set)
        self._write_counter = Counter(
            "netaware_node_bandwidth_writes",
            "Writes to the agent's node, by outcome: ok, failed.",
            ["outcome"],
            registry=registry,
        )

    def on_link_change(self) -> None:
        """Read links again soon, because one changed."""
        self._have_links_changed = True
        self._wake.set()

    def on_throughput(self, throughput_bps: float) -> None:
        """Record the throughput of a stream probe, if ``--measured-capacity`` is on."""
        if self._config.uses_measured_capacity:
            self._peak_bps = update_peak_bps(self._peak_bps, throughput_bps)
            self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled. The value stays on the node, because pods must still fit while the agent restarts."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if loop.time() - self._read_at_s >= self._read_interval_s:
                await self._read_hardware()
            node = self._node_watch.node
            self.node_capacity = choose_capacity(
                node, self._config, self._hardware, self._peak_bps, self._instance_type
            )
            pause_s = DEBOUNCE_S if node is None else await self._publish(node, self.node_capacity)
            await asyncio.sleep(pause_s)
            await wait_until_set(self._wake, max(0.0, self._read_at_s + self._read_interval_s - loop.time()))

    @property
    def _read_interval_s(self) -> float:
        """Time from the last read of the links to the next one."""
        return MIN_READ_PAUSE_S if self._have_links_changed else POLL_S

    async def _read_hardware(self) -> None:
        """Read the capacity of the links; if that fails, keep the last capacity."""
        self._have_links_changed = False
        try:
            self._hardware = find_capacity(await self._read_links())
            log.log_change("links", "", "links can be read again")
        except KernelError as error:
            log.log_change("links", str(error), "cannot read links, using the last result", error=error)
            if self._hardware.rate_bps is None:
                self._hardware = HardwareCapacity(None, str(error))
                self._have_links_changed = True  # Read again soon.
        self._read_at_s = asyncio.get_running_loop().time()

    async def _publish(self, node: OwnNode, node_capacity: NodeCapacity) -> float:
        """Write to the node if it differs; returns the shortest time until the next round, in seconds."""
        try:
            has_written = await self._write_differences(node, node_capacity)
        except KubekitError as error:
            self._write_counter.labels("failed").inc()
            log.log_change("publish", error.kind, "cannot publish the capacity", error=error)
            self._wake.set()  # The next round follows the delay at once.
            return self._backoff.next_delay_s()
        self._backoff.reset()
        log.log_change("publish", "", "capacity can be published again")
        if has_written:
            asyncio.get_running_loop().call_later(WATCH_LAG_S, self._wake.set)
        return MIN_WRITE_PAUSE_S if has_written else DEBOUNCE_S

    async def _write_differences(self, node: OwnNode, node_capacity: NodeCapacity) -> bool:
        """Write what differs on the node; returns whether anything was written."""
        self._log_capacity(node_capacity)
        now_s = asyncio.get_running_loop().time()
        if node.metadata.resource_version == self._planned_version and now_s < self._planned_until_s:
            return False  # The watch does not show our write yet.
        dispute = self._disputes.check_dispute(node, node_capacity, now_s)
        writes = plan_writes(node, node_capacity, time.time(), dispute=dispute)
        if not writes:
            return False
        await execute_writes(self._client, node.metadata.name, writes)
        self._write_counter.labels("ok").inc()
        if writes.status and node_capacity.rate_bps is not None:
            self._disputes.written_bps = node_capacity.rate_bps
        self._planned_version = node.metadata.resource_version
        self._planned_until_s = asyncio.get_running_loop().time() + WATCH_LAG_S
        return True

    def _log_capacity(self, node_capacity: NodeCapacity) -> None:
        for warning in node_capacity.warnings:
            log.log_change(f"warning/{warning}", "ignored", "capacity setting ignored", why=warning)
        is_known = node_capacity.rate_bps is not None
        log.log_change(
            "node_capacity",
            f"{node_capacity.rate_bps} {node_capacity.source}",
            "capacity" if is_known else "capacity unknown, nothing is published",
            level="info" if is_known else "warning",
            rate_bps=node_capacity.rate_bps,
            source=node_capacity.source,
            why=node_capacity.explanation,
        )


async def execute_writes(client: Client, name: str, writes: Writes) -> None:
    """Send the patches of a node.

    Raises:
        KubekitError: a request failed; plan again from the changed node, because a JSON patch fails if it removes a value that is gone.
    """
    if writes.metadata:
        await client.patch(NODES, name, writes.metadata, OwnNode, patch_type=MERGE_PATCH)
    if writes.status:
        await client.patch(NODES, name, list(writes.status), OwnNode, patch_type=JSON_PATCH, subresource="status")
    if writes.condition:
        await client.patch(NODES, name, writes.condition, OwnNode, patch_type=STRATEGIC_PATCH, subresource="status")
