"""Compares memory, descriptors and processes of programs before and after a run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import psutil

from lab.cluster import Lab
from tests.chaos.faults import CONTROL_PLANE

# Python gives memory back late, and a second run of the same work needs a little more: a leak goes on, this does not.
_RSS_FACTOR, _RSS_ROOM = 1.5, 40 << 20
_DESCRIPTORS_ROOM, _PROCESSES_ROOM = 25, 3


class Usage(msgspec.Struct, frozen=True):
    """Resources of one program and its children; ``rss`` in bytes."""

    rss: int
    descriptors: int
    processes: int


def read_usage(lab: Lab) -> dict[str, Usage]:
    """Usage by program."""
    found = {}
    for program in lab.programs:
        try:
            family = program.process_tree()
            memory = sum(p.memory_info().rss for p in family)
            found[program.name] = Usage(memory, sum(p.num_fds() for p in family), len(family))
        except psutil.Error:
            continue
    return found


def leaks(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> list[str]:
    """Programs whose usage grew by more than an allowance.

    Memory of etcd and the API server is not judged: etcd holds every version that was written until the API server has it
    compacted, every five minutes where nobody kills it, and the API server holds them in its watch cache.
    """
    violations = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            violations.append(f"not running: {name}")
            continue
        if name not in CONTROL_PLANE and new.rss > old.rss * _RSS_FACTOR + _RSS_ROOM:
            violations.append(f"memory: {name} from {old.rss >> 20} to {new.rss >> 20} MiB")
        if new.descriptors > old.descriptors + _DESCRIPTORS_ROOM:
            violations.append(f"descriptors: {name} from {old.descriptors} to {new.descriptors}")
        if new.processes > old.processes + _PROCESSES_ROOM:
            violations.append(f"processes: {name} from {old.processes} to {new.processes}")
    return violations
