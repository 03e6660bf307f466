"""On real nodes: our programs are broken as they break in clusters, and each time the lines of the first finding end it.

Nothing but the finding says what to paste.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.realnode.programs import NodeBinaries
from tests.e2e.real_cluster import MANIFESTS, NAMESPACE, Cluster, start_shipped_lab, wait_until
from tests.e2e.terminal import Terminal, summarize
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
CHOICES = {"dist/overlay": "manifests/overlays/default"}


@pytest.fixture
def cluster(tmp_path: Path, lab_command: Any, node_binaries: NodeBinaries, images: Mapping[str, Path]) -> Cluster:
    one = start_shipped_lab(lab_command, tmp_path, THREE, images)
    for node in one.lab["nodes"]:
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


def freeze(cluster: Cluster, name: str, *words: str, node: str = "") -> None:
    pids = processes(pods_of(cluster, name, node), words)
    assert pids, f"no process of {name} with {words}"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def scale(cluster: Cluster, name: str, replicas: int) -> None:
    cluster.run("-n", NAMESPACE, "scale", f"deployment/{name}", f"--replicas={replicas}")


def afresh(cluster: Cluster, name: str, container: dict[str, Any]) -> None:
    """All pods of a Deployment come from a template with this container."""
    scale(cluster, name, 0)
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}})
    cluster.run("-n", NAMESPACE, "patch", f"deployment/{name}", "--patch", patch)
    wait_until(lambda: not pods_of(cluster, name), f"no pod of {name}")
    scale(cluster, name, 2)


LOST = {"name": "controller", "image": "netaware-controller:is-not-there"}
CRASHING = {"name": "kube-scheduler", "args": ["--no-such-flag"]}
BROKEN: dict[str, Callable[[Cluster], None]] = {
    "one agent is dead": lambda c: freeze(c, "netaware-agent", "agent", "run", node="e2e-l2"),
    # Both replicas: of one alone the other takes over.
    "the controller is frozen": lambda c: freeze(c, "netaware-controller", "controller", "manager"),
    "the controller's image cannot be pulled": lambda c: afresh(c, "netaware-controller", LOST),
    "the scheduler crashes": lambda c: afresh(c, "netaware-scheduler", CRASHING),
}
"""Breaks our programs; keys are names of situations in tests/unit/controller/situations.py."""
ALSO = {"the controller is frozen": "controller-down"}
"""Codes that may come first instead, where a later cause joins."""


@pytest.mark.timeout(2400, func_only=True)
def test_the_lines_of_the_first_finding_end_it(cluster: Cluster) -> None:
    terminal = Terminal(Path(cluster.lab["kubectl"]), Path(cluster.lab["kubeconfig"]))
    terminal.wait_for_findings(lambda found: not found, DEADLINE_S)
    codes = {situation.name: situation.code for situation in SITUATIONS}
    failed = []
    for name, make in BROKEN.items():
        try:
            end(terminal, cluster, make, {codes[name], ALSO.get(name, codes[name])})
            terminal.wait_for_findings(lambda found: not found, DEADLINE_S)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
            # It must not hide what failed before.
            cluster.apply(MANIFESTS / "overlays" / "default")
    assert failed == []


def end(terminal: Terminal, cluster: Cluster, make: Callable[[Cluster], None], codes: set[str]) -> None:
    make(cluster)
    _, found = terminal.wait_for_findings(lambda found: bool(found) and found[0]["code"] in codes, DEADLINE_S)
    assert terminal.read_findings("status")[0]["code"] in codes, "status tells another cause"
    begun, said = time.monotonic(), []
    while True:
        said += terminal.paste_fix_commands(found[0]["fix"], CHOICES)
        # What is being mended is still told for a while; its lines are pasted once more at most every half minute.
        try:
            terminal.wait_for_findings(lambda found: all(f["code"] not in codes for f in found), 30)
            break
        except AssertionError:
            assert time.monotonic() - begun < DEADLINE_S, f"not ended: {summarize(found)} {said}"
            found = terminal.read_findings() or found
    # Somebody who is not sure pastes it once more; the caller waits until there is no finding.
    terminal.paste_fix_commands([line for line in found[0]["fix"] if " rollout undo " in line], CHOICES)
