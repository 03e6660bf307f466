"""The cgroup of each real node, in every hierarchy of this machine (version 1) or in the unified one (version 2).

A node has a cgroup namespace with this cgroup as its root, so that its kubelet sees the usage of the node and not of the
machine. Its name, ``netaware-<slot>-<node>``, is how what a killed lab left is found.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("cpu", "cpuset", "memory", "pids")
_PATIENCE_S = 10.0
# Puts itself into the cgroups of the files before `--`, and becomes the command after it.
_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'


def is_unified() -> bool:
    """Whether the machine has version 2 alone."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The folders in which a node's cgroup is made."""
    if is_unified():
        return [ROOT]
    return sorted(folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.is_symlink())


def missing_controllers() -> list[str]:
    """Controllers that a kubelet needs and this machine does not have."""
    if is_unified():
        present = (ROOT / "cgroup.controllers").read_text().split()
        return [name for name in _NEEDED if name not in present]
    return [name for name in (*_NEEDED, "devices") if not (ROOT / name).is_dir()]


def create(name: str) -> None:
    """Make a node's cgroup. Raises OSError when this process may not."""
    for hierarchy in hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        # A new cpuset of version 1 is empty, and nothing can run in it.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not is_unified() and (hierarchy / file).exists():
                (folder / file).write_text((hierarchy / file).read_text())
    if is_unified():
        wanted = " ".join(f"+{c}" for c in (ROOT / "cgroup.controllers").read_text().split())
        (ROOT / "cgroup.subtree_control").write_text(wanted)


def join(name: str, child: str = "") -> list[str]:
    """Words that, put before a command, run it in a node's cgroup, or with version 2 in a child of it."""
    inner = child if is_unified() else ""
    files = [str(hierarchy / name / inner / "cgroup.procs") for hierarchy in hierarchies()]
    return ["sh", "-c", _JOIN, "sh", *files, "--"]


def remove(pattern: str) -> None:
    """Remove every cgroup whose name fits ``pattern``, as of a shell, with all below it; their processes must have ended.

    Raises OSError when one is still in use after 10 s.
    """
    deadline = time.monotonic() + _PATIENCE_S
    for hierarchy in hierarchies() if ROOT.is_dir() else ():
        for top in hierarchy.glob(pattern):
            for folder in _bottom_up(top):
                _remove_empty(folder, deadline)


def _bottom_up(top: Path) -> Iterator[Path]:
    for child in top.iterdir():
        if child.is_dir():
            yield from _bottom_up(child)
    yield top


def _remove_empty(folder: Path, deadline: float) -> None:
    """The kernel counts processes that have just died for a moment longer."""
    while True:
        try:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
