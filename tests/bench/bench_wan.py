"""Measuring over an emulated WAN with real agents and real netperf, at the pace that is shipped, beside a reference of the same moment.

The reference are ICMP echoes between the same nodes, which kernels answer and stamp (`tests.support.pings`). Topologies
`cloud-region` and `continents` by default; NETAWARE_BENCH_WAN names others, such as `planet`, joined by commas. Needs root.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from controller.cluster.resources import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit.client import Client
from kubekit.wire import CONFIGMAPS, ConfigMap
from lab.cluster import Lab
from lab.demo import COMPONENTS
from lab.errors import UnsupportedError
from lab.installation import Installation, install
from lab.network import WAN_DEVICE, require_privileges
from lab.topology import Topology, load
from netperf.contract import HOME_NAMESPACE, PLAN_SELECTOR
from netperf.latencies import LATENCY_ANNOTATION, Latencies, decode_latencies
from netperf.plans import Probe, ZonePlan, decode_plan
from netperf.results import decode_results
from netperf.sample import Place, Sample
from tests.support import pings

Figures = dict[str, dict[str, object]]
SHIPPED = {"topology": {"probing": {"intervalS": 60, "slotS": 6, "durationS": 1}}}
PING_EVERY_S = 0.05
MOMENT_S = 3.0
"""About as long as a run of netperf with what belongs to it; datagrams price what a whole round read."""
REST_S = 120.0
P50_RATIO, P50_US, P90_RATIO, P90_US = 0.03, 80.0, 0.05, 150.0
ORDER_RATIO, ORDER_US = 0.10, 40.0
WORST_CPU_PERCENT = 7.7
FEWEST_PINGS = 30
MOST_REFERENCES = 60
"""Pairs of nodes with pings of their own; those of 435 links would keep one processor busy, and what is measured would suffer."""


def measure() -> Figures:
    """The figures by name."""
    try:
        require_privileges()
    except UnsupportedError as error:
        return {"wan": figure(0, "", reference=f"left out: {error}")}
    figures: Figures = {}
    with awake():
        for name in os.environ.get("NETAWARE_BENCH_WAN", "cloud-region,continents").split(","):
            figures |= asyncio.run(measure_one(name))
    return figures


@contextmanager
def awake() -> Iterator[None]:
    """Keep processors from sleeping, where the kernel lets us (PM QoS, Documentation/power/pm_qos_interface.rst).

    The emulator is a process, and a virtual processor that sleeps takes some 100 us to wake, which no network does. An ICMP echo
    comes back while the emulator is awake still, a program's answer once it sleeps again: so the two would not meet the same path.
    """
    try:
        file = os.open("/dev/cpu_dma_latency", os.O_WRONLY)
    except OSError as error:
        print(
            f"processors may sleep meanwhile ({error.strerror}): sub-millisecond paths are less exact", file=sys.stderr
        )
        yield
        return
    try:
        os.write(file, struct.pack("i", 0))
        yield
    finally:
        os.close(file)


def figure(
    value: object, unit: str, *, budget: object = None, ok: bool | None = None, reference: str = ""
) -> dict[str, object]:
    """As `run` prints it."""
    return {"value": value, "unit": unit, "budget": budget, "ok": ok, "reference": reference}


async def measure_one(name: str) -> Figures:
    """Boot a topology, wait for two rounds, compare, and look at what nodes take at rest."""
    topology = load(name)
    links = len(topology.zones) * (len(topology.zones) - 1) // 2
    with tempfile.TemporaryDirectory() as folder:
        async with Lab.start(topology, name=f"bench-{name}", components=COMPONENTS, folder=Path(folder)) as lab:
            installation = await install(lab, controller_config=SHIPPED)
            async with AsyncExitStack() as stack:
                # On a busy machine the API server of thirty zones' agents takes its time; what is measured is the WAN.
                client = await stack.enter_async_context(Client(lab.client_config, timeout_s=120.0))
                plans = await planned(client, links)
                references = References(lab, folder)
                probes = [probe for plan in plans for probe in plan.probes if probe.pair_index == 0]
                references.start(probes[:: -(-len(probes) // MOST_REFERENCES)])
                # Round by the wall clock: what is left of this one, and two whole ones, end with the last slot's run.
                interval_s = plans[0].interval_s
                begun = time.monotonic()
                priced_after = await until_priced(client, 2 * links, 2 * interval_s + 30)
                await asyncio.sleep(max(0.0, 2 * interval_s + 10 - (time.monotonic() - begun)))
                samples, latencies = await read_samples(lab, client), await read_latencies(client)
                rest = await at_rest(lab, installation)
                await references.stop()
    compared = compare(topology, samples, references.read(), interval_s)
    compared |= {
        "pairs priced within two rounds": figure(
            len(latencies.us), "pairs", budget=2 * links, ok=len(latencies.us) == 2 * links and priced_after is not None,
            reference=f"rounds of {interval_s:g} s; all priced after {priced_after or 0:.0f} s",
        ),
        "pairs of links in the wrong order": figure(
            *order(topology, latencies), reference="links that differ by 10 % and 40 us or more, by decision latency"
        ),
        **rest,
    }  # fmt: skip
    compared["pairs of links in the wrong order"] |= {
        "budget": 0,
        "ok": compared["pairs of links in the wrong order"]["value"] == 0,
    }
    return {f"{name}: {what}": found for what, found in compared.items()}


async def planned(client: Client, links: int) -> list[ZonePlan]:
    """The plans, once they name every link."""
    async with asyncio.timeout(180):
        while True:
            found = await client.list(CONFIGMAPS, ConfigMap, namespace=HOME_NAMESPACE, label_selector=PLAN_SELECTOR)
            plans = [decode_plan(plan.data).plan for plan in found]
            if sum(probe.pair_index == 0 for plan in plans for probe in plan.probes) == links:
                return plans
            await asyncio.sleep(1)


async def until_priced(client: Client, pairs: int, limit_s: float) -> float | None:
    """Seconds until every directed pair has a latency; None when that takes longer."""
    begun = time.monotonic()
    while (took_s := time.monotonic() - begun) < limit_s:
        if len((await read_latencies(client)).us) == pairs:
            return took_s
        await asyncio.sleep(1)
    return None


async def read_latencies(client: Client) -> Latencies:
    found = await client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=HOME_NAMESPACE)
    return decode_latencies(found.metadata.annotation(LATENCY_ANNOTATION))


async def read_samples(lab: Lab, client: Client) -> list[Sample]:
    """The newest of each pair of nodes that netperf measures."""
    places = {n.node.name: Place(n.node.name, n.node.zone, n.node.region) for n in lab.nodes}
    maps = await client.list(CONFIGMAPS, ConfigMap, namespace=HOME_NAMESPACE)
    data = {k: v for m in maps if m.metadata.name.startswith("netperf-metrics") for k, v in (m.data or {}).items()}
    found = decode_results(data, places).samples.values()
    return [sample for sample in found if sample.measurement.prober == "netperf"]


class References:
    """Pings between the nodes of probes, all the time."""

    def __init__(self, lab: Lab, folder: str) -> None:
        self._lab, self._folder = lab, Path(folder)
        self._running: list[Any] = []
        self._text: dict[str, str] = {}
        self._nodes = {network.address: network.node.name for network in lab.nodes}

    def start(self, probes: list[Probe]) -> None:
        by_origin: dict[str, list[str]] = defaultdict(list)
        for probe in probes:
            by_origin[probe.origin.node].append(probe.destination.address)
        for node, addresses in by_origin.items():
            argv = [sys.executable, pings.__file__, str(PING_EVERY_S), *addresses]
            self._running.append((node, self._lab.spawn(node, argv, f"pings-{node}", essential=False)))

    async def stop(self) -> None:
        for node, program in self._running:
            await self._lab.programs.stop(program)
            self._text[node] = program.log.read_text()

    def read(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Origin and destination node -> (sent at, microseconds), in order."""
        found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for node, text in self._text.items():
            for line in text.splitlines():
                if line.startswith("[") and line.endswith("]"):
                    address, sent_at, rtt_us = json.loads(line)
                    found[node, self._nodes[address]].append((sent_at, rtt_us))
        return found


def compare(
    topology: Topology,
    samples: list[Sample],
    reference: Mapping[tuple[str, str], list[tuple[float, float]]],
    interval_s: float,
) -> Figures:
    """How far what prices is from the reference of the same minute, in shares of what is allowed."""
    off: dict[str, list[tuple[float, str]]] = {"p50": [], "p90": []}
    for sample in samples:
        found = reference.get((sample.origin.node, sample.destination.node), [])
        by_run = sample.price_source == "measurement"
        begin_s = sample.taken_at - (MOMENT_S if by_run else interval_s)
        end_s = sample.taken_at + (1.0 if by_run else 0.0)
        window = found[bisect_left(found, (begin_s,)) : bisect_right(found, (end_s,))]
        if len(window) < FEWEST_PINGS:
            continue
        rtts = sorted(us for _, us in window)
        for name, share, ratio, floor in (("p50", 0.5, P50_RATIO, P50_US), ("p90", 0.9, P90_RATIO, P90_US)):
            true_us = rtts[int(share * len(rtts))]
            read_us = getattr(sample.priced, f"{name}_us") or 0.0
            by = "netperf" if by_run else "datagrams"
            zones = f"{sample.origin.zone} - {sample.destination.zone}"
            what = f"{zones}: {read_us:.0f} us by {by}, reference {true_us:.0f} us of {len(rtts)} pings"
            off[name].append((abs(read_us - true_us) / max(ratio * true_us, floor), what))
    figures: Figures = {}
    for name, distances in off.items():
        worst = max(distances, default=(0.0, "nothing to compare"))
        figures[f"{name}: worst distance from the reference"] = figure(
            round(worst[0], 2), "of allowed", budget=1, ok=bool(distances) and worst[0] <= 1, reference=worst[1]
        )
        outside = sum(distance > 1 for distance, _ in distances)
        figures[f"{name}: pairs outside what is allowed"] = figure(
            outside, "pairs", reference=f"of {len(distances)} compared"
        )
    return figures


def order(topology: Topology, latencies: Latencies) -> tuple[int, str]:
    """How many pairs of links stand in another order than configured, of those that differ enough."""
    zones = topology.zones
    links = [(a, b) for i, a in enumerate(zones) for b in list(zones)[i + 1 :]]
    wrong = considered = 0
    for i, one in enumerate(links):
        for other in links[i + 1 :]:
            a, b = topology.link(*one).rtt_us, topology.link(*other).rtt_us
            if abs(a - b) < max(ORDER_US, ORDER_RATIO * min(a, b)):
                continue
            considered += 1
            read_a, read_b = latencies.latency_us(*one), latencies.latency_us(*other)
            wrong += read_a is None or read_b is None or (read_a < read_b) != (a < b)
    return wrong, f"of {considered}"


async def at_rest(lab: Lab, installation: Installation) -> Figures:
    """CPU and bytes of each node's agent while nothing but measuring goes on."""
    before, begun = usage(lab), time.monotonic()
    await asyncio.sleep(REST_S)
    after, minutes = usage(lab), (time.monotonic() - begun) / 60
    cpu = sorted(100 * (after[n][0] - before[n][0]) / (60 * minutes) for n in before if n in after)
    sent = sorted((after[n][1] - before[n][1]) / minutes for n in before if n in after)
    worst = cpu[-1]
    return {
        "CPU of a node's agent, median": figure(round(cpu[len(cpu) // 2], 2), "% of a core"),
        "CPU of a node's agent, worst node": figure(
            round(worst, 2), "% of a core", budget=WORST_CPU_PERCENT, ok=worst <= WORST_CPU_PERCENT,
            reference=f"{len(installation.agents)} agents, netperf and netserver included",
        ),
        "bytes of a node between zones, median": figure(round(sent[len(sent) // 2]), "bytes/min"),
        "bytes of a node between zones, worst node": figure(round(sent[-1]), "bytes/min", reference="both directions"),
    }  # fmt: skip


def usage(lab: Lab) -> dict[str, tuple[float, int]]:
    """Node -> CPU seconds of its agent with all that it started, and bytes over the wide-area device."""
    found = {}
    pids = {
        program.name.removeprefix("agent-"): program.pid
        for program in lab.programs
        if program.name.startswith("agent-")
    }
    for network in lab.nodes:
        name = network.node.name
        if name not in pids:
            continue
        agent, spent = psutil.Process(pids[name]), 0.0
        for process in (agent, *agent.children(recursive=True)):
            try:
                spent += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue
        for line in Path(f"/proc/{agent.pid}/net/dev").read_text().splitlines():
            device, _, counters = line.partition(":")
            if device.strip() == WAN_DEVICE:
                words = counters.split()
                found[name] = spent, int(words[0]) + int(words[8])
    return found
