"""Fixtures of end-to-end tests: labs have temporary state directories, so that they do not touch a user's lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.errors import InsufficientCapacityError, UnsupportedError
from lab.network import require_privileges
from lab.pod_installation import find_or_build_images
from lab.realnode.machine import check_machine
from lab.realnode.programs import NodeBinaries, find_or_build_node_binaries
from tests.support.unsupported import skip_if_unsupported

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 100
CAPACITY_TIMEOUT_S = 900.0


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
        argv = [sys.executable, "-m", "lab", *args]
        # The children of a test run in the background would otherwise ignore Ctrl-C as it does.
        argv = ["env", "--default-signal=INT", *argv]
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


@pytest.fixture
def lab_command(tmp_path: Path) -> Iterator[LabCommand]:
    """Runs ``python -m lab``; stops labs that a test leaves running."""
    command = LabCommand(tmp_path)
    yield command
    command.down_all()


@pytest.fixture
def privileges() -> None:
    """Skips the test if this process lacks the privileges to create namespaces."""
    skip_if_unsupported(require_privileges)


@pytest.fixture(scope="module")
def node_binaries() -> NodeBinaries:
    """Programs of real nodes; skips the test if the machine cannot run real nodes, and waits for capacity.

    Because of the wait, timeouts of tests are for the function alone (``timeout(…, func_only=True)``).
    """
    skip_if_unsupported(require_privileges)
    programs = skip_if_unsupported(find_or_build_node_binaries)
    wait_for_capacity(programs)
    return programs


@pytest.fixture(scope="session")
def images() -> Mapping[str, Path]:
    """Image name with tag -> OCI layout, for agent and controller."""
    return skip_if_unsupported(find_or_build_images)


def wait_for_capacity(programs: NodeBinaries) -> None:
    """Wait until the machine has capacity for five nodes; fail after `CAPACITY_TIMEOUT_S`."""
    nft = programs.debian.find_program("nft")
    assert nft is not None
    deadline = time.monotonic() + CAPACITY_TIMEOUT_S
    while True:
        try:
            check_machine(programs.debian.environment, nft, node_count=5)
        except InsufficientCapacityError as error:
            if time.monotonic() > deadline:
                pytest.fail(str(error))
            time.sleep(3)
        except UnsupportedError as error:
            pytest.skip(str(error))
        else:
            return
