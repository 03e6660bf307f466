"""The demo: measures the network, prices it, places an application, and measures the gain.

A lab is booted, agents measure every zone pair with netperf, and the Online Boutique is deployed twice, with the default
scheduler and with ours. Each dependency is then measured between the nodes where its two pods landed. The pods are sized so
that no zone holds them all: putting everything on one node would prove nothing.

On real nodes the shipped overlay is applied as it is, so that containers measure and place; the application runs, and requests to
its frontend say what its users feel.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from controller.cluster.costs import CostTable, Location
from controller.cluster.pods import OUR_SCHEDULER, PLACEMENT_LABEL
from controller.cluster.resources import (
    APPGROUPS,
    NETPERF_COSTS,
    NETWORK_TOPOLOGIES,
    WORKLOAD_LABEL,
    AppGroup,
    NetworkTopology,
)
from controller.topology.weights import written_costs
from kubekit import conditions, quantity
from kubekit.client import Client
from kubekit.waiting import poll_until
from kubekit.wire import DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Object, Pod, Resource
from lab import boutique, namespaces, report
from lab.cluster import ALL_COMPONENTS, Lab
from lab.controlplane import exists
from lab.edges import measure_pairs
from lab.errors import LabError
from lab.installation import OVERLAY, ROUND_S, TOPOLOGY_NAME, Installation, install, result_maps
from lab.netperf_install import find_if_available
from lab.programs import run_to_end
from lab.progress import Say
from lab.realnode.cluster import APP_IMAGE
from lab.shipped import await_rollout, install_as_shipped
from lab.topology import REAL, Topology
from netperf.contract import HOME_NAMESPACE
from netperf.results import decode_results
from netperf.sample import Measurement, Place, Sample

OVERLAYS = {"extender": OVERLAY, "affinity": OVERLAY.with_name("any-scheduler")}
"""Overlay by way of placing."""
# Four pods fill a node of the default topology and eight a zone: eleven need two zones.
POD_CPU = "900m"
# The same on a real node, which has the machine's processors at most, and some of our own pods.
_REAL_POD_SHARE = 0.21
_LOAD_RATE, _LOAD_S, _WARM_UP_S = 8, 40, 5
COMPONENTS = ("controller-manager", "kwok")
FRONTEND = "frontend"
SERVICES = Resource("", "v1", "services", "Service")
MIN_READINGS = 3
"""Readings for each pair of zones, between any of their nodes."""
_POLL_S = 0.2
_MEASURE_DEADLINE_S, _SHIPPED_MEASURE_DEADLINE_S = 120.0, 420.0
_PLACE_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Demo:
    """One run of the demo in a lab that is up.

    ``seed`` gives the order in which Deployments are created and, on real nodes, when users come; without one the order is
    the example's and users come evenly.
    """

    lab: Lab
    installation: Installation
    client: Client
    topology: Topology
    say: Say
    seed: int | None = None

    @property
    def is_real(self) -> bool:
        """Whether kubelets run what is placed."""
        return bool(self.lab.real_nodes.nodes)

    async def wait_until_measured(self) -> tuple[NetworkTopology, dict[tuple[str, str], Measurement]]:
        """Wait until every zone pair has a cost that rests on enough readings: one is no measurement, and must not place pods.

        Returns:
            The object with the costs, and the reading in the middle of each pair's newest ones.
        """
        zones = list(self.topology.zones)
        wanted = len(zones) * (len(zones) - 1)
        timeout_s = _SHIPPED_MEASURE_DEADLINE_S if self.is_real else _MEASURE_DEADLINE_S
        deadline, reported = time.monotonic() + timeout_s + 2 * len(zones), -1
        readings: dict[frozenset[str], set[tuple[str, str, int]]] = defaultdict(set)
        while True:
            self.installation.check()
            network = await self.client.get(
                NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=HOME_NAMESPACE
            )
            newest = await self._samples(network)
            for zones_of, found in newest.items():
                readings[zones_of] |= {(s.origin.node, s.destination.node, s.sequence) for s in found}
            samples = _median_readings({z: found for z, found in newest.items() if len(readings[z]) >= MIN_READINGS})
            measured = conditions.find_condition(network.status.conditions, "Measured")
            priced = (
                written_costs(network.weight(NETPERF_COSTS))
                if measured is not None and measured.status == "True"
                else {}
            )
            if len(samples) // 2 != reported:
                reported = len(samples) // 2
                self.say(f"measured {reported} of {wanted // 2} zone pairs")
            if len(samples) == wanted == len(priced):
                return network, samples
            if time.monotonic() > deadline:
                msg = (
                    f"of {wanted // 2} zone pairs {len(samples) // 2} were measured, and {len(priced) // 2} have a cost"
                )
                if measured is not None and measured.status != "True":
                    msg += f": {measured.message}"
                raise LabError(msg)
            await asyncio.sleep(_POLL_S)

    async def _samples(self, network: NetworkTopology) -> dict[frozenset[str], list[Sample]]:
        """Newest sample of each pair of nodes, by the zones that it joins."""
        places = {n.node.name: Place(n.node.name, n.node.zone, n.node.region) for n in self.lab.nodes}
        found: dict[frozenset[str], list[Sample]] = defaultdict(list)
        for item in await result_maps(self.client, network.spec.configmap_name):
            for sample in decode_results(item.data or {}, places).samples.values():
                if sample.measurement.test != "TCP_STREAM" and sample.cost_measurement.p90_us is not None:
                    found[frozenset(sample.zones)].append(sample)
        return found

    async def deploy_and_measure(
        self, scheduler: str, namespace: str, labels: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], report.RequestLatency | None]:
        """Deploy the application in a namespace with these labels, wait until every pod is bound, take it away again.

        Returns: node of each workload; on real nodes also request latency, once every pod was ready.
        """
        application = boutique.load(scheduler=scheduler, cpu=pod_cpu(self.lab))
        if self.is_real:
            application = boutique.with_real_containers(application, APP_IMAGE)
        if self.seed is not None:
            application = boutique.shuffled(application, self.seed)
        await self.client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels or {}}}, Object)
        account = partial(exists, self.client, SERVICE_ACCOUNTS, "default", namespace)
        await self._wait_until(account, f"namespace {namespace}")
        await self.client.create(APPGROUPS, application.group, Object, namespace=namespace)
        await self._wait_until(lambda: self._is_ordered(namespace), "the controller to order the AppGroup")
        for resource, objects in ((SERVICES, application.services), (DEPLOYMENTS, application.deployments)):
            for item in objects.values():
                await self.client.create(resource, item, Object, namespace=namespace)
        wanted = len(application.deployments)
        await self._wait_until(lambda: self._is_placed(namespace, wanted), f"{wanted} pods to be placed")
        pods = await self.client.list(PODS, Pod, namespace=namespace)
        selectors = {w["workload"]["selector"]: w["workload"]["name"] for w in application.group["spec"]["workloads"]}
        placed = {selectors[p.metadata.label(WORKLOAD_LABEL)]: p.spec.node_name for p in pods}
        latency = await self._request_latency(namespace, placed[FRONTEND]) if self.is_real else None
        await self.client.delete(NAMESPACES, namespace)
        await self._wait_until(lambda: self._is_gone(namespace), "the pods to go")
        return placed, latency

    async def _request_latency(self, namespace: str, node: str) -> report.RequestLatency:
        """Send requests to the frontend's Service at a set rate, from the frontend's own node; what came of it."""
        await await_rollout(self.lab, namespace)
        path = SERVICES.path(namespace, FRONTEND)
        service = msgspec.json.decode(await self.client.request("GET", path))
        address = service["spec"]["clusterIP"]
        self.say(f"{_LOAD_RATE} requests a second to the frontend, for {_LOAD_S} s")
        real = self.lab.real_nodes.nodes[node]
        command: list[str | Path] = [*namespaces.enter_command(real.network.netns), real.binaries.app, "load"]
        command += [
            f"--url=http://{address}/",
            f"--rate={_LOAD_RATE}",
            f"--duration={_LOAD_S}s",
            f"--warm-up={_WARM_UP_S}s",
            f"--seed={self.seed or 0}",
        ]
        output = await run_to_end(command, "requests to the frontend", _LOAD_S + _MEASURE_DEADLINE_S)
        return msgspec.json.decode(output, type=report.RequestLatency)

    async def measure_edges(self, *placements: Mapping[str, str]) -> dict[tuple[str, str], float]:
        """Median round trip, µs, of each pair of nodes that some dependency uses; the same node is measured too."""
        dependencies = boutique.load(scheduler="", cpu=POD_CPU).dependencies
        pairs = {(p[d.origin], p[d.destination]) for p in placements for d in dependencies}
        self.say(f"measuring dependency latency between {len(pairs)} pairs of nodes")
        return await measure_pairs(self.installation, pairs)

    async def _wait_until(self, check: Callable[[], object], what: str) -> None:
        check_programs = self.installation.check
        await poll_until(check, what, _PLACE_DEADLINE_S, every_s=_POLL_S, on_retry=check_programs, error=LabError)

    async def _is_ordered(self, namespace: str) -> bool:
        groups = await self.client.list(APPGROUPS, AppGroup, namespace=namespace)
        return bool(groups and groups[0].status.topology_order)

    async def _is_placed(self, namespace: str, wanted: int) -> bool:
        pods = await self.client.list(PODS, Pod, namespace=namespace)
        return sum(bool(p.spec.node_name) for p in pods) == wanted

    async def _is_gone(self, namespace: str) -> bool:
        return not await self.client.list(PODS, Pod, namespace=namespace)


def _median_readings(samples: Mapping[frozenset[str], Sequence[Sample]]) -> dict[tuple[str, str], Measurement]:
    """The reading with the median p90 by directed pair of zones; a round trip counts for both directions."""
    found: dict[tuple[str, str], Measurement] = {}
    for zones, readings in samples.items():
        ranked = sorted((s.cost_measurement for s in readings), key=lambda m: m.p90_us or 0.0)
        a, b = sorted(zones)
        found[a, b] = found[b, a] = ranked[(len(ranked) - 1) // 2]
    return found


def is_violated(costs: CostTable, origin: Place, destination: Place, limit: int) -> bool:
    """Whether a dependency costs more than its maximum, by the scheduler's own rule."""
    if origin.node == destination.node:
        return False
    here, there = (Location(place.region, place.zone) for place in (origin, destination))
    return costs.check_limit(here, there, limit)[0] == "violated"


def pod_cpu(lab: Lab) -> str:
    """CPU request of each pod of the application."""
    if not lab.real_nodes.nodes:
        return POD_CPU
    sizes = [quantity.parse_milli(real.network.node.cpu) for real in lab.real_nodes.nodes.values()]
    return f"{int(min(*sizes, (os.cpu_count() or 1) * 1000) * _REAL_POD_SHARE)}m"


async def run_demo(
    topology: Topology,
    *,
    name: str,
    placement: str,
    say: Say,
    images: Mapping[str, Path] | None = None,
    seed: int | None = None,
) -> report.DemoReport:
    """Run the whole demo in a lab of its own and clean up.

    Args:
        topology: of the lab.
        name: of the lab.
        placement: a key of OVERLAYS.
        say: progress callback.
        images: OCI layouts of ours by name, when the topology's nodes are real.
        seed: see Demo.

    Raises:
        LabError: something did not come up, or pods were not placed; alone or in an ExceptionGroup.
    """
    started = time.monotonic()
    async with Lab.start(topology, name=name, components=ALL_COMPONENTS if images else COMPONENTS) as lab:
        say(f"control plane {lab.control_plane.version} and {len(lab.nodes)} nodes up after {lab.boot_s:.1f} s")
        if images:
            installation = Installation(lab, await asyncio.to_thread(find_if_available), secrets.token_hex(16))
            await install_as_shipped(lab, images, overlay=OVERLAYS[placement])
            say(f"the shipped overlay's pods are ready after {time.monotonic() - started:.0f} s")
        else:
            installation = await install(lab)
            say(
                f"agents, controller and extender ready after {time.monotonic() - started:.0f} s; "
                f"a round of probes takes {ROUND_S:.0f} s"
            )
        async with Client(lab.client_config) as client:
            demo = Demo(lab, installation, client, topology, say, seed)
            network, samples = await demo.wait_until_measured()
            say("deploying the Online Boutique with the default scheduler")
            before, latency_before = await demo.deploy_and_measure("default-scheduler", "boutique-default")
            say("deploying it again, network-aware")
            if placement == "affinity":
                ours = ("default-scheduler", "boutique-network-aware", {PLACEMENT_LABEL: placement})
            else:
                ours = (OUR_SCHEDULER, "boutique-network-aware", {})
            after, latency_after = await demo.deploy_and_measure(*ours)
            latencies = await demo.measure_edges(before, after)
            network = await client.get(NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=HOME_NAMESPACE)
        found = _report(
            demo,
            network,
            samples=samples,
            placements=(before, after),
            latencies=latencies,
            placement=placement,
            elapsed_s=time.monotonic() - started,
        )
        if images and latency_before and latency_after:
            names = {layout.name.split("-")[1]: image for image, layout in images.items()}
            found = msgspec.structs.replace(
                found,
                nodes_kind=REAL,
                images=names,
                application=report.ApplicationReport(latency_before, latency_after),
            )
        return found


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
        matrix=_matrix(demo.topology, written_costs(network.weight(NETPERF_COSTS)), samples),
        placements=report.Placements(*placements),
        edges=edges,
        summary=report.summarise(edges),
        elapsed_s=round(elapsed_s, 1),
        nodes_kind="namespace",
        seed=demo.seed,
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
