"""A node whose agent probes by a plan, and its results on the API server."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from kubekit.client import Client
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Node, Object
from lab.controlplane import ControlPlane, find_free_ports
from lab.credentials import credentials_dir
from lab.netperf_install import Netperf
from lab.polling import poll_until
from netperf.plans import PLAN_KEY, Peer, Probe, ProbeSettings, ZonePlan, encode_plan, plan_object_name
from netperf.results import decode_results
from netperf.sample import NodeLocation, Sample
from tests.integration.agent.agents import Agent, running_agent
from tests.integration.netperf.peers import PASSPHRASE, free_port

NODE_ADDRESS = "127.66.0.1"
RESULTS_NAME = "netperf-metrics"
SLOT_S = 2.0


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

    async def write_plan(self, plan: ZonePlan | str) -> None:
        """Write the plan's ConfigMap, or one with an invalid text."""
        data = {PLAN_KEY: plan} if isinstance(plan, str) else encode_plan(plan)
        name = plan_object_name(self.zone)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        await self.client.apply(CONFIGMAPS, name, body, Object, field_manager="tests", namespace=self.namespace)

    async def read_samples(self, zones: Sequence[str]) -> dict[str, Sample]:
        """Samples of the results by destination zone and test."""
        config_map = await self.client.get(CONFIGMAPS, RESULTS_NAME, ConfigMap, namespace=self.namespace)
        locations = {zone: NodeLocation(zone, zone) for zone in zones}
        locations[self.name] = NodeLocation(self.name, self.zone)
        results = decode_results(config_map.data or {}, locations)
        assert results.refusal_counts == {}
        return {f"{sample.destination.zone}/{sample.measurement.test}": sample for sample in results.samples.values()}

    async def wait_for_flagged_sample(self, zone: str, flag: str) -> Sample:
        """Wait until the sample of the probes to a zone has a flag; an earlier one may have been written without it."""

        async def find_sample() -> Sample | None:
            sample = (await self.read_samples([zone])).get(f"{zone}/TCP_RR")
            return sample if sample is not None and flag in sample.quality_flags else None

        sample: Sample = await poll_until(find_sample)
        return sample

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
