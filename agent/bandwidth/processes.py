"""Finds each pod's oldest process by its cgroup, whose path contains the pod's uid and the container's id.

The oldest is usually the sandbox's pause process, which lives as long as the pod's network namespace.
Works for cgroup v1 and v2, for kubelets with the systemd and the cgroupfs driver, for cgroup roots below a parent (kind,
nested kubelets), and inside a cgroup namespace, where paths of other namespaces begin with ``/..``. Needs no container runtime.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from agent.bandwidth.state import PodSandbox

_UID = re.compile(r"pod([0-9a-f]{8}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{12})(?![0-9a-f])")
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_CRIO_MONITOR = "conmon"
"""CRI-O's monitors run in the pod's slice but in the node's network namespace."""
POD_INTERFACE = "eth0"
"""Name of a pod's device in its own network namespace."""


def parse_cgroup(text: str) -> tuple[str, str] | None:
    """Parse ``/proc/<pid>/cgroup``: pod uid, without dashes, and container id ("" if unknown); None outside of pods."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        match = _UID.search(path)
        if match is None or _CRIO_MONITOR in path:
            continue
        container = _CONTAINER.search(path, match.end())
        return _without_dashes(match[1]), container[1] if container else ""
    return None


def find_processes(proc: Path, uids: Collection[str]) -> dict[str, PodSandbox]:
    """The oldest process of each pod and its container, by the uid as given. Reads all of ``/proc``."""
    wanted = {_without_dashes(uid): uid for uid in uids}
    oldest: dict[str, tuple[int, PodSandbox]] = {}  # with the start time
    for directory in (entry for entry in proc.iterdir() if entry.name.isdigit()):
        try:
            owner = parse_cgroup((directory / "cgroup").read_text())
        except (OSError, UnicodeDecodeError):
            continue  # The process has ended.
        if owner is None or owner[0] not in wanted:
            continue
        started_ticks = _read_start_ticks(directory)
        uid = wanted[owner[0]]
        if started_ticks is not None and (uid not in oldest or started_ticks < oldest[uid][0]):
            oldest[uid] = (started_ticks, PodSandbox(pid=int(directory.name), container_id=owner[1]))
    return {uid: sandbox for uid, (_, sandbox) in oldest.items()}


def pod_interface_index(proc: Path, pid: int) -> int | None:
    """Index of eth0 in a process's network namespace; None if unknown.

    ``/proc/<pid>/net/igmp`` lists indexes and names of devices, so the namespace need not be entered.
    """
    try:
        lines = (proc / str(pid) / "net" / "igmp").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0].isdigit() and words[1].rstrip(":") == POD_INTERFACE:
            return int(words[0])
    return None


def is_in_host_network(proc: Path, pid: int) -> bool:
    """Whether a process is in our network namespace: its ``/proc/<pid>/net/dev`` has the inode of ours."""
    try:
        return (proc / str(pid) / "net" / "dev").stat().st_ino == Path("/proc/self/net/dev").stat().st_ino
    except OSError:
        return False


def _without_dashes(uid: str) -> str:
    """A uid without dashes and underscores."""
    return uid.replace("-", "").replace("_", "")


def _read_start_ticks(directory: Path) -> int | None:
    """Start time in clock ticks since boot, field 22 of ``/proc/<pid>/stat`` (proc(5)); names may hold blanks."""
    try:
        return int((directory / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
