"""Rules of the lab: names, locks, arguments of commands, fingerprints of images."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kubekit.errors import ConfigError
from lab.__main__ import main
from lab.build import find_or_build_programs
from lab.debian import find_or_unpack_packages
from lab.errors import BootError, BuildError, UnsupportedError
from lab.image_build import ImageRecipe, fingerprint_recipe
from lab.paths import lab_paths
from lab.programs import Programs, run_command
from lab.reclaim import reclaim

# Stand-ins for Debian's tools: a download creates a package, whose only content is its root folder.
APT_GET = """#!/bin/sh
case "$*" in *download*) echo "$@" >> "$DOWNLOADS"; sleep 0.1; touch tool.deb;; esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3"
"""


@pytest.mark.parametrize("name", ["", "Lab", "../lab", "a" * 33, "-a", "a b"])
def test_an_invalid_lab_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        lab_paths(name)


def test_down_waits_for_a_starting_lab_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    paths, killed, lab = lab_paths("brief"), subprocess.Popen(["true"]), subprocess.Popen(["sleep", "60"])
    killed.wait()
    paths.lock.parent.mkdir(parents=True)
    # A killed lab leaves its process id in the file.
    paths.lock.write_text(str(killed.pid))
    lock = paths.lock.open("a+")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def start_and_end() -> None:
        time.sleep(0.1)
        lock.truncate(0)
        lock.write(str(lab.pid))
        lock.flush()
        lab.wait()
        lock.close()

    thread = threading.Thread(target=start_and_end)
    thread.start()
    assert main(["down", "--name", "brief", "--json"]) == 0
    thread.join()
    assert json.loads(capsys.readouterr().out)["outcome"] == "ended"
    assert lab.returncode == -signal.SIGTERM


def test_reclaim_kills_all_descendants_of_a_lab_and_no_other_process(tmp_path: Path) -> None:
    paths = lab_paths("dead", tmp_path)
    programs, others = Programs(paths.state_dir), Programs(tmp_path / "dead-2")
    command = ["sh", "-c", "sleep 60 & echo started; wait"]
    started = [owner.start("parent", command) for owner in (programs, others)]
    while not all(program.log.read_text() for program in started):
        time.sleep(0.02)
    assert (reclaim(paths), paths.state_dir.exists()) == (2, False)
    assert [program.poll() for program in started] == [-9, None]
    assert reclaim(lab_paths("dead-2", tmp_path)) == 2
    assert started[1].poll() == -9


def test_a_wrong_folder_of_prebuilt_programs_is_an_error_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "absent"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="KUBEBUILDER_ASSETS"):
        find_or_build_programs()


def test_cached_packages_whose_programs_do_not_run_are_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "netaware" / "debian" / "tools"
    folder.mkdir(parents=True)
    (folder / ".complete").write_text("nft")
    monkeypatch.setenv("PATH", "")
    assert find_or_unpack_packages("tools", ["nft"]).root == folder
    with pytest.raises(UnsupportedError, match="apt-get"):
        find_or_unpack_packages("tools", ["nft"], programs=["usr/sbin/nft"])


def test_two_processes_that_need_the_same_packages_fetch_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (("apt-get", APT_GET), ("dpkg", DPKG)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    downloads = tmp_path / "downloads"
    for variable, value in (("PATH", f"{tmp_path}:{os.environ['PATH']}"), ("DOWNLOADS", str(downloads))):
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor() as executor:
        futures = [executor.submit(find_or_unpack_packages, "tools", ["nft"]) for _ in range(2)]
    assert all(future.result().root.is_dir() for future in futures)
    assert len(downloads.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--delay", "soon"], "--delay"),
        (["--delay", "1h"], "--delay"),
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
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("script", "timeout_s", "message"),
    [("echo no such place; exit 3", 10, "no such place"), ("exec sleep 60", 0.1, "no end after 0 s")],
)
async def test_a_failed_command_is_an_error_with_its_output(script: str, timeout_s: float, message: str) -> None:
    with pytest.raises(BootError, match=f"greeting: {message}"):
        await run_command(["sh", "-c", script], "greeting", timeout_s)


def test_the_fingerprint_changes_with_files_that_the_dockerfile_copies(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a AS b\nCOPY one two/ ./\nFROM c\nCOPY --from=b /x /x\n")
    (tmp_path / "two" / "__pycache__").mkdir(parents=True)
    (tmp_path / "one").write_text("1")
    (tmp_path / "two" / "code.py").write_text("2")
    recipe = ImageRecipe("image", "Dockerfile", tmp_path)
    assert recipe.sources == ("one", "two")
    before = fingerprint_recipe(recipe)
    (tmp_path / "two" / "__pycache__" / "code.pyc").write_text("compiled")
    (tmp_path / "three").write_text("3")
    assert fingerprint_recipe(recipe) == before
    (tmp_path / "two" / "code.py").write_text("changed")
    assert fingerprint_recipe(recipe) != before
