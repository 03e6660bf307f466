"""``python -m tests.scale`` at a size that a test can bear: the figures are there, and hold together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ZONES, NODES, GROUPS = 5, 4, 5

pytestmark = [pytest.mark.scale, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    sizes = {"zones": ZONES, "nodes-per-zone": NODES, "pods": 100, "groups": GROUPS, "minutes": 0.5}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tests.scale", "--json", "--name", "scale-test", *options]
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


def test_the_controllers_loop_and_memory_are_read_and_every_act_succeeds(report: dict[str, Any]) -> None:
    assert report["loop"]["p99"] >= 0
    assert 20 < report["rss_mib"] < 400
    assert report["cores"] > 0
    assert report["done"]["failed_acts"] == 0
    assert report["failures"] == []
