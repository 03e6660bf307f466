"""On real nodes: the fix commands of the first finding repair our programs after each of several faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
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
DEADLINE_S, REPEAT_S = 240.0, 30.0
DEFAULT_OVERLAY = MANIFESTS / "overlays" / "default"
PLACEHOLDER_VALUES = {"dist/overlay": "manifests/overlays/default"}


@pytest.fixture
def cluster(
    tmp_path: Path, lab_command: LabCommand, node_binaries: NodeBinaries, images: Mapping[str, Path]
) -> Cluster:
    shipped_lab = start_shipped_lab(lab_command, tmp_path, THREE_NODES, images)
    for node in shipped_lab.lab["nodes"]:
        shipped_lab.run("annotate", "node", node["name"], "netaware.io/bandwidth-capacity=1G")
    shipped_lab.apply_overlay(DEFAULT_OVERLAY)
    return shipped_lab


def list_pods(cluster: Cluster, name: str, *options: str) -> list[dict[str, Any]]:
    return cluster.list_pods("-n", NAMESPACE, "-l", f"app.kubernetes.io/name={name}", *options)


def freeze(pods: list[dict[str, Any]], *words: str) -> None:
    """Stop the processes of these pods whose command has these words; their cgroups' names contain the pod's UID."""
    uids = {pod["metadata"]["uid"].replace("-", separator) for pod in pods for separator in ("-", "_")}
    frozen_pids = []
    for process in psutil.process_iter():
        try:
            cgroup = Path(f"/proc/{process.pid}/cgroup").read_text()
            if set(words) <= set(process.cmdline()) and any(uid in cgroup for uid in uids):
                process.suspend()
                frozen_pids.append(process.pid)
        except (psutil.Error, OSError):
            continue  # the process has ended
    assert frozen_pids, f"no process with {words}"


def freeze_agent(cluster: Cluster) -> None:
    freeze(list_pods(cluster, "netaware-agent", "--field-selector", "spec.nodeName=e2e-l2"), "agent", "run")


def freeze_controllers(cluster: Cluster) -> None:
    """Freeze both replicas, because one replica would take over from the other."""
    freeze(list_pods(cluster, "netaware-controller"), "controller", "manager")


def replace_pods(name: str, container: dict[str, Any], cluster: Cluster) -> None:
    """Replace all pods of a Deployment by pods whose template has this change of a container."""
    scale = ("-n", NAMESPACE, "scale", f"deployment/{name}")
    cluster.run(*scale, "--replicas=0")
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}})
    cluster.run("-n", NAMESPACE, "patch", f"deployment/{name}", "--patch", patch)
    wait_until(lambda: not list_pods(cluster, name), f"the end of the pods of {name}")
    cluster.run(*scale, "--replicas=2")


MISSING_IMAGE = {"name": "controller", "image": "netaware-controller:is-not-there"}
UNKNOWN_FLAG = {"name": "kube-scheduler", "args": ["--no-such-flag"]}
CAUSES: dict[str, Callable[[Cluster], None]] = {
    "one agent has failed": freeze_agent,
    "the controller hangs": freeze_controllers,
    "the controller's image cannot be pulled": partial(replace_pods, "netaware-controller", MISSING_IMAGE),
    "the scheduler crashes": partial(replace_pods, "netaware-scheduler", UNKNOWN_FLAG),
}
"""Name of a situation in tests/unit/controller/situations.py -> function that causes it."""
ALTERNATIVE_CODES = {"the controller hangs": "controller-down"}
"""Situation -> code that may be first instead, if a later cause joins."""


def cause_and_resolve(terminal: Terminal, cluster: Cluster, cause: Callable[[Cluster], None], codes: set[str]) -> None:
    """Cause a fault, wait until one of the codes is first, and paste its fix commands until it is gone."""
    cause(cluster)
    findings = terminal.wait_for_findings(lambda findings: bool(findings) and findings[0]["code"] in codes, DEADLINE_S)
    assert terminal.read_findings("status")[0]["code"] in codes, "status names another cause"
    started_s, failed_commands = time.monotonic(), []
    while True:
        failed_commands += terminal.paste_fix_commands(findings[0]["fix"], PLACEHOLDER_VALUES)
        # The finding disappears some time after the repair; the commands are pasted again after `REPEAT_S`.
        try:
            terminal.wait_for_findings(lambda findings: all(f["code"] not in codes for f in findings), REPEAT_S)
            break
        except AssertionError:
            assert time.monotonic() - started_s < DEADLINE_S, f"not resolved: {summarize(findings)} {failed_commands}"
            findings = terminal.read_findings() or findings
    # A second paste must do no harm; the caller waits until there are no findings.
    terminal.paste_fix_commands([line for line in findings[0]["fix"] if " rollout undo " in line], PLACEHOLDER_VALUES)


@pytest.mark.timeout(2400, func_only=True)
def test_the_fix_commands_of_the_first_finding_resolve_it(cluster: Cluster) -> None:
    terminal = Terminal(Path(cluster.lab["kubectl"]), Path(cluster.lab["kubeconfig"]))
    terminal.wait_for_findings(lambda findings: not findings, DEADLINE_S)
    codes = {situation.name: situation.code for situation in SITUATIONS}
    failures = []
    for name, cause in CAUSES.items():
        try:
            cause_and_resolve(terminal, cluster, cause, {codes[name], ALTERNATIVE_CODES.get(name, codes[name])})
            terminal.wait_for_findings(lambda findings: not findings, DEADLINE_S)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
            # The next fault needs programs that work.
            cluster.apply_overlay(DEFAULT_OVERLAY)
    assert failures == []
