"""Starts labs in temporary state directories, and finds what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kubekit.client import Client
from lab import namespaces
from lab.cluster import Lab
from lab.demo import COMPONENTS
from lab.installation import Installation, install
from lab.network import bridge_name
from lab.programs import find_processes
from lab.realnode import cgroups
from lab.topology import load_topology

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S, SLOT_TIMEOUT_S = 100, 30.0
_DEVICES = Path("/sys/class/net")


class LabCommand:
    """Runs ``python -m lab`` with a temporary state directory."""

    def __init__(self, state_home: Path) -> None:
        self.labs = state_home / "netaware" / "labs"
        self.env = {**os.environ, "XDG_STATE_HOME": str(state_home), "PYTHONPATH": str(ROOT)}
        self._names: set[str] = set()

    def popen(self, *args: str) -> subprocess.Popen[str]:
        """Start a command and do not wait for it."""
        if "--name" in args:
            self._names.add(args[args.index("--name") + 1])
        # The children of a test run in the background would otherwise ignore Ctrl-C as it does.
        argv = ["env", "--default-signal=INT", sys.executable, "-m", "lab", *args]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")

    def __call__(self, *args: str, code: int = 0, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a command that must end with ``code``; return its stdout."""
        with self.popen(*args) as process:
            stdout, stderr = process.communicate(timeout=timeout_s)
            assert process.returncode == code, f"{args}: {process.returncode}\n{stdout}\n{stderr}"
        return stdout

    def json(self, *args: str, code: int = 0, timeout_s: float = COMMAND_TIMEOUT_S) -> dict[str, Any]:
        """Run a command with ``--json``; return its stdout, which must be one object."""
        output = json.loads(self(*args, "--json", code=code, timeout_s=timeout_s))
        assert isinstance(output, dict)
        return output

    def down_all(self) -> None:
        for name in self._names:
            self("down", "--name", name)


class InstalledLab(NamedTuple):
    """A lab, our programs in it, and the administrator's client."""

    lab: Lab
    installation: Installation
    client: Client


@asynccontextmanager
async def installed_lab(name: str, topology: str = "four-zones", **options: Any) -> AsyncIterator[InstalledLab]:
    """Start a lab and install our programs, with the options of `lab.installation.install`."""
    with tempfile.TemporaryDirectory() as folder:
        async with Lab.start(load_topology(topology), name=name, components=COMPONENTS, folder=Path(folder)) as lab:
            installation = await install(lab, **options)
            async with Client(lab.client_config) as client:
                yield InstalledLab(lab, installation, client)


def list_leftovers(lab: dict[str, Any]) -> list[str]:
    """Return the leftovers of an ended lab with nodes; ``lab`` is the output of `lab up --json`.

    A lab of another test may take the free slot at once, and then has the same names. The bridge's alias says whose
    names they are.
    """
    deadline_s = time.monotonic() + SLOT_TIMEOUT_S
    slot = lab["nodes"][0]["netns"].split("-")[1]
    while True:
        owner = _find_owner(slot)
        names = _list_names(slot)
        if _find_owner(slot) == owner:
            break
        assert time.monotonic() < deadline_s, f"slot {slot} keeps changing its owner"
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
