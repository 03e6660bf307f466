"""A lab's life: up, found again, down; two at once; killed and cleaned up; interrupted and failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab import namespaces
from lab.processes import find_processes
from tests.e2e.leftovers import leftovers_of
from tests.e2e.real_cluster import Cluster, wait_until

Command = Any  # the fixture of conftest.py, which importlib mode does not let us import

SMALL = """\
name: small
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: e2e-west, cpu: 2}]}
      - {name: z2, nodes: [{name: e2e-east}]}
links:
  - {between: [z1, z2], rtt: 3ms}
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return str(file)


def state_of(command: Command, name: str) -> str:
    with command.popen("status", "--name", name, "--json") as process:
        stdout, _ = process.communicate(timeout=30)
    return str(json.loads(stdout)["state"])


@pytest.mark.usefixtures("privileges")
def test_up_gives_a_cluster_whose_nodes_are_ready_and_down_leaves_nothing(lab_command: Command) -> None:
    lab = lab_command.json("up", "--name", "e2e-life")
    assert [node["name"] for node in lab["nodes"]] == [f"n{i}" for i in range(1, 9)]
    assert lab["zones"] == ["z1", "z2", "z3", "z4"]
    nodes = {node["metadata"]["name"]: node for node in Cluster(lab).get("nodes")["items"]}
    for node in lab["nodes"]:
        seen = nodes[node["name"]]
        assert seen["metadata"]["labels"]["topology.kubernetes.io/zone"] == node["zone"]
        assert seen["metadata"]["labels"]["topology.kubernetes.io/region"] == node["region"]
        assert {"type": "InternalIP", "address": node["address"]} in seen["status"]["addresses"]
        assert "taints" not in seen["spec"]
        assert node["netns"] in namespaces.list_names()
    Cluster(lab).run("create", "deployment", "web", "--image=none", "--replicas=4")
    wait_until(lambda: [p["status"]["phase"] for p in Cluster(lab).get("pods")["items"]] == ["Running"] * 4, "4 pods")

    inside = ["nsenter", f"--net=/run/netns/{lab['nodes'][5]['netns']}", lab["kubectl"]]
    argv = [*inside, "--kubeconfig", lab["kubeconfig"], "get", "--raw", "/readyz"]
    assert subprocess.run(argv, check=True, capture_output=True, timeout=30).stdout == b"ok"

    again = lab_command.json("up", "--name", "e2e-life")
    assert again == lab
    status = lab_command.json("status", "--name", "e2e-life")
    assert status["state"] == "running"
    assert all(program["alive"] and program["rss_bytes"] > 0 for program in status["programs"])
    assert len(status["wan"]["links"]) == 10
    assert lab_command.json("down", "--name", "e2e-life")["outcome"] == "ended"
    assert leftovers_of(lab) == []
    assert lab_command.json("status", "--name", "e2e-life", code=3)["state"] == "absent"
    assert lab_command.json("down", "--name", "e2e-life")["outcome"] == "absent"


@pytest.mark.chaos
@pytest.mark.usefixtures("privileges")
def test_two_labs_run_side_by_side_and_end_one_by_one(lab_command: Command, small: str) -> None:
    one = lab_command.json("up", "--name", "e2e-one", "--topology", small)
    two = lab_command.json("up", "--name", "e2e-two", "--topology", small)
    assert one["server"] != two["server"]
    for key in ("netns", "address", "management_address"):
        assert not {n[key] for n in one["nodes"]} & {n[key] for n in two["nodes"]}
    Cluster(one).run("create", "namespace", "only-in-one")
    names = [item["metadata"]["name"] for item in Cluster(two).get("namespaces")["items"]]
    assert "only-in-one" not in names
    lab_command("wan", "set", "--name", "e2e-one", "z1", "z2", "--delay", "9ms")
    shown = [lab_command.json("wan", "show", "--name", n)["links"] for n in ("e2e-one", "e2e-two")]
    delays = [next(link["rtt_us"] for link in links if len(set(link["zones"])) == 2) for links in shown]
    assert delays == [9000.0, 3000.0]
    lab_command("down", "--name", "e2e-one")
    assert leftovers_of(one) == []
    assert len(Cluster(two).get("nodes")["items"]) == 2


@pytest.mark.chaos
@pytest.mark.usefixtures("privileges")
@pytest.mark.parametrize("cure", ["up", "down"])
def test_a_lab_that_was_killed_is_cleaned_up_by_the_next_command(lab_command: Command, small: str, cure: str) -> None:
    lab = lab_command.json("up", "--name", "e2e-killed", "--topology", small)
    os.kill(lab["pid"], signal.SIGKILL)
    wait_until(lambda: state_of(lab_command, "e2e-killed") == "killed", "the end of the lab")
    assert set(namespaces.list_names()) >= {node["netns"] for node in lab["nodes"]}
    if cure == "up":
        fresh = lab_command.json("up", "--name", "e2e-killed", "--topology", small)
        assert fresh["pid"] != lab["pid"]
        assert len(Cluster(fresh).get("nodes")["items"]) == 2
        assert all(process.pid not in lab["programs"].values() for process in find_processes(Path(lab["state_dir"])))
    else:
        assert lab_command.json("down", "--name", "e2e-killed")["outcome"] == "cleaned up"
        assert leftovers_of(lab) == []


def test_a_control_plane_without_nodes_outlives_its_programs_and_reports_which_ended(
    lab_command: Command, small: str
) -> None:
    lab = lab_command.json("up", "--name", "e2e-none", "--topology", "none")
    assert (lab["nodes"], lab["topology"]) == ([], None)
    assert Cluster(lab).get("nodes")["items"] == []
    assert lab["server"].startswith("https://127.0.0.1:")
    with lab_command.popen("up", "--name", "e2e-none", "--topology", small) as process:
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "runs with topology none" in stderr
    os.kill(lab["programs"]["kube-scheduler"], signal.SIGKILL)

    def ended() -> list[str]:
        status = lab_command.json("status", "--name", "e2e-none")
        assert status["state"] == "running"
        return [program["name"] for program in status["programs"] if not program["alive"]]

    wait_until(lambda: ended() == ["kube-scheduler"], "the end of kube-scheduler")
    assert Cluster(lab).get("namespaces")["items"], "the kubeconfig works"
    log = lab_command.labs / "e2e-none.log"
    wait_until(lambda: "a program ended" in log.read_text(), "a line in the log")


@pytest.mark.chaos
@pytest.mark.usefixtures("privileges")
def test_an_interrupted_start_leaves_nothing(lab_command: Command, small: str) -> None:
    with lab_command.popen("up", "--name", "e2e-ctrl-c", "--topology", small) as process:
        wait_until((lab_command.labs / "e2e-ctrl-c" / "logs").exists, "its programs", every_s=0.05)
        assert [name for name in namespaces.list_names() if name.endswith("-e2e-west")]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not [name for name in namespaces.list_names() if name.endswith("-e2e-west")]
    assert find_processes(lab_command.labs / "e2e-ctrl-c") == []
    assert not (lab_command.labs / "e2e-ctrl-c").exists()
