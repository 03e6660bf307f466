"""100 zones on the real API server: plans below 1 MiB, writers that lose nothing, and a death that touches little.

Agents are simulated: each has the plan that the API server holds, the real codec, and latencies drawn at random. The
figures of a run are printed (``pytest -rP``) and recorded as properties of the test.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import psutil
import pytest

from kubekit.client import Client
from kubekit.errors import UnreachableError
from kubekit.waiting import Backoff
from kubekit.wire import CONFIGMAPS, ConfigMap, Object
from lab.controlplane import ControlPlane
from netperf.errors import size_bytes
from netperf.pairs import PairPlan, PlanOptions, ProbeNode, plan_pairs
from netperf.plans import PLAN_KEY, Probe, ZonePlan, decode_plan, encode_plan, plan_object_name
from netperf.results import (
    decode_results,
    encode_samples,
    keys_to_remove,
    merge_patch,
    planned_keys,
    removal_patch,
    sample_key,
)
from netperf.sample import Measurement, Place, Sample

NOW_S = 1.7e9
MIB = 2**20

# Thousands of real writes: minutes on a machine that does other things as well.
pytestmark = [pytest.mark.scale, pytest.mark.timeout(400)]


def cluster(zones: int, nodes_per_zone: int) -> list[ProbeNode]:
    return [
        ProbeNode(
            name=f"ip-10-{z}-{i}.compute.example.com",
            address=f"10.{z}.0.{i}",
            zone=f"zone-{z:03}",
            region=f"r{z // 10}",
        )
        for z in range(zones)
        for i in range(nodes_per_zone)
    ]


def places_of(nodes: Iterable[ProbeNode]) -> dict[str, Place]:
    return {node.name: Place(node.name, node.zone, node.region) for node in nodes}


def sample_of(probe: Probe, sequence: int, rng: random.Random) -> Sample:
    p50_us = round(rng.uniform(300, 90_000), 2)
    measurement = Measurement(
        prober="netperf",
        test="TCP_RR",
        min_us=p50_us / 2,
        mean_us=p50_us,
        max_us=p50_us * 9,
        stddev_us=p50_us / 7,
        p50_us=p50_us,
        p90_us=round(p50_us * 1.2, 2),
        p99_us=round(p50_us * 2, 2),
        transactions=500,
        duration_s=1.0,
        transactions_per_s=500.0,
        loss_ratio=0.0,
        retransmits=0,
        throttled_us=0.0,
        run_queue_us=1234.56,
        cpu_us=54321.12,
        local_cpu_percent=12.34,
    )
    return Sample(
        origin=probe.origin.place,
        destination=probe.destination.place,
        measurement=measurement,
        sequence=sequence,
        taken_at=NOW_S + sequence,
    )


def config_map(name: str, data: dict[str, str] | None = None) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data or {}}


def by_node(plans: Iterable[ZonePlan]) -> dict[str, tuple[str, list[Probe]]]:
    """Node -> where it writes, and its probes."""
    found: dict[str, tuple[str, list[Probe]]] = defaultdict(lambda: ("", []))
    for plan in plans:
        for probe in plan.probes:
            found[probe.origin.node] = (plan.results, [*found[probe.origin.node][1], probe])
    return dict(found)


async def write_plans(client: Client, namespace: str, before: PairPlan | None, after: PairPlan) -> list[str]:
    """Write the plan objects that changed; their names."""
    changed = [z for z, plan in after.zones.items() if before is None or before.zones.get(z) != plan]
    for zone in changed:
        name, data = plan_object_name(zone), encode_plan(after.zones[zone])
        if before is None:
            await client.create(CONFIGMAPS, config_map(name, data), Object, namespace=namespace)
        else:
            await client.patch(CONFIGMAPS, name, {"data": data}, Object, namespace=namespace)
    return [plan_object_name(zone) for zone in changed]


async def read_plans(client: Client, namespace: str, zones: Iterable[str]) -> dict[str, ZonePlan]:
    plans = {}
    for zone in zones:
        found = await client.get(CONFIGMAPS, plan_object_name(zone), ConfigMap, namespace=namespace)
        decoded = decode_plan(found.data, zone=zone)
        assert decoded.refusals == ()
        plans[zone] = decoded.plan
    return plans


async def read_results(client: Client, namespace: str, shards: Iterable[str]) -> dict[str, dict[str, str]]:
    return {
        name: (await client.get(CONFIGMAPS, name, ConfigMap, namespace=namespace)).data or {} for name in sorted(shards)
    }


def plans_with(node: str, plans: Iterable[ZonePlan]) -> set[str]:
    """Names of the plan objects in which a node occurs."""
    return {
        plan_object_name(plan.zone)
        for plan in plans
        if any(node in (probe.origin.node, probe.destination.node) for probe in plan.probes)
    }


def filled(shard: str, plans: Iterable[ZonePlan]) -> dict[str, str]:
    rng = random.Random(1)
    samples = [sample_of(probe, 1, rng) for plan in plans if plan.results == shard for probe in plan.probes]
    return {key: value for key, value in encode_samples(samples).items() if value is not None}


async def one_round(client: Client, namespace: str, plans: Iterable[ZonePlan], sequence: int) -> dict[str, Sample]:
    """Every agent that has probes writes its samples, all agents at once; what was written, by key."""
    rng, written = random.Random(sequence), dict[str, Sample]()

    async def write(shard: str, probes: list[Probe]) -> None:
        samples = [sample_of(probe, sequence, rng) for probe in probes]
        written.update({sample_key(s.origin, s.destination, "TCP_RR"): s for s in samples})
        patch, backoff = merge_patch(encode_samples(samples)), Backoff(rng=rng)
        while True:
            # As agents do: an answer that does not come in time on a starved machine is asked for again, jittered.
            try:
                await client.patch(CONFIGMAPS, shard, patch, Object, namespace=namespace)
            except UnreachableError:
                await asyncio.sleep(backoff.next())
            else:
                return

    limit = asyncio.Semaphore(100)

    async def limited(shard: str, probes: list[Probe]) -> None:
        async with limit:
            await write(shard, probes)

    # In a real round, too, writers of one object seldom meet: probes are spread over minutes.
    work = list(by_node(plans).values())
    rng.shuffle(work)
    await asyncio.gather(*(limited(*item) for item in work))
    return written


@pytest.mark.alone
async def test_a_hundred_zones_share_the_results_without_loss(
    client: Client, namespace: str, control_plane: ControlPlane, record_property: Callable[[str, object], None]
) -> None:
    nodes = cluster(zones=100, nodes_per_zone=100)
    places = places_of(nodes)
    before = plan_pairs(nodes, PlanOptions(node_pairs=1), None, NOW_S)
    await write_plans(client, namespace, None, before)
    plans = await read_plans(client, namespace, before.zones)
    assert plans == before.zones
    largest = max(len(encode_plan(plan)[PLAN_KEY]) for plan in plans.values())
    assert largest < MIB

    shards = {plan.results for plan in plans.values()}
    for shard in shards:
        # As the round before left it, so that the agents' writes change full objects.
        data = filled(shard, plans.values())
        await client.create(CONFIGMAPS, config_map(shard, data), Object, namespace=namespace)
    writers = len(by_node(plans.values()))
    server = psutil.Process(_api_server(control_plane))
    cpu_before, started = server.cpu_times(), time.monotonic()
    expected = await one_round(client, namespace, plans.values(), 2)
    took_s, cpu_after = time.monotonic() - started, server.cpu_times()

    results = await read_results(client, namespace, shards)
    found = {key: s for part in results.values() for key, s in decode_results(part, places).samples.items()}
    assert len(found) == 100 * 99 // 2
    assert {key: s.sequence for key, s in found.items()} == dict.fromkeys(expected, 2)
    assert all(found[key].measurement.p50_us == sample.measurement.p50_us for key, sample in expected.items())
    largest_results = max(size_bytes(part) for part in results.values())
    assert largest_results < MIB

    victim = plans["zone-050"].probes[0].origin.node
    after = plan_pairs([node for node in nodes if node.name != victim], PlanOptions(node_pairs=1), plans, NOW_S)
    rewritten = await write_plans(client, namespace, before, after)
    assert set(rewritten) == plans_with(victim, plans.values())
    moved = {p for zone in after.zones for p in set(plans[zone].probes) ^ set(after.zones[zone].probes)}
    assert all(p.origin.zone == "zone-050" or p.destination.zone == "zone-050" for p in moved)

    figures = {
        "plans_rewritten_when_a_node_dies": len(rewritten),
        "writers": writers,
        "largest_plan_bytes": largest,
        "largest_results_bytes": largest_results,
        "writes_per_s": round(writers / took_s, 1),
        "api_server_cpu_s_per_round": round(cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system, 2),
        "round_s": before.interval_s,
    }
    for name, value in figures.items():
        record_property(name, value)
    print(figures)


async def test_a_node_that_dies_touches_only_its_own_pairs_while_others_write(client: Client, namespace: str) -> None:
    nodes = cluster(zones=20, nodes_per_zone=10)
    before = plan_pairs(nodes, PlanOptions(node_pairs=1), None, NOW_S)
    await write_plans(client, namespace, None, before)
    shards = {plan.results for plan in before.zones.values()}
    for shard in shards:
        await client.create(CONFIGMAPS, config_map(shard, {"theirs": "untouched"}), Object, namespace=namespace)
    old = await one_round(client, namespace, before.zones.values(), 1)

    victim = before.zones["zone-005"].probes[0].origin.node
    after = plan_pairs([n for n in nodes if n.name != victim], PlanOptions(node_pairs=1), before.zones, NOW_S)
    touched = plans_with(victim, before.zones.values())
    assert set(await write_plans(client, namespace, before, after)) == touched
    assert 1 <= len(touched) <= 4

    async def clean(shard: str, part: dict[str, str]) -> None:
        await client.patch(
            CONFIGMAPS,
            shard,
            removal_patch(keys_to_remove(part, planned_keys(after.zones.values()))),
            Object,
            namespace=namespace,
        )

    stale = await read_results(client, namespace, shards)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(one_round(client, namespace, after.zones.values(), 2))
        for item in stale.items():
            group.create_task(clean(*item))
    new = writing.result()
    data = await read_results(client, namespace, shards)
    assert {key for part in data.values() for key in part} == {*new, "theirs"}
    assert {key for key in old if key not in new} == {
        key for key, sample in old.items() if victim in (sample.origin.node, sample.destination.node)
    }


def _api_server(control_plane: ControlPlane) -> int:
    """Process id of the API server, for its CPU time."""
    (process,) = (p for p in control_plane.programs if p.name == "kube-apiserver")
    return process.pid
