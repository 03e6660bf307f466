"""Simulates a network and its agents, and computes costs from their results by the product's rules.

Plans, smoothed latencies, consensus, costs and hysteresis are the product's. Latencies, spikes, cuts, lying agents and the clock are
simulated. Like real agents, simulated ones do not write equivalent samples again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence

from agent.probing.results_queue import MIN_EQUIVALENT_WRITES, is_equivalent
from netperf.cost_state import CostState, update_state
from netperf.costs import ZoneCosts, compute_costs
from netperf.latencies import Latencies, ZonePair, apply_hysteresis
from netperf.measurement import Measurement
from netperf.pairs import PlanOptions, ProbeNode, plan_probes
from netperf.plans import Probe, ZonePlan
from netperf.policy import CostPolicy
from netperf.results import (
    decode_results,
    encode_failure,
    encode_samples,
    list_planned_keys,
    refresh_interval_s,
    sample_key,
)
from netperf.sample import Failure, NodeLocation, Sample
from tests.support.samples import make_sample

Forge = Callable[[Probe, float], float]
"""Replaces the latency (µs) that an agent measured."""


class SimulatedNetwork:
    """Zones with nodes whose agents probe round by round.

    Args:
        rtt_us: round-trip time by unordered pair of zones.
        nodes_per_zone: number of nodes of a zone.
        spike_ratio: share of probes that measure two to six times the latency.
        noise: relative standard deviation of a measurement.
        node_count_by_zone: for zones with another number of nodes.
        staggered: nodes write one after the other within a round, and costs are computed after each.
    """

    def __init__(
        self,
        rtt_us: Mapping[frozenset[str], float],
        nodes_per_zone: int = 3,
        *,
        spike_ratio: float = 0.0,
        noise: float = 0.005,
        node_count_by_zone: Mapping[str, int] | None = None,
        staggered: bool = False,
    ) -> None:
        self.rtt_us, self._rng = dict(rtt_us), random.Random(1)
        self._spike_ratio, self._noise, self.round_s = spike_ratio, noise, 60.0
        self.zones = sorted({zone for pair in rtt_us for zone in pair})
        self.nodes = [
            ProbeNode(name=f"{zone}-n{i}", address=f"10.{z}.0.{i + 1}", zone=zone, region=f"region-of-{zone}")
            for z, zone in enumerate(self.zones)
            for i in range((node_count_by_zone or {}).get(zone, nodes_per_zone))
        ]
        self.locations = {node.name: NodeLocation(node.name, node.zone, node.region) for node in self.nodes}
        self._staggered, self.had_disputed_links = staggered, False
        self.policy, self._options = CostPolicy(), PlanOptions(interval_s=self.round_s)
        self.offset_us: dict[str, float] = {}
        self.cut_zone_pairs: set[frozenset[str]] = set()
        self.silent_nodes: set[str] = set()
        self.forge_by_node: dict[str, Forge] = {}
        self.foreign_results: dict[str, str] = {}
        self.round_number = 0
        self._later_s = 0.0
        self.state: CostState = {}
        self.zone_costs: ZoneCosts = ZoneCosts(by_zone_pair={}, cost_by_region_pair={}, absent_pairs=())
        self.latencies = Latencies()
        self.costs: dict[ZonePair, int] = {}
        self.writes = 0
        self.refusal_counts: dict[str, int] = {}
        self.reported_nodes: set[str] = set()
        self.plans: Mapping[str, ZonePlan] = {}
        self._results: dict[str, str] = {}
        self._last_writes: dict[str, tuple[Sample, float, int]] = {}
        self._failures_in_a_row: dict[str, int] = {}

    @property
    def now_s(self) -> float:
        return 1.7e9 + self.round_number * self.round_s

    def run_rounds(self, count: int) -> int:
        """Run rounds; returns how often costs or latencies changed, which the controller would write."""
        before = self.writes
        for _ in range(count):
            self.round_number += 1
            self.plans = plan_probes(self.nodes, self._options, self.plans, self.now_s).plan_by_zone
            keys = list_planned_keys(self.plans.values())
            self._results = {key: value for key, value in self._results.items() if key in keys}
            probes = [probe for plan in self.plans.values() for probe in plan.probes]
            origins = sorted({probe.origin.node for probe in probes})
            for i, node in enumerate(origins):
                for probe in probes:
                    if probe.origin.node == node:
                        self._probe(probe)
                if self._staggered or i == len(origins) - 1:
                    self._decide(keys, self.now_s + i * self.round_s / len(origins) if self._staggered else self.now_s)
        return self.writes - before

    def rewrite_within_round(self) -> None:
        """Measure and write on all nodes once more, some seconds later."""
        self._later_s += 5.0
        for plan in self.plans.values():
            for probe in plan.probes:
                self._probe(probe, rewrite=True)
        self._decide(list_planned_keys(self.plans.values()), self.now_s + self._later_s)
        self._later_s = 0.0 if self._later_s > 20.0 else self._later_s

    def latency_us(self, zone: str, other_zone: str) -> int | None:
        return self.latencies.latency_us(zone, other_zone)

    def scale_rtt(self, zone: str, other_zone: str, factor: float) -> None:
        self.rtt_us[frozenset((zone, other_zone))] *= factor

    def _probe(self, probe: Probe, *, rewrite: bool = False) -> None:
        origin, destination = probe.origin, probe.destination
        zones = frozenset((origin.zone, destination.zone))
        key = sample_key(origin.location, destination.location, "TCP_RR")
        if origin.node in self.silent_nodes:
            return
        if zones in self.cut_zone_pairs or destination.node in self.silent_nodes:
            self._fail(probe, key, has_answered=zones not in self.cut_zone_pairs)
            return
        self._failures_in_a_row.pop(key, None)
        offsets_us = [self.offset_us.get(peer.node, 0.0) for peer in (origin, destination)]
        p90_us = self.rtt_us[zones] + sum(offsets_us)
        p90_us *= 1 + abs(self._rng.gauss(0, self._noise))
        if self._rng.random() < self._spike_ratio:
            p90_us *= self._rng.uniform(2, 6)
        if origin.node in self.forge_by_node:
            p90_us = self.forge_by_node[origin.node](probe, p90_us)
        p50_us = p90_us / 1.02
        measurement = Measurement(prober="datagrams", test="TCP_RR", p50_us=p50_us, p90_us=p90_us, transactions=100)
        sample = make_sample(probe, measurement, self.round_number, self.now_s + self._later_s)
        if not rewrite:
            last_sample, written_at_s, write_count = self._last_writes.get(key, (sample, 0.0, 0))
            has_same_value = is_equivalent(sample, last_sample)
            is_fresh = self.now_s - written_at_s < refresh_interval_s(self.round_s)
            if key in self._results and has_same_value and write_count >= MIN_EQUIVALENT_WRITES and is_fresh:
                return
            self._last_writes[key] = sample, self.now_s, write_count + 1 if has_same_value else 1
        self._results.pop(f"{key}.failed", None)
        self._results |= {k: v for k, v in encode_samples([sample]).items() if v is not None}

    def _fail(self, probe: Probe, key: str, *, has_answered: bool) -> None:
        self._failures_in_a_row[key] = self._failures_in_a_row.get(key, 0) + 1
        failure = Failure(
            origin=probe.origin.location,
            destination=probe.destination.location,
            reason="timeout",
            failures_in_a_row=self._failures_in_a_row[key],
            has_answered=has_answered,
            sequence=self.round_number,
            taken_at=self.now_s,
        )
        self._results |= {k: v for k, v in encode_failure(failure, "TCP_RR").items() if v is not None}

    def _decide(self, keys: Collection[str], now_s: float) -> None:
        results = decode_results(self._results | self.foreign_results, self.locations, keys)
        self.refusal_counts = results.refusal_counts
        self.reported_nodes |= {refusal.writer for refusal in results.refusals if refusal.writer}
        samples, failures = results.samples.values(), results.failures.values()
        self.state = update_state(
            samples, self.state, self.policy, now_s, now_s, failures=failures, interval_s=self.round_s
        )
        regions = {node.zone: node.region for node in self.nodes}
        self.zone_costs, self.state = compute_costs(self.state, regions, self.policy, now_s, interval_s=self.round_s)
        self.reported_nodes |= set(self.zone_costs.error_us_by_outlier)
        self.had_disputed_links |= bool(self.zone_costs.disputed_links)
        latencies = apply_hysteresis(self.latencies, self.zone_costs.latencies())
        costs = {pair: entry.cost for pair, entry in self.zone_costs.by_zone_pair.items()}
        if latencies is not self.latencies or costs != self.costs:
            self.writes += 1
        self.latencies, self.costs = latencies, costs


def draw_rtts_us(count: int, seed: int = 7) -> dict[frozenset[str], float]:
    """Round-trip times between zones at random points of a plane, in microseconds, up to some tens of milliseconds."""
    rng = random.Random(seed)
    points = [(rng.uniform(0, 60_000), rng.uniform(0, 60_000)) for _ in range(count)]
    names = [f"zone-{i:03}" for i in range(count)]
    return {
        frozenset((names[i], names[j])): 500.0 + ((ax - bx) ** 2 + (ay - by) ** 2) ** 0.5
        for i, (ax, ay) in enumerate(points)
        for j, (bx, by) in enumerate(points)
        if i < j
    }


def forge_results(
    samples: Sequence[tuple[NodeLocation, NodeLocation, float]], sequence: int, at_s: float
) -> dict[str, str]:
    """Results of any pairs with any latencies, as a lying agent writes them."""
    forged = [
        Sample(
            origin=origin,
            destination=destination,
            measurement=Measurement(prober="netperf", test="TCP_RR", p50_us=us, p90_us=us, transactions=1000),
            sequence=sequence,
            taken_at=at_s,
        )
        for origin, destination, us in samples
    ]
    return {key: value for key, value in encode_samples(forged).items() if value is not None}
