"""Faults of a fixed seed break no invariant; equal seeds give equal faults; leaks of programs are found.

The time of recovery is checked by `make chaos` only, on a machine without other work.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import FAULT_KINDS, FaultTargets, draw_faults
from tests.chaos.health import Usage, find_leaks

SEED = 4713
TARGETS = FaultTargets(programs=("controller", "extender", "agent-n1"), zones=("z1", "z2", "z3"), nodes=("n1", "n2"))
MIB = 1 << 20


def test_equal_seeds_draw_equal_faults_and_other_seeds_others() -> None:
    faults = draw_faults(7, 600, TARGETS)
    assert faults == draw_faults(7, 600, TARGETS)
    assert faults != draw_faults(8, 600, TARGETS)
    assert all(fault.at_s < next_fault.at_s < 600 for fault, next_fault in itertools.pairwise(faults))
    assert {fault.kind for fault in draw_faults(7, 6000, TARGETS)} == set(FAULT_KINDS)


def test_leaks_and_ended_programs_are_reported_and_expected_growth_is_not() -> None:
    usage_before = dict.fromkeys(("extender", "leaking", "ended", "etcd"), Usage(100 * MIB, 20, 1))
    usage_after = {
        "extender": Usage(120 * MIB, 25, 2),
        "leaking": Usage(300 * MIB, 90, 9),
        "etcd": Usage(300 * MIB, 20, 1),  # etcd keeps old versions until a compaction.
    }
    assert find_leaks(usage_before, usage_after) == [
        "memory: leaking from 100 to 300 MiB",
        "descriptors: leaking from 20 to 90",
        "processes: leaking from 1 to 9",
        "not running: ended",
    ]


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_faults_break_no_invariant_and_every_zone_pair_has_a_cost_again() -> None:
    options = f"--name chaos-test --minutes 1 --seed {SEED} --json"
    command = [sys.executable, "-m", "tests.chaos", *options.split()]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=880, check=False)
    assert run.stdout, run.stderr[-4000:]
    report = json.loads(run.stdout)
    broken = [text for text in report["violations"] if not text.startswith("recovery: ")]
    assert broken == [], run.stderr[-4000:]
    assert len(report["faults"]) >= 8
    assert 0 < report["recovery_s"]["p50"] <= report["recovery_s"]["p99"] <= report["recovery_s"]["max"]
    assert report["restarts"] > 0
