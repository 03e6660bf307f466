"""Records of processes: only the very process that was recorded counts, whatever happened to its pid since."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.pids import LAB_VARIABLE, PidRecord, find_marked, is_alive, kill_all, read_records, start_ticks


def proc_with(folder: Path, pid: int, command: str, state: str, ticks: int) -> Path:
    entry = folder / str(pid)
    entry.mkdir()
    fields = [state, *["0"] * 18, str(ticks), *["0"] * 20]
    (entry / "stat").write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    return folder


@pytest.mark.parametrize("command", ["etcd", "with space", "odd) R 1 2 (name", ")"])
def test_the_start_is_found_behind_any_command_name(tmp_path: Path, command: str) -> None:
    assert start_ticks(42, proc_with(tmp_path, 42, command, "S", 777)) == 777


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, 42, "somebody else", "S", 900)
    assert is_alive(PidRecord("etcd", 42, 900), proc)
    assert not is_alive(PidRecord("etcd", 42, 777), proc)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_corpse_is_not_alive(tmp_path: Path, state: str) -> None:
    assert not is_alive(PidRecord("etcd", 42, 777), proc_with(tmp_path, 42, "etcd", state, 777))


def test_records_are_written_and_read_back_and_rubbish_is_left_out(tmp_path: Path) -> None:
    record = PidRecord("kube-apiserver", 4242, 99)
    record.write(tmp_path)
    (tmp_path / "torn.pid").write_text("12")
    (tmp_path / "odd.pid").write_text("one two")
    assert read_records(tmp_path) == [record]
    assert read_records(tmp_path / "absent") == []


def test_only_marked_processes_are_found_and_killed(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with (
        subprocess.Popen(sleep, env={LAB_VARIABLE: str(tmp_path)}, stdout=subprocess.PIPE) as ours,
        subprocess.Popen(sleep, env={LAB_VARIABLE: f"{tmp_path}-other"}, stdout=subprocess.PIPE) as other,
    ):
        for process in (ours, other):
            assert process.stdout is not None
            process.stdout.readline()
        found = find_marked(tmp_path)
        assert [record.pid for record in found] == [ours.pid]
        stale = PidRecord("stale", other.pid, 1)
        assert kill_all([*found, stale]) == 1
        assert ours.wait(5) == -9
        assert other.poll() is None
        other.kill()


def replacing_its_program(folder: Path) -> Path:
    """The kernel shows neither arguments nor environment between the end of the old program and the start of the new one."""
    proc = proc_with(folder, 42, "sleep", "R", 777)
    for name in ("environ", "cmdline"):
        (proc / "42" / name).write_bytes(b"")
    (proc / "42" / "exe").symlink_to("/bin/sleep")
    return proc


@pytest.mark.parametrize("arguments", [b"", b"sleep\0"])
def test_a_process_that_is_replacing_its_program_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: bytes
) -> None:
    environ = replacing_its_program(tmp_path) / "42" / "environ"
    # The new program may have begun between the look at its environment and that at its arguments.
    (tmp_path / "42" / "cmdline").write_bytes(arguments)
    monkeypatch.setattr("time.sleep", lambda _: environ.write_bytes(f"{LAB_VARIABLE}=/here\0".encode()))
    assert find_marked(Path("/here"), tmp_path) == [PidRecord("marked", 42, 777)]
