"""Creates and removes the cgroup of each real node, in every hierarchy (version 1) or in the unified hierarchy (version 2).

The node's cgroup is the root of its cgroup namespace, so that the kubelet sees the usage of the node and not of the machine. The names,
``netaware-<slot>-<node>``, identify the cgroups of a killed lab.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_REQUIRED_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
_REMOVE_TIMEOUT_S, _POLL_S = 10.0, 0.05
# Joins the cgroups whose cgroup.procs files come before `--`, then executes the command after it.
_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'


def is_unified() -> bool:
    """Whether the machine has the unified hierarchy only (version 2)."""
    return (ROOT / "cgroup.controllers").exists()


def list_hierarchies() -> list[Path]:
    """Return the folders in which a node's cgroup is created."""
    if is_unified():
        return [ROOT]
    return sorted(folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.is_symlink())


def find_missing_controllers() -> list[str]:
    """Return the controllers that a kubelet needs and this machine lacks."""
    if is_unified():
        available = (ROOT / "cgroup.controllers").read_text().split()
        return [name for name in _REQUIRED_CONTROLLERS if name not in available]
    return [name for name in (*_REQUIRED_CONTROLLERS, "devices") if not (ROOT / name).is_dir()]


def create(name: str) -> None:
    """Create a node's cgroup. Raises OSError if this process lacks privileges."""
    for hierarchy in list_hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        # In version 1 a new cpuset has no CPUs, so that no process could run in it.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not is_unified() and (hierarchy / file).exists():
                (folder / file).write_text((hierarchy / file).read_text())
    if is_unified():
        controllers = " ".join(f"+{name}" for name in (ROOT / "cgroup.controllers").read_text().split())
        (ROOT / "cgroup.subtree_control").write_text(controllers)


def build_join_command(name: str, child: str = "") -> list[str]:
    """Return the command prefix that runs a command in a node's cgroup, in version 2 in the cgroup's ``child``."""
    subfolder = child if is_unified() else ""
    files = [str(hierarchy / name / subfolder / "cgroup.procs") for hierarchy in list_hierarchies()]
    return ["sh", "-c", _JOIN, "sh", *files, "--"]


def remove(pattern: str) -> None:
    """Remove cgroups by a shell pattern, with all their children. Raises OSError if one still has processes after 10 s."""
    deadline_s = time.monotonic() + _REMOVE_TIMEOUT_S
    for hierarchy in list_hierarchies() if ROOT.is_dir() else ():
        for top in hierarchy.glob(pattern):
            for folder in _list_bottom_up(top):
                _remove_folder(folder, deadline_s)


def _list_bottom_up(top: Path) -> Iterator[Path]:
    for child in top.iterdir():
        if child.is_dir():
            yield from _list_bottom_up(child)
    yield top


def _remove_folder(folder: Path, deadline_s: float) -> None:
    """Remove a cgroup. Retries, because the kernel removes ended processes from a cgroup with a delay."""
    while True:
        try:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)
