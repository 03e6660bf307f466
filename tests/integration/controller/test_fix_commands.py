"""The fix commands of all findings run in a shell, on a real API server with the objects that they name."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from controller.cluster.volumes import VOLUMES
from controller.diagnosis.diagnose import diagnose
from kubekit.client import Client
from kubekit.wire import DEPLOYMENTS, PODS, Object, Resource
from lab.controlplane import ControlPlane
from netperf.contract import AGENT, CONTROLLER
from tests.integration.conftest import CreateNode
from tests.unit.controller.cluster_facts import GATE
from tests.unit.controller.situations import SITUATIONS

ROOT = Path(__file__).parents[3]
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
SCHEDULER = "netaware-scheduler"
CHANGING_VERBS = ("patch", "scale", "label", "uncordon", "apply", "delete", "annotate")
INSTRUCTION = re.compile(r"(?:open|look|correct|set|ask|add|raise|lower|let|use) ")
"""A fix in words, for a person."""
KUBELET_ERROR = re.compile(
    r"does not have a host assigned|no preferred addresses|dial tcp|timed out waiting for the condition"
    r"|no rollout history|for .--to-revision. flag"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def make_pod_template(name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name}
    spec = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "none"}]}
    return {"metadata": {"labels": labels}, "spec": spec}


async def create_objects(client: Client, namespace: str, create_node: CreateNode) -> None:
    """Create the objects that the commands name."""

    async def create(resource: Resource, name: str, spec: dict[str, Any], labels: Any = None) -> None:
        body = {**resource.type_meta, "metadata": {"name": name, "labels": labels}, "spec": spec}
        await client.create(resource, body, Object, namespace=namespace)

    kinds = {CONTROLLER: DEPLOYMENTS, SCHEDULER: DEPLOYMENTS, "front": DEPLOYMENTS, AGENT: DAEMON_SETS}
    for name, resource in kinds.items():
        template = make_pod_template(name)
        labels = template["metadata"]["labels"]
        labels["owned"] = "true"  # else the DaemonSet adopts agent-n1, and replaces it
        await create(resource, name, {"selector": {"matchLabels": labels}, "template": template})
    front = {"workload": {"kind": "Deployment", "name": "front", "selector": "front"}}
    await create(APPGROUPS, "shop", {"numMembers": 1, "topologySortingAlgorithm": "KahnSort", "workloads": [front]})
    await create(NETWORK_TOPOLOGIES, "nt-default", {"configmapName": "netperf-metrics"})
    for name in ("front-1", "controller-0", "scheduler-0", "extender-0"):
        await create(PODS, name, make_pod_template(name)["spec"])
    for i in range(11):
        await create(PODS, f"p{i}", make_pod_template("gated")["spec"] | {"schedulingGates": [{"name": GATE}]})
    for i, name in enumerate(("n0", "n1", "n2", "n3", "n7")):
        await create_node(name, zone="" if name == "n7" else f"z{i % 2}")
    # The DaemonSet's pods stay pending without a scheduler, so n1 gets an agent here.
    agent = make_pod_template(AGENT)
    await create(PODS, "agent-n1", {**agent["spec"], "nodeName": "n1"}, agent["metadata"]["labels"])
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "/nowhere"},
        "storageClassName": "none",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    await create(VOLUMES, f"volume-{namespace}", volume)


def adapt_command(line: str, namespace: str) -> str:
    """The command for this test's namespace, as a dry run if it changes something."""
    if "dist/overlay" in line:
        # The overlay's namespace is not the test's, so it is only rendered; tests/e2e/test_as_shipped.py applies it.
        return "kubectl kustomize manifests/overlays/default"
    line = re.sub(r"-n (?:web|netaware-system)\b", f"-n {namespace}", line)
    line = line.replace(" NODE ", " n1 ").replace("=SPEED", "=10G")
    line = line.replace("namespace other ", f"namespace {namespace} ")
    if " rollout status " in line:
        # Without kubelets, the rollout never ends.
        return f"{line.partition(' --timeout')[0]} --timeout=1s"
    verb = line.removeprefix("kubectl ").removeprefix(f"-n {namespace} ").split()[0]
    return f"{line} --dry-run=server" if verb in CHANGING_VERBS else line


def is_kubelet_error(line: str, output: str) -> bool:
    """Whether a command fails only because no kubelet runs; if grep filters logs, it hides the error."""
    needs_kubelet = re.search(r" (?:logs|rollout status|rollout undo) ", line)
    return bool(needs_kubelet and (KUBELET_ERROR.search(output) or "| grep" in line))


async def run_in_shell(control_plane: ControlPlane, line: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    environment = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "KUBE_EDITOR": "true", "NO_COLOR": "1"}
    environment["PATH"] = f"{control_plane.kubectl.parent}:{Path(sys.executable).parent}:{environment['PATH']}"
    process = await asyncio.create_subprocess_shell(
        line, env=environment, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, output.decode()


async def test_every_fix_command_runs_in_a_shell(
    client: Client, namespace: str, crds: list[str], control_plane: ControlPlane, create_node: CreateNode
) -> None:
    situation_by_line: dict[str, str] = {}
    for situation in SITUATIONS:
        lines = [line for finding in diagnose(situation.facts) for line in finding.fix]
        assert lines, situation.name
        situation_by_line |= dict.fromkeys(lines, situation.name)
    commands = [line for line in situation_by_line if line.startswith("kubectl ")]
    assert len(commands) > 40, "the situations have fixes, so the list is not empty by mistake"
    assert [line for line in situation_by_line if line not in commands and not INSTRUCTION.match(line)] == []

    await create_objects(client, namespace, create_node)
    failures: list[tuple[object, ...]] = []
    limiter = asyncio.Semaphore(4)

    async def run_fix(line: str) -> None:
        async with limiter:
            code, output = await run_in_shell(control_plane, adapt_command(line, namespace))
        if code != 0 and not is_kubelet_error(line, output):
            failures.append((situation_by_line[line], line, code, output[-300:]))

    try:
        await asyncio.gather(*map(run_fix, commands))
    finally:
        await client.delete(VOLUMES, f"volume-{namespace}")
    assert failures == []
