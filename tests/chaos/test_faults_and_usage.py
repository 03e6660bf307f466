"""Faults follow from their seed, and programs that leak are found."""

from __future__ import annotations

import itertools

from tests.chaos.faults import FAULT_KINDS, FaultTargets, draw_faults
from tests.chaos.usage import Usage, find_leaks

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
