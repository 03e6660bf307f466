"""Labs for end-to-end tests: state directories of their own, so that nobody's running lab is touched, and no leftovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.errors import UnsupportedError
from lab.netperf_install import Missing, Netperf, find_or_fetch
from lab.network import require_privileges

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 100


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
    try:
        require_privileges()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def netperf_programs() -> Netperf:
    """Real netperf and netserver."""
    found = find_or_fetch()
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found
