"""``python -m tests.scale`` reports plausible figures for a small cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ZONES = 5


@pytest.mark.scale
@pytest.mark.timeout(420)
def test_every_pair_of_zones_has_a_cost_and_figures_are_plausible() -> None:
    sizes = {"zones": ZONES, "nodes-per-zone": 4, "pods": 100, "groups": 5, "minutes": 0.5}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tests.scale", "--name", "scale-test", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    # The exit code is 1 if the controller's Lease had transitions.
    assert run.returncode == 0, run.stderr[-4000:]
    report = json.loads(run.stdout)
    pair_count_by_basis = report["zone_pairs"]
    assert sum(pair_count_by_basis.values()) == ZONES * (ZONES - 1)
    # Costs of pairs with the failed zone become stale, not absent.
    assert pair_count_by_basis["absent"] == 0
    assert report["changes"]["zone_failures"] == 1
    assert report["changes"]["rollouts"] > 0
    assert report["call_p99_s"]["PATCH"] > 0
    assert report["loop_p99_s"] is not None
    assert 20 < report["rss_mib"] < 400
    for figure in ("requests_per_s", "etcd_puts_per_s", "cores"):
        assert report[figure] > 0, figure
