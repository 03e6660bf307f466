"""On real nodes: our programs are broken as they break in clusters, and each time the lines of the first finding end it.

Nothing but the finding says what to paste. All eleven take a quarter of an hour; a run of all tests tries three,
``NETAWARE_LINES=all`` the others too, and ``NETAWARE_LINES="the scheduler crashes"`` that one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.image_build import AGENT, CONTROLLER, find_or_build_image, version
from lab.realnode.images import ImageStore
from lab.realnode.programs import NodePrograms
from netperf.contract import PLAN_NAME_PREFIX
from tests.e2e.lines import Terminal, brief, note
from tests.e2e.real_cluster import MANIFESTS, NAMESPACE, Cluster, wait_until
from tests.unit.controller.situations import SITUATIONS

pytestmark = pytest.mark.real_nodes

THREE = """\
name: three
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: e2e-l1}, {name: e2e-l2}]}
      - {name: z2, nodes: [{name: e2e-l3}]}
links:
  - {between: [z1, z2], rtt: 2ms}
nodeDefaults: {kubelet: real, cpu: 2, memory: 4Gi}
"""
DEADLINE_S = 240.0
ALWAYS = ("one agent is dead", "the controller is frozen", "the controller's image cannot be pulled")
CHOICES = {"OVERLAY": "default"}


@dataclass
class Broken:
    """One situation.

    Attributes:
        name: as in tests/unit/controller/situations.py.
        make: breaks it, and tells for how many seconds it then looked on.
        also: codes that may come first instead, where a later cause joins.
    """

    name: str
    make: Callable[[Cluster], float | None]
    also: tuple[str, ...] = ()


@pytest.fixture
def cluster(tmp_path: Path, lab_command: Any, node_programs: NodePrograms) -> Cluster:
    file = tmp_path / "three.yaml"
    file.write_text(THREE)
    images = {recipe.name: find_or_build_image(recipe) for recipe in (AGENT, CONTROLLER)}
    lab = lab_command.json("up", "--name", "e2e-lines", "--topology", str(file))
    store = ImageStore(Path(lab["state_dir"]) / "registry")
    for name, layout in images.items():
        store.add_layout(f"{name}:{version()}", layout)
    one = Cluster(lab)
    for node in lab["nodes"]:
        one.run("annotate", "node", node["name"], "netaware.io/bandwidth-capacity=1G")
    one.apply(MANIFESTS / "overlays" / "default")
    return one


def pods_of(cluster: Cluster, name: str, node: str = "") -> list[dict[str, Any]]:
    selector = [
        "-l",
        f"app.kubernetes.io/name={name}",
        *(["--field-selector", f"spec.nodeName={node}"] if node else []),
    ]
    items: list[dict[str, Any]] = cluster.get("pods", "-n", NAMESPACE, *selector)["items"]
    return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


def processes(pods: Iterable[dict[str, Any]], words: tuple[str, ...]) -> list[int]:
    """Processes of these pods whose command has these words; a pod is told by its UID in the names of its cgroups."""
    uids = {pod["metadata"]["uid"].replace("-", form) for pod in pods for form in ("-", "_")}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            group = (folder / "cgroup").read_text()
        except OSError:
            continue
        if set(words) <= set(command) and any(uid in group for uid in uids):
            found.append(int(folder.name))
    return found


def freeze(cluster: Cluster, name: str, *words: str, nodes: Iterable[str] = ("",)) -> None:
    pids = [pid for node in nodes for pid in processes(pods_of(cluster, name, node), words)]
    assert pids, f"no process of {name} with {words}"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def unready(cluster: Cluster, node: str, *words: str) -> float:
    """Freeze the agent of a node, and note after how many seconds its kubelet says so."""
    freeze(cluster, "netaware-agent", *words, nodes=[node])
    begun = time.monotonic()
    (pod,) = pods_of(cluster, "netaware-agent", node)
    ready = ["-n", NAMESPACE, "get", "pod", pod["metadata"]["name"], "-o"]
    ready.append("jsonpath={.status.conditions[?(@.type=='Ready')].status}")
    wait_until(lambda: cluster.run(*ready) == "False", "a pod that is not ready")
    took_s = time.monotonic() - begun
    note("its pod is not ready", took_s, 0)
    return took_s


def scale(cluster: Cluster, name: str, replicas: int) -> None:
    cluster.run("-n", NAMESPACE, "scale", f"deployment/{name}", f"--replicas={replicas}")


def afresh(cluster: Cluster, name: str, container: dict[str, Any]) -> None:
    """All pods of a Deployment come from a template with this container."""
    scale(cluster, name, 0)
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}})
    cluster.run("-n", NAMESPACE, "patch", f"deployment/{name}", "--patch", patch)
    wait_until(lambda: not pods_of(cluster, name), f"no pod of {name}")
    scale(cluster, name, 2)


def away(cluster: Cluster) -> None:
    scale(cluster, "netaware-controller", 0)
    wait_until(lambda: not pods_of(cluster, "netaware-controller"), "no controller")


def cordoned(cluster: Cluster) -> None:
    cluster.run("cordon", *(node["name"] for node in cluster.lab["nodes"]))
    cluster.run("-n", NAMESPACE, "delete", "pods", "-l", "app.kubernetes.io/name=netaware-scheduler")


def no_topology(cluster: Cluster) -> None:
    cluster.run("-n", NAMESPACE, "delete", "networktopology", "--all")


def unplanned(cluster: Cluster) -> None:
    """The controller may not write ConfigMaps any more, and its plans are gone."""
    for kind in ("role", "clusterrole"):
        for role in cluster.get(kind, "-n", NAMESPACE)["items"]:
            kept = [rule for rule in role["rules"] or () if "configmaps" not in rule.get("resources", ())]
            if "netaware-controller" in role["metadata"]["name"] and len(kept) < len(role["rules"]):
                patch = json.dumps({"rules": kept})
                cluster.run("-n", NAMESPACE, "patch", kind, role["metadata"]["name"], "--type=merge", "-p", patch)
    names = cluster.run("-n", NAMESPACE, "get", "configmaps", "-o", "name").split()
    plans = [name for name in names if PLAN_NAME_PREFIX in name]
    assert plans, names
    cluster.run("-n", NAMESPACE, "delete", *plans)


def broken_ones(nodes: list[dict[str, Any]]) -> list[Broken]:
    everywhere = [node["name"] for node in nodes]
    lost = {"name": "controller", "image": "netaware-controller:is-not-there"}
    crashing = {"name": "kube-scheduler", "args": ["--no-such-flag"]}
    agent = ("agent", "run")
    return [
        Broken("one agent is dead", lambda c: unready(c, "e2e-l2", *agent)),
        Broken("both agents of a zone are frozen", lambda c: freeze(c, "netaware-agent", *agent, nodes=["e2e-l3"])),
        Broken(
            "no agent runs anywhere",
            lambda c: freeze(c, "netaware-agent", *agent, nodes=everywhere),
            ("zone-without-agent",),
        ),
        # Both replicas: of one alone the other takes over.
        Broken(
            "the controller is frozen",
            lambda c: freeze(c, "netaware-controller", "controller", "manager"),
            ("controller-down",),
        ),
        Broken("the controller is gone", away),
        Broken("the controller's image cannot be pulled", lambda c: afresh(c, "netaware-controller", lost)),
        Broken("the scheduler crashes", lambda c: afresh(c, "netaware-scheduler", crashing)),
        Broken("the extender does not answer", lambda c: freeze(c, "netaware-scheduler", "controller", "extender")),
        Broken("the scheduler has no node to run on", cordoned),
        Broken("the NetworkTopology was deleted", no_topology),
        Broken("nobody is told what to measure", unplanned),
    ]


@pytest.mark.timeout(2400, func_only=True)
def test_the_lines_of_the_first_finding_end_it(cluster: Cluster) -> None:
    terminal = Terminal(Path(cluster.lab["kubectl"]), Path(cluster.lab["kubeconfig"]))
    terminal.until(lambda found: not found, DEADLINE_S)
    codes = {situation.name: situation.code for situation in SITUATIONS}
    failed = []
    asked = os.environ.get("NETAWARE_LINES", "")
    for broken in broken_ones(cluster.lab["nodes"]):
        if asked != "all" and broken.name not in ([asked] if asked else ALWAYS):
            continue
        try:
            end(terminal, cluster, broken, codes[broken.name])
            terminal.until(lambda found: not found, DEADLINE_S)
        except AssertionError as error:
            failed.append(f"{broken.name}: {error}")
            if not mended(terminal, cluster):
                failed.append("and it cannot be mended by the overlay either, so that nothing more was tried")
                break
    assert failed == []


def mended(terminal: Terminal, cluster: Cluster) -> bool:
    """Whether the overlay, applied again, ends everything. It must not hide what failed before."""
    try:
        cluster.apply(MANIFESTS / "overlays" / "default")
        terminal.until(lambda found: not found, DEADLINE_S)
    except (AssertionError, subprocess.TimeoutExpired):
        return False
    return True


def end(terminal: Terminal, cluster: Cluster, broken: Broken, code: str) -> None:
    looked_s = broken.make(cluster) or 0.0
    expected = {code, *broken.also}
    named_s, found = terminal.until(lambda found: bool(found) and found[0]["code"] in expected, DEADLINE_S)
    assert terminal.findings("status")[0]["code"] in expected, "status tells another cause"
    begun, said = time.monotonic(), []
    while True:
        said += terminal.follow(found[0]["fix"], CHOICES)
        # What is being mended is still told for a while; its lines are pasted once more at most every half minute.
        try:
            terminal.until(lambda found: not expected.intersection(f["code"] for f in found), 30)
            break
        except AssertionError:
            assert time.monotonic() - begun < DEADLINE_S, f"not ended: {brief(found)} {said}"
            found = terminal.findings() or found
    note(broken.name, looked_s + named_s, time.monotonic() - begun)
    # Somebody who is not sure pastes it once more; the caller waits until there is no finding.
    terminal.follow([line for line in found[0]["fix"] if " rollout undo " in line], CHOICES)
