"""``python -m lab scale`` at a size that a test can bear: the figures are there, and hold together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ZONES, NODES, GROUPS, VIEWERS = 5, 4, 5, 3

pytestmark = [pytest.mark.scale, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    sizes = {"zones": ZONES, "nodes-per-zone": NODES, "pods": 100, "groups": GROUPS, "viewers": VIEWERS, "minutes": 0.5}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "lab", "scale", "--json", "--name", "scale-test", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_every_pair_of_zones_has_a_measured_cost_and_the_lease_stays(report: dict[str, Any]) -> None:
    bases = report["zone_pairs"]
    assert sum(bases.values()) == ZONES * (ZONES - 1)
    # One zone is out of reach for a while: its pairs are old or dead then, and none is without a cost.
    assert bases["absent"] == 0
    assert report["lease_transitions"] == 0
    assert report["done"]["zone_failures"] == 1
    assert report["done"]["rollouts"] > 0


def test_calls_and_our_share_of_them_are_the_api_servers_own_figures(report: dict[str, Any]) -> None:
    assert report["calls"]["PATCH"]["count"] > 0
    for call in report["calls"].values():
        assert 0 <= call["p50"] <= call["p99"]
    shares = report["share_of_requests"]
    assert 0 < shares["netaware-controller"] < 1
    assert sum(shares.values()) < 1
    assert report["etcd"]["puts_per_s"] > 0


def test_the_controller_says_of_its_loop_memory_and_connections_what_others_see(report: dict[str, Any]) -> None:
    assert report["loop"]["busy_p99"] >= 0
    assert report["loop"]["delay_max"] > 0
    assert all(20 < mib < 400 for mib in report["rss_mib"])
    # Thirteen kinds are watched, and six connections are for everything else.
    assert 13 < report["connections"] <= 19
    assert set(report["cores"]) >= {"controller", "extender", "kube-apiserver", "etcd", "simulation"}
    assert report["viewers"]["messages_per_minute"] > 0


def test_pods_start_on_played_nodes_and_prometheus_scrapes_a_tenth_of_the_agents(report: dict[str, Any]) -> None:
    assert report["start_up"]["count"] > 0
    assert 0 < report["start_up"]["p50"] <= report["start_up"]["p99"]
    # The first of each zone's four nodes.
    assert report["scraped"]["targets"] == ZONES
    assert report["done"]["failed_acts"] == 0
