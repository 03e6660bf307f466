"""Finds each pod's oldest process by its cgroup, whose path contains the pod's uid and the container's id.

The oldest is usually the sandbox's pause process, which lives as long as the pod's network namespace. Works for cgroup v1 and v2, for
kubelets with the systemd and the cgroupfs driver, for cgroup roots below a parent (kind, nested kubelets), and inside a cgroup
namespace, where paths of other namespaces begin with ``/..``. Needs no container runtime.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from agent.bandwidth.cni import POD_INTERFACE
from agent.bandwidth.state import PodSandbox

_POD_UID = re.compile(r"pod([0-9a-f]{8}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{12})(?![0-9a-f])")
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_CRIO_MONITOR = "conmon"
"""CRI-O's monitors run in the pod's slice but in the node's network namespace."""
_START_TIME_FIELD = 19
"""Position of starttime, field 22, among the fields after the name."""


class CgroupOwner(NamedTuple):
    """The pod and container of a cgroup: the uid without dashes, and the container's id ("" if unknown)."""

    plain_uid: str
    container_id: str


def parse_cgroup(text: str) -> CgroupOwner | None:
    """Parse ``/proc/<pid>/cgroup``; None outside of pods, and for CRI-O's monitors."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        match = _POD_UID.search(path)
        if match is None or _CRIO_MONITOR in path:
            continue
        container = _CONTAINER_ID.search(path, match.end())
        return CgroupOwner(_remove_dashes(match[1]), container[1] if container else "")
    return None


def find_sandboxes(proc: Path, uids: Collection[str]) -> dict[str, PodSandbox]:
    """Find the oldest process and container of each pod that has one, by the uid as given. Reads all of ``/proc``."""
    uid_by_plain_uid = {_remove_dashes(uid): uid for uid in uids}
    oldest_by_uid: dict[str, tuple[int, PodSandbox]] = {}  # with the start time
    for directory in (entry for entry in proc.iterdir() if entry.name.isdigit()):
        try:
            owner = parse_cgroup((directory / "cgroup").read_text(errors="replace"))
        except OSError:
            continue  # The process has ended.
        uid = uid_by_plain_uid.get(owner.plain_uid) if owner is not None else None
        if owner is None or uid is None:
            continue
        start_ticks = _read_start_ticks(directory)
        if start_ticks is not None and (uid not in oldest_by_uid or start_ticks < oldest_by_uid[uid][0]):
            oldest_by_uid[uid] = start_ticks, PodSandbox(pid=int(directory.name), container_id=owner.container_id)
    return {uid: sandbox for uid, (_, sandbox) in oldest_by_uid.items()}


def read_pod_interface_index(proc: Path, pid: int) -> int | None:
    """Read the index of eth0 in a process's network namespace; None if unknown.

    ``/proc/<pid>/net/igmp`` lists indexes and names of devices, so the namespace need not be entered.
    """
    try:
        lines = (proc / str(pid) / "net" / "igmp").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0].isdigit() and words[1].rstrip(":") == POD_INTERFACE:
            return int(words[0])
    return None


def is_in_host_network(proc: Path, pid: int) -> bool:
    """Whether a process is in our network namespace: its ``/proc/<pid>/net/dev`` has the inode of ours. False if it has ended."""
    try:
        return (proc / str(pid) / "net" / "dev").stat().st_ino == Path("/proc/self/net/dev").stat().st_ino
    except OSError:
        return False


def _remove_dashes(uid: str) -> str:
    """Remove dashes and underscores, because systemd's slices have other separators than the API server's uids."""
    return uid.replace("-", "").replace("_", "")


def _read_start_ticks(directory: Path) -> int | None:
    """Read the start time in clock ticks since boot from ``/proc/<pid>/stat`` (proc(5)); None if the process has ended."""
    try:
        text = (directory / "stat").read_text(errors="replace")  # The process's name may contain any bytes.
        return int(text.rpartition(")")[2].split()[_START_TIME_FIELD])
    except (OSError, ValueError, IndexError):
        return None
