"""On real nodes: the fix commands of the first finding repair our programs after each of several faults."""

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
from tests.e2e.labs import LabCommand
from tests.e2e.real_cluster import MANIFESTS, NAMESPACE, Cluster, start_shipped_lab, wait_until
from tests.e2e.terminal import Terminal, summarize
from tests.unit.controller.situations import SITUATIONS

pytestmark = pytest.mark.real_nodes

THREE_NODES = """\
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
PLACEHOLDER_VALUES = {"dist/overlay": "manifests/overlays/default"}


@pytest.fixture
def cluster(
    tmp_path: Path, lab_command: LabCommand, node_binaries: NodeBinaries, images: Mapping[str, Path]
) -> Cluster:
    shipped_lab = start_shipped_lab(lab_command, tmp_path, THREE_NODES, images)
    for node in shipped_lab.lab["nodes"]:
        shipped_lab.run("annotate", "node", node["name"], "netaware.io/bandwidth-capacity=1G")
    shipped_lab.apply(MANIFESTS / "overlays" / "default")
    return shipped_lab


def list_pods(cluster: Cluster, name: str, node: str = "") -> list[dict[str, Any]]:
    selector = ["-l", f"app.kubernetes.io/name={name}"]
    selector += ["--field-selector", f"spec.nodeName={node}"] if node else []
    items: list[dict[str, Any]] = cluster.get("pods", "-n", NAMESPACE, *selector)["items"]
    return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


def find_pids(pods: Iterable[dict[str, Any]], words: tuple[str, ...]) -> list[int]:
    """Return the processes of these pods whose command has these words; the names of their cgroups contain the pod's UID."""
    uids = {pod["metadata"]["uid"].replace("-", form) for pod in pods for form in ("-", "_")}
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            group = (folder / "cgroup").read_text()
        except OSError:
            continue
        if set(words) <= set(command) and any(uid in group for uid in uids):
            pids.append(int(folder.name))
    return pids


def freeze(cluster: Cluster, name: str, *words: str, node: str = "") -> None:
    pids = find_pids(list_pods(cluster, name, node), words)
    assert pids, f"no process of {name} with {words}"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def scale(cluster: Cluster, name: str, replicas: int) -> None:
    cluster.run("-n", NAMESPACE, "scale", f"deployment/{name}", f"--replicas={replicas}")


def replace_pods(cluster: Cluster, name: str, container: dict[str, Any]) -> None:
    """Replace all pods of a Deployment by pods whose template has this change of a container."""
    scale(cluster, name, 0)
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}})
    cluster.run("-n", NAMESPACE, "patch", f"deployment/{name}", "--patch", patch)
    wait_until(lambda: not list_pods(cluster, name), f"the end of the pods of {name}")
    scale(cluster, name, 2)


MISSING_IMAGE = {"name": "controller", "image": "netaware-controller:is-not-there"}
UNKNOWN_FLAG = {"name": "kube-scheduler", "args": ["--no-such-flag"]}
FAULTS: dict[str, Callable[[Cluster], None]] = {
    "one agent has failed": lambda c: freeze(c, "netaware-agent", "agent", "run", node="e2e-l2"),
    # Both replicas, because one replica would take over from the other.
    "the controller hangs": lambda c: freeze(c, "netaware-controller", "controller", "manager"),
    "the controller's image cannot be pulled": lambda c: replace_pods(c, "netaware-controller", MISSING_IMAGE),
    "the scheduler crashes": lambda c: replace_pods(c, "netaware-scheduler", UNKNOWN_FLAG),
}
"""Name of a situation in tests/unit/controller/situations.py -> function that causes it."""
ALTERNATIVE_CODES = {"the controller hangs": "controller-down"}
"""Situation -> code that may be first instead, if a later cause joins."""


@pytest.mark.timeout(2400, func_only=True)
def test_the_fix_commands_of_the_first_finding_resolve_it(cluster: Cluster) -> None:
    terminal = Terminal(Path(cluster.lab["kubectl"]), Path(cluster.lab["kubeconfig"]))
    terminal.wait_for_findings(lambda findings: not findings, DEADLINE_S)
    codes = {situation.name: situation.code for situation in SITUATIONS}
    failed = []
    for name, cause in FAULTS.items():
        try:
            cause_and_resolve(terminal, cluster, cause, {codes[name], ALTERNATIVE_CODES.get(name, codes[name])})
            terminal.wait_for_findings(lambda findings: not findings, DEADLINE_S)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
            # The next fault needs programs that work.
            cluster.apply(MANIFESTS / "overlays" / "default")
    assert failed == []


def cause_and_resolve(terminal: Terminal, cluster: Cluster, cause: Callable[[Cluster], None], codes: set[str]) -> None:
    """Cause a fault, wait until one of the codes is first, and paste its fix commands until it is gone."""
    cause(cluster)
    findings = terminal.wait_for_findings(lambda findings: bool(findings) and findings[0]["code"] in codes, DEADLINE_S)
    assert terminal.read_findings("status")[0]["code"] in codes, "status names another cause"
    started, failures = time.monotonic(), []
    while True:
        failures += terminal.paste_fix_commands(findings[0]["fix"], PLACEHOLDER_VALUES)
        # The finding disappears some time after the repair; paste the commands again after half a minute.
        try:
            terminal.wait_for_findings(lambda findings: all(f["code"] not in codes for f in findings), 30)
            break
        except AssertionError:
            assert time.monotonic() - started < DEADLINE_S, f"not resolved: {summarize(findings)} {failures}"
            findings = terminal.read_findings() or findings
    # A second paste must do no harm; the caller waits until there are no findings.
    terminal.paste_fix_commands([line for line in findings[0]["fix"] if " rollout undo " in line], PLACEHOLDER_VALUES)
