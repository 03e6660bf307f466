"""A network that exists only as numbers: zones, nodes, paths, agents that read them round by round, and the controller's own rules.

Plan, levels, consensus, prices and hysteresis are the product's; latencies, spikes, cuts, liars and the clock are simulated. Agents
hold back what says the same as what they wrote, as the real ones do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence

from agent.probing.results_queue import MIN_EQUIVALENT_WRITES, is_equivalent
from netperf.cost_state import CostState, update_state
from netperf.costs import ZoneCosts, compute_costs
from netperf.latencies import Latencies, ZonePair, apply_hysteresis
from netperf.pairs import PlanOptions, ProbeNode, plan_pairs
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
from netperf.sample import Failure, Measurement, NodeLocation, Sample

Forge = Callable[[Probe, float], float]
"""Replaces the latency (µs) that an agent measured."""


class SimulatedNetwork:
    """Zones with nodes, seen through the product's rules.

    Args:
        rtt_us: round trip by unordered pair of zones.
        nodes_per_zone: how many nodes each zone has.
        spike_ratio: share of runs that read two to six times as much.
        noise: standard deviation of what a run reads, relative.
        only: zones that have another number of nodes.
        staggered: nodes write one after the other within the round, and costs are made in between.
    """

    def __init__(
        self,
        rtt_us: Mapping[frozenset[str], float],
        nodes_per_zone: int = 3,
        *,
        spike_ratio: float = 0.0,
        noise: float = 0.005,
        only: Mapping[str, int] | None = None,
        staggered: bool = False,
    ) -> None:
        self.rtt_us, self._rng = dict(rtt_us), random.Random(1)
        self._spike_ratio, self._noise, self.round_s = spike_ratio, noise, 60.0
        self.zones = sorted({zone for pair in rtt_us for zone in pair})
        self.facts = [
            ProbeNode(name=f"{zone}-n{i}", address=f"10.{z}.0.{i + 1}", zone=zone, region=f"region-of-{zone}")
            for z, zone in enumerate(self.zones)
            for i in range((only or {}).get(zone, nodes_per_zone))
        ]
        self.locations = {f.name: NodeLocation(f.name, f.zone, f.region) for f in self.facts}
        self._staggered, self.told_disputed = staggered, False
        self.policy, self._options = CostPolicy(), PlanOptions(interval_s=self.round_s)
        self.offset_us: dict[str, float] = {}
        self.cut: set[frozenset[str]] = set()
        self.mute: set[str] = set()
        self.forge: dict[str, Forge] = {}
        self.extra_data: dict[str, str] = {}
        self.number = 0
        self._later_s = 0.0
        self.state: CostState = {}
        self.table: ZoneCosts = ZoneCosts(by_zone_pair={}, cost_by_region_pair={}, absent_pairs=())
        self.latencies = Latencies()
        self.costs: dict[ZonePair, int] = {}
        self.writes = 0
        self.refused: dict[str, int] = {}
        self.named: set[str] = set()
        self.plans: Mapping[str, ZonePlan] = {}
        self._data: dict[str, str] = {}
        self._written: dict[str, tuple[Sample, float, int]] = {}
        self._in_a_row: dict[str, int] = {}

    @property
    def now_s(self) -> float:
        return 1.7e9 + self.number * self.round_s

    def rounds(self, count: int) -> int:
        """Let so many rounds pass; how many writes of the NetworkTopology they caused."""
        before = self.writes
        for _ in range(count):
            self.number += 1
            self.plans = plan_pairs(self.facts, self._options, self.plans, self.now_s).zones
            keys = list_planned_keys(self.plans.values())
            self._data = {key: value for key, value in self._data.items() if key in keys}
            probes = [probe for plan in self.plans.values() for probe in plan.probes]
            origins = sorted({probe.origin.node for probe in probes})
            for i, node in enumerate(origins):
                for probe in probes:
                    if probe.origin.node == node:
                        self._probe(probe)
                if self._staggered or i == len(origins) - 1:
                    self._decide(keys, self.now_s + i * self.round_s / len(origins) if self._staggered else self.now_s)
        return self.writes - before

    def rewrite_within_the_round(self) -> None:
        """All nodes write what they read once more, some seconds later."""
        self._later_s += 5.0
        for plan in self.plans.values():
            for probe in plan.probes:
                self._probe(probe, anew=True)
        self._decide(list_planned_keys(self.plans.values()), self.now_s + self._later_s)
        self._later_s = 0.0 if self._later_s > 20.0 else self._later_s

    def latency_us(self, a: str, b: str) -> int | None:
        return self.latencies.latency_us(a, b)

    def _probe(self, probe: Probe, *, anew: bool = False) -> None:
        origin, destination = probe.origin, probe.destination
        zones = frozenset((origin.zone, destination.zone))
        key = sample_key(origin.location, destination.location, "TCP_RR")
        if origin.node in self.mute:
            return
        if zones in self.cut or destination.node in self.mute:
            self._fail(probe, key, has_answered=destination.node in self.mute and zones not in self.cut)
            return
        self._in_a_row.pop(key, None)
        us = self.rtt_us[zones] + self.offset_us.get(origin.node, 0.0) + self.offset_us.get(destination.node, 0.0)
        us *= 1 + abs(self._rng.gauss(0, self._noise))
        if self._rng.random() < self._spike_ratio:
            us *= self._rng.uniform(2, 6)
        if origin.node in self.forge:
            us = self.forge[origin.node](probe, us)
        measurement = Measurement(prober="datagrams", test="TCP_RR", p50_us=us / 1.02, p90_us=us, transactions=100)
        sample = Sample(
            origin=origin.location,
            destination=destination.location,
            measurement=measurement,
            sequence=self.number,
            taken_at=self.now_s + self._later_s,
        )
        before, at_s, times = self._written.get(key, (sample, 0.0, 0))
        same = is_equivalent(sample, before)
        if (
            not anew
            and key in self._data
            and same
            and times >= MIN_EQUIVALENT_WRITES
            and self.now_s - at_s < refresh_interval_s(self.round_s)
        ):
            return
        if not anew:
            self._written[key] = sample, self.now_s, times + 1 if same else 1
        self._data.pop(f"{key}.failed", None)
        self._data |= {k: v for k, v in encode_samples([sample]).items() if v is not None}

    def _fail(self, probe: Probe, key: str, *, has_answered: bool) -> None:
        self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
        failure = Failure(
            origin=probe.origin.location,
            destination=probe.destination.location,
            failure="timeout",
            failures_in_a_row=self._in_a_row[key],
            has_answered=has_answered,
            sequence=self.number,
            taken_at=self.now_s,
        )
        self._data |= {k: v for k, v in encode_failure(failure, "TCP_RR").items() if v is not None}

    def _decide(self, keys: Collection[str], now_s: float) -> None:
        results = decode_results(self._data | self.extra_data, self.locations, keys)
        self.refused = results.refusal_counts
        self.named |= {refusal.writer for refusal in results.refusals if refusal.writer}
        failures = results.failures.values()
        self.state = update_state(
            results.samples.values(),
            self.state,
            self.policy,
            now_s,
            now_s,
            failures=failures,
            interval_s=self.round_s,
        )
        regions = {fact.zone: fact.region for fact in self.facts}
        self.table, self.state = compute_costs(self.state, regions, self.policy, now_s, interval_s=self.round_s)
        self.named |= set(self.table.error_us_by_outlier)
        self.told_disputed |= bool(self.table.disputed_links)
        held = apply_hysteresis(self.latencies, self.table.latencies())
        costs = {pair: entry.cost for pair, entry in self.table.by_zone_pair.items()}
        if held is not self.latencies or costs != self.costs:
            self.writes += 1
        self.latencies, self.costs = held, costs


def some_zones(count: int, seed: int = 7) -> dict[frozenset[str], float]:
    """Zones strewn over a plane some tens of milliseconds wide: round trips in µs."""
    rng = random.Random(seed)
    spots = [(rng.uniform(0, 60_000), rng.uniform(0, 60_000)) for _ in range(count)]
    names = [f"zone-{i:03}" for i in range(count)]
    return {
        frozenset((names[i], names[j])): 500.0 + ((ax - bx) ** 2 + (ay - by) ** 2) ** 0.5
        for i, (ax, ay) in enumerate(spots)
        for j, (bx, by) in enumerate(spots)
        if i < j
    }


def forged(samples: Sequence[tuple[NodeLocation, NodeLocation, float]], sequence: int, at_s: float) -> dict[str, str]:
    """Results as a liar writes them: whatever pairs, whatever latencies."""
    made = [
        Sample(
            origin=origin,
            destination=destination,
            measurement=Measurement(prober="netperf", test="TCP_RR", p50_us=us, p90_us=us, transactions=1000),
            sequence=sequence,
            taken_at=at_s,
        )
        for origin, destination, us in samples
    ]
    return {key: value for key, value in encode_samples(made).items() if value is not None}


def changed(network: SimulatedNetwork, a: str, b: str, factor: float) -> None:
    """The path between two zones takes so many times as long from now on."""
    network.rtt_us[frozenset((a, b))] *= factor
