"""Small rules of the lab: names and addresses, places, locks, apt sources, versions, the scheduler's configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kubekit.errors import ConfigError
from lab.__main__ import main
from lab.apt import Source, read_sources, with_components
from lab.build import find_or_build
from lab.errors import BootError, BuildError, LabError
from lab.network import bridge_name, plan_network
from lab.nodes import build_node
from lab.programs import Programs, run_to_end
from lab.reclaim import hold, holder, place_of, reclaim
from lab.topology import load


def test_two_slots_share_no_name_and_no_address() -> None:
    nodes = load("kubecon").nodes
    first, second = plan_network(0, nodes), plan_network(1, nodes)

    def everything(slot: int) -> set[str]:
        network = (first, second)[slot]
        names = {text for n in network.nodes for text in (n.netns, n.address, n.management_address)}
        return names | {network.gateway, bridge_name(slot)}

    assert not everything(0) & everything(1)
    assert len(everything(0)) == 3 * len(nodes) + 2


def test_a_node_has_its_zone_address_and_capacity() -> None:
    node = build_node(plan_network(0, load("kubecon").nodes).nodes[0], "lab")
    assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z1"
    assert node["status"]["capacity"] == node["status"]["allocatable"]
    assert node["status"]["addresses"][0] == {"type": "InternalIP", "address": "198.19.0.10"}


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


def test_reclaiming_ends_recorded_and_marked_processes_and_the_directory(tmp_path: Path) -> None:
    place = place_of("dead", tmp_path)
    place.state_dir.mkdir()
    # What is left of a lab that was killed: a program, and a child that the program started and nobody recorded.
    programs = Programs(place.state_dir)
    code = "import subprocess,time; subprocess.Popen(['sleep','61']); print('x',flush=True); time.sleep(60)"
    program = programs.start("parent", [sys.executable, "-c", code])
    waiting = threading.Event()
    while not program.log.read_text():
        assert not waiting.wait(0.02)
    assert reclaim(place) == 2
    assert not place.state_dir.exists()
    assert program.poll() == -9


DEB822 = """\
# comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://vendor.example/
Suites: stable
Components: main
Enabled: no
"""


def test_apt_sources_are_read_in_both_styles(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "sources.list").write_text(
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/ubuntu noble main restricted # comment\n"
        "deb-src http://mirror.example/ubuntu noble main\n# deb http://off.example noble main\n"
    )
    ubuntu, debian = read_sources(tmp_path)
    assert ubuntu == Source("http://mirror.example/ubuntu", ("noble",), ("main", "restricted"), "/k.gpg")
    suites = ("trixie", "trixie-updates")
    assert debian == Source("http://mirror.example/debian", suites, ("main",), "/usr/share/keyrings/archive.gpg")
    assert with_components([debian], ("main", "non-free"))[0].components == ("main", "non-free")


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


async def test_stdout_of_a_command_is_returned_without_stderr() -> None:
    words = ["sh", "-c", 'echo "$GREETING"; echo noise >&2']
    assert await run_to_end(words, "greeting", 10, env={"GREETING": "hello"}) == b"hello\n"


@pytest.mark.parametrize("stream", ["1", "2"])
async def test_a_failed_command_is_an_error_with_its_output(stream: str) -> None:
    with pytest.raises(BootError, match="greeting: no such place"):
        await run_to_end(["sh", "-c", f"echo no such place >&{stream}; exit 3"], "greeting", 10)


async def test_a_command_that_does_not_end_is_killed() -> None:
    with pytest.raises(BootError, match="greeting: no end after 0 s"):
        await run_to_end(["sleep", "60"], "greeting", 0.1)
