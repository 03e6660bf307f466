"""Reads the delays of the prober itself: cgroup throttling, and waiting for a CPU.

Every function returns None if the kernel does not report the value.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
POLL_INTERVAL_S = 0.05  # short, because a run takes a second


def find_cpu_stat(process_cgroup: str, root: Path = CGROUP_ROOT) -> Path | None:
    """The ``cpu.stat`` of a process's cgroup, v2 or v1; None if there is none.

    In a container the process's cgroup may be the root of the mount, so the root is tried as well.

    Args:
        process_cgroup: text of ``/proc/<pid>/cgroup``.
        root: mount point of cgroups.
    """
    for line in process_cgroup.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        relative = path.lstrip("/")
        if controllers == "":
            candidates = [root / relative / "cpu.stat", root / "cpu.stat"]
        elif "cpu" in controllers.split(","):
            mount = root / controllers if (root / controllers).exists() else root / "cpu"
            candidates = [mount / relative / "cpu.stat", mount / "cpu.stat"]
        else:
            continue
        for candidate in candidates:
            if read_throttled_us(candidate) is not None:
                return candidate
    return None


def find_own_cpu_stat() -> Path | None:
    """`find_cpu_stat` of this process."""
    try:
        return find_cpu_stat(Path("/proc/self/cgroup").read_text())
    except OSError:
        return None


def read_throttled_us(cpu_stat: Path | None) -> float | None:
    """Microseconds for which a cgroup was throttled so far: ``throttled_usec`` (v2) or ``throttled_time`` in ns (v1).

    cgroup v2 does not report the value if the cpu controller is not enabled for the group.
    """
    if cpu_stat is None:
        return None
    try:
        fields = dict(line.split(None, 1) for line in cpu_stat.read_text().splitlines() if " " in line)
        if "throttled_usec" in fields:
            return float(fields["throttled_usec"])
        if "throttled_time" in fields:
            return float(fields["throttled_time"]) / 1000
    except (OSError, ValueError):
        return None
    return None


def read_run_queue_us(pid: int | str) -> float | None:
    """Microseconds for which a process's main thread waited for a CPU: the second number of ``/proc/<pid>/schedstat``, in ns."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1000
    except (OSError, ValueError, IndexError):
        return None


def elapsed_us(after: float | None, before: float | None) -> float | None:
    """Difference of two readings; None if one is unknown, 0 if the difference is negative after a move to another cgroup."""
    return None if after is None or before is None else max(0.0, after - before)


async def poll_run_queue_us(pid: int) -> float | None:
    """The last `read_run_queue_us` of a child before its end, after which it cannot be read; polls every `POLL_INTERVAL_S`."""
    last_us = None
    while (waited_us := read_run_queue_us(pid)) is not None:
        last_us = waited_us
        await asyncio.sleep(POLL_INTERVAL_S)
    return last_us
