"""Rates of agents' counters are right in a real Prometheus that scrapes between rounds.

The kernel's table, time and scrapes are simulated. A sample without a timestamp gets that of the scrape.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from agent.traffic.collector import TrafficCollector
from agent.traffic.conntrack import Connection
from agent.traffic.edges import WorkloadReference
from controller.traffic.sources import read_flows
from netperf.contract import MAX_TRAFFIC_CPU_SHARE
from tests.support.prometheus_program import run_prometheus

CLIENT, SERVER = bytes([10, 1, 0, 1]), bytes([10, 1, 0, 2])
WEB, CART = WorkloadReference("shop", "Deployment", "web"), WorkloadReference("shop", "Deployment", "cart")
REQUEST_RATE, RESPONSE_RATE = 1000, 9000
"""Bytes per second to the server and to the client, on one connection."""
SCRAPE_S = 15
PAST_S, FUTURE_S = 900, 600
WINDOW_S = 180
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(120)]


def scrape_agent(folder: Path, started_at_s: int, round_s: float) -> Iterator[tuple[Sample, float]]:
    """An agent's scraped samples with their times, until ten minutes from now, because the test takes time."""
    now_s = float(started_at_s)
    collector = TrafficCollector(lambda: "z1", folder, lambda: now_s)
    collector.round_cpu_s = round_s * MAX_TRAFFIC_CPU_SHARE
    collector.edges.set_workloads({CLIENT: WEB, SERVER: CART}, 0)
    registry = CollectorRegistry()
    registry.register(collector)
    read_s = 0.0
    for scrape_s in range(7, PAST_S + FUTURE_S, SCRAPE_S):
        while read_s <= scrape_s:
            sent_bytes, received_bytes = round(REQUEST_RATE * read_s), round(RESPONSE_RATE * read_s)
            collector.edges.begin_round(read_s, started_at_s + read_s)
            collector.edges.add_live(Connection(CLIENT, SERVER, 80, sent_bytes, received_bytes))
            collector.edges.end_round()
            read_s += round_s
        now_s = started_at_s + scrape_s
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            yield from ((sample, float(sample.timestamp or now_s)) for sample in family.samples)


def format_samples(samples: Iterable[tuple[Sample, float]]) -> Iterator[str]:
    """OpenMetrics lines of samples; one that was scraped twice is there once."""
    value_by_time: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for sample, at_s in samples:
        label_text = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(sample.labels.items()))
        value_by_time[sample.name, label_text][at_s] = sample.value
    for name, all_series in groupby(sorted(value_by_time), itemgetter(0)):
        yield f"# TYPE {name} unknown\n"
        for series in all_series:
            for at_s, value in sorted(value_by_time[series].items()):
                yield f"{name}{{{series[1]}}} {value!r} {at_s:.3f}\n"
    yield "# EOF\n"


@pytest.mark.parametrize("round_s", [30.0, 30.7, 32.0, 41.0, 120.0], ids=lambda s: f"every_{s:g}_s")
async def test_rates_over_three_minutes_are_right_for_every_interval_of_rounds(
    prometheus_programs: Mapping[str, Path], tmp_path: Path, round_s: float
) -> None:
    lines = format_samples(scrape_agent(tmp_path, int(time.time()) - PAST_S, round_s))
    async with run_prometheus(prometheus_programs, tmp_path, lines) as client:
        _, window_s, (flow,), _ = await read_flows(client, "", WINDOW_S)
        assert window_s == (WINDOW_S if round_s < 60 else 280), "a window has at least two rounds: 2 x 120 s + 40 s"
    assert (flow.client.name, flow.server.name) == ("web", "cart")
    assert flow.bytes_per_s == pytest.approx(REQUEST_RATE + RESPONSE_RATE, rel=0.01)
    assert flow.peak_bytes_per_s == pytest.approx(REQUEST_RATE + RESPONSE_RATE, rel=0.01)
