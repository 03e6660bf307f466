"""The processes of a lab end with it, also if it starts or was killed, and no others."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.paths import lab_paths
from lab.programs import Programs
from lab.reclaim import reclaim

PARENT_WITH_CHILD = ["sh", "-c", "sleep 60 & echo started; wait"]


def lock_as_starting_lab(lock_file: Path, process: subprocess.Popen[bytes]) -> threading.Thread:
    """Lock the file, write the process' id a moment later, as a starting lab, and unlock it when the process ends."""
    lock = lock_file.open("a+")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def write_and_unlock() -> None:
        time.sleep(0.1)
        lock.truncate(0)
        lock.write(str(process.pid))
        lock.flush()
        process.wait()
        lock.close()

    thread = threading.Thread(target=write_and_unlock)
    thread.start()
    return thread


def test_down_waits_for_a_starting_lab_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lock_file = lab_paths("brief").lock
    lock_file.parent.mkdir(parents=True)
    killed_lab, starting_lab = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "60"])
    killed_lab.wait()
    lock_file.write_text(str(killed_lab.pid))  # a killed lab leaves its process id in the file
    thread = lock_as_starting_lab(lock_file, starting_lab)
    assert main(["down", "--name", "brief", "--json"]) == 0
    thread.join()
    assert json.loads(capsys.readouterr().out)["outcome"] == "ended"
    assert starting_lab.returncode == -signal.SIGTERM


def test_reclaim_kills_all_descendants_of_a_lab_and_no_other_process(tmp_path: Path) -> None:
    dead_lab, other_lab = lab_paths("dead", tmp_path), lab_paths("dead-2", tmp_path)
    dead_program, other_program = (
        Programs(paths.state_dir).start("parent", PARENT_WITH_CHILD) for paths in (dead_lab, other_lab)
    )
    while not (dead_program.log.read_text() and other_program.log.read_text()):
        time.sleep(0.02)
    assert reclaim(dead_lab) == 2, "the parent and its child"
    assert not dead_lab.state_dir.exists()
    assert dead_program.poll() == -signal.SIGKILL
    assert other_program.poll() is None
    assert reclaim(other_lab) == 2
    assert other_program.poll() == -signal.SIGKILL
