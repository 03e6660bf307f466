"""The agent probes by its plan, counts each failure by its outcome, and flags bad samples, on a real API server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from kubekit.client import Client
from kubekit.wire import CONFIGMAPS, NODES, Node, Object
from lab.controlplane import ControlPlane
from lab.netperf_install import Netperf
from lab.polling import poll_until
from netperf.contract import ZONE_LABEL
from netperf.plans import DATAGRAM_PORT, PLAN_KEY, Peer, encode_plan
from netperf.probers.netserver import Netserver
from netperf.probers.responder import DatagramResponder
from tests.integration.agent.probing_node import (
    NODE_ADDRESS,
    RESULTS_NAME,
    SLOT_S,
    ProbingNode,
    read_series,
    wait_for_counts,
)
from tests.integration.conftest import CreateNode
from tests.integration.netperf.peers import (
    ADDRESS,
    PASSPHRASE,
    RELAY_ADDRESS,
    cpu_group,
    lossy_relay,
    misbehaving_peer,
    running_server,
)
from tests.support.tasks import running_tasks

pytestmark = pytest.mark.timeout(150)
HEALTHY_ADDRESS = "127.66.0.15"
ADDRESS_BY_ZONE = {
    "gone": "127.66.0.11",
    "resets": "127.66.0.12",
    "stranger": "127.66.0.13",
    "killed": "127.66.0.14",
    "healthy": HEALTHY_ADDRESS,
    "hangs": "127.66.0.16",
}


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


async def test_series_of_a_pair_end_when_it_leaves_the_plan_and_the_announcement_stays_after_the_agent(
    probing_node: ProbingNode, netperf_programs: Netperf
) -> None:
    plan = probing_node.make_plan({"healthy": HEALTHY_ADDRESS})
    await probing_node.write_plan(plan)
    async with (
        running_server(make_netserver(netperf_programs, plan.settings.control_port)),
        probing_node.run_agent(netperf=netperf_programs) as agent,
    ):
        await probing_node.wait_for_announcement("netperf", plan.settings.control_port)

        async def has_no_series() -> bool:
            return not await read_series(agent, "netaware_probe_latency_seconds")

        await poll_until(lambda: read_series(agent, "netaware_probe_latency_seconds"))
        probing_node.epoch += 1
        await probing_node.write_plan(probing_node.make_plan({}, idle_slots=1))
        await poll_until(has_no_series)
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
        sample = await probing_node.wait_for_flagged_sample("lossy", "loss")
        assert sample.measurement.prober == "datagrams"


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
            await probing_node.wait_for_flagged_sample("healthy", "throttled")


async def test_an_invalid_plan_is_refused_with_its_reason_and_the_current_one_stays(probing_node: ProbingNode) -> None:
    address_by_zone = {"gone": "127.66.0.11", "also-gone": "127.66.0.12"}
    past_epoch_plan = encode_plan(probing_node.make_plan(address_by_zone))[PLAN_KEY]
    probing_node.epoch = 5
    await probing_node.write_plan(probing_node.make_plan(address_by_zone))
    async with probing_node.run_agent(netperf=None) as agent:

        async def count_plan_probes() -> float:
            return sum((await read_series(agent, "netaware_probe_plan_probes")).values())

        assert await poll_until(count_plan_probes) == 2
        for invalid_plan, reason in ((past_epoch_plan, "past-epoch"), (past_epoch_plan[:-20], "bad-json")):
            await probing_node.write_plan(invalid_plan)
            await wait_for_counts(agent, "netaware_probe_plan_refusals", (reason,))
            assert await count_plan_probes() == 2

        # The probe to a name is refused; that of an unknown node is not a probe of this agent.
        probing_node.epoch = 6
        plan = probing_node.make_plan({**address_by_zone, "named": "peer.example.com"})
        origin = Peer("no-such-node", NODE_ADDRESS, probing_node.zone)
        probe_of_unknown_node = msgspec.structs.replace(plan.probes[0], origin=origin)
        await probing_node.write_plan(msgspec.structs.replace(plan, probes=(probe_of_unknown_node, *plan.probes[1:])))
        await wait_for_counts(agent, "netaware_probe_plan_refusals", ("bad-address",))
        assert await count_plan_probes() == 1
