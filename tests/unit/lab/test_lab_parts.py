"""Small rules of the lab: names, locks, arguments of commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kubekit.errors import ConfigError
from lab.__main__ import main
from lab.build import find_or_build
from lab.errors import BootError, BuildError, LabError
from lab.programs import Programs, run_to_end
from lab.reclaim import hold, holder, place_of, reclaim
from lab.topology import load


@pytest.mark.parametrize("name", ["", "Lab", "../lab", "a" * 33, "-a", "a b"])
def test_a_name_that_could_leave_its_directory_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        place_of(name)


def test_one_lab_per_name_and_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    place = place_of("one", tmp_path)
    code = (
        "import sys,time; from pathlib import Path; from lab.reclaim import *\n"
        f"with hold(place_of('one', Path({str(tmp_path)!r}))): print('held', flush=True); time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert holder(place) == other.pid
        with pytest.raises(LabError, match="a lab named one is running"), hold(place):
            pass
        other.kill()
    assert holder(place) is None
    with hold(place):
        assert place.lock.read_text() == str(os.getpid())
    assert not place.lock.exists()


def test_reclaim_ends_the_lab_with_its_childrens_children_and_no_other_process(tmp_path: Path) -> None:
    place = place_of("dead", tmp_path)
    programs, others = Programs(place.state_dir), Programs(tmp_path / "dead-2")
    words = ["sh", "-c", "sleep 60 & echo started; wait"]
    started = [owner.start("parent", words) for owner in (programs, others)]
    while not all(program.log.read_text() for program in started):
        time.sleep(0.02)
    assert (reclaim(place), place.state_dir.exists()) == (2, False)
    assert [program.poll() for program in started] == [-9, None]
    assert reclaim(place_of("dead-2", tmp_path)) == 2
    assert started[1].poll() == -9


def test_assets_that_are_no_directory_are_an_error_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "absent"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="KUBEBUILDER_ASSETS"):
        find_or_build()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--delay", "soon"], "--delay"),
        (["--delay", "1h"], "--delay"),
        (["--jitter", "3"], "--jitter"),
        (["--loss", "2"], "--loss"),
        ([], "--delay"),
    ],
)
def test_a_wan_change_that_cannot_be_names_its_option(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wan", "set", "z1", "z2", *words]) == 2
    assert named in capsys.readouterr().err


def test_up_reports_a_running_lab_only_if_its_nodes_are_those_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    topology = load("kubecon")
    nodes = [{"name": n.name, "zone": n.zone, "region": n.region, "kubelet": n.kubelet} for n in topology.nodes]
    place = place_of("lab")
    with hold(place):
        place.description.parent.mkdir(parents=True, exist_ok=True)
        place.description.write_text(json.dumps({"topology": topology.name, "nodes": nodes, "addresses": {}}))
        assert main(["up", "--topology", "kubecon", "--nodes", "real"]) == 1
    assert "other nodes or kubelets" in capsys.readouterr().err


def test_a_wrong_topology_is_one_line_exit_code_2_and_nothing_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nregions: []\nfoo: 1\n")
    assert main(["up", "--topology", str(file)]) == 2
    said = capsys.readouterr()
    assert said.err == f"error: {file}: foo: is no field of this section (remove it, or check its spelling)\n"
    assert said.out == ""
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("script", "timeout_s", "said"),
    [("echo no such place; exit 3", 10, "no such place"), ("exec sleep 60", 0.1, "no end after 0 s")],
)
async def test_failed_command_is_an_error_with_its_output(script: str, timeout_s: float, said: str) -> None:
    with pytest.raises(BootError, match=f"greeting: {said}"):
        await run_to_end(["sh", "-c", script], "greeting", timeout_s)
