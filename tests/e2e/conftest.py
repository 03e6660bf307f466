"""Labs for end-to-end tests: state directories of their own, so that no running lab is touched, and no leftovers."""

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
from lab.realnode.machine import check_machine
from lab.realnode.programs import NodeBinaries, find_or_build_node_binaries
from lab.shipped import find_or_build_images
from tests.support.unsupported import skip_if_unsupported

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 100
CAPACITY_TIMEOUT_S = 900.0


class LabCommand:
    """``python -m lab`` with a state directory of its own."""

    def __init__(self, state_home: Path) -> None:
        self.labs = state_home / "netaware" / "labs"
        self.env = {**os.environ, "XDG_STATE_HOME": str(state_home), "PYTHONPATH": str(ROOT)}
        self._names: set[str] = set()

    def popen(self, *args: str) -> subprocess.Popen[str]:
        """Start a command and do not wait for it."""
        if "--name" in args:
            self._names.add(args[args.index("--name") + 1])
        argv = [sys.executable, "-m", "lab", *args]
        # A test run that was started in the background ignores Ctrl-C, and so would its children.
        argv = ["env", "--default-signal=INT", *argv]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")

    def __call__(self, *args: str, code: int = 0) -> str:
        """Run a command that must end with ``code``; return its stdout."""
        with self.popen(*args) as process:
            stdout, stderr = process.communicate(timeout=COMMAND_TIMEOUT_S)
            assert process.returncode == code, f"{args}: {process.returncode}\n{stdout}\n{stderr}"
        return stdout

    def json(self, *args: str, code: int = 0) -> dict[str, Any]:
        """The same with ``--json``: stdout must be one object and nothing else."""
        answer = json.loads(self(*args, "--json", code=code))
        assert isinstance(answer, dict)
        return answer

    def down_all(self) -> None:
        """End every lab that was started."""
        for name in self._names:
            self("down", "--name", name)


@pytest.fixture
def lab_command(tmp_path: Path) -> Iterator[LabCommand]:
    """Run ``python -m lab``; labs that a test leaves running are ended after it."""
    command = LabCommand(tmp_path)
    yield command
    command.down_all()


@pytest.fixture
def privileges() -> None:
    """The right to make namespaces; without it the test is skipped and says what is missing."""
    skip_if_unsupported(require_privileges)


@pytest.fixture(scope="module")
def node_binaries() -> NodeBinaries:
    """Programs of real nodes. Modules of tests with real nodes run one after the other (tests.support.chains).

    Where the machine cannot have such nodes the test is skipped and says what is missing; where others use what nodes need it
    waits, so a test's own limit of time is for the function alone (``timeout(…, func_only=True)``).
    """
    skip_if_unsupported(require_privileges)
    programs = skip_if_unsupported(find_or_build_node_binaries)
    wait_for_capacity(programs)
    return programs


@pytest.fixture(scope="session")
def images() -> Mapping[str, Path]:
    """OCI layouts of the agent's and the controller's image, by name with its tag."""
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
