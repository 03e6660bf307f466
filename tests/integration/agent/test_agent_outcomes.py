"""Probing by the agent as a program on a real API server: it announces itself, probes by plan, and names each failure.

The agent and its peers share the loopback, each with an address of its own. Peers that hang or reset, and the path that loses
datagrams, are simulated; netperf, netserver, cgroups and the API server are real.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
from lab.credentials import credentials_of
from lab.netperf_install import Netperf
from netperf.contract import ZONE_LABEL
from netperf.plans import PLAN_KEY, Peer, Probe, ProbeSettings, ZonePlan, encode_plan, plan_object_name
from netperf.probers.netserver import Netserver
from netperf.probers.responder import DatagramResponder
from netperf.results import decode_results
from netperf.sample import NodeLocation, Sample
from tests.integration.agent.agents import Agent, running_agent
from tests.integration.conftest import MakeNode, eventually
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

HOME = "127.66.0.1"
RESULTS = "netperf-metrics"
SLOT_S = 2.0
PATIENCE_S = 180.0

pytestmark = pytest.mark.timeout(150)


class Home:
    """One agent's node and zone, its plan and its results."""

    def __init__(self, client: Client, control_plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.client, self.namespace = client, namespace
        self._control_plane, self._folder = control_plane, folder
        self.node = f"home-{uuid.uuid4().hex[:6]}"
        self.zone = f"zone-{self.node}"
        self.settings = ProbeSettings(port=free_port(), data_port=free_port(), datagram_port=free_port())
        self.epoch = 1

    def plan(self, addresses: Mapping[str, str], *, idle_slots: int = 0, **settings: Any) -> ZonePlan:
        """A plan that probes these zones in this order and then rests; zone ``x`` has one node ``x``."""
        home = Peer(self.node, HOME, self.zone)
        probes = tuple(
            Probe(origin=home, destination=Peer(zone, address, zone), slot=slot)
            for slot, (zone, address) in enumerate(addresses.items())
        )
        self.settings = msgspec.structs.replace(self.settings, **settings)
        slots = len(probes) + idle_slots
        return ZonePlan(
            zone=self.zone,
            epoch=self.epoch,
            interval_s=SLOT_S * slots,
            slot_count=slots,
            results_name=RESULTS,
            settings=self.settings,
            probes=probes,
        )

    async def write(self, plan: ZonePlan | str) -> None:
        """Write the plan object, as the controller would, or some text in its place."""
        data = {PLAN_KEY: plan} if isinstance(plan, str) else encode_plan(plan)
        name = plan_object_name(self.zone)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        await self.client.apply(CONFIGMAPS, name, body, Object, field_manager="tests", namespace=self.namespace)

    async def samples(self, zones: Sequence[str]) -> dict[str, Sample]:
        """What the results hold, by destination zone and test."""
        found = await self.client.list(
            CONFIGMAPS, ConfigMap, namespace=self.namespace, field_selector=f"metadata.name={RESULTS}"
        )
        locations = {
            self.node: NodeLocation(self.node, self.zone),
            **{zone: NodeLocation(zone, zone) for zone in zones},
        }
        results = decode_results((found[0].data if found else None) or {}, locations)
        assert results.refusal_counts == {}
        return {f"{s.destination.zone}/{s.measurement.test}": s for s in results.samples.values()}

    @asynccontextmanager
    async def agent(self, *flags: str, netperf: Netperf | None, prefix: Sequence[str] = ()) -> AsyncIterator[Agent]:
        """The agent of this node; without netperf datagrams are left."""
        passphrase_file = self._folder / "passphrase"
        passphrase_file.write_bytes(PASSPHRASE)
        variables = netperf.env if netperf else {}
        env = {**variables, "NETAWARE_NETPERF": str(netperf.netperf) if netperf else "/nonexistent"}
        arguments = [
            f"--node-name={self.node}",
            f"--credentials={credentials_of(self._control_plane.kubeconfig)}",
            f"--address={HOME}",
        ]
        arguments += [
            f"--namespace={self.namespace}",
            f"--passphrase-file={passphrase_file}",
            "--bandwidth=off",
            *flags,
        ]
        async with running_agent(self._folder, find_free_ports(1)[0], *arguments, env=env, prefix=prefix) as agent:
            yield agent


@pytest.fixture
async def home(
    client: Client, control_plane: ControlPlane, namespace: str, make_node: MakeNode, tmp_path: Path
) -> Home:
    made = Home(client, control_plane, namespace, tmp_path)
    await client.create(CONFIGMAPS, {"metadata": {"name": RESULTS}}, Object, namespace=namespace)
    await make_node(made.node, zone=made.zone, address=HOME)
    return made


async def series(agent: Agent, family: str) -> dict[tuple[str, ...], float]:
    """Series of a family; by destination zone and, if present, test and outcome, flag or reason."""
    _, text = await agent.get("/metrics")
    names = ("destination_zone", "test", "outcome", "flag", "reason")
    metrics = (metric for metric in text_string_to_metric_families(text) if metric.name == family)
    return {tuple(s.labels[n] for n in names if n in s.labels): s.value for metric in metrics for s in metric.samples}


def counted(agent: Agent, family: str, *wanted: tuple[str, ...]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        found = await series(agent, family)
        return all(found.get(key, 0) >= 1 for key in wanted)

    return check


async def keep_killing(address: str) -> None:
    """Kill the server at an address in the middle of each run, later than a passphrase would be refused."""
    while True:
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                serving = any(connection.laddr.ip == address for connection in process.net_connections())
                if serving and time.time() - process.create_time() > 0.9:
                    process.kill()
        await asyncio.sleep(0.02)


async def test_each_failure_is_counted_by_name_and_gives_no_number(home: Home, netperf_programs: Netperf) -> None:
    zones = {
        name: f"127.66.0.{i}" for i, name in enumerate(("gone", "resets", "stranger", "killed", "healthy", "hangs"), 11)
    }
    plan = home.plan(zones, idle_slots=3)  # a peer that hangs is given up after six seconds, which miss the next turns
    port, netserver = plan.settings.port, str(netperf_programs.netserver)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(misbehaving_peer(port, "hangs", zones["hangs"]))
        await stack.enter_async_context(misbehaving_peer(port, "resets", zones["resets"]))
        for zone, passphrase in (
            ("stranger", b"some quite other passphrase"),
            ("killed", PASSPHRASE),
            ("healthy", PASSPHRASE),
        ):
            await stack.enter_async_context(running_server(Netserver(netserver, zones[zone], port, passphrase)))
        killing = asyncio.create_task(keep_killing(zones["killed"]))
        stack.callback(killing.cancel)
        await home.write(plan)
        agent = await stack.enter_async_context(home.agent(netperf=netperf_programs))
        outcomes = ("refused", "reset", "unauthenticated", "reset", "ok", "timeout")
        wanted = [(zone, "TCP_RR", outcome) for zone, outcome in zip(zones, outcomes, strict=True)]
        await eventually(counted(agent, "netaware_probe_runs", *wanted), PATIENCE_S)
        # A run that ended before its server was killed has a number; every other failure has none.
        able = {"healthy", "killed"}
        healthy = {zone for zone, _, outcome in await series(agent, "netaware_probe_runs") if outcome == "ok"}
        assert {"healthy"} <= healthy <= able
        assert {key[0] for key in await series(agent, "netaware_probe_latency_seconds")} <= able

        async def has_samples() -> bool:
            return bool(await home.samples(list(zones)))

        await eventually(has_samples)
        assert set(await home.samples(list(zones))) <= {"healthy/TCP_RR", "killed/TCP_RR"}
        assert PASSPHRASE.decode() not in agent.log
        assert "-Z" not in agent.log


def announced(home: Home, prober: str, port: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        text = (await home.client.get(NODES, home.node, Node)).metadata.annotation("netaware.io/agent")
        note = json.loads(text or "{}")
        return (note.get("prober"), note.get("port")) == (prober, port)

    return check


async def test_an_agent_announces_itself_runs_all_tests_in_turn_and_forgets_pairs_with_the_plan(
    home: Home, netperf_programs: Netperf
) -> None:
    plan = home.plan({"healthy": "127.66.0.16"}, extra_tests=("UDP_RR", "TCP_STREAM"), rounds_per_extra_test=2)
    await home.write(plan)
    async with (
        running_server(Netserver(str(netperf_programs.netserver), "127.66.0.16", plan.settings.port, PASSPHRASE)),
        # Any stream spends this for longer than the test lasts, also on a slow machine.
        home.agent("--max-stream-bandwidth=10k", netperf=netperf_programs) as agent,
    ):
        await eventually(announced(home, "netperf", plan.settings.port))
        wanted = [("healthy", test, "ok") for test in ("TCP_RR", "UDP_RR", "TCP_STREAM")]
        capped = ("healthy", "TCP_STREAM", "over-budget")
        await eventually(counted(agent, "netaware_probe_runs", *wanted, capped), PATIENCE_S)
        runs = await series(agent, "netaware_probe_runs")
        assert runs[capped] >= runs["healthy", "TCP_STREAM", "ok"] == 1
        assert abs(runs["healthy", "TCP_RR", "ok"] - sum(runs.values()) / 2) <= 1

        async def has_all_samples() -> bool:
            return set(await home.samples(["healthy"])) == {f"healthy/{test}" for _, test, _ in wanted}

        await eventually(has_all_samples)
        assert ((await home.samples(["healthy"]))["healthy/TCP_STREAM"].measurement.throughput_bps or 0) > 8e6
        assert (await agent.get("/readyz"))[0] == 200
        home.epoch += 1
        await home.write(msgspec.structs.replace(home.plan({}, idle_slots=1), probes=()))

        async def has_no_series() -> bool:
            return not await series(agent, "netaware_probe_latency_seconds")

        await eventually(has_no_series)
        assert await agent.stop() == 0
    await eventually(announced(home, "netperf", plan.settings.port))


async def test_without_netperf_datagrams_measure_loss_once_the_node_has_a_zone(home: Home) -> None:
    def label(zone: str | None) -> dict[str, Any]:
        return {"metadata": {"labels": {ZONE_LABEL: zone}}}

    await home.client.patch(NODES, home.node, label(None), Node)
    plan = home.plan({"lossy": RELAY_ADDRESS}, idle_slots=2)
    await home.write(plan)
    port = plan.settings.datagram_port
    async with (
        running_server(DatagramResponder(ADDRESS, port, PASSPHRASE)),
        lossy_relay(port, drops=lambda n: n % 4 == 0),
        home.agent(netperf=None) as agent,
    ):
        await eventually(announced(home, "datagrams", 12867))
        await asyncio.sleep(2 * SLOT_S)
        assert agent.log.count("no zone label") == 1
        assert await series(agent, "netaware_probe_runs") == {}
        await home.client.patch(NODES, home.node, label(home.zone), Node)
        await eventually(counted(agent, "netaware_probe_quality_flags", ("lossy", "TCP_RR", "loss")), PATIENCE_S)
        (loss,) = (await series(agent, "netaware_probe_datagram_loss_ratio")).values()
        assert 0.05 < loss < 0.5
        assert await series(agent, "netaware_probe_sample_trusted") == {("lossy",): 0.0}

        async def is_flagged() -> bool:
            found = (await home.samples(["lossy"])).get("lossy/TCP_RR")
            return found is not None and found.measurement.prober == "datagrams" and "loss" in found.quality_flags

        await eventually(is_flagged)


@pytest.mark.measure
@pytest.mark.alone
async def test_samples_of_a_throttled_agent_are_flagged(home: Home, netperf_programs: Netperf) -> None:
    plan = home.plan({"healthy": "127.66.0.16"})
    await home.write(plan)
    with cpu_group(quota_ratio=0.25) as group:
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        async with (
            running_server(Netserver(str(netperf_programs.netserver), "127.66.0.16", plan.settings.port, PASSPHRASE)),
            home.agent(netperf=netperf_programs, prefix=enter) as agent,
        ):
            doubt = ("healthy", "TCP_RR", "throttled")
            await eventually(counted(agent, "netaware_probe_quality_flags", doubt), PATIENCE_S)
            assert await series(agent, "netaware_probe_sample_trusted") == {("healthy",): 0.0}

            async def is_flagged_as_throttled() -> bool:
                found = (await home.samples(["healthy"])).get("healthy/TCP_RR")
                return found is not None and "throttled" in found.quality_flags

            # An earlier run may have come off without being throttled, and been written first.
            await eventually(is_flagged_as_throttled)


async def test_an_invalid_plan_is_refused_by_name_and_the_current_one_stays(home: Home) -> None:
    zones = {"gone": "127.66.0.11", "also-gone": "127.66.0.12"}
    past = encode_plan(home.plan(zones))[PLAN_KEY]
    home.epoch = 5
    await home.write(home.plan(zones))
    async with home.agent(netperf=None) as agent:

        async def plan_probes() -> float:
            return sum((await series(agent, "netaware_probe_plan_probes")).values())

        async def is_active() -> bool:
            return await plan_probes() == 2

        await eventually(is_active)
        for bad, reason in ((past, "past-epoch"), (past[:-20], "bad-json")):
            await home.write(bad)
            await eventually(counted(agent, "netaware_probe_plan_refusals", (reason,)))
            assert await plan_probes() == 2
        home.epoch = 6
        changed = home.plan({**zones, "named": "peer.example.com"})
        unknown = msgspec.structs.replace(changed.probes[0], origin=Peer("no-such-node", HOME, home.zone))
        await home.write(msgspec.structs.replace(changed, probes=(unknown, *changed.probes[1:])))
        # The probe to a name is refused; that of an unknown node is no turn of this one.
        await eventually(counted(agent, "netaware_probe_plan_refusals", ("bad-address",)))
        assert await plan_probes() == 1
