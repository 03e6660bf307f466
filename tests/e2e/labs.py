"""Starts labs in temporary state directories, in the test's process or by ``python -m lab``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kubekit.client import Client
from lab.cluster import Lab
from lab.demo import COMPONENTS
from lab.installation import Installation, install
from lab.topology import load_topology

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 100


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

    def __call__(self, *args: str, code: int = 0) -> str:
        """Run a command that must end with ``code``; return its stdout."""
        with self.popen(*args) as process:
            stdout, stderr = process.communicate(timeout=COMMAND_TIMEOUT_S)
            assert process.returncode == code, f"{args}: {process.returncode}\n{stdout}\n{stderr}"
        return stdout

    def json(self, *args: str, code: int = 0) -> dict[str, Any]:
        """Run a command with ``--json``; return its stdout, which must be one object."""
        output = json.loads(self(*args, "--json", code=code))
        assert isinstance(output, dict)
        return output

    def down_all(self) -> None:
        """Stop every lab that was started."""
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
