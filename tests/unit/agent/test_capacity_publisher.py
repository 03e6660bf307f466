"""The publisher writes a changed bandwidth soon, and nothing while nothing changes; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, cast

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
from kubekit.wire import Condition, ObjectMeta, Resource
from netperf.contract import BANDWIDTH_RESOURCE
from tests.support.tasks import running_tasks

pytestmark = pytest.mark.looptime
G = 10**9


class SimulatedNode:
    """A node and a watch on it, with the API server's rules of patches, as far as the publisher uses them."""

    def __init__(self, node_watch: OwnNodeWatch) -> None:
        self.node_watch, self.writes, self.is_reachable = node_watch, 0, True
        self.state = OwnNode(
            metadata=ObjectMeta(name="n1", resource_version="1"),
            status=OwnNodeStatus(capacity={"cpu": "8"}, node_info=NodeInfo(kubelet_version="v1.36.3")),
        )
        self._send_event()

    def _send_event(self) -> None:
        self.node_watch.on_change("n1", None, self.state)

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """The node's fields; those after the block are its next version."""
        fields = msgspec.to_builtins(self.state)
        yield fields
        fields["metadata"]["resourceVersion"] = str(int(self.state.metadata.resource_version) + 1)
        self.state = msgspec.convert(fields, OwnNode)
        self._send_event()

    def set_capacity(self, amounts: dict[str, str]) -> None:
        with self.changing() as fields:
            fields["status"]["capacity"] = amounts

    @property
    def bandwidth(self) -> str | None:
        return (self.state.status.capacity or {}).get(BANDWIDTH_RESOURCE)

    @property
    def conditions(self) -> list[Condition]:
        return self.state.status.conditions or []

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


class PublishingAgent(NamedTuple):
    """The part of an agent that publishes capacity, on a simulated node with simulated links."""

    node: SimulatedNode
    links: SimulatedLinks
    publisher: Publisher


@asynccontextmanager
async def running_publisher(*, has_links: bool = True) -> AsyncIterator[PublishingAgent]:
    """A publisher that has published the first capacity, or the reason why it has none."""
    node_watch, links, config = OwnNodeWatch(), SimulatedLinks(), AgentConfig(node_name="n1")
    node, links.is_broken = SimulatedNode(node_watch), not has_links
    publisher = Publisher(cast("Client", node), node_watch, config, links.read, registry=CollectorRegistry())
    async with running_tasks(publisher.run()):
        await asyncio.sleep(5)
        assert node.bandwidth == (str(10 * G) if has_links else None)
        yield PublishingAgent(node, links, publisher)


async def test_a_thousand_quiet_minutes_cause_no_writes() -> None:
    async with running_publisher() as agent:
        writes_after_start = agent.node.writes
        for _ in range(200):
            await asyncio.sleep(300)
            with agent.node.changing():
                pass  # a heartbeat of the kubelet, in fields that the agent does not read
        assert writes_after_start <= 3
        assert agent.node.writes == writes_after_start
        assert 900 <= agent.links.reads <= 1100


async def test_a_zeroing_writer_causes_at_most_a_write_per_second() -> None:
    async with running_publisher() as agent:
        writes_before = agent.node.writes
        for _ in range(600):
            await asyncio.sleep(0.1)
            agent.node.set_capacity({"cpu": "8", BANDWIDTH_RESOURCE: "0"})
        assert agent.node.writes - writes_before <= 61
        await asyncio.sleep(2)
        assert agent.node.bandwidth == str(10 * G)


async def test_another_writers_value_is_disputed_with_a_back_off() -> None:
    async with running_publisher() as agent:
        writes_before = agent.node.writes
        for _ in range(600):
            await asyncio.sleep(2)
            if agent.node.bandwidth == str(10 * G):
                agent.node.set_capacity({"cpu": "8", BANDWIDTH_RESOURCE: "1G"})
        (condition,) = agent.node.conditions
        assert condition.type == "NetawareBandwidth"
        assert condition.status == "False"
        assert condition.reason == "Disputed"
        assert agent.node.writes - writes_before <= 40
        await asyncio.sleep(700)
        assert agent.node.bandwidth == str(10 * G)


async def test_a_changed_link_is_read_soon_but_not_for_each_event() -> None:
    async with running_publisher() as agent:
        agent.links.rate_bps = G
        agent.publisher.on_link_change()
        await asyncio.sleep(4)
        assert agent.node.bandwidth == str(G)
        reads_before = agent.links.reads
        for _ in range(600):
            agent.publisher.on_link_change()
            await asyncio.sleep(0.1)
        assert agent.links.reads - reads_before <= 32


async def test_links_that_were_never_read_are_explained_and_read_again_soon() -> None:
    async with running_publisher(has_links=False) as agent:
        assert "no buffer space" in agent.node.conditions[0].message
        agent.links.is_broken = False
        await asyncio.sleep(4)
        assert agent.node.bandwidth == str(10 * G)


async def test_a_write_that_the_watch_does_not_show_is_repeated_after_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_publisher() as agent:
        monkeypatch.setattr(agent.node, "_send_event", lambda: None)
        agent.links.rate_bps = G
        counts: list[int] = []
        for _ in range(30):
            agent.publisher.on_link_change()
            await asyncio.sleep(0.1)
            counts.append(agent.node.writes)
        assert counts[3] == counts[18] < counts[29]


async def test_the_last_value_stays_while_links_or_the_api_server_do_not_answer() -> None:
    async with running_publisher() as agent:
        agent.links.is_broken = True
        agent.publisher.on_link_change()
        await asyncio.sleep(120)
        assert agent.publisher.node_capacity is not None
        assert agent.publisher.node_capacity.rate_bps == 10 * G
        agent.links.is_broken, agent.node.is_reachable, agent.links.rate_bps = False, False, G
        agent.publisher.on_link_change()
        await asyncio.sleep(4 * 3600)
        assert agent.node.bandwidth == str(10 * G)
        agent.node.is_reachable = True
        await asyncio.sleep(35)
        assert agent.node.bandwidth == str(G)
