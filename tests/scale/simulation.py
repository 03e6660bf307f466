"""Simulates what changes a cluster: agents of whole zones, rollouts, and the failure of a zone.

Each `ZoneAgents` watches its zone's plan once. It writes the results of each agent in a separate request when the
agent's probes are due. Latencies are derived from the names of the zones, with a noise of one per cent.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.errors import KubekitError
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, DEPLOYMENTS, NODES, ConfigMap, Node, Object
from netperf.configmap_size import measure_size
from netperf.contract import NETAWARE_NAMESPACE
from netperf.measurement import Measurement
from netperf.pacing import probe_start_s
from netperf.plans import Probe, ZonePlan, decode_plan, plan_object_name
from netperf.refusals import PlanRefusedError
from netperf.results import encode_samples
from netperf.sample import Sample
from tests.scale.populate import zone_name
from tests.support.samples import make_sample

MEAN_WRITE_INTERVAL_S = 2.0
_MIN_LATENCY_US, _MAX_LATENCY_US = 300.0, 150_000.0
ROLLOUT_INTERVAL_S = 5.0


def latency_between_us(zone_a: str, zone_b: str) -> float:
    """Latency between two zones, the same in both directions."""
    digest = hashlib.blake2b("\0".join(sorted((zone_a, zone_b))).encode(), digest_size=4).digest()
    fraction = int.from_bytes(digest, "big") / 2**32
    return _MIN_LATENCY_US + fraction * (_MAX_LATENCY_US - _MIN_LATENCY_US)


def simulate_sample(probe: Probe, rng: random.Random, now_s: float) -> Sample:
    """A sample as the probe's agent would have measured it."""
    latency_us = round(latency_between_us(probe.origin.zone, probe.destination.zone) * rng.gauss(1.0, 0.01), 1)
    measurement = Measurement(
        prober="netperf" if probe.pair_index == 0 else "datagrams",
        test="TCP_RR",
        p50_us=latency_us,
        p90_us=round(latency_us * 1.05, 1),
        p99_us=round(latency_us * 1.2, 1),
        transactions=500,
        duration_s=1.0,
        loss_ratio=0.0,
    )
    return make_sample(probe, measurement, int(now_s), now_s)


class ZoneAgents:
    """All agents of a zone; ``plan_bytes`` counts the bytes of plans that real agents would have received together."""

    def __init__(self, client: Client, zone: str, agent_count: int, is_unreachable: Callable[[str], bool]) -> None:
        self._client, self.zone = client, zone
        self._agent_count, self._is_unreachable = agent_count, is_unreachable
        selector = f"metadata.name={plan_object_name(zone)}"
        self._store = Reflector(client, CONFIGMAPS, ConfigMap, namespace=NETAWARE_NAMESPACE, field_selector=selector)
        self._store.subscribe(self._on_plan)
        self._rng = random.Random(zone)
        self.plan: ZonePlan | None = None
        self._planned = asyncio.Event()
        self.plan_bytes = 0

    def _on_plan(self, _key: str, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        self.plan = None
        if new is None:
            return
        self.plan_bytes += measure_size(new.data or {}) * self._agent_count
        try:
            self.plan = decode_plan(new.data).plan
        except PlanRefusedError:
            return
        self._planned.set()

    async def watch_plan(self) -> None:
        await self._store.run()

    async def write_first_results(self) -> None:
        """Write results of all planned probes at once, as after an earlier round."""
        await self._planned.wait()
        if self.plan is not None:
            await self._write_results(self.plan, list(self.plan.probes))

    async def probe(self) -> None:
        """Write results of due probes until cancelled."""
        last_write_s = time.time()
        while True:
            await asyncio.sleep(MEAN_WRITE_INTERVAL_S * self._rng.uniform(0.5, 1.5))
            now_s, plan = time.time(), self.plan
            if plan is not None and not self._is_unreachable(self.zone):
                round_number = int(now_s // plan.interval_s)
                due_probes_by_node: dict[str, list[Probe]] = defaultdict(list)
                for probe in plan.probes:
                    if last_write_s < probe_start_s(plan, probe, round_number) <= now_s:
                        due_probes_by_node[probe.origin.node].append(probe)
                for probes in due_probes_by_node.values():
                    await self._write_results(plan, probes)
            last_write_s = now_s

    async def _write_results(self, plan: ZonePlan, probes: list[Probe]) -> None:
        now_s = time.time()
        reachable_probes = [probe for probe in probes if not self._is_unreachable(probe.destination.zone)]
        samples = [simulate_sample(probe, self._rng, now_s) for probe in reachable_probes]
        # A busy API server may refuse; the next round writes newer results.
        with suppress(KubekitError):
            patch = {"data": encode_samples(samples)}
            await self._client.patch(CONFIGMAPS, plan.results_name, patch, ConfigMap, namespace=NETAWARE_NAMESPACE)


class ClusterChanges:
    """Rolls out Deployments, and lets a zone fail.

    Attributes:
        deployments: namespace and name of each Deployment that is rolled out.
        unreachable_zones: names of zones that have failed now.
        counts: number of changes by kind, ``rollouts`` and ``zone_failures``.
    """

    def __init__(self, client: Client, nodes_of_zones: Sequence[Sequence[str]]) -> None:
        self._client, self._nodes_of_zones = client, nodes_of_zones
        self.deployments: Sequence[tuple[str, str]] = ()
        self.unreachable_zones: set[str] = set()
        self.counts = {"rollouts": 0, "zone_failures": 0}

    async def roll_out(self) -> None:
        """Restart one Deployment after the other until cancelled."""
        for namespace, name in itertools.cycle(self.deployments):
            await asyncio.sleep(ROLLOUT_INTERVAL_S)
            annotations = {"kubectl.kubernetes.io/restartedAt": f"{time.time():.0f}"}
            patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
            with suppress(KubekitError):  # the API server is busy
                await self._client.patch(
                    DEPLOYMENTS, name, patch, Object, patch_type=STRATEGIC_PATCH, namespace=namespace
                )
                self.counts["rollouts"] += 1

    async def fail_zone(self, zone: int, delay_s: float, duration_s: float) -> None:
        """After a delay, let a zone fail for a time: its nodes are not Ready, and agents cannot reach it."""
        await asyncio.sleep(delay_s)
        self.unreachable_zones.add(zone_name(zone))
        await self._set_ready(self._nodes_of_zones[zone], "Unknown")
        self.counts["zone_failures"] += 1
        await asyncio.sleep(duration_s)
        self.unreachable_zones.discard(zone_name(zone))
        await self._set_ready(self._nodes_of_zones[zone], "True")

    async def _set_ready(self, node_names: Sequence[str], status: str) -> None:
        condition = {"type": "Ready", "status": status, "reason": "Scale", "message": "set by the scale run"}
        patch = {"status": {"conditions": [condition]}}
        for name in node_names:
            with suppress(KubekitError):
                await self._client.patch(NODES, name, patch, Node, patch_type=STRATEGIC_PATCH, subresource="status")
