"""Two agents with real netperf over loopback: they announce themselves, probe by plan, write results, and name failures.

Loopback stands for the network between two nodes: each agent has an address of its own. What a wide-area network adds is
the lab's matter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio

from agent.node import OwnNode
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Object
from lab.controlplane import ControlPlane, credentials_of, free_ports
from lab.netperf_install import Netperf
from netperf.contract import Announcement
from netperf.plans import Peer, Probe, ProbeSettings, ZonePlan, encode_plan, plan_object_name
from netperf.results import decode_results
from netperf.sample import Place, Sample
from tests.integration.agent.agents import Agent, running_agent
from tests.integration.conftest import MakeNode, eventually

SECRET = "a secret of more than sixteen bytes"
RESULTS = "netperf-metrics"


class Pair:
    """Nodes n1 in z1 and n2 in z2, plans between them, and their agents."""

    def __init__(self, client: Client, control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
        self.client, self.control_plane, self.namespace, self.tmp_path = client, control_plane, namespace, tmp_path
        tag = namespace[-6:]
        number = int(tag, 36) % 250 + 1
        self.peers = [
            Peer(f"a-{tag}", f"127.77.{number}.1", f"z1-{tag}", "r1"),
            Peer(f"b-{tag}", f"127.77.{number}.2", f"z2-{tag}", "r1"),
        ]
        control, data, datagrams = free_ports(3)
        self.settings = ProbeSettings(port=control, data_port=data, datagram_port=datagrams)
        self.stack = AsyncExitStack()

    def plan(self, epoch: int = 1, **changes: Any) -> ZonePlan:
        here, there = self.peers
        fields: dict[str, Any] = {
            "zone": here.zone,
            "epoch": epoch,
            "interval_s": 4.0,
            "slots": 1,
            "results": RESULTS,
            "settings": self.settings,
            "probes": (Probe(origin=here, destination=there, slot=0),),
        }
        return ZonePlan(**{**fields, **changes})

    async def write_plans(self) -> None:
        """The first zone probes the second, which only answers, on the same ports."""
        await self.write_plan(encode_plan(self.plan()))
        other = self.peers[1].zone
        await self.write_plan(encode_plan(self.plan(zone=other, probes=())), other)

    async def write_plan(self, data: dict[str, str], zone: str = "") -> None:
        name = plan_object_name(zone or self.peers[0].zone)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        await self.client.apply(
            CONFIGMAPS, name, body, Object, namespace=self.namespace, field_manager="tests", force=True
        )

    async def start(self, which: int, *, secret: str = SECRET, netperf: Path | None = None) -> Agent:
        peer = self.peers[which]
        file = self.tmp_path / f"secret-{which}"
        file.write_text(secret)
        env = {"NETAWARE_NETPERF": str(netperf)} if netperf is not None else {"PATH": "/nonexistent"}
        flags = [
            f"--node-name={peer.node}",
            f"--credentials={credentials_of(self.control_plane.kubeconfig)}",
            f"--namespace={self.namespace}",
            f"--passphrase-file={file}",
            "--bandwidth=off",
            "--max-probe-cpu=100%",
        ]
        return await self.stack.enter_async_context(
            running_agent(self.tmp_path, free_ports(1)[0], *flags, env={**os.environ, **env})
        )

    async def samples(self) -> list[Sample]:
        try:
            found = await self.client.get(CONFIGMAPS, RESULTS, ConfigMap, namespace=self.namespace)
        except ApiError:
            return []
        places = {peer.node: Place(peer.node, peer.zone, peer.region) for peer in self.peers}
        results = decode_results(found.data or {}, places)
        assert results.refusals == ()
        return list(results.samples.values())

    def outcome_is(self, agent: Agent, name: str) -> Callable[[], Any]:
        async def check() -> bool:
            runs = await agent.metrics("netaware_probe_runs_total")
            return any(f'outcome="{name}"' in series for series in runs)

        return check


@pytest_asyncio.fixture
async def pair(
    client: Client, control_plane: ControlPlane, namespace: str, make_node: MakeNode, tmp_path: Path
) -> AsyncIterator[Pair]:
    both = Pair(client, control_plane, namespace, tmp_path)
    await client.create(CONFIGMAPS, {"metadata": {"name": RESULTS}}, Object, namespace=namespace)
    for peer in both.peers:
        await make_node(peer.node, zone=peer.zone, region=peer.region, address=peer.address)
    async with both.stack:
        yield both


def announced(client: Client, node: str, prober: str, port: int) -> Callable[[], Any]:
    async def check() -> bool:
        text = (await client.get(NODES, node, OwnNode)).metadata.annotation("netaware.io/agent")
        if not text:
            return False
        note = msgspec.json.decode(text, type=Announcement)
        return (note.prober, note.port) == (prober, port)

    return check


async def test_agents_announce_themselves_and_measure_with_netperf_by_plan(
    pair: Pair, netperf_programs: Netperf
) -> None:
    await pair.write_plans()
    origin = await pair.start(0, netperf=netperf_programs.netperf)
    await pair.start(1, netperf=netperf_programs.netperf)
    here, there = pair.peers
    await eventually(announced(pair.client, here.node, "netperf", pair.settings.port))

    async def measured() -> bool:
        return bool(await pair.samples())

    await eventually(measured, 30)
    sample = (await pair.samples())[0]
    assert (sample.origin.node, sample.destination.node) == (here.node, there.node)
    assert sample.measurement.prober == "netperf"
    assert sample.measurement.p50_us is not None
    assert sample.measurement.p50_us > 0
    latency = await origin.metrics("netaware_probe_latency_seconds")
    assert len(latency) == 3
    assert (await origin.get("/readyz"))[0] == 200
    for agent in (origin,):
        assert SECRET not in agent.log
        assert " -Z " not in agent.log

    # A plan that cannot be read is refused by name, and the one in force goes on.
    await pair.write_plan({"plan.json": encode_plan(pair.plan(2))["plan.json"][:-20]})

    async def refused() -> bool:
        return 'netaware_probe_plan_refusals_total{reason="half-written"}' in await origin.metrics(
            "netaware_probe_plan_refusals"
        )

    await eventually(refused)
    assert (await origin.metrics("netaware_probe_plan_epoch"))["netaware_probe_plan_epoch"] == 1
    before = sum((await origin.metrics("netaware_probe_runs_total")).values())

    async def goes_on() -> bool:
        return sum((await origin.metrics("netaware_probe_runs_total")).values()) > before

    await eventually(goes_on)

    # Series disappear with their pair.
    await pair.write_plan(encode_plan(pair.plan(3, probes=())))

    async def silent() -> bool:
        return not await origin.metrics("netaware_probe_latency_seconds")

    await eventually(silent)
    assert await origin.stop() == 0
    await eventually(announced(pair.client, here.node, "netperf", pair.settings.port))


async def test_a_wrong_passphrase_and_a_dead_peer_are_named_and_give_no_number(
    pair: Pair, netperf_programs: Netperf
) -> None:
    await pair.write_plans()
    origin = await pair.start(0, netperf=netperf_programs.netperf)
    await eventually(pair.outcome_is(origin, "refused"), 30)
    other = await pair.start(1, secret="another secret of sixteen bytes", netperf=netperf_programs.netperf)
    await eventually(pair.outcome_is(origin, "unauthenticated"), 40)
    assert await pair.samples() == []
    assert await origin.metrics("netaware_probe_latency_seconds") == {}
    assert await other.stop() == 0


async def test_without_netperf_datagrams_measure_and_say_so(pair: Pair) -> None:
    await pair.write_plans()
    origin = await pair.start(0)
    await pair.start(1)
    await eventually(announced(pair.client, pair.peers[1].node, "datagrams", pair.settings.datagram_port))

    async def measured() -> bool:
        return bool(await pair.samples())

    await eventually(measured, 30)
    assert {sample.measurement.prober for sample in await pair.samples()} == {"datagrams"}
    assert (await origin.get("/readyz"))[0] == 200


async def test_a_node_without_a_zone_takes_no_part_and_says_so_once(pair: Pair) -> None:
    here = pair.peers[0]
    await pair.client.patch(NODES, here.node, in_zone(None), OwnNode)
    await pair.write_plan(encode_plan(pair.plan()))
    agent = await pair.start(0)
    await eventually(announced(pair.client, here.node, "datagrams", 12867), 30)
    await asyncio.sleep(5.0)
    assert agent.log.count("no zone label") == 1
    assert await agent.metrics("netaware_probe_runs_total") == {}
    # With its label it takes part, without a restart.
    await pair.client.patch(NODES, here.node, in_zone(here.zone), OwnNode)

    async def probes() -> bool:
        return bool(await agent.metrics("netaware_probe_runs_total"))

    await eventually(probes, 30)


def in_zone(zone: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}}
