"""Detects that the prober itself was delayed: cgroup throttling, and waiting for a CPU.

Read before and after a run. Every reader returns None if the kernel does not report the value, because unknown does not mean
"not throttled".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
SAMPLING_S = 0.05


def find_cpu_stat(process_cgroup: str, root: Path = CGROUP_ROOT) -> Path | None:
    """The ``cpu.stat`` that accounts for a process, in cgroup v2 or v1.

    Inside a container the cgroup namespace makes its own group the root of the mount, so that is tried as well.

    Args:
        process_cgroup: text of ``/proc/<pid>/cgroup``.
        root: where cgroups are mounted.
    """
    for line in process_cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
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


def own_cpu_stat() -> Path | None:
    """The ``cpu.stat`` of this process, or None."""
    try:
        return find_cpu_stat(Path("/proc/self/cgroup").read_text())
    except OSError:
        return None


def read_throttled_us(cpu_stat: Path | None) -> float | None:
    """Microseconds for which the group was throttled so far: ``throttled_usec`` (v2) or ``throttled_time`` in ns (v1).

    The key is absent in v2, and the answer None, if the cpu controller is not enabled for the group.
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


def read_run_queue_us(pid: int | str = "self") -> float | None:
    """How long a process's main thread was runnable without a CPU: the second number of ``/proc/<pid>/schedstat``, in ns."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1000
    except (OSError, ValueError, IndexError):
        return None


def difference(after: float | None, before: float | None) -> float | None:
    """After minus before; None if one is unknown, 0 if negative because the process moved to another group."""
    return None if after is None or before is None else max(0.0, after - before)


async def poll_run_queue(pid: int, on_value: Callable[[float], None]) -> None:
    """Report `read_run_queue_us` of a child every 50 ms until it ends, because it cannot be read afterwards."""
    while (waited_us := read_run_queue_us(pid)) is not None:
        on_value(waited_us)
        await asyncio.sleep(SAMPLING_S)
