"""Builds samples of zones, and computes costs from them as the controller does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from netperf.cost_state import CostState, update_state
from netperf.costs import ZoneCosts, compute_costs
from netperf.latencies import ZonePair
from netperf.measurement import Measurement
from netperf.policy import CostPolicy
from netperf.sample import Failure, NodeLocation, Sample

POLICY = CostPolicy()
REGION_BY_ZONE = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
WALL_S = 1.7e9


def make_node_sample(origin: str, destination: str, us: float | None, sequence: int = 1, **fields: object) -> Sample:
    """A sample of two nodes, whose names begin with the names of their zones; ``fields`` are of the sample or its measurement."""
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=us, p90_us=us, transactions=1000)
    origin_location, destination_location = (
        NodeLocation(node, node[0], REGION_BY_ZONE[node[0]]) for node in (origin, destination)
    )
    measured = {key: value for key, value in fields.items() if key in Measurement.__struct_fields__}
    return Sample(
        origin=origin_location,
        destination=destination_location,
        measurement=replace(measurement, **measured),
        sequence=sequence,
        **{"taken_at": WALL_S} | {key: value for key, value in fields.items() if key not in measured},  # type: ignore[arg-type]
    )


def make_zone_sample(pair: str, us: float | None, sequence: int = 1, **fields: object) -> Sample:
    """A sample of the first nodes of two zones, which are written as two letters."""
    return make_node_sample(f"{pair[0]}1", f"{pair[1]}1", us, sequence, **fields)


def make_zone_samples(us_by_pair: Mapping[str, float], sequence: int = 1) -> list[Sample]:
    return [make_zone_sample(pair, us, sequence) for pair, us in us_by_pair.items()]


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
            samples, self.state, self.policy, now_s, WALL_S, failures=failures, interval_s=interval_s
        )
        costs, self.state = compute_costs(updated, regions, self.policy, now_s, interval_s=interval_s)
        return costs


def compute_once(samples: Iterable[Sample], policy: CostPolicy = POLICY) -> ZoneCosts:
    return CostComputer(policy).compute(samples)


def get_cost_by_pair(costs: ZoneCosts) -> dict[ZonePair, int]:
    return {pair: entry.cost for pair, entry in costs.by_zone_pair.items()}


def read_cost_and_basis(costs: ZoneCosts, pair: str = "ab") -> tuple[int, str]:
    entry = costs.by_zone_pair[pair[0], pair[1]]
    return entry.cost, entry.basis
