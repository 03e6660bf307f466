"""The main job, once, on real parts: measure the network, price it, place an application, and measure what that gained.

A lab is booted, agents measure every zone pair with netperf, and the Online Boutique is deployed twice, with the default
scheduler and with ours. Each dependency is then measured between the nodes where its two pods landed. The pods are sized so
that no zone holds them all: putting everything on one node would prove nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from controller.resources import (
    APPGROUPS,
    NETPERF_COSTS,
    NETWORK_TOPOLOGIES,
    ZONE_LABEL,
    AppGroup,
    NetworkTopology,
)
from controller.scheduler.rules import CostTable, Location
from kubekit import conditions
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, ConfigMap, Object, Pod
from lab import boutique, measure, report
from lab.cluster import Lab
from lab.errors import BootError, LabError
from lab.installation import NAMESPACE, ROUND_S, Installation, install
from lab.programs import run_to_end
from lab.topology import Topology
from netperf.results import decode_results
from netperf.sample import Measurement, Place

TOPOLOGY_NAME = "nt-default"
PLACEMENTS = ("extender", "affinity")
# Four pods fill a node of the default topology and eight a zone: eleven need two zones.
POD_CPU = "900m"
COMPONENTS = ("controller-manager", "kwok")
EDGE_S = 1.0
_POLL_S = 0.2
_MEASURE_DEADLINE_S = 120.0
_PLACE_DEADLINE_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Demo:
    """One run of the demo in a lab that is up."""

    lab: Lab
    installation: Installation
    client: Client
    topology: Topology
    say: Say

    async def measured(self) -> tuple[NetworkTopology, dict[tuple[str, str], Measurement]]:
        """Wait until every zone pair has a cost; return the costs and the newest measurements by zone pair."""
        zones = list(self.topology.zones)
        wanted = len(zones) * (len(zones) - 1)
        deadline, told = time.monotonic() + _MEASURE_DEADLINE_S + 2 * len(zones), -1
        while True:
            self.installation.check()
            network = await self.client.get(NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=NAMESPACE)
            samples = await self._samples(network)
            measured = conditions.find(network.status.conditions, "Measured")
            priced = zone_costs(network) if measured is not None and measured.status == "True" else {}
            if len(samples) // 2 != told:
                told = len(samples) // 2
                self.say(f"measured {told} of {wanted // 2} zone pairs")
            if len(samples) == wanted == len(priced):
                return network, samples
            if time.monotonic() > deadline:
                msg = f"only {len(samples) // 2} of {wanted // 2} zone pairs were measured; logs: {self.lab.place.state_dir}"
                raise LabError(msg)
            await asyncio.sleep(_POLL_S)

    async def _samples(self, network: NetworkTopology) -> dict[tuple[str, str], Measurement]:
        """Newest measurement of each directed zone pair; a round trip counts for both directions."""
        base = network.spec.configmap_name
        places = {n.node.name: Place(n.node.name, n.node.zone, n.node.region) for n in self.lab.nodes}
        found: dict[tuple[str, str], Measurement] = {}
        maps = await self.client.list(CONFIGMAPS, ConfigMap, namespace=NAMESPACE)
        for item in maps:
            if item.metadata.name != base and not item.metadata.name.startswith(f"{base}-"):
                continue
            for sample in decode_results(item.data or {}, places).samples.values():
                if sample.measurement.test == "TCP_STREAM":
                    continue
                pair = (sample.origin.zone, sample.destination.zone)
                found[pair] = sample.measurement
                found.setdefault(pair[::-1], sample.measurement)
        return found

    async def place(self, scheduler: str, namespace: str) -> dict[str, str]:
        """Deploy the application, wait until every pod is bound, take it away again; node of each workload."""
        application = boutique.load(scheduler=scheduler, cpu=POD_CPU)
        await self.client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
        await self._until(lambda: self._has_service_account(namespace), f"namespace {namespace}")
        await self.client.create(APPGROUPS, application.group, AppGroup, namespace=namespace)
        await self._until(lambda: self._is_ordered(namespace), "the controller to order the AppGroup")
        for deployment in application.deployments.values():
            await self.client.create(DEPLOYMENTS, deployment, Object, namespace=namespace)
        wanted = len(application.deployments)
        await self._until(lambda: self._is_placed(namespace, wanted), f"{wanted} pods to be placed")
        pods = await self.client.list(PODS, Pod, namespace=namespace)
        selectors = {w["workload"]["selector"]: w["workload"]["name"] for w in application.group["spec"]["workloads"]}
        placed = {selectors[p.metadata.label(boutique.WORKLOAD_LABEL)]: p.spec.node_name for p in pods}
        await self.client.delete(NAMESPACES, namespace)
        await self._until(lambda: self._is_gone(namespace), "the pods to go")
        return placed

    async def measure_edges(self, *placements: Mapping[str, str]) -> dict[tuple[str, str], float]:
        """Median round trip, µs, of each pair of nodes that some dependency uses; the same node is measured too."""
        dependencies = boutique.load(scheduler="", cpu=POD_CPU).dependencies
        pairs = sorted({(p[d.origin], p[d.destination]) for p in placements for d in dependencies})
        found: dict[tuple[str, str], float] = {}
        async with self._servers({destination for _, destination in pairs}):
            for done, (origin, destination) in enumerate(pairs):
                if done % 7 == 0:
                    self.say(f"measuring dependency latency between {len(pairs)} pairs of nodes, {done} done")
                found[origin, destination] = await self._measure(origin, destination)
        return found

    @asynccontextmanager
    async def _servers(self, nodes: set[str]) -> AsyncIterator[None]:
        started = [
            self.lab.spawn(
                node,
                [sys.executable, "-m", "lab.measure", "serve", self.lab.node(node).address, *self._prober],
                f"measure-{node}",
                env=self._environment,
                essential=False,
            )
            for node in sorted(nodes)
        ]
        try:
            yield
        finally:
            for program in started:
                await self.lab.programs.stop(program)

    async def _measure(self, origin: str, destination: str) -> float:
        address = self.lab.node(destination).address
        command = ["nsenter", f"--net=/run/netns/{self.lab.node(origin).netns}", sys.executable, "-m", "lab.measure"]
        command += ["probe", address, *self._prober, f"--duration-s={EDGE_S}", "--attempts=10"]
        what = f"measuring {origin} to {destination}"
        output = await run_to_end(command, what, _MEASURE_DEADLINE_S, env=self._environment)
        median = msgspec.json.decode(output, type=Measurement).percentile_us("p50")
        if median is None:
            raise BootError(f"{what}: too few samples")
        return median

    @property
    def _prober(self) -> list[str]:
        return ["--prober", self.installation.prober]

    @property
    def _environment(self) -> dict[str, str]:
        root = str(Path(__file__).parents[1])
        secret = {measure.SECRET_VARIABLE: self.installation.secret}
        return {**self.installation.environment, **secret, "PYTHONPATH": root}

    async def _until(self, check: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + _PLACE_DEADLINE_S
        while not await check():
            self.installation.check()
            if time.monotonic() > deadline:
                raise LabError(f"waited {_PLACE_DEADLINE_S:.0f} s for {what} in vain")
            await asyncio.sleep(_POLL_S)

    async def _has_service_account(self, namespace: str) -> bool:
        try:
            await self.client.get(SERVICE_ACCOUNTS, "default", Object, namespace=namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True

    async def _is_ordered(self, namespace: str) -> bool:
        groups = await self.client.list(APPGROUPS, AppGroup, namespace=namespace)
        return bool(groups and groups[0].status.topology_order)

    async def _is_placed(self, namespace: str, wanted: int) -> bool:
        pods = await self.client.list(PODS, Pod, namespace=namespace)
        return sum(bool(p.spec.node_name) for p in pods) == wanted

    async def _is_gone(self, namespace: str) -> bool:
        return not await self.client.list(PODS, Pod, namespace=namespace)


def zone_costs(network: NetworkTopology) -> dict[tuple[str, str], int]:
    """Measured costs by directed zone pair."""
    weight = network.weight(NETPERF_COSTS)
    return {
        (origin.origin, cost.destination): cost.network_cost
        for topology in (weight.topology_list if weight else ())
        if topology.topology_key == ZONE_LABEL
        for origin in topology.origin_list
        for cost in origin.cost_list
    }


def is_violated(costs: CostTable, origin: Place, destination: Place, limit: int) -> bool:
    """Whether a dependency costs more than its maximum, by the scheduler's own rule."""
    if origin.node == destination.node:
        return False
    here, there = (Location(place.region, place.zone) for place in (origin, destination))
    return costs.judge(here, there, limit)[0] == "violated"


async def run_demo(topology: Topology, *, name: str, placement: str, say: Say) -> report.DemoReport:
    """Run the whole demo in a lab of its own and clean up.

    Raises:
        LabError: something did not come up, or pods were not placed.
    """
    started = time.monotonic()
    async with Lab.start(topology, name=name, components=COMPONENTS) as lab:
        say(f"control plane {lab.control_plane.version} and {len(lab.nodes)} nodes up after {lab.boot_s:.1f} s")
        installation = await install(lab, controller_config={"scheduler": {"placement": placement}})
        say(
            f"agents, controller and extender ready after {time.monotonic() - started:.0f} s; "
            f"a round of probes takes {ROUND_S:.0f} s"
        )
        async with Client(lab.client_config) as client:
            demo = Demo(lab, installation, client, topology, say)
            network, samples = await demo.measured()
            say("deploying the Online Boutique with the default scheduler")
            before = await demo.place("default-scheduler", "boutique-default")
            say("deploying it again, network-aware")
            after = await demo.place("network-aware-scheduler", "boutique-network-aware")
            latencies = await demo.measure_edges(before, after)
            network = await client.get(NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=NAMESPACE)
        return _report(
            demo,
            network,
            samples=samples,
            placements=(before, after),
            latencies=latencies,
            placement=placement,
            elapsed_s=time.monotonic() - started,
        )


def _report(
    demo: Demo,
    network: NetworkTopology,
    *,
    samples: Mapping[tuple[str, str], Measurement],
    placements: tuple[dict[str, str], dict[str, str]],
    latencies: Mapping[tuple[str, str], float],
    placement: str,
    elapsed_s: float,
) -> report.DemoReport:
    places = {n.node.name: Place(n.node.name, n.node.zone, n.node.region) for n in demo.lab.nodes}
    zones = list(demo.topology.zones)
    edges = [
        _edge(network, places, dependency, placements, latencies)
        for dependency in boutique.load(scheduler="", cpu=POD_CPU).dependencies
    ]
    pairs = len(zones) * (len(zones) - 1) // 2
    return report.DemoReport(
        control_plane=report.ControlPlaneInfo(demo.lab.control_plane.version),
        nodes=list(places),
        zones=zones,
        prober=demo.installation.prober,
        placement=placement,
        pairs_planned=pairs,
        pairs_probed=len({tuple(sorted(pair)) for pair in samples}),
        matrix=_matrix(demo.topology, zone_costs(network), samples),
        placements=report.Placements(*placements),
        edges=edges,
        summary=report.summarise(edges),
        elapsed_s=round(elapsed_s, 1),
    )


def _matrix(
    topology: Topology, costs: Mapping[tuple[str, str], int], samples: Mapping[tuple[str, str], Measurement]
) -> list[report.MatrixEntry]:
    return [
        report.MatrixEntry(
            origin=a,
            destination=b,
            configured_us=topology.link(a, b).rtt_us,
            p50_us=samples[a, b].p50_us,
            p90_us=samples[a, b].p90_us,
            p99_us=samples[a, b].p99_us,
            cost=costs.get((a, b)),
        )
        for a in topology.zones
        for b in topology.zones
        if a != b
    ]


def _edge(
    network: NetworkTopology,
    places: Mapping[str, Place],
    dependency: boutique.Dependency,
    placements: tuple[dict[str, str], dict[str, str]],
    latencies: Mapping[tuple[str, str], float],
) -> report.Edge:
    ends = [(p[dependency.origin], p[dependency.destination]) for p in placements]
    limit = dependency.max_network_cost
    costs = CostTable(network.weight(NETPERF_COSTS))
    violated = [is_violated(costs, places[a], places[b], limit) for a, b in ends]
    return report.Edge(
        origin=dependency.origin,
        destination=dependency.destination,
        max_network_cost=limit,
        default_p50_us=latencies[ends[0]],
        network_aware_p50_us=latencies[ends[1]],
        default_violated=violated[0],
        network_aware_violated=violated[1],
    )
