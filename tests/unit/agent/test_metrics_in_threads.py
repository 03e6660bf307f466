"""A scrape succeeds while another thread changes the metrics, as the event loop does beside the server's thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent.probing.metrics import ProbeMetrics
from agent.probing.plan_source import PlanSource
from agent.traffic.collector import TrafficCollector
from agent.traffic.conntrack import Connection
from agent.traffic.edges import ADDRESS_EXPIRY_S, WorkloadReference
from tests.unit.agent.probing import PEERS, make_outcome, make_plan

STEP_COUNT = 30
Step = Callable[[int], None]
"""Changes the metrics; takes its number."""


@pytest.fixture
def short_switch_interval() -> Iterator[None]:
    """Threads take turns every microsecond instead of every 5 ms, so that a race shows in a short test."""
    default_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(default_interval_s)


def make_traffic_change(registry: CollectorRegistry) -> Step:
    """A step replaces all pods and edges."""
    collector = TrafficCollector(lambda: "z1", Path("/proc"), lambda: 0.0)
    workload = WorkloadReference("shop", "Deployment", "cart")
    registry.register(collector)

    def step(number: int) -> None:
        now_s = number * 2 * ADDRESS_EXPIRY_S
        pods = {bytes([10, number % 256, 0, host]): workload for host in range(1, 40)}
        collector.edges.set_workloads(pods, now_s)
        collector.edges.begin_round(now_s, now_s)
        for client in pods:
            for server in pods:
                collector.edges.add_live(Connection(client, server, 80, 1, 1))
        collector.edges.end_round()

    return step


def make_probe_change(registry: CollectorRegistry) -> Step:
    """A step adds or removes the plan, and adds outcomes with new labels."""
    plan_source = PlanSource("n1")
    metrics = ProbeMetrics(plan_source, lambda: False, registry)
    plan_source.on_change = metrics.apply_plan

    def step(number: int) -> None:
        plan_source.set_plan(make_plan(PEERS[0]) if number % 2 else None)
        for kind in range(400):
            result = f"outcome-{number}-{kind}"
            plan_source.refusal_counts[result] = 1
            metrics.add_outcome(make_outcome(PEERS[0], result=result))

    return step


@pytest.mark.usefixtures("short_switch_interval")
@pytest.mark.parametrize("make_change", [make_traffic_change, make_probe_change])
def test_no_scrape_fails_while_the_loop_changes_metrics(make_change: Callable[[CollectorRegistry], Step]) -> None:
    registry = CollectorRegistry()
    change = make_change(registry)
    with ThreadPoolExecutor(max_workers=1) as pool:
        changes = [pool.submit(change, number) for number in range(STEP_COUNT)]
        while not changes[-1].done():
            generate_latest(registry)
        assert [finished.exception() for finished in changes] == [None] * STEP_COUNT
