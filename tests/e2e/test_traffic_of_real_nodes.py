"""An application on real nodes that nobody described: agents count its connections, Prometheus keeps them, `propose` says what it is.

Nodes have real kubelets, containerd and kube-proxy; the calls are real. What really passed is counted packet by packet by a set
of nftables on each node, which knows nothing of connections. Agents run as programs in their nodes' namespaces.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from lab import boutique
from lab.cluster import Lab
from lab.controlplane import credentials_of
from lab.realnode.cluster import APP_IMAGE
from lab.realnode.programs import NodePrograms
from lab.shipped import await_rollout
from lab.topology import load
from tests.support.packet_count import counted, on_node, start_counting
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
COUNT_EVERY_S = 5
PRICES = "currency: EUR\nbetweenZones: 0.02\nbetweenRegions: 0.05\n"
pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(1100, func_only=True)]


async def test_propose_and_money_of_an_application_that_nobody_described(
    tmp_path: Path, node_programs: NodePrograms
) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    prometheus_program = (await asyncio.to_thread(find_or_build_tools, PROMETHEUS))["prometheus"]
    topology = load(str(file))
    async with Lab.start(topology, name="e2e-traffic") as lab:
        await lab.control_plane.run_kubectl("apply", "--server-side", "-k", str(MANIFESTS / "crds"))
        for node in lab.nodes:
            on_node(node.netns, "sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1")
            start_counting(node_programs, node.netns)
            lab.spawn(node.node.name, _agent(lab, node.node.name, node.address), f"agent-{node.node.name}")
        targets = [f"{node.address}:9850" for node in lab.nodes]
        url = await start_prometheus(lab, prometheus_program, {"netaware-agent": targets})
        application = boutique.made_to_run(boutique.load(scheduler="default-scheduler", cpu="50m"), APP_IMAGE)
        address = await deploy(lab, application, tmp_path)
        frontend = lab.nodes[0]
        # Longer than any question takes: whoever asks after the end of the load asks about something else.
        words = ["load", f"--url=http://{address}/", f"--rate={RATE}", f"--duration={LONG_S}s"]
        calls = lab.spawn(frontend.node.name, [node_programs.app, *words], "load", essential=False)
        (tmp_path / "prices.yaml").write_text(PRICES)
        prices = f"--prices={tmp_path / 'prices.yaml'}"
        await asyncio.sleep(WARM_UP_S)
        async with _packets_counted(lab, node_programs) as counts:
            await asyncio.sleep(WINDOW_S)
            proposed = await ask(lab, url, "propose", "-n", NAMESPACE, f"--window={WINDOW_S // 60}m")
            truth_of_proposal = _last(WINDOW_S, counts)
            money = await ask(lab, url, "money", "-n", NAMESPACE, f"--window={WINDOW_S // 60}m", prices)
            truth_of_money = _last(WINDOW_S, counts)
        assert not calls.failed
        await lab.programs.stop(calls)
        pods = json.loads(await lab.control_plane.run_kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
        report = _judge(application, proposed, truth_of_proposal, money, truth_of_money, pods, lab)
        words = ["--apply", "--yes", f"--window={WINDOW_S // 60}m"]
        applied = await ask(lab, url, "propose", "-n", NAMESPACE, *words, timeout_s=400)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    if folder := os.environ.get("NETAWARE_E2E_REPORTS"):
        (Path(folder) / "traffic.json").write_text(json.dumps([report, proposed, money], indent=1))
    assert report["precision"] >= 0.95
    assert report["recall"] >= 0.95
    assert report["directions_known"]
    assert max(report["min_bandwidth_off"].values()) <= 0.2
    assert report["money_off"] <= 0.05
    (gain,) = report["gains"]
    assert gain["crossing_now"] == pytest.approx(report["crossing_by_packets"], rel=0.1)
    assert gain["crossing_then"] <= gain["crossing_now"]
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


Count = tuple[float, dict[tuple[str, str], int]]
"""When packets were counted, and bytes by addresses until then."""
Rates = dict[tuple[str, str], float]
"""Bytes per second from one end to the other."""


@asynccontextmanager
async def _packets_counted(lab: Lab, programs: NodePrograms) -> AsyncIterator[list[Count]]:
    """Count again and again: how long a question takes nobody knows before, and it asks about the time until it is read."""
    counts: list[Count] = []

    async def count() -> None:
        while True:
            found = await asyncio.to_thread(counted, lab, programs)
            counts.append((time.monotonic(), found))
            await asyncio.sleep(COUNT_EVERY_S)

    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count())
        yield counts
        counting.cancel()


def _last(window_s: float, counts: list[Count]) -> Rates:
    """By address, over the last so many seconds that were counted."""
    ended_s, after = counts[-1]
    began_s, before = min(counts, key=lambda count: abs(ended_s - window_s - count[0]))
    return {ends: (total - before.get(ends, 0)) / (ended_s - began_s) for ends, total in after.items()}


def _judge(
    application: boutique.Application,
    proposed: Any,
    truth_of_proposal: Rates,
    money: Any,
    truth_of_money: Rates,
    pods: list[dict[str, Any]],
    lab: Lab,
) -> dict[str, Any]:
    names = {pod["status"]["podIP"]: pod["metadata"]["labels"]["app"] for pod in pods}

    def by_workload(rates: Rates) -> Rates:
        # One replica each, so no two pairs of addresses are the same pair of workloads.
        return {(names[a], names[b]): rate for (a, b), rate in rates.items() if a in names and b in names}

    proposal_truth, money_truth = by_workload(truth_of_proposal), by_workload(truth_of_money)
    real = {(d.origin, d.destination) for d in application.dependencies}
    edges = {
        (d["client"].partition("/")[2], d["server"].partition("/")[2]): d
        for p in proposed["proposals"]
        for d in p["dependencies"]
    }
    found = set(edges)
    moved = {edge: proposal_truth.get(edge, 0.0) + proposal_truth.get(edge[::-1], 0.0) for edge in real & found}
    zones = {node.node.name: (node.node.region, node.node.zone) for node in lab.nodes}
    places = {pod["metadata"]["labels"]["app"]: zones[pod["spec"]["nodeName"]] for pod in pods}
    month = 0.0
    for (source, destination), rate in money_truth.items():
        here, there = places[source], places[destination]
        price = 0.0 if here == there else 0.02 if here[0] == there[0] else 0.05
        month += rate * 3600 * 730 / 1e9 * price
    crossing = sum(rate for (a, b), rate in proposal_truth.items() if places[a] != places[b])
    return {
        "edges": len(found),
        "precision": len(real & found) / max(len(found), 1),
        "recall": len(real & found) / len(real),
        "directions_known": all(d["direction_known"] for d in edges.values()),
        "min_bandwidth_off": {
            f"{a} -> {b}": round(abs(edges[a, b]["min_bandwidth_bps"] / (rate * 8) - 1), 3)
            for (a, b), rate in sorted(moved.items())
        },
        "money": money["bill"]["month"],
        "money_by_packets": month,
        "money_off": abs(money["bill"]["month"] / month - 1),
        "crossing_by_packets": crossing,
        "gains": proposed["gains"],
        "left_out": proposed["left_out"],
    }
