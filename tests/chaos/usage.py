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

    Memory of the control plane is not compared: etcd and the API server's watch cache keep old versions until a compaction, which
    the faults delay.
    """
    violations = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            violations.append(f"not running: {name}")
            continue
        if name not in CONTROL_PLANE and new.rss_bytes > old.rss_bytes * _RSS_FACTOR + _RSS_ALLOWANCE_BYTES:
            violations.append(f"memory: {name} from {old.rss_bytes >> 20} to {new.rss_bytes >> 20} MiB")
        if new.descriptors > old.descriptors + _DESCRIPTORS_ALLOWANCE:
            violations.append(f"descriptors: {name} from {old.descriptors} to {new.descriptors}")
        if new.processes > old.processes + _PROCESSES_ALLOWANCE:
            violations.append(f"processes: {name} from {old.processes} to {new.processes}")
    return violations
