"""The demo: measures the network, computes costs, places an application, and measures the gain.

Agents measure every zone pair of a lab with netperf. The Online Boutique is deployed twice, with the default scheduler and with
ours. Then each dependency is measured between the nodes of its two pods. The pods are too large for one zone.

On real nodes our programs run as the shipped overlay's pods. The application runs too, and the latency of requests to its frontend
is measured.
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
from controller.cluster.crds import (
    APPGROUPS,
    NETPERF_COSTS,
    NETWORK_TOPOLOGIES,
    WORKLOAD_LABEL,
    AppGroup,
    NetworkTopology,
)
from controller.cluster.pods import OUR_SCHEDULER, PLACEMENT_LABEL
from controller.topology.weights import zone_costs_of
from kubekit import conditions, quantity
from kubekit.client import Client
from kubekit.wire import DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Object, Pod, Resource
from lab import boutique, namespaces, report
from lab.cluster import ALL_COMPONENTS, Lab
from lab.controlplane import object_exists
from lab.errors import LabError
from lab.installation import OVERLAY, ROUND_S, TOPOLOGY_NAME, Installation, install, list_result_configmaps
from lab.netperf_install import find_netperf_if_available
from lab.node_pairs import measure_node_pairs
from lab.polling import poll_until
from lab.programs import run_command
from lab.progress import Say
from lab.realnode.cluster import APP_IMAGE
from lab.shipped import await_rollout, install_as_shipped
from lab.topology import REAL, Topology
from netperf.contract import NETAWARE_NAMESPACE
from netperf.results import decode_results
from netperf.sample import Measurement, NodeLocation, Sample

OVERLAYS = {"extender": OVERLAY, "affinity": OVERLAY.with_name("any-scheduler")}
"""Way of placing -> overlay."""
# Four pods fill a node of the default topology and eight a zone: eleven need two zones.
POD_CPU = "900m"
# The same as a share of a real node, which has at most the machine's processors, and also runs our pods.
_REAL_POD_SHARE = 0.21
_LOAD_RATE, _LOAD_S, _WARM_UP_S = 8, 40, 5
COMPONENTS = ("controller-manager", "kwok")
FRONTEND = "frontend"
SERVICES = Resource("", "v1", "services", "Service")
MIN_SAMPLES = 3
"""Samples that a pair of zones needs, between any of their nodes."""
_POLL_S = 0.2
_MEASURE_DEADLINE_S, _SHIPPED_MEASURE_DEADLINE_S = 120.0, 420.0
_PLACE_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Demo:
    """One run of the demo in a lab that is up.

    Attributes:
        lab: the lab.
        installation: our programs in the lab.
        client: client of the lab's API server.
        topology: the lab's topology.
        say: prints a line of progress.
        seed: seed of the order in which Deployments are created and, on real nodes, of the times of requests. None for the
            example's order, and requests at equal intervals.
    """

    lab: Lab
    installation: Installation
    client: Client
    topology: Topology
    say: Say
    seed: int | None = None

    @property
    def has_real_nodes(self) -> bool:
        """Whether real kubelets run the placed pods."""
        return bool(self.lab.real_nodes.nodes)

    async def wait_until_measured(self) -> dict[tuple[str, str], Measurement]:
        """Wait until every zone pair has a cost and `MIN_SAMPLES` samples.

        Returns:
            Directed pair of zones -> median of its newest measurements.
        """
        zones = list(self.topology.zones)
        wanted = len(zones) * (len(zones) - 1)
        timeout_s = _SHIPPED_MEASURE_DEADLINE_S if self.has_real_nodes else _MEASURE_DEADLINE_S
        deadline, reported = time.monotonic() + timeout_s + 2 * len(zones), -1
        seen: dict[frozenset[str], set[tuple[str, str, int]]] = defaultdict(set)
        while True:
            self.installation.check_running()
            network = await self.client.get(
                NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=NETAWARE_NAMESPACE
            )
            newest = await self._newest_samples(network)
            for pair, samples in newest.items():
                seen[pair] |= {(s.origin.node, s.destination.node, s.sequence) for s in samples}
            medians = _median_measurements({p: samples for p, samples in newest.items() if len(seen[p]) >= MIN_SAMPLES})
            condition = conditions.find_condition(network.status.conditions, "Measured")
            is_measured = condition is not None and condition.status == "True"
            costs = zone_costs_of(network.weight(NETPERF_COSTS)) if is_measured else {}
            if len(medians) // 2 != reported:
                reported = len(medians) // 2
                self.say(f"measured {reported} of {wanted // 2} zone pairs")
            if len(medians) == wanted == len(costs):
                return medians
            if time.monotonic() > deadline:
                reason = f": {condition.message}" if condition is not None and not is_measured else ""
                raise LabError(
                    f"of {wanted // 2} zone pairs {len(medians) // 2} were measured, and {len(costs) // 2} have a cost{reason}"
                )
            await asyncio.sleep(_POLL_S)

    async def _newest_samples(self, network: NetworkTopology) -> dict[frozenset[str], list[Sample]]:
        """Pair of zones -> newest sample of each of its node pairs."""
        places = {n.node.name: NodeLocation(n.node.name, n.node.zone, n.node.region) for n in self.lab.networks}
        samples: dict[frozenset[str], list[Sample]] = defaultdict(list)
        for item in await list_result_configmaps(self.client, network.spec.configmap_name):
            for sample in decode_results(item.data or {}, places).samples.values():
                if sample.measurement.test != "TCP_STREAM" and sample.cost_measurement.p90_us is not None:
                    samples[frozenset(sample.zones)].append(sample)
        return samples

    async def deploy_and_measure(
        self, scheduler: str, namespace: str, labels: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], report.RequestLatency | None]:
        """Deploy the application in a namespace with these labels, wait until every pod is bound, and delete it.

        Returns:
            Workload -> node; on real nodes also the latency of requests, else None.
        """
        application = boutique.load_application(scheduler=scheduler, cpu=pod_cpu(self.lab))
        if self.has_real_nodes:
            application = boutique.with_real_containers(application, APP_IMAGE)
        if self.seed is not None:
            application = boutique.shuffle_deployments(application, self.seed)
        await self.client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels or {}}}, Object)
        account = partial(object_exists, self.client, SERVICE_ACCOUNTS, "default", namespace)
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
        nodes = {selectors[p.metadata.label(WORKLOAD_LABEL)]: p.spec.node_name for p in pods}
        latency = await self._request_latency(namespace, nodes[FRONTEND]) if self.has_real_nodes else None
        await self.client.delete(NAMESPACES, namespace)
        await self._wait_until(lambda: self._is_gone(namespace), "the pods to go")
        return nodes, latency

    async def _request_latency(self, namespace: str, node: str) -> report.RequestLatency:
        """Send requests to the frontend's Service at a fixed rate from the frontend's node; returns their latency."""
        await await_rollout(self.lab, namespace)
        path = SERVICES.path(namespace, FRONTEND)
        service = msgspec.json.decode(await self.client.request("GET", path))
        address = service["spec"]["clusterIP"]
        self.say(f"{_LOAD_RATE} requests a second to the frontend, for {_LOAD_S} s")
        real_node = self.lab.real_nodes.nodes[node]
        command: list[str | Path] = [
            *namespaces.build_enter_command(real_node.network.netns),
            real_node.binaries.app,
            "load",
        ]
        command += [
            f"--url=http://{address}/",
            f"--rate={_LOAD_RATE}",
            f"--duration={_LOAD_S}s",
            f"--warm-up={_WARM_UP_S}s",
            f"--seed={self.seed or 0}",
        ]
        output = await run_command(command, "requests to the frontend", _LOAD_S + _MEASURE_DEADLINE_S)
        return msgspec.json.decode(output, type=report.RequestLatency)

    async def measure_edges(self, *placements: Mapping[str, str]) -> dict[tuple[str, str], float]:
        """Pair of nodes -> median round trip, µs, for all dependencies; both nodes of a pair may be the same."""
        dependencies = boutique.load_application(scheduler="", cpu=POD_CPU).dependencies
        pairs = {(p[d.origin], p[d.destination]) for p in placements for d in dependencies}
        self.say(f"measuring dependency latency between {len(pairs)} pairs of nodes")
        return await measure_node_pairs(self.installation, pairs)

    async def _wait_until(self, check: Callable[[], object], what: str) -> None:
        check_programs = self.installation.check_running
        await poll_until(check, what, _PLACE_DEADLINE_S, every_s=_POLL_S, on_retry=check_programs, error=LabError)

    async def _is_ordered(self, namespace: str) -> bool:
        groups = await self.client.list(APPGROUPS, AppGroup, namespace=namespace)
        return bool(groups and groups[0].status.topology_order)

    async def _is_placed(self, namespace: str, wanted: int) -> bool:
        pods = await self.client.list(PODS, Pod, namespace=namespace)
        return sum(bool(p.spec.node_name) for p in pods) == wanted

    async def _is_gone(self, namespace: str) -> bool:
        return not await self.client.list(PODS, Pod, namespace=namespace)


def _median_measurements(samples: Mapping[frozenset[str], Sequence[Sample]]) -> dict[tuple[str, str], Measurement]:
    """Directed pair of zones -> measurement with the median p90, the same for both directions."""
    medians: dict[tuple[str, str], Measurement] = {}
    for zones, of_pair in samples.items():
        ranked = sorted((s.cost_measurement for s in of_pair), key=lambda m: m.p90_us or 0.0)
        a, b = sorted(zones)
        medians[a, b] = medians[b, a] = ranked[(len(ranked) - 1) // 2]
    return medians


def is_violated(costs: CostTable, origin: NodeLocation, destination: NodeLocation, limit: int) -> bool:
    """Whether a dependency costs more than its ``limit``, by the scheduler's rule."""
    if origin.node == destination.node:
        return False
    from_location, to_location = (Location(place.region, place.zone) for place in (origin, destination))
    return costs.check_limit(from_location, to_location, limit)[0] == "violated"


def pod_cpu(lab: Lab) -> str:
    """CPU request of each pod of the application."""
    if not lab.real_nodes.nodes:
        return POD_CPU
    sizes = [quantity.parse_milli(node.network.node.cpu) for node in lab.real_nodes.nodes.values()]
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
    """Run the demo in a new lab and remove the lab.

    Args:
        topology: topology of the lab.
        name: name of the lab.
        placement: a key of `OVERLAYS`.
        say: prints a line of progress.
        images: image name -> OCI layout, if the topology's nodes are real.
        seed: see `Demo`.

    Raises:
        LabError: a program did not start, or pods were not placed; alone or in an ExceptionGroup.
    """
    started = time.monotonic()
    async with Lab.start(topology, name=name, components=ALL_COMPONENTS if images else COMPONENTS) as lab:
        say(f"control plane {lab.control_plane.version} and {len(lab.networks)} nodes up after {lab.boot_s:.1f} s")
        if images:
            installation = Installation(lab, await asyncio.to_thread(find_netperf_if_available), secrets.token_hex(16))
            await install_as_shipped(lab, images, overlay=OVERLAYS[placement])
            say("the shipped overlay's pods are ready")
        else:
            installation = await install(lab)
            say(f"agents, controller and extender are ready; a round of probes takes {ROUND_S:.0f} s")
        async with Client(lab.client_config) as client:
            demo = Demo(lab, installation, client, topology, say, seed)
            medians = await demo.wait_until_measured()
            say("deploying the Online Boutique with the default scheduler")
            before, latency_before = await demo.deploy_and_measure("default-scheduler", "boutique-default")
            say("deploying it again, network-aware")
            scheduler, labels = OUR_SCHEDULER, {}
            if placement == "affinity":
                scheduler, labels = "default-scheduler", {PLACEMENT_LABEL: placement}
            after, latency_after = await demo.deploy_and_measure(scheduler, "boutique-network-aware", labels)
            latencies = await demo.measure_edges(before, after)
            network = await client.get(NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=NETAWARE_NAMESPACE)
        elapsed_s = time.monotonic() - started
        result = _report(demo, network, medians, (before, after), latencies, placement=placement, elapsed_s=elapsed_s)
        if images and latency_before and latency_after:
            image_of = {layout.name.split("-")[1]: image for image, layout in images.items()}
            application = report.ApplicationReport(latency_before, latency_after)
            result = msgspec.structs.replace(result, images=image_of, application=application)
        return result


def _report(
    demo: Demo,
    network: NetworkTopology,
    medians: Mapping[tuple[str, str], Measurement],
    placements: tuple[dict[str, str], dict[str, str]],
    latencies: Mapping[tuple[str, str], float],
    *,
    placement: str,
    elapsed_s: float,
) -> report.DemoReport:
    places = {n.node.name: NodeLocation(n.node.name, n.node.zone, n.node.region) for n in demo.lab.networks}
    zones = list(demo.topology.zones)
    edges = [
        _edge(network, places, dependency, placements, latencies)
        for dependency in boutique.load_application(scheduler="", cpu=POD_CPU).dependencies
    ]
    pairs = len(zones) * (len(zones) - 1) // 2
    return report.DemoReport(
        control_plane=report.ControlPlaneInfo(demo.lab.control_plane.version),
        nodes=list(places),
        zones=zones,
        prober=demo.installation.prober,
        placement=placement,
        pairs_planned=pairs,
        pairs_probed=len({tuple(sorted(pair)) for pair in medians}),
        matrix=_matrix(demo.topology, zone_costs_of(network.weight(NETPERF_COSTS)), medians),
        placements=report.Placements(*placements),
        edges=edges,
        summary=report.summarise(edges),
        elapsed_s=round(elapsed_s, 1),
        nodes_kind=REAL if demo.has_real_nodes else "namespace",
        seed=demo.seed,
    )


def _matrix(
    topology: Topology, costs: Mapping[tuple[str, str], int], medians: Mapping[tuple[str, str], Measurement]
) -> list[report.MatrixEntry]:
    return [
        report.MatrixEntry(
            origin=a,
            destination=b,
            configured_us=topology.link_between(a, b).rtt_us,
            p50_us=medians[a, b].p50_us,
            p90_us=medians[a, b].p90_us,
            p99_us=medians[a, b].p99_us,
            cost=costs.get((a, b)),
        )
        for a in topology.zones
        for b in topology.zones
        if a != b
    ]


def _edge(
    network: NetworkTopology,
    places: Mapping[str, NodeLocation],
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
