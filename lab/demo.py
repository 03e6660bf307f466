"""Runs the demo: measures the network, computes costs, places an application with both schedulers, and compares latencies.

Agents measure every zone pair of a lab with netperf. The Online Boutique is deployed twice, with the default scheduler and with ours.
Then the latency of each dependency is measured between the nodes of its two pods. The pods do not fit into one zone.

On real nodes our programs run as pods of the shipped overlay. The application runs too, and the latency of requests to its frontend is
measured.
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
from typing import Any

import msgspec

from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import APPGROUPS, NETPERF_COSTS, WORKLOAD_LABEL, AppGroup, NetworkTopology
from controller.cluster.pods import OUR_SCHEDULER, PLACEMENT_LABEL
from controller.topology.weights import zone_costs_of
from kubekit import conditions, quantity
from kubekit.client import Client
from kubekit.wire import DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, SERVICES, Object, Pod
from lab import boutique, namespaces, report
from lab.cluster import ALL_COMPONENTS, Lab
from lab.controlplane import object_exists
from lab.installation import OVERLAY, ROUND_S, Installation, get_network_topology, install, list_result_configmaps
from lab.netperf_install import find_netperf_if_available
from lab.node_pairs import measure_node_pairs
from lab.pod_installation import await_rollout, install_as_pods
from lab.programs import run_command
from lab.progress import ProgressPrinter
from lab.realnode.cluster import APP_IMAGE
from lab.topology import REAL_KUBELET, Topology
from netperf.measurement import Measurement
from netperf.results import decode_results
from netperf.sample import NodeLocation, Sample

OVERLAY_BY_PLACEMENT = {"extender": OVERLAY, "affinity": OVERLAY.with_name("any-scheduler")}
"""Value of ``--placement`` -> folder of the overlay that is installed on real nodes."""
POD_CPU = "900m"
"""Four pods fill a node of the default topology and eight a zone: eleven need two zones."""
_REAL_POD_SHARE = 0.21
"""The same as a share of a real node's CPU. A real node has at most the machine's processors, and also runs our pods."""
_REQUESTS_PER_S, _LOAD_S, _WARM_UP_S = 8, 40, 5
COMPONENTS = ("controller-manager", "kwok")
FRONTEND = "frontend"
MIN_SAMPLES = 3
"""Samples that a zone pair needs, from any of its node pairs."""
_POLL_S = 0.2
_MEASURE_TIMEOUT_S, _SHIPPED_MEASURE_TIMEOUT_S, _PLACE_TIMEOUT_S, _LOAD_TIMEOUT_S = 120.0, 420.0, 60.0, 160.0


@dataclass(frozen=True)
class Demo:
    """One run of the demo in a lab that is up.

    Attributes:
        placement: a key of `OVERLAY_BY_PLACEMENT`.
        seed: seed of the order in which Deployments are created and, on real nodes, of the times of requests. None: the example's
            order, and requests at equal intervals.
    """

    lab: Lab
    installation: Installation
    client: Client
    topology: Topology
    placement: str
    print_progress: ProgressPrinter
    seed: int | None = None

    @property
    def has_real_nodes(self) -> bool:
        """Whether real kubelets run the placed pods."""
        return bool(self.lab.real_nodes.nodes)

    async def run(self) -> report.DemoReport:
        """Place the application with both schedulers; return the report, with 0 as ``elapsed_s`` and without ``images``."""
        medians = await self._wait_until_measured()
        self.print_progress("deploying the Online Boutique with the default scheduler")
        default, default_latency = await self._deploy_and_measure("default-scheduler", "boutique-default")
        self.print_progress("deploying it again, network-aware")
        scheduler, labels = OUR_SCHEDULER, {}
        if self.placement == "affinity":
            scheduler, labels = "default-scheduler", {PLACEMENT_LABEL: self.placement}
        network_aware, network_aware_latency = await self._deploy_and_measure(
            scheduler, "boutique-network-aware", labels
        )
        placements = report.Placements(default, network_aware)
        cost_weight = (await get_network_topology(self.client)).weight(NETPERF_COSTS)
        edges = await self._measure_dependencies(placements, CostTable(cost_weight))
        zones = list(self.topology.zones)
        application = None
        if default_latency and network_aware_latency:
            application = report.ApplicationReport(default_latency, network_aware_latency)
        return report.DemoReport(
            control_plane={"version": self.lab.control_plane.binaries.version},
            nodes=[network.node.name for network in self.lab.networks],
            zones=zones,
            prober=self.installation.prober,
            placement=self.placement,
            pairs_planned=len(zones) * (len(zones) - 1) // 2,
            pairs_probed=len(medians) // 2,
            matrix=_build_matrix(self.topology, zone_costs_of(cost_weight), medians),
            placements=placements,
            edges=edges,
            summary=report.summarize(edges),
            elapsed_s=0.0,
            nodes_kind=REAL_KUBELET if self.has_real_nodes else "namespace",
            seed=self.seed,
            application=application,
        )

    async def _wait_until_measured(self) -> dict[tuple[str, str], Measurement]:
        """Wait until every zone pair has a cost and `MIN_SAMPLES` samples; return the median of each directed pair's newest samples."""
        zone_count = len(self.topology.zones)
        pair_count = zone_count * (zone_count - 1) // 2
        # Larger topologies have longer rounds; 2 s are allowed for each zone.
        timeout_s = (_SHIPPED_MEASURE_TIMEOUT_S if self.has_real_nodes else _MEASURE_TIMEOUT_S) + 2 * zone_count
        medians: dict[tuple[str, str], Measurement] = {}
        seen_samples: dict[frozenset[str], set[tuple[str, str, int]]] = defaultdict(set)
        missing = "a NetworkTopology"

        async def is_measured() -> bool:
            nonlocal medians, missing
            network = await get_network_topology(self.client)
            newest, measured_before = await self._read_newest_samples(network), len(medians)
            for pair, samples in newest.items():
                seen_samples[pair] |= {(s.origin.node, s.destination.node, s.sequence) for s in samples}
            medians = _median_measurements(
                {pair: samples for pair, samples in newest.items() if len(seen_samples[pair]) >= MIN_SAMPLES}
            )
            if len(medians) != measured_before:
                self.print_progress(f"measured {len(medians) // 2} of {pair_count} zone pairs")
            condition = conditions.find_condition(network.status.conditions, "Measured")
            missing = (
                f"samples and costs of {pair_count} zone pairs: {condition.message if condition else 'no condition'}"
            )
            has_costs = condition is not None and condition.status == "True"
            return has_costs and len(medians) == 2 * pair_count == len(zone_costs_of(network.weight(NETPERF_COSTS)))

        await self._poll_until(is_measured, lambda: missing, timeout_s)
        return medians

    async def _read_newest_samples(self, network: NetworkTopology) -> dict[frozenset[str], list[Sample]]:
        """Pair of zones -> newest sample of each of its node pairs."""
        locations = _locations_by_node(self.lab)
        samples: dict[frozenset[str], list[Sample]] = defaultdict(list)
        for item in await list_result_configmaps(self.client, network.spec.configmap_name):
            for sample in decode_results(item.data or {}, locations).samples.values():
                if sample.measurement.test != "TCP_STREAM" and sample.cost_measurement.p90_us is not None:
                    samples[frozenset(sample.zones)].append(sample)
        return samples

    async def _deploy_and_measure(
        self, scheduler: str, namespace: str, labels: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], report.RequestLatency | None]:
        """Deploy the application in a namespace with these labels, wait until every pod is bound, and delete it.

        Returns workload -> node; on real nodes also the latency of requests, else None.
        """
        application = boutique.load_application(scheduler=scheduler, cpu=choose_pod_cpu(self.lab))
        if self.has_real_nodes:
            application = boutique.with_real_containers(application, APP_IMAGE)
        if self.seed is not None:
            application = boutique.shuffle_deployments(application, self.seed)
        await self.client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels or {}}}, Object)
        account = partial(object_exists, self.client, SERVICE_ACCOUNTS, "default", namespace)
        await self._poll_until(account, f"namespace {namespace}")
        await self.client.create(APPGROUPS, application.group, Object, namespace=namespace)
        await self._poll_until(lambda: self._is_ordered(namespace), "the controller to order the AppGroup")
        for resource, objects in ((SERVICES, application.services), (DEPLOYMENTS, application.deployments)):
            for item in objects.values():
                await self.client.create(resource, item, Object, namespace=namespace)

        async def find_placed_pods() -> list[Pod] | None:
            pods = await self.client.list(PODS, Pod, namespace=namespace)
            bound_pods = [pod for pod in pods if pod.spec.node_name]
            return bound_pods if len(bound_pods) == len(application.deployments) else None

        pods = await self._poll_until(find_placed_pods, f"{len(application.deployments)} pods to be placed")
        selectors = {w["workload"]["selector"]: w["workload"]["name"] for w in application.group["spec"]["workloads"]}
        node_by_workload = {selectors[p.metadata.label(WORKLOAD_LABEL)]: p.spec.node_name for p in pods}
        latency = (
            await self._measure_request_latency(namespace, node_by_workload[FRONTEND]) if self.has_real_nodes else None
        )
        await self.client.delete(NAMESPACES, namespace)
        await self._poll_until(lambda: self._is_gone(namespace), "the pods to be deleted")
        return node_by_workload, latency

    async def _measure_request_latency(self, namespace: str, node: str) -> report.RequestLatency:
        """Send requests to the frontend's Service at a fixed rate from the frontend's node; returns their latency."""
        await await_rollout(self.lab, namespace)
        service = msgspec.json.decode(await self.client.request("GET", SERVICES.path(namespace, FRONTEND)))
        self.print_progress(f"{_REQUESTS_PER_S} requests a second to the frontend, for {_LOAD_S} s")
        real_node = self.lab.real_nodes.nodes[node]
        command: list[str | Path] = [
            *namespaces.build_enter_command(real_node.network.netns),
            real_node.binaries.app,
            "load",
        ]
        command += [
            f"--url=http://{service['spec']['clusterIP']}/",
            f"--rate={_REQUESTS_PER_S}",
            f"--duration={_LOAD_S}s",
            f"--warm-up={_WARM_UP_S}s",
            f"--seed={self.seed or 0}",
        ]
        output = await run_command(command, "requests to the frontend", _LOAD_TIMEOUT_S)
        return msgspec.json.decode(output, type=report.RequestLatency)

    async def _measure_dependencies(self, placements: report.Placements, costs: CostTable) -> list[report.Edge]:
        """Measure the round trip of each dependency between the nodes of its pods, which may be one node."""
        locations = _locations_by_node(self.lab)
        node_maps = (placements.default, placements.network_aware)
        node_pairs_by_dependency = {
            d: [(nodes[d.origin], nodes[d.destination]) for nodes in node_maps]
            for d in boutique.load_application(scheduler="", cpu=POD_CPU).dependencies
        }
        pairs = {pair for node_pairs in node_pairs_by_dependency.values() for pair in node_pairs}
        self.print_progress(f"measuring dependency latency between {len(pairs)} pairs of nodes")
        medians_us = await measure_node_pairs(self.installation, pairs)
        edges = []
        for dependency, node_pairs in node_pairs_by_dependency.items():
            limit = dependency.max_network_cost
            violated = [_violates_limit(costs, locations[a], locations[b], limit) for a, b in node_pairs]
            edges.append(
                report.Edge(
                    origin=dependency.origin,
                    destination=dependency.destination,
                    max_network_cost=limit,
                    default_p50_us=medians_us[node_pairs[0]],
                    network_aware_p50_us=medians_us[node_pairs[1]],
                    default_violated=violated[0],
                    network_aware_violated=violated[1],
                )
            )
        return edges

    async def _poll_until(
        self, check: Callable[[], object], description: str | Callable[[], str], timeout_s: float = _PLACE_TIMEOUT_S
    ) -> Any:
        return await self.lab.programs.wait_until(check, description, timeout_s, _POLL_S)

    async def _is_ordered(self, namespace: str) -> bool:
        groups = await self.client.list(APPGROUPS, AppGroup, namespace=namespace)
        return bool(groups and groups[0].status.topology_order)

    async def _is_gone(self, namespace: str) -> bool:
        return not await self.client.list(PODS, Pod, namespace=namespace)


def _locations_by_node(lab: Lab) -> dict[str, NodeLocation]:
    return {n.node.name: NodeLocation(n.node.name, n.node.zone, n.node.region) for n in lab.networks}


def _median_measurements(samples: Mapping[frozenset[str], Sequence[Sample]]) -> dict[tuple[str, str], Measurement]:
    """Directed pair of zones -> measurement with the median p90, the same for both directions."""
    medians: dict[tuple[str, str], Measurement] = {}
    for zones, pair_samples in samples.items():
        ranked = sorted((s.cost_measurement for s in pair_samples), key=lambda m: m.p90_us or 0.0)
        a, b = sorted(zones)
        medians[a, b] = medians[b, a] = ranked[(len(ranked) - 1) // 2]
    return medians


def _violates_limit(costs: CostTable, origin: NodeLocation, destination: NodeLocation, limit: int) -> bool:
    """Whether a dependency between two nodes costs more than its ``limit``, by the scheduler's rule."""
    if origin.node == destination.node:
        return False
    from_location, to_location = (Location(node.region, node.zone) for node in (origin, destination))
    return costs.compare_with_limit(from_location, to_location, limit)[0] == "violated"


def choose_pod_cpu(lab: Lab) -> str:
    """Return the CPU request of each pod of the application."""
    if not lab.real_nodes.nodes:
        return POD_CPU
    sizes_millicores = [quantity.parse_milli(node.network.node.cpu) for node in lab.real_nodes.nodes.values()]
    return f"{int(min(*sizes_millicores, (os.cpu_count() or 1) * 1000) * _REAL_POD_SHARE)}m"


async def run_demo(
    topology: Topology,
    *,
    name: str,
    placement: str,
    print_progress: ProgressPrinter,
    images: Mapping[str, Path] | None = None,
    seed: int | None = None,
) -> report.DemoReport:
    """Run the demo in a new lab and remove the lab; see `Demo` for ``placement`` and ``seed``.

    ``images`` are those of `find_or_build_images`, if the topology's nodes are real. Raises LabError, alone or in an ExceptionGroup, if a
    program does not start or pods are not placed.
    """
    started_s = time.monotonic()
    async with Lab.start(topology, name=name, components=ALL_COMPONENTS if images else COMPONENTS) as lab:
        print_progress(
            f"control plane {lab.control_plane.binaries.version} and {len(lab.networks)} nodes up"
            f" after {lab.boot_s:.1f} s"
        )
        if images:
            installation = Installation(lab, await asyncio.to_thread(find_netperf_if_available), secrets.token_hex(16))
            await install_as_pods(lab, images, overlay=OVERLAY_BY_PLACEMENT[placement])
            print_progress("the shipped overlay's pods are ready")
        else:
            installation = await install(lab)
            print_progress(f"agents, controller and extender are ready; a round of probes takes {ROUND_S:.0f} s")
        async with Client(lab.client_config) as client:
            result = await Demo(lab, installation, client, topology, placement, print_progress, seed).run()
        image_by_program = {image.partition(":")[0].removeprefix("netaware-"): image for image in images or ()}
        elapsed_s = round(time.monotonic() - started_s, 1)
        return msgspec.structs.replace(result, elapsed_s=elapsed_s, images=image_by_program or None)


def _build_matrix(
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
