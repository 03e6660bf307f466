"""Samples that mean the same to a reader, so that the newer one need not be written."""

from __future__ import annotations

from typing import Any

import pytest

from agent.probing.results_queue import is_equivalent
from netperf.quality import QualityFlag
from netperf.sample import Sample
from tests.unit.agent.probing import ORIGIN, PEERS, make_measurement


def make_sample(quality_flags: tuple[QualityFlag, ...] = (), **fields: Any) -> Sample:
    measurement, destination = make_measurement(**fields), PEERS[0].location
    return Sample(origin=ORIGIN.location, destination=destination, measurement=measurement, quality_flags=quality_flags)


@pytest.mark.parametrize(
    ("before", "changes", "is_expected"),
    [
        ({}, {}, True),
        ({}, {"p50_us": 2050.0}, True),
        ({}, {"p99_us": 3900.0}, True),
        ({}, {"mean_us": 1.0}, True),
        # Small latencies may change by the clock's noise.
        ({"p50_us": 30.0, "p90_us": 40.0, "p99_us": 60.0}, {"p50_us": 55.0, "p90_us": 65.0, "p99_us": 120.0}, True),
        ({}, {"p50_us": 2200.0}, False),
        ({}, {"p90_us": 2300.0}, False),
        ({}, {"p99_us": None}, False),
        ({}, {"loss_ratio": 0.05}, False),
        ({}, {"prober": "datagrams"}, False),
        ({}, {"quality_flags": ("throttled",)}, False),
    ],
)
def test_samples_are_equivalent_up_to_noise(before: dict[str, Any], changes: dict[str, Any], is_expected: bool) -> None:
    fields = {"p50_us": 2000.0, "p90_us": 2500.0, "p99_us": 4000.0, **before}
    assert is_equivalent(make_sample(**(fields | changes)), make_sample(**fields)) == is_expected
