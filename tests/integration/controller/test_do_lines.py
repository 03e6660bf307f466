"""What every finding says to paste is pasted: into a shell, with kubectl and our plugin on PATH, against the real API server.

The situations are those of tests/unit/controller/situations.py, and the objects that they name are made. What changes something is
asked for with ``--dry-run=server`` where kubectl has that; an editor that changes nothing stands in for a person's. No kubelet
runs, so of logs only the way to the pod is tried, and nothing has an earlier version.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from controller.cluster.volumes import VOLUMES
from controller.diagnosis.rules import diagnose
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import DEPLOYMENTS, NODES, PODS, Node, Object, Resource
from lab.controlplane import ControlPlane
from netperf.contract import AGENT, CONTROLLER, ZONE_LABEL
from tests.unit.controller.situations import GATE, SITUATIONS, Situation

ROOT = Path(__file__).parents[3]
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
SCHEDULER = "netaware-scheduler"
CHANGES = ("patch", "scale", "label", "uncordon", "apply", "delete", "annotate")
PROSE = re.compile(r"(?:open|look|correct|set|ask|add|raise|lower|let) ")
"""What somebody has to decide or to do elsewhere is said in words."""
ONLY_KUBELETS_KNOW = re.compile(
    r"does not have a host assigned|no preferred addresses|dial tcp|timed out waiting for the condition|no rollout history|for .--to-revision. flag"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def template(name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name}
    spec = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "none"}]}
    return {"metadata": {"labels": labels}, "spec": spec}


async def make(client: Client, resource: Resource, name: str, namespace: str | None, **body: Any) -> None:
    try:
        await client.create(
            resource, {**resource.type_meta, "metadata": {"name": name}, **body}, Object, namespace=namespace
        )
    except ApiError as error:
        if not error.already_exists:
            raise


async def the_world(client: Client, namespace: str) -> None:
    """Everything that a line of any situation names."""
    for resource, name in (
        (DEPLOYMENTS, CONTROLLER),
        (DEPLOYMENTS, SCHEDULER),
        (DEPLOYMENTS, "front"),
        (DAEMON_SETS, AGENT),
    ):
        selector = {"matchLabels": template(name)["metadata"]["labels"]}
        await make(client, resource, name, namespace, spec={"selector": selector, "template": template(name)})
    front = {"workload": {"kind": "Deployment", "name": "front", "selector": "front"}}
    spec = {"numMembers": 1, "topologySortingAlgorithm": "KahnSort", "workloads": [front]}
    await make(client, APPGROUPS, "shop", namespace, spec=spec)
    await make(client, NETWORK_TOPOLOGIES, "nt-default", namespace, spec={"configmapName": "netperf-metrics"})
    for name in ("front-1", "controller-0", "scheduler-0", "extender-0"):
        await make(client, PODS, name, namespace, spec=template(name)["spec"])
    for i in range(11):
        gated = template("gated")["spec"] | {"schedulingGates": [{"name": GATE}]}
        await make(client, PODS, f"p{i}", namespace, spec=gated)
    for i, name in enumerate(("n0", "n1", "n2", "n3", "n7")):
        labels = {} if name == "n7" else {ZONE_LABEL: f"z{i % 2}"}
        await client.create(NODES, {**NODES.type_meta, "metadata": {"name": name, "labels": labels}}, Node)
    # The DaemonSet's own pods wait for a scheduler; on this one the agent is.
    agent = {"metadata": {"name": "agent-n1", "labels": {"app.kubernetes.io/name": AGENT}}}
    await client.create(
        PODS, {**agent, "spec": {**template(AGENT)["spec"], "nodeName": "n1"}}, Object, namespace=namespace
    )
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "/nowhere"},
        "storageClassName": "none",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    await make(client, VOLUMES, f"volume-{namespace}", None, spec=volume)


async def away_with_it(client: Client, namespace: str) -> None:
    for name in ("n0", "n1", "n2", "n3", "n7"):
        await client.delete(NODES, name)
    await client.delete(VOLUMES, f"volume-{namespace}")


def as_here(line: str, namespace: str) -> str:
    """The line with this test's namespace for those of the situations, and a try for what changes something."""
    line = re.sub(r"-n (?:web|netaware-system)\b", f"-n {namespace}", line)
    line = line.replace(" NODE ", " n1 ").replace("=SPEED", "=10G")
    line = line.replace("namespace other ", f"namespace {namespace} ")
    if " rollout status " in line:
        # It waits until all pods are new, which without nodes that run them is never.
        return f"{line.partition(' --timeout')[0]} --timeout=1s"
    verb = line.removeprefix("kubectl ").removeprefix(f"-n {namespace} ").split()[0]
    return f"{line} --dry-run=server" if verb in CHANGES else line


async def paste(control_plane: ControlPlane, line: str) -> tuple[int, str]:
    environment = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "KUBE_EDITOR": "true", "NO_COLOR": "1"}
    environment["PATH"] = f"{control_plane.kubectl.parent}:{Path(sys.executable).parent}:{environment['PATH']}"
    process = await asyncio.create_subprocess_shell(
        line, env=environment, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, said.decode()


def lines_of(situation: Situation) -> list[str]:
    return [line for finding in diagnose(situation.facts) for line in finding.fix]


async def test_every_line_to_paste_can_be_pasted(
    client: Client, namespace: str, crds: list[str], control_plane: ControlPlane
) -> None:
    assert crds
    where: dict[str, str] = {}
    for situation in SITUATIONS:
        lines = lines_of(situation)
        assert lines[0].startswith("kubectl ") or PROSE.match(lines[0]), situation.name
        where |= dict.fromkeys(lines, situation.name)
    commands = [line for line in where if line.startswith("kubectl ")]
    assert [line for line in where if line not in commands and not PROSE.match(line)] == []
    await the_world(client, namespace)
    failed: list[tuple[str, ...]] = []
    few = asyncio.Semaphore(4)

    async def try_it(line: str) -> None:
        async with few:
            if "dist/overlay" in line:
                # Applied for real in tests/e2e/test_as_shipped.py; here its namespace is another's.
                code, said = await paste(control_plane, "kubectl kustomize manifests/overlays/default")
            else:
                code, said = await paste(control_plane, as_here(line, namespace))
        kubelets_part = re.search(r" (?:logs|rollout status|rollout undo) ", line) and (
            ONLY_KUBELETS_KNOW.search(said) or "| grep" in line
        )
        if code != 0 and not kubelets_part:
            failed.append((where[line], line, str(code), said[-300:]))

    try:
        await asyncio.gather(*map(try_it, commands))
    finally:
        await away_with_it(client, namespace)
    assert failed == []
    assert len(commands) > 40
