"""Builds samples of four nodes, and encodes them as keys of a results object."""

from __future__ import annotations

from msgspec.structs import replace

from netperf.measurement import Measurement, Percentile
from netperf.results import encode_samples
from netperf.sample import NodeLocation, Sample

LOCATIONS = {name: NodeLocation(name, f"z-{name[0]}", "r") for name in ("a1", "a2", "b1.example.com", "c1")}


def make_sample(origin: str = "a1", destination: str = "b1.example.com", **measured: object) -> Sample:
    measurement = Measurement(
        prober="netperf", test="TCP_RR", p50_us=500, p90_us=1700, p99_us=2600, transactions=500, duration_s=1.0
    )
    return Sample(
        origin=LOCATIONS[origin],
        destination=LOCATIONS[destination],
        measurement=replace(measurement, **measured),
        sequence=3,
        taken_at=1.7e9,
    )


def drop_removals(patch: dict[str, str | None]) -> dict[str, str]:
    """The keys that a patch writes, without those that it removes."""
    return {key: value for key, value in patch.items() if value is not None}


def encode_sample(sample: Sample, upstream: tuple[Percentile, ...] = ()) -> dict[str, str]:
    """The keys of a sample, also those in upstream's format for these percentiles."""
    return drop_removals(encode_samples([sample], upstream))
