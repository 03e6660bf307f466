"""The agent probes by its plan, counts each failure by its outcome, and flags bad samples, on a real API server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kubekit.client import Client
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node, Object
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir
from lab.netperf_install import Netperf
from lab.polling import poll_until
from netperf.contract import ZONE_LABEL
from netperf.plans import DATAGRAM_PORT, Peer, Probe, ProbeSettings, ZonePlan, encode_plan, plan_object_name
from netperf.probers.netserver import Netserver
from netperf.probers.responder import DatagramResponder
from netperf.results import decode_results
from netperf.sample import NodeLocation, Sample
from tests.integration.agent.agents import Agent, running_agent
from tests.integration.conftest import CreateNode
from tests.integration.netperf.peers import (
    ADDRESS,
    PASSPHRASE,
    RELAY_ADDRESS,
    cpu_group,
    free_port,
    lossy_relay,
    misbehaving_peer,
    running_server,
)
from tests.support.tasks import running_tasks

pytestmark = pytest.mark.timeout(150)
NODE_ADDRESS = "127.66.0.1"
RESULTS_NAME = "netperf-metrics"
SLOT_S = 2.0
HEALTHY_ADDRESS = "127.66.0.15"
ADDRESS_BY_ZONE = {
    "gone": "127.66.0.11",
    "resets": "127.66.0.12",
    "stranger": "127.66.0.13",
    "killed": "127.66.0.14",
    "healthy": HEALTHY_ADDRESS,
    "hangs": "127.66.0.16",
}


class ProbingNode:
    """The node of an agent, its zone, plan and results."""

    def __init__(self, client: Client, control_plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.client, self.namespace = client, namespace
        self._control_plane, self._folder = control_plane, folder
        self.name = f"home-{uuid.uuid4().hex[:6]}"
        self.zone = f"zone-{self.name}"
        self.settings = ProbeSettings(control_port=free_port(), data_port=free_port(), datagram_port=free_port())
        self.epoch = 1

    def make_plan(self, address_by_zone: Mapping[str, str], *, idle_slots: int = 0, **settings: Any) -> ZonePlan:
        """A plan that probes these zones in this order; zone ``x`` has a node ``x``."""
        origin = Peer(self.name, NODE_ADDRESS, self.zone)
        probes = tuple(
            Probe(origin=origin, destination=Peer(zone, address, zone), slot=slot)
            for slot, (zone, address) in enumerate(address_by_zone.items())
        )
        self.settings = msgspec.structs.replace(self.settings, **settings)
        slot_count = len(probes) + idle_slots
        return ZonePlan(
            zone=self.zone,
            epoch=self.epoch,
            interval_s=SLOT_S * slot_count,
            slot_count=slot_count,
            results_name=RESULTS_NAME,
            settings=self.settings,
            probes=probes,
        )

    async def write_plan(self, plan: ZonePlan) -> None:
        """Write the plan's ConfigMap."""
        name = plan_object_name(self.zone)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": encode_plan(plan)}
        await self.client.apply(CONFIGMAPS, name, body, Object, field_manager="tests", namespace=self.namespace)

    async def read_samples(self, zones: Sequence[str]) -> dict[str, Sample]:
        """Samples of the results by destination zone and test."""
        config_map = await self.client.get(CONFIGMAPS, RESULTS_NAME, ConfigMap, namespace=self.namespace)
        locations = {zone: NodeLocation(zone, zone) for zone in zones}
        locations[self.name] = NodeLocation(self.name, self.zone)
        results = decode_results(config_map.data or {}, locations)
        assert results.refusal_counts == {}
        return {f"{sample.destination.zone}/{sample.measurement.test}": sample for sample in results.samples.values()}

    async def wait_for_announcement(self, prober: str, port: int) -> None:
        """Wait until the node has the agent's announcement of this prober and port."""

        async def is_announced() -> bool:
            node = await self.client.get(NODES, self.name, Node)
            announcement = json.loads(node.metadata.annotation("netaware.io/agent") or "{}")
            return (announcement.get("prober"), announcement.get("port")) == (prober, port)

        await poll_until(is_announced)

    @asynccontextmanager
    async def run_agent(self, *flags: str, netperf: Netperf | None, prefix: Sequence[str] = ()) -> AsyncIterator[Agent]:
        """Run the agent of this node; without netperf it sends only datagrams."""
        passphrase_file = self._folder / "passphrase"
        passphrase_file.write_bytes(PASSPHRASE)
        variables = netperf.env if netperf else {}
        env = {**variables, "NETAWARE_NETPERF": str(netperf.netperf) if netperf else "/nonexistent"}
        arguments = [
            f"--node-name={self.name}",
            f"--credentials={credentials_dir(self._control_plane.kubeconfig)}",
            f"--address={NODE_ADDRESS}",
            f"--namespace={self.namespace}",
            f"--passphrase-file={passphrase_file}",
            "--bandwidth=off",
            *flags,
        ]
        async with running_agent(self._folder, find_free_ports(1)[0], *arguments, env=env, prefix=prefix) as agent:
            yield agent


@pytest.fixture
async def probing_node(
    client: Client, control_plane: ControlPlane, namespace: str, create_node: CreateNode, tmp_path: Path
) -> ProbingNode:
    node = ProbingNode(client, control_plane, namespace, tmp_path)
    await client.create(CONFIGMAPS, {"metadata": {"name": RESULTS_NAME}}, Object, namespace=namespace)
    await create_node(node.name, zone=node.zone, address=NODE_ADDRESS)
    return node


def make_netserver(
    netperf_programs: Netperf, port: int, address: str = HEALTHY_ADDRESS, passphrase: bytes = PASSPHRASE
) -> Netserver:
    return Netserver(str(netperf_programs.netserver), address, port, passphrase)


async def keep_killing(address: str) -> None:
    """Kill each server of an address once its run has a data connection, so after it accepted the passphrase."""
    while True:
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                if len([c for c in process.net_connections() if c.laddr.ip == address]) > 1:
                    process.kill()
        await asyncio.sleep(0.02)


async def read_series(agent: Agent, family: str) -> dict[tuple[str, ...], float]:
    """Values of a family by destination zone and, if present, test and outcome, flag or reason."""
    _, exposition = await agent.get("/metrics")
    names = ("destination_zone", "test", "outcome", "flag", "reason")
    metrics = (metric for metric in text_string_to_metric_families(exposition) if metric.name == family)
    return {tuple(s.labels[n] for n in names if n in s.labels): s.value for metric in metrics for s in metric.samples}


async def wait_for_counts(agent: Agent, family: str, *keys: tuple[str, ...]) -> None:
    """Wait until each of these series of a family has a count above 0."""

    async def are_counted() -> bool:
        count_by_key = await read_series(agent, family)
        return all(count_by_key.get(key, 0) >= 1 for key in keys)

    await poll_until(are_counted)


async def test_each_failure_is_counted_by_outcome_and_has_no_latency(
    probing_node: ProbingNode, netperf_programs: Netperf
) -> None:
    plan = probing_node.make_plan(ADDRESS_BY_ZONE, idle_slots=3)  # a run to a peer that hangs takes six seconds
    port = plan.settings.control_port
    async with AsyncExitStack() as stack:
        for zone in ("hangs", "resets"):
            await stack.enter_async_context(misbehaving_peer(port, zone, ADDRESS_BY_ZONE[zone]))
        for zone, passphrase in (
            ("stranger", b"some quite other passphrase"),
            ("killed", PASSPHRASE),
            ("healthy", PASSPHRASE),
        ):
            netserver = make_netserver(netperf_programs, port, ADDRESS_BY_ZONE[zone], passphrase)
            await stack.enter_async_context(running_server(netserver))
        await stack.enter_async_context(running_tasks(keep_killing(ADDRESS_BY_ZONE["killed"])))
        await probing_node.write_plan(plan)
        agent = await stack.enter_async_context(probing_node.run_agent(netperf=netperf_programs))

        outcomes = ("refused", "reset", "unauthenticated", "reset", "ok", "timeout")
        keys = [(zone, "TCP_RR", outcome) for zone, outcome in zip(ADDRESS_BY_ZONE, outcomes, strict=True)]
        await wait_for_counts(agent, "netaware_probe_runs", *keys)
        # A run that ended before its server was killed has a number; every other failure has none.
        may_succeed = {"healthy", "killed"}
        runs = await read_series(agent, "netaware_probe_runs")
        assert {zone for zone, _, outcome in runs if outcome == "ok"} <= may_succeed
        assert {zone for (zone, *_) in await read_series(agent, "netaware_probe_latency_seconds")} <= may_succeed
        samples = await poll_until(lambda: probing_node.read_samples([*ADDRESS_BY_ZONE]))
        assert samples.keys() <= {"healthy/TCP_RR", "killed/TCP_RR"}
        assert PASSPHRASE.decode() not in agent.log
        assert "-Z" not in agent.log


async def test_all_tests_of_the_plan_run_and_streams_within_their_budget(
    probing_node: ProbingNode, netperf_programs: Netperf
) -> None:
    plan = probing_node.make_plan(
        {"healthy": HEALTHY_ADDRESS}, extra_tests=("UDP_RR", "TCP_STREAM"), rounds_per_extra_test=2
    )
    await probing_node.write_plan(plan)
    async with (
        running_server(make_netserver(netperf_programs, plan.settings.control_port)),
        # Any stream spends this for longer than the test lasts, also on a slow machine.
        probing_node.run_agent("--max-stream-bandwidth=10k", netperf=netperf_programs) as agent,
    ):
        successes = [("healthy", test, "ok") for test in ("TCP_RR", "UDP_RR", "TCP_STREAM")]
        over_budget = ("healthy", "TCP_STREAM", "over-budget")
        await wait_for_counts(agent, "netaware_probe_runs", *successes, over_budget)
        runs = await read_series(agent, "netaware_probe_runs")
        assert runs["healthy", "TCP_STREAM", "ok"] == 1
        # Every second round runs TCP_RR, see rounds_per_extra_test.
        assert abs(runs["healthy", "TCP_RR", "ok"] - sum(runs.values()) / 2) <= 1

        async def has_all_samples() -> bool:
            return set(await probing_node.read_samples(["healthy"])) == {f"healthy/{test}" for _, test, _ in successes}

        await poll_until(has_all_samples)
        samples = await probing_node.read_samples(["healthy"])
        assert (samples["healthy/TCP_STREAM"].measurement.throughput_bps or 0) > 8e6
        assert await agent.is_ok("/readyz")


async def test_the_announcement_stays_after_the_agent(probing_node: ProbingNode, netperf_programs: Netperf) -> None:
    plan = probing_node.make_plan({"gone": ADDRESS_BY_ZONE["gone"]})
    await probing_node.write_plan(plan)
    async with probing_node.run_agent(netperf=netperf_programs) as agent:
        await probing_node.wait_for_announcement("netperf", plan.settings.control_port)
        assert await agent.stop() == 0
    await probing_node.wait_for_announcement("netperf", plan.settings.control_port)


async def test_without_netperf_datagrams_measure_loss_once_the_node_has_a_zone(probing_node: ProbingNode) -> None:
    without_zone, with_zone = ({"metadata": {"labels": {ZONE_LABEL: zone}}} for zone in (None, probing_node.zone))
    await probing_node.client.patch(NODES, probing_node.name, without_zone, Node)
    plan = probing_node.make_plan({"lossy": RELAY_ADDRESS}, idle_slots=2)
    await probing_node.write_plan(plan)
    port = plan.settings.datagram_port
    async with (
        running_server(DatagramResponder(ADDRESS, port, PASSPHRASE)),
        lossy_relay(port, drops=lambda number: number % 4 == 0),
        probing_node.run_agent(netperf=None) as agent,
    ):
        await probing_node.wait_for_announcement("datagrams", DATAGRAM_PORT)  # the default, without a plan
        await asyncio.sleep(2 * SLOT_S)
        assert agent.log.count("no zone label") == 1
        assert await read_series(agent, "netaware_probe_runs") == {}

        await probing_node.client.patch(NODES, probing_node.name, with_zone, Node)
        await wait_for_counts(agent, "netaware_probe_quality_flags", ("lossy", "TCP_RR", "loss"))
        (loss_ratio,) = (await read_series(agent, "netaware_probe_datagram_loss_ratio")).values()
        assert 0.05 < loss_ratio < 0.5, "of a quarter"
        assert await read_series(agent, "netaware_probe_sample_trusted") == {("lossy",): 0.0}


@pytest.mark.measure
@pytest.mark.alone
async def test_samples_of_a_throttled_agent_are_flagged(probing_node: ProbingNode, netperf_programs: Netperf) -> None:
    plan = probing_node.make_plan({"healthy": HEALTHY_ADDRESS})
    await probing_node.write_plan(plan)
    with cpu_group(quota_ratio=0.25) as group:
        enter_cgroup = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        async with (
            running_server(make_netserver(netperf_programs, plan.settings.control_port)),
            probing_node.run_agent(netperf=netperf_programs, prefix=enter_cgroup) as agent,
        ):
            await wait_for_counts(agent, "netaware_probe_quality_flags", ("healthy", "TCP_RR", "throttled"))
            assert await read_series(agent, "netaware_probe_sample_trusted") == {("healthy",): 0.0}


async def test_a_refused_plan_or_probe_is_counted_and_the_others_stay(probing_node: ProbingNode) -> None:
    address_by_zone = {"gone": "127.66.0.11", "also-gone": "127.66.0.12"}
    past_epoch_plan = probing_node.make_plan(address_by_zone)
    probing_node.epoch = 5
    await probing_node.write_plan(probing_node.make_plan(address_by_zone))
    async with probing_node.run_agent(netperf=None) as agent:

        async def count_plan_probes() -> float:
            return sum((await read_series(agent, "netaware_probe_plan_probes")).values())

        assert await poll_until(count_plan_probes) == 2
        await probing_node.write_plan(past_epoch_plan)
        await wait_for_counts(agent, "netaware_probe_plan_refusals", ("past-epoch",))
        assert await count_plan_probes() == 2

        probing_node.epoch = 6
        await probing_node.write_plan(probing_node.make_plan({"gone": "127.66.0.11", "named": "peer.example.com"}))
        await wait_for_counts(agent, "netaware_probe_plan_refusals", ("bad-address",))
        assert await count_plan_probes() == 1
