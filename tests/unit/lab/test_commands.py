"""Commands of the lab name the option, field or program in errors, and down ends a starting lab."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kubekit.errors import ConfigError
from lab.__main__ import main
from lab.errors import BootError
from lab.paths import lab_paths
from lab.programs import run_command


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


@pytest.mark.parametrize("name", ["", "Lab", "../lab", "a" * 33, "-a", "a b"])
def test_an_invalid_lab_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        lab_paths(name)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--delay", "soon"], "--delay"),
        (["--jitter", "3"], "--jitter"),
        (["--loss", "2"], "--loss"),
        ([], "--delay"),
    ],
)
def test_an_invalid_change_of_a_link_is_an_error_with_the_option(
    options: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wan", "set", "z1", "z2", *options]) == 2
    assert option in capsys.readouterr().err


def test_up_with_an_invalid_topology_prints_one_line_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nregions: []\nfoo: 1\n")
    assert main(["up", "--topology", str(file)]) == 2
    output = capsys.readouterr()
    assert output.err == f"error: {file}: foo: is not a field of this section (remove it, or check its spelling)\n"
    assert output.out == ""
    assert list(tmp_path.iterdir()) == [file], "nothing was started"


@pytest.mark.parametrize(
    ("script", "timeout_s", "message"),
    [("echo no such place; exit 3", 10, "no such place"), ("exec sleep 60", 0.1, "no end after 0 s")],
)
async def test_a_failed_command_is_an_error_with_its_output(script: str, timeout_s: float, message: str) -> None:
    with pytest.raises(BootError, match=f"greeting: {message}"):
        await run_command(["sh", "-c", script], "greeting", timeout_s)


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
