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


def leftovers_of(lab: dict[str, Any]) -> list[str]:
    """Everything that a lab may leave and left; ``lab`` is what `lab up --json` said of it and has nodes.

    Its slot is free once it has ended, and a lab of another test may take it at once, with names that differ in nothing.
    The bridge goes last and its alias says whose it is: under another lab's bridge no name is a leftover.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    slot = lab["nodes"][0]["netns"].split("-")[1]
    while True:
        owner = _owner(slot)
        named = _named_after(slot)
        if _owner(slot) == owner:
            break
        assert time.monotonic() < deadline, f"slot {slot} changes hands all the time"
    found = named if owner in {None, lab["state_dir"][-255:]} else []
    found += [f"process {process.pid}" for process in find_processes(Path(lab["state_dir"]))]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if lab["state_dir"] in line]
    return found + [str(path) for path in Path(lab["state_dir"]).parent.glob(f"{lab['name']}*")]


def _owner(slot: str) -> str | None:
    """State directory of the lab that holds a slot; empty a moment before it says so, None when the slot is free."""
    try:
        return (_DEVICES / bridge_name(int(slot)) / "ifalias").read_text().strip()
    except OSError:
        return None


def _named_after(slot: str) -> list[str]:
    found = [name for name in namespaces.list_names() if name.startswith(f"netaware-{slot}-")]
    found += [
        p.name for p in _DEVICES.iterdir() if p.name.startswith(f"nav{slot}-") or p.name == bridge_name(int(slot))
    ]
    return found + [str(p) for h in cgroups.list_hierarchies() for p in h.glob(f"netaware-{slot}-*")]
