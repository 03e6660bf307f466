"""`python -m lab demo --json` measures, places and prints one consistent JSON object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.labs import LabCommand

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return LabCommand(tmp_path_factory.mktemp("demo")).json("demo", "--name", "demo-test", timeout_s=400)


def test_no_latency_and_no_cost_is_below_the_configured_delay(demo: dict[str, Any]) -> None:
    assert demo["prober"] == "netperf"
    assert demo["pairs_probed"] == demo["pairs_planned"] == 6
    assert len(demo["matrix"]) == 12
    for entry in demo["matrix"]:
        assert entry["configured_us"] <= entry["p50_us"], entry
        assert entry["p50_us"] <= entry["p90_us"] <= entry["p99_us"], entry
        assert isinstance(entry["cost"], int), "milliseconds"
        assert max(2, entry["configured_us"] / 1000) <= entry["cost"], entry  # 1 is the cost inside a zone


def test_both_schedulers_place_all_workloads_on_several_nodes(demo: dict[str, Any]) -> None:
    for placement in demo["placements"].values():
        assert len(placement) == 11
        assert set(placement.values()) <= set(demo["nodes"])
        assert len(set(placement.values())) >= 3


def test_network_aware_placement_reduces_latency_and_violations(demo: dict[str, Any]) -> None:
    summary = demo["summary"]
    assert summary["network_aware_violations"] < summary["default_violations"]
    assert summary["reduction_percent"] >= 30


def test_the_summary_is_the_sum_of_all_dependencies(demo: dict[str, Any]) -> None:
    summary, edges = demo["summary"], demo["edges"]
    assert len(edges) == 15
    total_us = sum(edge["network_aware_p50_us"] for edge in edges)
    assert summary["network_aware_total_us"] == pytest.approx(total_us, rel=0.001)
    for scheduler in ("default", "network_aware"):
        assert sum(edge[f"{scheduler}_violated"] for edge in edges) == summary[f"{scheduler}_violations"]
