"""An application on real nodes that nobody described: agents count its connections, Prometheus keeps them, `propose` says what it is.

Nodes have real kubelets, containerd and kube-proxy; the calls are real. Agents run as programs in their nodes' namespaces.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from lab import boutique, namespaces
from lab.cluster import Lab
from lab.controlplane import credentials_of
from lab.programs import run_to_end
from lab.realnode.cluster import APP_IMAGE
from lab.realnode.programs import NodePrograms
from lab.shipped import await_rollout
from lab.topology import load
from tests.support.prometheus_server import start_prometheus
from tests.support.tools.builds import PROMETHEUS, find_or_build_tools

MANIFESTS = Path(__file__).parents[2] / "manifests"
TOPOLOGY = """\
name: traffic
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: traffic-a}]}
      - {name: z2, nodes: [{name: traffic-b}]}
  - name: r2
    zones:
      - {name: z3, nodes: [{name: traffic-c}]}
links:
  - {between: [z1, z2], rtt: 2ms}
  - {between: [z1, z3], rtt: 10ms}
  - {between: [z2, z3], rtt: 10ms}
nodeDefaults: {kubelet: real, cpu: 2, memory: 4Gi}
"""
NAMESPACE = "shop"
ANSWER_BYTES = 20_000
RATE = 4
WARM_UP_S, WINDOW_S, LONG_S = 90, 180, 900
pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(1100, func_only=True)]


async def test_propose_describes_an_application_that_nobody_described(
    tmp_path: Path, node_programs: NodePrograms
) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    prometheus_program = (await asyncio.to_thread(find_or_build_tools, PROMETHEUS))["prometheus"]
    async with Lab.start(load(str(file)), name="e2e-traffic") as lab:
        await lab.control_plane.run_kubectl("apply", "--server-side", "-k", str(MANIFESTS / "crds"))
        for node in lab.nodes:
            setting = [*namespaces.entering(node.netns), "sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1"]
            await run_to_end(setting, "counting of bytes", 30)
            lab.spawn(node.node.name, _agent(lab, node.node.name, node.address), f"agent-{node.node.name}")
        targets = [f"{node.address}:9850" for node in lab.nodes]
        url = await start_prometheus(lab, prometheus_program, {"netaware-agent": targets})
        application = boutique.made_to_run(boutique.load(scheduler="default-scheduler", cpu="50m"), APP_IMAGE)
        address = await deploy(lab, application, tmp_path)
        # Longer than any question takes: whoever asks after the end of the load asks about something else.
        words = ["load", f"--url=http://{address}/", f"--rate={RATE}", f"--duration={LONG_S}s"]
        calls = lab.spawn(lab.nodes[0].node.name, [node_programs.app, *words], "load", essential=False)
        await asyncio.sleep(WARM_UP_S + WINDOW_S)
        window = f"--window={WINDOW_S // 60}m"
        proposed = await ask(lab, url, "propose", "-n", NAMESPACE, window)
        assert not calls.failed
        await lab.programs.stop(calls)
        applied = await ask(lab, url, "propose", "-n", NAMESPACE, "--apply", "--yes", window, timeout_s=400)
    found = [dependency for proposal in proposed["proposals"] for dependency in proposal["dependencies"]]
    edges = {(d["client"].partition("/")[2], d["server"].partition("/")[2]) for d in found}
    assert edges == {(d.origin, d.destination) for d in application.dependencies}
    assert all(d["direction_known"] for d in found)
    # Every edge carries an answer of that size for each request; rates of counters are read a little low.
    assert all(d["min_bandwidth_bps"] >= 0.8 * 8 * RATE * ANSWER_BYTES for d in found)
    (gain,) = proposed["gains"]
    assert gain["planned"]["latencyUs"] <= gain["now"]["latencyUs"]
    assert applied["applied"]


def _agent(lab: Lab, node: str, address: str) -> list[str | Path]:
    argv: list[str | Path] = [sys.executable, "-m", "agent", "run", f"--node-name={node}"]
    argv += [
        f"--credentials={credentials_of(lab.control_plane.kubeconfig)}",
        f"--listen={address}:9850",
        "--traffic=conntrack",
    ]
    return [*argv, "--probing=off", "--bandwidth=off"]


async def deploy(lab: Lab, application: boutique.Application, folder: Path) -> str:
    """Without labels of ours and without an AppGroup; the address of the frontend's Service."""
    await lab.control_plane.run_kubectl("create", "namespace", NAMESPACE)
    documents = list(application.services.values())
    for deployment in application.deployments.values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        for label in (APPGROUP_LABEL, WORKLOAD_LABEL):
            del labels[label]
        deployment["spec"]["template"]["spec"]["containers"][0]["args"].append(f"--answer={ANSWER_BYTES}")
        documents.append(deployment)
    file = folder / "application.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    await lab.control_plane.run_kubectl("-n", NAMESPACE, "apply", "-f", str(file))
    await await_rollout(lab, NAMESPACE)
    return (
        await lab.control_plane.run_kubectl(
            "-n", NAMESPACE, "get", "service", "frontend", "-o", "jsonpath={.spec.clusterIP}"
        )
    ).strip()


async def ask(lab: Lab, url: str, *words: str, timeout_s: float = 60) -> Any:
    argv = [*words, f"--prometheus={url}", f"--kubeconfig={lab.control_plane.kubeconfig}", "-o", "json"]
    argv = [sys.executable, "-c", "import sys; from controller.cli import main; sys.exit(main())", *argv]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
