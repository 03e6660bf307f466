"""Compares memory, file descriptors and processes of programs before and after a run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import psutil

from lab.cluster import Lab
from tests.chaos.faults import CONTROL_PLANE

# Python returns memory to the system late, so only growth beyond these allowances is a leak.
_RSS_FACTOR, _RSS_ALLOWANCE_BYTES = 1.5, 40 << 20
_DESCRIPTORS_ALLOWANCE, _PROCESSES_ALLOWANCE = 25, 3


class Usage(msgspec.Struct, frozen=True):
    """Resident memory in bytes, file descriptors and processes of a program with its children."""

    rss_bytes: int
    descriptors: int
    processes: int


def read_usage(lab: Lab) -> dict[str, Usage]:
    """Name of a program -> its usage, without programs that have ended."""
    usage_by_program = {}
    for program in lab.programs:
        try:
            processes = program.find_process_tree()
            rss_bytes = sum(p.memory_info().rss for p in processes)
            usage_by_program[program.name] = Usage(rss_bytes, sum(p.num_fds() for p in processes), len(processes))
        except psutil.Error:
            continue
    return usage_by_program


def find_leaks(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> list[str]:
    """Violations by programs whose usage grew by more than an allowance.

    Memory of the control plane is not compared: etcd and the API server's watch cache keep old versions until a
    compaction, which the faults delay.
    """
    violations = []
    for name, usage_before in before.items():
        usage_after = after.get(name)
        if usage_after is None:
            violations.append(f"not running: {name}")
            continue
        max_rss_bytes = usage_before.rss_bytes * _RSS_FACTOR + _RSS_ALLOWANCE_BYTES
        if name not in CONTROL_PLANE and usage_after.rss_bytes > max_rss_bytes:
            mib_before, mib_after = usage_before.rss_bytes >> 20, usage_after.rss_bytes >> 20
            violations.append(f"memory: {name} from {mib_before} to {mib_after} MiB")
        if usage_after.descriptors > usage_before.descriptors + _DESCRIPTORS_ALLOWANCE:
            violations.append(f"descriptors: {name} from {usage_before.descriptors} to {usage_after.descriptors}")
        if usage_after.processes > usage_before.processes + _PROCESSES_ALLOWANCE:
            violations.append(f"processes: {name} from {usage_before.processes} to {usage_after.processes}")
    return violations
