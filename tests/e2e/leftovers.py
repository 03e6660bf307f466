"""Finds leftovers of a lab that has ended: processes, devices, mounts and files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lab import namespaces
from lab.network import bridge_name
from lab.processes import find_processes
from lab.realnode import cgroups

_DEVICES = Path("/sys/class/net")
_TIMEOUT_S = 30.0


def list_leftovers(lab: dict[str, Any]) -> list[str]:
    """Return the leftovers of an ended lab with nodes; ``lab`` is the output of `lab up --json`.

    A lab of another test may take the free slot at once, and then has the same names. The bridge's alias says whose
    names they are.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    slot = lab["nodes"][0]["netns"].split("-")[1]
    while True:
        owner = _find_owner(slot)
        names = _list_names(slot)
        if _find_owner(slot) == owner:
            break
        assert time.monotonic() < deadline, f"slot {slot} keeps changing its owner"
    leftovers = names if owner in {None, lab["state_dir"][-255:]} else []
    leftovers += [f"process {process.pid}" for process in find_processes(Path(lab["state_dir"]))]
    leftovers += [line for line in Path("/proc/self/mounts").read_text().splitlines() if lab["state_dir"] in line]
    return leftovers + [str(path) for path in Path(lab["state_dir"]).parent.glob(f"{lab['name']}*")]


def _find_owner(slot: str) -> str | None:
    """Return the state directory of a slot's lab; empty before the lab has written it, None if the slot is free."""
    try:
        return (_DEVICES / bridge_name(int(slot)) / "ifalias").read_text().strip()
    except OSError:
        return None


def _list_names(slot: str) -> list[str]:
    """Return network namespaces, devices and cgroups that are named after a slot."""
    names = [name for name in namespaces.list_names() if name.startswith(f"netaware-{slot}-")]
    devices = [path.name for path in _DEVICES.iterdir()]
    names += [name for name in devices if name.startswith(f"nav{slot}-") or name == bridge_name(int(slot))]
    return names + [
        str(path) for hierarchy in cgroups.list_hierarchies() for path in hierarchy.glob(f"netaware-{slot}-*")
    ]
