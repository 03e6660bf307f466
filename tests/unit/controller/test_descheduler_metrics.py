"""The descheduler's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from controller.descheduler.reporting import DeschedulerMetrics


def test_rare_things_are_counted_from_zero_so_that_increase_sees_the_first_once_the_descheduler_runs() -> None:
    registry = CollectorRegistry()
    metrics = DeschedulerMetrics(registry)
    refused = ("netaware_descheduler_evictions_total", {"strategy": "NetworkMisplacement", "result": "forbidden"})
    helped = ("netaware_descheduler_moves_ended_total", {"strategy": "LowNodeLoad", "outcome": "helped"})
    assert registry.get_sample_value(*refused) is None, "where it does not run"
    metrics.count_from_zero()
    assert registry.get_sample_value(*refused) == registry.get_sample_value(*helped) == 0
