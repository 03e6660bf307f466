"""The publisher writes a changed bandwidth soon, and nothing while nothing changes; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from agent.capacity.links import Link, LinkSnapshot, Route
from agent.capacity.publisher import Publisher
from agent.config import AgentConfig
from agent.netlink import KernelError
from agent.node import NodeInfo, OwnNode, OwnNodeStatus, OwnNodeWatch
from kubekit.client import Client
from kubekit.errors import UnreachableError
from kubekit.wire import ObjectMeta, Resource
from netperf.contract import BANDWIDTH_RESOURCE

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
G = 10**9


class SimulatedNode:
    """A node and a watch on it, with the API server's rules of patches, as far as the publisher uses them."""

    def __init__(self, node_watch: OwnNodeWatch) -> None:
        self.node_watch, self.writes, self.is_reachable = node_watch, 0, True
        self.state = OwnNode(
            metadata=ObjectMeta(name="n1", resource_version="1"),
            status=OwnNodeStatus(capacity={"cpu": "8"}, node_info=NodeInfo(kubelet_version="v1.36.3")),
        )
        self.show()

    def show(self) -> None:
        self.node_watch.on_change("n1", None, self.state)

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """The node's fields; those after the block are its next version."""
        fields = msgspec.to_builtins(self.state)
        yield fields
        fields["metadata"]["resourceVersion"] = str(int(self.state.metadata.resource_version) + 1)
        self.state = msgspec.convert(fields, OwnNode)
        self.show()

    def set_capacity(self, amounts: dict[str, str]) -> None:
        with self.changing() as fields:
            fields["status"]["capacity"] = amounts

    @property
    def bandwidth(self) -> str | None:
        return (self.state.status.capacity or {}).get(BANDWIDTH_RESOURCE)

    async def patch(self, _resource: Resource, _name: str, body: Any, *_: object, **__: object) -> OwnNode:
        await asyncio.sleep(0.01)
        if not self.is_reachable:
            raise UnreachableError("PATCH: refused")
        self.writes += 1
        with self.changing() as fields:
            if isinstance(body, list):
                for operation in body:
                    amounts = fields["status"].setdefault(operation["path"].split("/")[2], {})
                    amounts[BANDWIDTH_RESOURCE] = operation["value"]
            elif "metadata" in body:
                fields["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
            else:
                fields["status"]["conditions"] = body["status"]["conditions"]
        return self.state


class SimulatedLinks:
    """Links whose speed a test can change, and a count of reads."""

    def __init__(self) -> None:
        self.rate_bps, self.reads, self.is_broken = 10 * G, 0, False

    async def read(self) -> LinkSnapshot:
        self.reads += 1
        await asyncio.sleep(0.005)
        if self.is_broken:
            raise KernelError("cannot read links: no buffer space")
        nic = Link(index=2, name="eno1", is_physical=True, sysfs_mbps=self.rate_bps // 10**6)
        return LinkSnapshot(links=(nic,), routes=(Route(device_index=2),))


class RunningPublisher:
    """A publisher that runs on a simulated node and simulated links."""

    def __init__(self) -> None:
        self.node_watch = OwnNodeWatch()
        self.node, self.links = SimulatedNode(self.node_watch), SimulatedLinks()
        self.publisher = Publisher(
            cast("Client", self.node),
            self.node_watch,
            AgentConfig(node_name="n1"),
            self.links.read,
            registry=CollectorRegistry(),
        )

    async def __aenter__(self) -> RunningPublisher:
        self.task = asyncio.create_task(self.publisher.run())
        await asyncio.sleep(5)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def test_a_thousand_quiet_minutes_cause_no_writes() -> None:
    async with RunningPublisher() as running:
        assert running.node.bandwidth == str(10 * G)
        writes_after_start = running.node.writes
        for _ in range(200):
            await asyncio.sleep(300)
            with running.node.changing():
                pass  # a heartbeat of the kubelet, in fields that the agent does not read
        assert writes_after_start <= 3
        assert running.node.writes == writes_after_start
        assert 900 <= running.links.reads <= 1100


async def test_a_zeroing_writer_causes_at_most_a_write_per_second() -> None:
    async with RunningPublisher() as running:
        writes_before = running.node.writes
        for _ in range(600):
            await asyncio.sleep(0.1)
            running.node.set_capacity({"cpu": "8", BANDWIDTH_RESOURCE: "0"})
        assert running.node.writes - writes_before <= 61
        await asyncio.sleep(2)
        assert running.node.bandwidth == str(10 * G)


async def test_another_writers_value_is_disputed_with_a_back_off() -> None:
    async with RunningPublisher() as running:
        writes_before = running.node.writes
        for _ in range(600):
            await asyncio.sleep(2)
            if running.node.bandwidth == str(10 * G):
                running.node.set_capacity({"cpu": "8", BANDWIDTH_RESOURCE: "1G"})
        condition = next(c for c in running.node.state.status.conditions or () if c.type == "NetawareBandwidth")
        assert (condition.status, condition.reason) == ("False", "Disputed")
        assert running.node.writes - writes_before <= 40
        await asyncio.sleep(700)
        assert running.node.bandwidth == str(10 * G)


async def test_a_changed_link_is_read_soon_but_not_for_each_event() -> None:
    async with RunningPublisher() as running:
        running.links.rate_bps = G
        running.publisher.on_link_change()
        await asyncio.sleep(4)
        assert running.node.bandwidth == str(G)
        reads_before = running.links.reads
        for _ in range(600):
            running.publisher.on_link_change()
            await asyncio.sleep(0.1)
        assert running.links.reads - reads_before <= 32


async def test_the_last_value_stays_while_links_or_the_api_server_do_not_answer() -> None:
    async with RunningPublisher() as running:
        running.links.is_broken = True
        running.publisher.on_link_change()
        await asyncio.sleep(120)
        assert running.publisher.node_capacity is not None
        assert running.publisher.node_capacity.rate_bps == 10 * G
        running.links.is_broken, running.node.is_reachable, running.links.rate_bps = False, False, G
        running.publisher.on_link_change()
        await asyncio.sleep(4 * 3600)
        assert running.node.bandwidth == str(10 * G)
        running.node.is_reachable = True
        await asyncio.sleep(35)
        assert running.node.bandwidth == str(G)
