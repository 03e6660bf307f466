"""Builds samples of probes."""

from __future__ import annotations

from netperf.measurement import Measurement
from netperf.plans import Probe
from netperf.sample import Sample


def make_measurement(latency_us: float) -> Measurement:
    """A measurement of netperf whose p90 is the latency."""
    p50_us, p99_us = latency_us * 0.9, latency_us * 1.1
    return Measurement(
        prober="netperf", test="TCP_RR", p50_us=p50_us, p90_us=latency_us, p99_us=p99_us, transactions=500
    )


def make_sample(probe: Probe, measurement: Measurement, sequence: int, taken_at: float) -> Sample:
    """The sample of a measurement between the nodes of a probe."""
    origin, destination = probe.origin.location, probe.destination.location
    return Sample(origin=origin, destination=destination, measurement=measurement, sequence=sequence, taken_at=taken_at)
