"""What measuring costs: probes per round and plan size from 2 zones to 100, planning, codec, pricing, and an agent's CPU per probe.

Plan, codec and pricing are timed on made-up clusters. CPU per probe is that of real netperf, run by the agent's own loop in a
process of its own, against netserver on the loopback.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from agent.probing.plan_source import PlanSource
from agent.probing.scheduler import Outcome, ProbeScheduler
from lab.debian import Missing
from lab.netperf_install import find_or_fetch
from netperf.costs import price
from netperf.memory import update_state
from netperf.pacing import ProbeBudget
from netperf.pairs import PairPlan, PlanOptions, ProbeNode, plan_pairs
from netperf.plans import PLAN_KEY, Peer, Probe, ProbeSettings, ZonePlan, encode_plan
from netperf.policy import CostPolicy
from netperf.probers.contention import read_cpu_use
from netperf.probers.netperf import NetperfProber
from netperf.probers.netserver import Netserver
from netperf.results import decode_results, encode_samples
from netperf.sample import Measurement, Place, Sample
from tests.support.simulated_network import SimulatedNetwork, some_zones

Figure = dict[str, object]
NOW_S = 1.7e9
MIB = 2**20
SIZES = ((2, 1), (10, 10), (40, 10), (100, 10), (100, 100))
PRICED_ZONES = 40
PRICING_BUDGET_MS = 50.0
RUNS = 8
SLOT_S = 1.4
SECRET = b"a secret for measuring the cost"
ADDRESS = "127.77.0.1"
HERE = Place("here", "z0")


def made_up(zones: int, nodes_per_zone: int) -> list[ProbeNode]:
    return [
        ProbeNode(name=f"ip-10-{z}-{i}.example", address=f"10.{z}.0.{i + 1}", zone=f"zone-{z:03}", region=f"r{z // 10}")
        for z in range(zones)
        for i in range(nodes_per_zone)
    ]


def best_ms(work: Callable[[], object], repeats: int = 5) -> float:
    """Median over some runs: the usual cost, not that of a moment when others had the CPU."""
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - started))
    return statistics.median(took)


def figure(value: object, unit: str, *, budget: object = None, ok: bool | None = None, reference: str = "") -> Figure:
    return {"value": value, "unit": unit, "budget": budget, "ok": ok, "reference": reference}


def count_probes(plan: PairPlan) -> int:
    """Runs of netperf; datagrams go all the time."""
    return sum(probe.pair_index == 0 for zone in plan.zones.values() for probe in zone.probes)


def planning() -> dict[str, Figure]:
    """Probes and objects by size of the cluster, and the time that planning takes at the largest."""
    figures: dict[str, Figure] = {}
    facts = made_up(*SIZES[-1])
    for zones, nodes_per_zone in SIZES:
        plan = plan_pairs(made_up(zones, nodes_per_zone), PlanOptions(), None, NOW_S)
        probes, budget = count_probes(plan), zones * (zones - 1) // 2
        name = f"probes per round, {zones} zones x {nodes_per_zone} nodes"
        mesh = zones * nodes_per_zone * (zones * nodes_per_zone - 1)
        figures[name] = figure(probes, "probes", budget=budget, ok=probes == budget, reference=f"full mesh: {mesh:,}")
        figures[f"round, {zones} zones x {nodes_per_zone} nodes"] = figure(plan.interval_s, "s")
    plan = plan_pairs(facts, PlanOptions(), None, NOW_S)
    fresh_ms = best_ms(lambda: plan_pairs(facts, PlanOptions(), None, NOW_S), 3)
    dead = plan.zones["zone-000"].probes[0].origin.node
    left = [node for node in facts if node.name != dead]
    changed = plan_pairs(left, PlanOptions(), plan.zones, NOW_S)
    moved = sum(old.probes != changed.zones[zone].probes for zone, old in plan.zones.items())
    touched = {z for z, p in plan.zones.items() if any(dead in (x.origin.node, x.destination.node) for x in p.probes)}
    again_ms = best_ms(lambda: plan_pairs(left, PlanOptions(), plan.zones, NOW_S), 3)
    largest = max(len(encode_plan(zone)[PLAN_KEY]) for zone in plan.zones.values())
    figures["plan, 100 zones x 100 nodes, fresh"] = figure(fresh_ms, "ms")
    figures["plan, 100 zones x 100 nodes, one node dies"] = figure(again_ms, "ms")
    figures["plan objects written when one of 10,000 nodes dies"] = figure(
        moved, "objects", budget=len(touched), ok=moved == len(touched), reference="those with a probe from or to it"
    )
    figures["largest plan object, 100 zones"] = figure(largest, "bytes", budget=MIB, ok=largest < MIB)
    return figures


def made_up_sample(probe: Probe, rng: random.Random) -> Sample:
    p50_us = round(rng.uniform(300, 90_000), 2)
    measurement = Measurement(
        prober="netperf",
        test="TCP_RR",
        min_us=p50_us / 2,
        mean_us=p50_us,
        max_us=p50_us * 9,
        stddev_us=p50_us / 7,
        p50_us=p50_us,
        p90_us=p50_us * 1.2,
        p99_us=p50_us * 2,
        transactions=500,
        duration_s=1.0,
        transactions_per_s=500.0,
        loss_ratio=0.0,
        retransmits=0,
        throttled_us=0.0,
        run_queue_us=1234.5,
        cpu_us=54321.1,
    )
    origin, destination = probe.origin.place, probe.destination.place
    return Sample(origin=origin, destination=destination, measurement=measurement, sequence=1, taken_at=NOW_S)


def codec_and_pricing() -> dict[str, Figure]:
    """All directed pairs of 40 zones: their results read, their costs made."""
    facts, rng = made_up(PRICED_ZONES, 3), random.Random(1)
    plan = plan_pairs(facts, PlanOptions(node_pairs=1), None, NOW_S)
    samples = [made_up_sample(probe, rng) for zone in plan.zones.values() for probe in zone.probes]
    places = {node.name: Place(node.name, node.zone, node.region) for node in facts}
    regions = {node.zone: node.region for node in facts}
    data = {key: value for key, value in encode_samples(samples).items() if value is not None}
    found = decode_results(data, places).samples.values()
    policy = CostPolicy()

    def price_all() -> None:
        state = update_state(found, {}, policy, 0.0, NOW_S)
        table, _ = price(state, regions, policy, 0.0)
        assert len(table.zones) == len(samples) == PRICED_ZONES * (PRICED_ZONES - 1)

    pairs = f"{len(samples):,} directed pairs of {PRICED_ZONES} zones"
    costs_ms = best_ms(price_all)
    return {
        f"encode, {pairs}": figure(best_ms(lambda: encode_samples(samples)), "ms"),
        f"decode, {pairs}": figure(best_ms(lambda: decode_results(data, places)), "ms"),
        f"costs, {pairs}": figure(costs_ms, "ms", budget=PRICING_BUDGET_MS, ok=costs_ms <= PRICING_BUDGET_MS),
        "results per sample": figure(sum(len(k) + len(v) for k, v in data.items()) / len(data), "bytes"),
    }


def a_day() -> dict[str, Figure]:
    """A simulated day of 8 zones with three nodes each: spikes in one run of a hundred, rotations, otherwise quiet."""
    network = SimulatedNetwork(some_zones(8), spike_ratio=0.01)
    network.rounds(10)
    writes = network.rounds(24 * 60)
    return {
        "writes of the NetworkTopology an hour, 8 zones, a simulated day with 1 % spikes": figure(
            round(writes / 24, 2),
            "writes/h",
            budget=2,
            ok=writes <= 48,
            reference="31 by the median of one pair of nodes",
        )
    }


def cpu_per_probe() -> dict[str, Figure]:
    """CPU of a process that probes, children included, and that of netserver: what one probe costs either node."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, __file__], check=True, capture_output=True, timeout=120, env=environment)
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    share = found["origin_ms"] / 1000 / 6 * 100
    what = f"{found['prober']} {found['test']}, 1 s, loopback, hence as many round trips as a core can make"
    return {
        "CPU per probe at the origin": figure(found["origin_ms"], "ms", reference=what),
        "of it the agent itself": figure(found["agent_ms"], "ms", reference="without netperf"),
        "CPU per probe at the destination": figure(found["destination_ms"], "ms", reference="the process that answers"),
        "origin that probes in every slot of 6 s": figure(
            share, "% of a core", budget=20.0, ok=share <= 20, reference="--max-probe-cpu"
        ),
    }


async def probe_here() -> dict[str, object]:
    """Run some rounds of one pair by the agent's loop against a server in a process of its own."""
    netperf = find_or_fetch()
    settings = ProbeSettings(port=free_port(), data_port=free_port(), datagram_port=free_port())
    outcomes: list[Outcome] = []
    enough = asyncio.Event()

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) == RUNS:
            enough.set()

    if isinstance(netperf, Missing):
        raise SystemExit(netperf.reason)
    os.environ.update(netperf.env)
    server = Netserver(str(netperf.netserver), ADDRESS, settings.port, SECRET)
    prober = NetperfProber(str(netperf.netperf), SECRET)
    answering: dict[int, float] = {}
    plans = PlanSource(HERE.node)
    scheduler = ProbeScheduler(plans, ProbeBudget(max_cpu_ratio=1.0), note)
    plans.on_change = scheduler.follow_plan
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.run())
        await server.wait_ready()
        scheduler.use(prober)
        before, started = cpu_s(), time.monotonic()
        plans.use(one_pair(settings))
        probing = group.create_task(scheduler.run())
        watching = group.create_task(watch_answering(answering))
        await enough.wait()
        after, took_s = cpu_s(), time.monotonic() - started
        for task in (probing, serving, watching):
            task.cancel()
    failed = {outcome.result for outcome in outcomes} - {"ok"}
    if failed:
        msg = f"probes failed: {failed}"
        raise RuntimeError(msg)
    answering_s = sum(answering.values()) / 1e6
    agent_s, children_s = after[0] - before[0], after[1] - before[1] - answering_s
    return {
        "prober": prober.name,
        "test": settings.test,
        "origin_ms": 1000 * (agent_s + children_s) / RUNS,
        "agent_ms": 1000 * agent_s / RUNS,
        "destination_ms": sum(answering.values()) / 1000 / RUNS if answering else None,
        "took_s": took_s,
    }


async def watch_answering(cpu_us: dict[int, float]) -> None:
    """Note the CPU time of the netservers that serve runs."""
    while True:
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                use = read_cpu_use(process.pid) if process.cmdline()[:1] == ["netserver"] else None
                if use is not None:
                    cpu_us[process.pid] = use.cpu_us
        await asyncio.sleep(0.05)


def one_pair(settings: ProbeSettings) -> ZonePlan:
    probe = Probe(origin=Peer(HERE.node, ADDRESS, HERE.zone), destination=Peer("there", ADDRESS, "z1"), slot=0)
    return ZonePlan(
        zone=HERE.zone, epoch=1, interval_s=SLOT_S, slots=1, results="r", settings=settings, probes=(probe,)
    )


def cpu_s() -> tuple[float, float]:
    """CPU time of this process, and of its children that ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def free_port() -> int:
    with socket.socket() as found:
        found.bind((ADDRESS, 0))
        return int(found.getsockname()[1])


def measure() -> dict[str, Figure]:
    """All figures, by name."""
    return {**planning(), **codec_and_pricing(), **a_day(), **cpu_per_probe()}


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(probe_here())))
