"""Builds samples of probes."""

from __future__ import annotations

from netperf.measurement import Measurement
from netperf.plans import Probe
from netperf.sample import Sample


def make_sample(probe: Probe, measurement: Measurement, sequence: int, taken_at: float) -> Sample:
    """The sample of a measurement between the nodes of a probe."""
    origin, destination = probe.origin.location, probe.destination.location
    return Sample(origin=origin, destination=destination, measurement=measurement, sequence=sequence, taken_at=taken_at)
