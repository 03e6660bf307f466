"""Builds probe plans and samples of zones, and computes costs from samples as the controller does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from netperf.cost_state import CostState, update_state
from netperf.costs import ZoneCosts, compute_costs
from netperf.latencies import ZonePair
from netperf.measurement import Measurement, Percentile
from netperf.pairs import PlanOptions, ProbeNode, ProbePlan, plan_probes
from netperf.policy import CostPolicy
from netperf.results import encode_samples
from netperf.sample import Failure, NodeLocation, Sample

WALL_CLOCK_S = 1_700_000_000.0
"""Unix time of plans and samples; ``now_s`` of costs is monotonic."""
POLICY = CostPolicy()
REGION_BY_ZONE = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}


class CostComputer:
    """Computes costs as the controller does in each round, and keeps the state between rounds."""

    def __init__(self, policy: CostPolicy = POLICY, state: CostState | None = None) -> None:
        self.policy, self.state = policy, state or {}

    def compute(
        self,
        samples: Iterable[Sample] = (),
        now_s: float = 0.0,
        *,
        failures: Iterable[Failure] = (),
        regions: Mapping[str, str] = REGION_BY_ZONE,
        interval_s: float = 60.0,
    ) -> ZoneCosts:
        updated = update_state(
            samples, self.state, self.policy, now_s, WALL_CLOCK_S, failures=failures, interval_s=interval_s
        )
        costs, self.state = compute_costs(updated, regions, self.policy, now_s, interval_s=interval_s)
        return costs


def make_nodes(sizes: Iterable[int]) -> list[ProbeNode]:
    """The nodes of zones with these numbers of nodes."""
    return [
        ProbeNode(name=f"n{z}-{i}", address=f"10.{z // 200}.{z % 200}.{i + 1}", zone=f"z{z:03}", region=f"r{z % 3}")
        for z, size in enumerate(sizes)
        for i in range(size)
    ]


def make_plan(sizes: Iterable[int], **options: Any) -> ProbePlan:
    """The first plan of zones with these numbers of nodes."""
    return plan_probes(make_nodes(sizes), PlanOptions(**options), {}, WALL_CLOCK_S)


def locate(node: str) -> NodeLocation:
    """The location of a node, whose name begins with the name of its zone."""
    return NodeLocation(node, node[0], REGION_BY_ZONE[node[0]])


def make_node_sample(
    origin: str, destination: str, latency_us: float | None, sequence: int = 1, **fields: object
) -> Sample:
    """A sample of two nodes; ``fields`` are of the sample or its measurement."""
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=latency_us, p90_us=latency_us, transactions=1000)
    sample = Sample(
        origin=locate(origin),
        destination=locate(destination),
        measurement=replace(measurement, **{k: v for k, v in fields.items() if k in Measurement.__struct_fields__}),
        sequence=sequence,
        taken_at=WALL_CLOCK_S,
    )
    return replace(sample, **{k: v for k, v in fields.items() if k not in Measurement.__struct_fields__})


def make_zone_sample(zones: str, latency_us: float | None, sequence: int = 1, **fields: object) -> Sample:
    """A sample of the first nodes of two zones, which are written as two letters."""
    return make_node_sample(f"{zones[0]}1", f"{zones[1]}1", latency_us, sequence, **fields)


def drop_removals(patch: dict[str, str | None]) -> dict[str, str]:
    """The keys that a patch writes, without those that it removes."""
    return {key: value for key, value in patch.items() if value is not None}


def encode_sample(sample: Sample, upstream: tuple[Percentile, ...] = ()) -> dict[str, str]:
    """The keys of a sample in a results object, also those in upstream's format for these percentiles."""
    return drop_removals(encode_samples([sample], upstream))


def make_zone_samples(latency_us_by_zones: Mapping[str, float], sequence: int = 1) -> list[Sample]:
    return [make_zone_sample(zones, latency_us, sequence) for zones, latency_us in latency_us_by_zones.items()]


def compute_once(samples: Iterable[Sample], policy: CostPolicy = POLICY) -> ZoneCosts:
    return CostComputer(policy).compute(samples)


def get_cost_by_pair(costs: ZoneCosts) -> dict[ZonePair, int]:
    return {pair: entry.cost for pair, entry in costs.by_zone_pair.items()}


def read_cost_and_basis(costs: ZoneCosts, zones: str = "ab") -> tuple[int, str]:
    entry = costs.by_zone_pair[zones[0], zones[1]]
    return entry.cost, entry.basis
