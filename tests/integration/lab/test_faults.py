"""Programs of a lab that are broken: whoever asked finds them broken, however busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.faults import Faults
from lab.pids import LAB_VARIABLE, record_of
from lab.reclaim import LabPlace
from tests.integration.netperf.peers import cpu_group

BUSY = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print("busy", flush=True)
while True:
    pass
"""


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "killed"])
def test_a_program_that_waits_for_a_processor_is_broken_when_strike_returns(tmp_path: Path, *, freeze: bool) -> None:
    place = LabPlace("busy", tmp_path / "busy")
    place.state_dir.mkdir()
    # A fiftieth of a processor: a signal waits for up to a tenth of a second.
    with cpu_group(quota_ratio=0.02) as group:
        for _ in range(3):
            command = [sys.executable, "-c", BUSY, str(group)]
            environment = {LAB_VARIABLE: str(place.state_dir)}
            with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, env=environment) as process:
                try:
                    assert process.stdout is not None
                    process.stdout.readline()
                    record = record_of("program", process.pid)
                    assert record is not None
                    record.write(place.state_dir / "pids")
                    faults = Faults(place)
                    faults.strike(["program"], freeze=freeze)
                    broken = faults.now
                    assert (broken.frozen if freeze else broken.ended) == ("program",)
                finally:
                    process.kill()
