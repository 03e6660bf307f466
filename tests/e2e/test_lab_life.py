"""Commands start, find, stop and clean up labs, also two at once, and after a kill, an interrupt or the end of a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lab import namespaces
from lab.processes import find_processes
from tests.e2e.labs import LabCommand
from tests.e2e.leftovers import leftovers_of
from tests.e2e.real_cluster import Cluster, wait_until

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


def state_of(command: LabCommand, name: str) -> str:
    with command.popen("status", "--name", name, "--json") as process:
        stdout, _ = process.communicate(timeout=30)
    return str(json.loads(stdout)["state"])


@pytest.mark.usefixtures("require_lab_privileges")
def test_up_starts_a_cluster_with_ready_nodes_and_down_removes_it(lab_command: LabCommand) -> None:
    lab = lab_command.json("up", "--name", "e2e-life")
    assert [node["name"] for node in lab["nodes"]] == [f"n{i}" for i in range(1, 9)]
    assert lab["zones"] == ["z1", "z2", "z3", "z4"]
    nodes = {node["metadata"]["name"]: node for node in Cluster(lab).get("nodes")["items"]}
    for node in lab["nodes"]:
        api_node = nodes[node["name"]]
        assert api_node["metadata"]["labels"]["topology.kubernetes.io/zone"] == node["zone"]
        assert api_node["metadata"]["labels"]["topology.kubernetes.io/region"] == node["region"]
        assert {"type": "InternalIP", "address": node["address"]} in api_node["status"]["addresses"]
        assert "taints" not in api_node["spec"]
        assert node["netns"] in namespaces.list_names()
    Cluster(lab).run("create", "deployment", "web", "--image=none", "--replicas=4")
    wait_until(lambda: [p["status"]["phase"] for p in Cluster(lab).get("pods")["items"]] == ["Running"] * 4, "4 pods")

    enter = ["nsenter", f"--net=/run/netns/{lab['nodes'][5]['netns']}", lab["kubectl"]]
    argv = [*enter, "--kubeconfig", lab["kubeconfig"], "get", "--raw", "/readyz"]
    assert subprocess.run(argv, check=True, capture_output=True, timeout=30).stdout == b"ok"

    assert lab_command.json("up", "--name", "e2e-life") == lab
    status = lab_command.json("status", "--name", "e2e-life")
    assert status["state"] == "running"
    assert all(program["alive"] and program["rss_bytes"] > 0 for program in status["programs"])
    assert len(status["wan"]["links"]) == 10
    assert lab_command.json("down", "--name", "e2e-life")["outcome"] == "ended"
    assert leftovers_of(lab) == []
    assert lab_command.json("status", "--name", "e2e-life", code=3)["state"] == "absent"
    assert lab_command.json("down", "--name", "e2e-life")["outcome"] == "absent"


@pytest.mark.chaos
@pytest.mark.usefixtures("require_lab_privileges")
def test_two_labs_run_side_by_side_and_down_stops_one(lab_command: LabCommand, small: str) -> None:
    first = lab_command.json("up", "--name", "e2e-one", "--topology", small)
    second = lab_command.json("up", "--name", "e2e-two", "--topology", small)
    assert first["server"] != second["server"]
    for key in ("netns", "address", "management_address"):
        assert not {n[key] for n in first["nodes"]} & {n[key] for n in second["nodes"]}
    Cluster(first).run("create", "namespace", "only-in-one")
    names = [item["metadata"]["name"] for item in Cluster(second).get("namespaces")["items"]]
    assert "only-in-one" not in names
    lab_command("wan", "set", "--name", "e2e-one", "z1", "z2", "--delay", "9ms")
    links_by_lab = [lab_command.json("wan", "show", "--name", n)["links"] for n in ("e2e-one", "e2e-two")]
    delays = [next(link["rtt_us"] for link in links if len(set(link["zones"])) == 2) for links in links_by_lab]
    assert delays == [9000.0, 3000.0]
    lab_command("down", "--name", "e2e-one")
    assert leftovers_of(first) == []
    assert len(Cluster(second).get("nodes")["items"]) == 2


@pytest.mark.chaos
@pytest.mark.usefixtures("require_lab_privileges")
@pytest.mark.parametrize("next_command", ["up", "down"])
def test_the_next_command_cleans_up_a_killed_lab(lab_command: LabCommand, small: str, next_command: str) -> None:
    lab = lab_command.json("up", "--name", "e2e-killed", "--topology", small)
    os.kill(lab["pid"], signal.SIGKILL)
    wait_until(lambda: state_of(lab_command, "e2e-killed") == "killed", "the end of the lab")
    assert set(namespaces.list_names()) >= {node["netns"] for node in lab["nodes"]}
    if next_command == "up":
        new_lab = lab_command.json("up", "--name", "e2e-killed", "--topology", small)
        assert new_lab["pid"] != lab["pid"]
        assert len(Cluster(new_lab).get("nodes")["items"]) == 2
        assert all(process.pid not in lab["programs"].values() for process in find_processes(Path(lab["state_dir"])))
    else:
        assert lab_command.json("down", "--name", "e2e-killed")["outcome"] == "cleaned up"
        assert leftovers_of(lab) == []


def test_a_lab_without_nodes_goes_on_when_a_program_ends_and_reports_it(lab_command: LabCommand, small: str) -> None:
    lab = lab_command.json("up", "--name", "e2e-none", "--topology", "none")
    assert (lab["nodes"], lab["topology"]) == ([], None)
    assert Cluster(lab).get("nodes")["items"] == []
    assert lab["server"].startswith("https://127.0.0.1:")
    with lab_command.popen("up", "--name", "e2e-none", "--topology", small) as process:
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "runs with topology none" in stderr
    os.kill(lab["programs"]["kube-scheduler"], signal.SIGKILL)

    def ended_programs() -> list[str]:
        status = lab_command.json("status", "--name", "e2e-none")
        assert status["state"] == "running"
        return [program["name"] for program in status["programs"] if not program["alive"]]

    wait_until(lambda: ended_programs() == ["kube-scheduler"], "the end of kube-scheduler")
    assert Cluster(lab).get("namespaces")["items"], "the kubeconfig works"
    log = lab_command.labs / "e2e-none.log"
    wait_until(lambda: "a program ended" in log.read_text(), "a line in the log")


@pytest.mark.chaos
@pytest.mark.usefixtures("require_lab_privileges")
def test_an_interrupted_start_leaves_nothing(lab_command: LabCommand, small: str) -> None:
    with lab_command.popen("up", "--name", "e2e-ctrl-c", "--topology", small) as process:
        wait_until((lab_command.labs / "e2e-ctrl-c" / "logs").exists, "its programs", every_s=0.05)
        assert [name for name in namespaces.list_names() if name.endswith("-e2e-west")]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not [name for name in namespaces.list_names() if name.endswith("-e2e-west")]
    assert find_processes(lab_command.labs / "e2e-ctrl-c") == []
    assert not (lab_command.labs / "e2e-ctrl-c").exists()
