"""Creates and removes the cgroup of each real node, in every hierarchy of this machine (version 1) or in the unified one (version 2).

This cgroup is the root of the node's cgroup namespace, so that the kubelet sees the usage of the node and not of the machine. Cgroups
of a killed lab are found by their names, ``netaware-<slot>-<node>``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_REQUIRED_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
_REMOVE_TIMEOUT_S = 10.0
# Joins the cgroups whose cgroup.procs files come before `--`, then executes the command after it.
_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'


def is_unified() -> bool:
    """Whether the machine has the unified hierarchy only (version 2)."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The folders in which a node's cgroup is created."""
    if is_unified():
        return [ROOT]
    return sorted(folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.is_symlink())


def missing_controllers() -> list[str]:
    """Controllers that a kubelet needs and this machine lacks."""
    if is_unified():
        present = (ROOT / "cgroup.controllers").read_text().split()
        return [name for name in _REQUIRED_CONTROLLERS if name not in present]
    return [name for name in (*_REQUIRED_CONTROLLERS, "devices") if not (ROOT / name).is_dir()]


def create(name: str) -> None:
    """Create a node's cgroup. Raises OSError if this process lacks privileges."""
    for hierarchy in hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        # In version 1 a new cpuset has no CPUs, so no process could run in it.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not is_unified() and (hierarchy / file).exists():
                (folder / file).write_text((hierarchy / file).read_text())
    if is_unified():
        enabled = " ".join(f"+{name}" for name in (ROOT / "cgroup.controllers").read_text().split())
        (ROOT / "cgroup.subtree_control").write_text(enabled)


def build_join_command(name: str, child: str = "") -> list[str]:
    """The command prefix that runs a command in a node's cgroup, in version 2 in its ``child``."""
    subfolder = child if is_unified() else ""
    files = [str(hierarchy / name / subfolder / "cgroup.procs") for hierarchy in hierarchies()]
    return ["sh", "-c", _JOIN, "sh", *files, "--"]


def remove(pattern: str) -> None:
    """Remove cgroups by a shell pattern, with all their children; their processes must have ended.

    Raises:
        OSError: a cgroup is still in use after 10 s.
    """
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    for hierarchy in hierarchies() if ROOT.is_dir() else ():
        for top in hierarchy.glob(pattern):
            for folder in _list_bottom_up(top):
                _remove_folder(folder, deadline)


def _list_bottom_up(top: Path) -> Iterator[Path]:
    for child in top.iterdir():
        if child.is_dir():
            yield from _list_bottom_up(child)
    yield top


def _remove_folder(folder: Path, deadline: float) -> None:
    """Remove a cgroup; retries, because the kernel removes ended processes from a cgroup with a delay."""
    while True:
        try:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
