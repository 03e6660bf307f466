"""Commands start, find, stop and clean up labs, also without privileges, and after a kill, an interrupt or an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab import namespaces
from lab.programs import find_processes
from tests.e2e.labs import LabCommand, list_leftovers
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
DROP_PRIVILEGES = ["setpriv", "--bounding-set=-net_admin,-sys_admin", "--"]
UNPRIVILEGED = DROP_PRIVILEGES if os.geteuid() == 0 else []
"""Prefix of commands that run without privileges."""


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return str(file)


@pytest.fixture
def user_namespaces() -> None:
    """Skips the test if a process without privileges may not create a user namespace here."""
    code = "from lab.unprivileged import plan_launch; plan_launch(['true'], {})"
    result = subprocess.run([*UNPRIVILEGED, sys.executable, "-c", code], check=False, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip(result.stderr.strip().splitlines()[-1])


def run_lab(command: LabCommand, *args: str, prefix: list[str]) -> subprocess.CompletedProcess[str]:
    argv = [*prefix, sys.executable, "-m", "lab", *args]
    return subprocess.run(argv, check=False, capture_output=True, text=True, env=command.env, timeout=100)


def read_state(command: LabCommand, name: str) -> str:
    """The state in the output of `status`, whose exit code depends on it."""
    with command.popen("status", "--name", name, "--json") as process:
        stdout, _ = process.communicate(timeout=30)
    return str(json.loads(stdout)["state"])


def read_rtt_us(command: LabCommand, name: str) -> float:
    """The round trip between z1 and z2 in a lab."""
    links = command.json("wan", "show", "--name", name)["links"]
    return float(next(link["rtt_us"] for link in links if link["zones"] == ["z1", "z2"]))


def list_ended_programs(command: LabCommand, name: str) -> list[str]:
    """Programs of a running lab that have ended."""
    status = command.json("status", "--name", name)
    assert status["state"] == "running"
    return [program["name"] for program in status["programs"] if not program["alive"]]


@pytest.mark.usefixtures("require_lab_privileges")
def test_up_starts_a_cluster_with_ready_nodes_and_down_removes_it(lab_command: LabCommand) -> None:
    lab = lab_command.json("up", "--name", "e2e-life")
    assert [node["name"] for node in lab["nodes"]] == [f"n{i}" for i in range(1, 9)]
    assert lab["zones"] == ["z1", "z2", "z3", "z4"]
    cluster = Cluster(lab)
    api_node_by_name = {node["metadata"]["name"]: node for node in cluster.get("nodes")["items"]}
    for node in lab["nodes"]:
        api_node = api_node_by_name[node["name"]]
        assert api_node["metadata"]["labels"]["topology.kubernetes.io/zone"] == node["zone"]
        assert api_node["metadata"]["labels"]["topology.kubernetes.io/region"] == node["region"]
        assert {"type": "InternalIP", "address": node["address"]} in api_node["status"]["addresses"]
        assert "taints" not in api_node["spec"]
        assert node["netns"] in namespaces.list_names()
    assert lab_command.json("up", "--name", "e2e-life") == lab

    cluster.run("create", "deployment", "web", "--image=none", "--replicas=4")
    wait_until(lambda: [pod["status"]["phase"] for pod in cluster.list_pods()] == ["Running"] * 4, "4 pods")
    kubectl = [*lab["nodes"][5]["enter_command"], lab["kubectl"], "--kubeconfig", lab["kubeconfig"]]
    ready = subprocess.run([*kubectl, "get", "--raw", "/readyz"], check=True, capture_output=True, timeout=30)
    assert ready.stdout == b"ok"

    status = lab_command.json("status", "--name", "e2e-life")
    assert status["state"] == "running"
    assert all(program["alive"] and program["rss_bytes"] > 0 for program in status["programs"])
    assert len(status["wan"]["links"]) == 10, "6 pairs of zones, and 4 zones"

    assert lab_command.json("down", "--name", "e2e-life")["outcome"] == "ended"
    assert list_leftovers(lab) == []
    assert lab_command.json("status", "--name", "e2e-life", code=3)["state"] == "absent"
    assert lab_command.json("down", "--name", "e2e-life")["outcome"] == "absent"


@pytest.mark.chaos
@pytest.mark.usefixtures("require_lab_privileges")
def test_two_labs_run_side_by_side_and_down_stops_one(lab_command: LabCommand, small: str) -> None:
    lab_one = lab_command.json("up", "--name", "e2e-one", "--topology", small)
    lab_two = lab_command.json("up", "--name", "e2e-two", "--topology", small)
    assert lab_one["server"] != lab_two["server"]
    for key in ("netns", "address", "management_address"):
        assert {node[key] for node in lab_one["nodes"]}.isdisjoint(node[key] for node in lab_two["nodes"])
    Cluster(lab_one).run("create", "namespace", "only-in-one")
    assert "only-in-one" not in Cluster(lab_two).run("get", "namespaces")
    lab_command("wan", "set", "--name", "e2e-one", "z1", "z2", "--delay", "9ms")
    assert read_rtt_us(lab_command, "e2e-one") == 9000
    assert read_rtt_us(lab_command, "e2e-two") == 3000

    lab_command("down", "--name", "e2e-one")

    assert list_leftovers(lab_one) == []
    assert len(Cluster(lab_two).get("nodes")["items"]) == 2


@pytest.mark.chaos
@pytest.mark.usefixtures("require_lab_privileges")
@pytest.mark.parametrize("next_command", ["up", "down"])
def test_the_next_command_cleans_up_a_killed_lab(lab_command: LabCommand, small: str, next_command: str) -> None:
    lab = lab_command.json("up", "--name", "e2e-killed", "--topology", small)
    os.kill(lab["pid"], signal.SIGKILL)
    wait_until(lambda: read_state(lab_command, "e2e-killed") == "killed", "the end of the lab")
    assert set(namespaces.list_names()) >= {node["netns"] for node in lab["nodes"]}
    if next_command == "up":
        new_lab = lab_command.json("up", "--name", "e2e-killed", "--topology", small)
        assert new_lab["pid"] != lab["pid"]
        assert len(Cluster(new_lab).get("nodes")["items"]) == 2
        assert all(process.pid not in lab["programs"].values() for process in find_processes(Path(lab["state_dir"])))
    else:
        assert lab_command.json("down", "--name", "e2e-killed")["outcome"] == "cleaned up"
        assert list_leftovers(lab) == []


def test_a_lab_without_nodes_goes_on_when_a_program_ends_and_reports_it(lab_command: LabCommand, small: str) -> None:
    lab = lab_command.json("up", "--name", "e2e-none", "--topology", "none")
    assert lab["nodes"] == []
    assert lab["topology"] is None
    assert Cluster(lab).get("nodes")["items"] == []
    assert lab["server"].startswith("https://127.0.0.1:")
    with lab_command.popen("up", "--name", "e2e-none", "--topology", small) as process:
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "runs with topology none" in stderr

    os.kill(lab["programs"]["kube-scheduler"], signal.SIGKILL)

    wait_until(lambda: list_ended_programs(lab_command, "e2e-none") == ["kube-scheduler"], "the end of kube-scheduler")
    assert Cluster(lab).get("namespaces")["items"], "the kubeconfig works"
    log = lab_command.labs / "e2e-none.log"
    wait_until(lambda: "a program ended" in log.read_text(), "a line in the log")


@pytest.mark.chaos
@pytest.mark.usefixtures("require_lab_privileges")
def test_an_interrupted_start_leaves_nothing(lab_command: LabCommand, small: str) -> None:
    with lab_command.popen("up", "--name", "e2e-ctrl-c", "--topology", small) as process:
        state_dir = lab_command.labs / "e2e-ctrl-c"
        wait_until((state_dir / "logs").exists, "its programs", every_s=0.05)
        assert [name for name in namespaces.list_names() if name.endswith("-e2e-west")]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not [name for name in namespaces.list_names() if name.endswith("-e2e-west")]
    assert find_processes(state_dir) == []
    assert not state_dir.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("user_namespaces")
def test_the_host_reaches_a_lab_in_a_user_namespace(lab_command: LabCommand) -> None:
    up = run_lab(lab_command, "up", "--name", "e2e-userns", "--json", prefix=UNPRIVILEGED)
    try:
        assert up.returncode == 0, up.stderr
        lab = json.loads(up.stdout)
        assert lab["server"].startswith("https://127.0.0.1:")
        node_names = Cluster(lab).run("get", "nodes", "-o", "name").split()
        assert node_names == [f"node/n{i}" for i in range(1, 9)]
        ls = [*lab["enter_command"], "ls", "/run/netns"]
        netns_names = subprocess.run(ls, check=True, capture_output=True, text=True, timeout=30).stdout.split()
        assert netns_names == [node["netns"] for node in lab["nodes"]]
        lab_command("wan", "set", "--name", "e2e-userns", "z1", "z2", "--delay", "4ms")
    finally:
        lab_command("down", "--name", "e2e-userns")
    assert not list(lab_command.labs.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="takes rights away, which only root has")
def test_without_user_namespaces_the_error_names_the_missing_privilege_and_the_alternative(
    lab_command: LabCommand,
) -> None:
    # In a chroot the kernel refuses new user namespaces, as hardened systems do.
    jail = ["unshare", "--mount", "--", "sh", "-c", 'mkdir -p "$0" && mount --rbind / "$0" && exec chroot "$0" "$@"']
    prefix = [*jail, str(lab_command.labs.parent / "jail"), *DROP_PRIVILEGES]
    failed = run_lab(lab_command, "up", "--name", "e2e-refused", prefix=prefix)
    assert failed.returncode == 1
    assert "nodes need the right to create network namespaces" in failed.stderr
    assert "user namespaces" in failed.stderr
    assert "`--topology none` still runs the control plane alone" in failed.stderr
    assert not lab_command.labs.exists()
