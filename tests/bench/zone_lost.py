"""What users of an application feel on real nodes by who placed it, and when a whole zone is lost under load and comes back.

Run by hand, as root (about 30 minutes): ``python tests/bench/zone_lost.py``. The product is installed as it ships, with the descheduler
awake. The Online Boutique runs with two replicas of each workload on real kubelets: placed by the default scheduler and by ours with
``netaware.io/spread: zone``, each without and with Services that prefer the caller's zone. Requests come from a node of each zone;
bytes are counted packet by packet.

With two zones, in which any spread has a replica everywhere, one is lost in the end, ours still in place: every process of its nodes
is killed at once. Users of the other zone go on by two ways, with a connection for each request: a Service that prefers their zone,
and one that any replica answers. Pods leave dead nodes after 30 s instead of Kubernetes' five minutes; everything else has its
default. With ``--zones 3`` (ten minutes) it matters in which two of the three the replicas are, and nothing is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.descheduler.reporting import DESCHEDULED
from lab import boutique
from lab.cluster import Lab, find_node_programs
from lab.faults import Faults
from lab.installation import MANIFESTS
from lab.network import NodeNetwork
from lab.programs import run_to_end
from lab.realnode.cluster import APP_IMAGE
from lab.realnode.node import NODE
from lab.realnode.programs import NodePrograms
from lab.shipped import await_rollout, build_images, install_as_shipped
from lab.topology import load
from netperf.contract import HOME_NAMESPACE
from tests.e2e.real_cluster import configured_overlay
from tests.support.packet_count import counted, rates_by_zone, start_counting

TWO_ZONES = """\
name: two-zones
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: lost-a}, {name: lost-b}]}
      - {name: z2, nodes: [{name: kept-a}, {name: kept-b}]}
links:
  - {between: [z1, z2], rtt: 10ms}
nodeDefaults: {kubelet: real, cpu: 2, memory: 4Gi}
"""
THREE_ZONES = """\
name: three-zones
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: node-a}]}
      - {name: z2, nodes: [{name: node-b}]}
      - {name: z3, nodes: [{name: node-c}]}
links:
  - {between: [z1, z2], rtt: 10ms}
  - {between: [z1, z3], rtt: 10ms}
  - {between: [z2, z3], rtt: 10ms}
nodeDefaults: {kubelet: real, cpu: 2, memory: 4Gi}
"""
LOST, KEPT = "z1", "z2"
OURS = "network-aware-scheduler"
PLACEMENTS = {
    "default": ("default-scheduler", False),
    "default, PreferSameZone": ("default-scheduler", True),
    "ours": (OURS, False),
    "ours, PreferSameZone": (OURS, True),
}
REPLICAS, POD_CPU, ANSWER_BYTES = 2, "50m", 5_000
RATE, WARM_UP_S, WINDOW_S = 3, 10, 60
STEP_S, LEAVE_S = 10, 30
RECOVERY_S, BALANCE_S = 420.0, 1500.0
ANY = "frontend-any"


async def run(name: str, placements: Sequence[str], zones: str) -> dict[str, Any]:
    """Every placement, then, of two zones, the loss of one under the last placement."""
    images = await asyncio.to_thread(build_images)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "topology.yaml").write_text(zones)
        topology = load(str(folder / "topology.yaml"))
        programs = await asyncio.to_thread(find_node_programs, topology)
        assert programs is not None
        async with Lab.start(topology, name=name) as lab:
            say(f"{len(lab.nodes)} real nodes after {lab.boot_s:.0f} s")
            for node in lab.nodes:
                start_counting(programs, node.netns)
            await install_as_shipped(lab, images, overlay=awake(folder))
            await priced(lab)
            say("installed and priced")
            felt = {}
            lost: dict[str, Any] = {}
            for number, title in enumerate(placements):
                namespace = f"shop-{number}"
                addresses = await deploy(lab, folder, namespace, *PLACEMENTS[title])
                felt[title] = await feel(lab, programs, namespace, addresses["frontend"])
                say(f"{title}: {json.dumps(felt[title])}")
                if title == placements[-1] and zones == TWO_ZONES:
                    lost = await lose_a_zone(lab, namespace, addresses)
                else:
                    await lab.control_plane.run_kubectl("delete", "namespace", namespace, timeout_s=180)
    return {"placements": felt, "lost": lost}


def awake(folder: Path) -> Path:
    """The shipped overlay `descheduler` as an operator wakes it: no dry run."""
    config = yaml.safe_load((MANIFESTS / "components" / "descheduler" / "config.yaml").read_text())
    config["descheduler"]["dryRun"] = False
    return configured_overlay(folder / "overlay", "descheduler", config)


async def priced(lab: Lab) -> None:
    """Wait until costs rest on measurements."""
    await lab.control_plane.run_kubectl(
        "-n",
        HOME_NAMESPACE,
        "wait",
        "--for=condition=Measured",
        "networktopology/nt-default",
        "--timeout=300s",
        timeout_s=310,
    )


async def deploy(lab: Lab, folder: Path, namespace: str, scheduler: str, near: bool) -> dict[str, str]:
    """The application, whole and ready; addresses of the frontend's Services."""
    application = boutique.made_to_run(boutique.load(scheduler=scheduler, cpu=POD_CPU), APP_IMAGE)
    application.group["spec"]["numMembers"] = REPLICAS * len(application.deployments)
    application.group["metadata"]["annotations"] = {"netaware.io/spread": "zone"}
    for deployment in application.deployments.values():
        deployment["spec"]["replicas"] = REPLICAS
        spec = deployment["spec"]["template"]["spec"]
        spec["terminationGracePeriodSeconds"] = 1
        leave = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
        spec["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LEAVE_S} for key in leave
        ]
        spec["containers"][0]["args"] += [f"--answer={ANSWER_BYTES}", "--timeout=2s"]
    services = dict(application.services)
    anybody = json.loads(json.dumps(services["frontend"]))
    anybody["metadata"]["name"] = ANY
    if near:
        for service in services.values():
            service["spec"]["trafficDistribution"] = "PreferSameZone"
    await lab.control_plane.run_kubectl("create", "namespace", namespace)
    await lab.control_plane.run_kubectl("-n", namespace, "apply", "-f", write(folder, "group", [application.group]))
    await lab.control_plane.run_kubectl(
        "-n", namespace, "wait", "--for=jsonpath={.status.topologyOrder}", "appgroup", "--all", "--timeout=60s"
    )
    objects = [*services.values(), anybody, *application.deployments.values()]
    await lab.control_plane.run_kubectl("-n", namespace, "apply", "-f", write(folder, "application", objects))
    await await_rollout(lab, namespace)
    found = {}
    for way in ("frontend", ANY):
        words = ("get", "service", way, "-o", "jsonpath={.spec.clusterIP}")
        found[way] = (await lab.control_plane.run_kubectl("-n", namespace, *words)).strip()
    return found


def write(folder: Path, name: str, items: Sequence[Mapping[str, Any]]) -> str:
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))
    return str(file)


async def feel(lab: Lab, programs: NodePrograms, namespace: str, address: str) -> dict[str, Any]:
    """Requests from a node of each zone; percentiles of the frontend, and bytes by zones as packets had them."""
    assert lab.topology is not None
    nodes = [next(node for node in lab.nodes if node.node.zone == zone) for zone in lab.topology.zones]
    loads = [asyncio.create_task(load_from(programs, node, address, WINDOW_S, WARM_UP_S)) for node in nodes]
    await asyncio.sleep(WARM_UP_S)
    first, began = counted(lab, programs), time.monotonic()
    await asyncio.sleep(WINDOW_S - 5)
    last, took_s = counted(lab, programs), time.monotonic() - began
    outcomes = await asyncio.gather(*loads)
    zone_of = {node.node.name: node.node.zone for node in lab.nodes}
    pods = await pods_of(lab, namespace)
    zones = {pod["status"]["podIP"]: zone_of[pod["spec"]["nodeName"]] for pod in pods}
    crossing, within = rates_by_zone(first, last, took_s, zones)
    return {
        "p50_ms": [round(one["p50_ms"], 1) for one in outcomes],
        "p99_ms": [round(one["p99_ms"], 1) for one in outcomes],
        "requests": sum(one["requests"] for one in outcomes),
        "errors": sum(one["errors"] for one in outcomes),
        "crossing_kB_s": round(crossing / 1000, 1),
        "within_a_zone_between_nodes_kB_s": round(within / 1000, 1),
        "in_one_zone": await in_one_zone(lab, namespace),
    }


async def load_from(
    programs: NodePrograms,
    node: NodeNetwork,
    address: str,
    window_s: float,
    warm_up_s: float = 0.0,
    *,
    fresh: bool = False,
) -> dict[str, Any]:
    """Requests to the frontend at the set rate; ``fresh`` users open a connection each, so kube-proxy chooses anew."""
    command: list[str | Path] = ["nsenter", f"--net=/run/netns/{node.netns}", programs.app, "load"]
    command += [f"--url=http://{address}/", f"--rate={RATE}", f"--duration={window_s:g}s"]
    command += [f"--warm-up={warm_up_s:g}s", "--timeout=3s"]
    command += ["--fresh"] if fresh else []
    found: dict[str, Any] = json.loads(await run_to_end(command, "requests to the frontend", window_s + warm_up_s + 60))
    return found


async def pods_of(lab: Lab, namespace: str) -> list[dict[str, Any]]:
    """Those that are ready and stay; nothing is ready on a node that is gone."""
    listed = json.loads(await lab.control_plane.run_kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
    return [
        pod
        for pod in listed
        if not pod["metadata"].get("deletionTimestamp")
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    ]


async def by_workload(lab: Lab, namespace: str) -> dict[str, list[str]]:
    """Zones of the ready replicas of each workload."""
    zone_of = {node.node.name: node.node.zone for node in lab.nodes}
    found: dict[str, list[str]] = defaultdict(list)
    for pod in await pods_of(lab, namespace):
        found[pod["metadata"]["labels"]["app"]].append(zone_of[pod["spec"]["nodeName"]])
    return found


async def in_one_zone(lab: Lab, namespace: str) -> int:
    """Workloads whose ready replicas share a zone."""
    return sum(len(set(zones)) == 1 for zones in (await by_workload(lab, namespace)).values())


async def lose_a_zone(lab: Lab, namespace: str, addresses: Mapping[str, str]) -> dict[str, Any]:
    """Kill it under load, wait until all is well without it, bring it back, and follow the balance."""
    faults = Faults(lab.place)
    gone = [f"{NODE}-{node.node.name}" for node in lab.nodes if node.node.zone == LOST]
    async with under_load(lab, addresses) as steps:
        await asyncio.sleep(2 * STEP_S)
        say(f"killing {', '.join(gone)}")
        killed = time.monotonic()
        await asyncio.to_thread(faults.strike, gone, freeze=False)
        whole_s = await until(lambda: is_whole(lab, namespace, (KEPT,)), RECOVERY_S)
        say(f"all replicas are ready in {KEPT} after {whole_s} s")
        # The last errors may come after the last replica.
        await asyncio.sleep(3 * STEP_S)
        errors = by_step(steps, killed)
        say("the zone comes back")
        await asyncio.to_thread(faults.repair, gone)
        await lab.control_plane.run_kubectl(
            "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=240s", timeout_s=250
        )
        back, balance = time.monotonic(), []
        say("its nodes are ready")
        while time.monotonic() - back < BALANCE_S:
            after_s = round(time.monotonic() - back)
            balance.append((after_s, await in_one_zone(lab, namespace)))
            if balance[-1][1] == 0 or after_s % 60 < STEP_S:
                say(f"{after_s} s after: {balance[-1][1]} workloads in one zone")
            if balance[-1][1] == 0:
                break
            await asyncio.sleep(STEP_S)
        since = by_step(steps, back)
        # A loop would show now.
        moved = await evictions(lab, namespace)
        await asyncio.sleep(30 * STEP_S)
        later = await evictions(lab, namespace)
    return {
        "until_the_last_error_s": {way: last_error(found) for way, found in errors.items()},
        "errors": {way: sum(e for _, _, e in found) for way, found in errors.items()},
        "requests": {way: sum(r for _, r, _ in found) for way, found in errors.items()},
        "all_replicas_ready_without_it_after_s": whole_s,
        "in_one_zone_by_seconds_after_it_is_back": balance,
        "errors_while_it_is_filled": {way: sum(e for _, _, e in found) for way, found in since.items()},
        "requests_while_it_is_filled": {way: sum(r for _, r, _ in found) for way, found in since.items()},
        "evictions": moved,
        "evictions_in_five_minutes_after": later - moved,
    }


@asynccontextmanager
async def under_load(lab: Lab, addresses: Mapping[str, str]) -> AsyncIterator[dict[str, list[tuple[float, int, int]]]]:
    """Requests by both ways from the zone that stays, while the block runs: when each step ended, its requests and errors."""
    node = next(node for node in lab.nodes if node.node.zone == KEPT)
    programs = lab.real.nodes[node.node.name].binaries
    steps: dict[str, list[tuple[float, int, int]]] = {way: [] for way in addresses}

    async def go_on(way: str) -> None:
        while True:
            one = await load_from(programs, node, addresses[way], STEP_S, fresh=True)
            steps[way].append((time.monotonic(), one["requests"], one["errors"]))

    tasks = [asyncio.create_task(go_on(way)) for way in addresses]
    tasks.append(asyncio.create_task(lab.tend()))
    try:
        yield steps
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def by_step(steps: Mapping[str, list[tuple[float, int, int]]], since: float) -> dict[str, list[tuple[float, int, int]]]:
    """Seconds since a moment, requests and errors of the steps that ended after it."""
    return {way: [(at - since, r, e) for at, r, e in found if at >= since] for way, found in steps.items()}


def last_error(found: Sequence[tuple[float, int, int]]) -> float:
    return max((round(at, 1) for at, _, errors in found if errors), default=0.0)


async def is_whole(lab: Lab, namespace: str, zones: Sequence[str]) -> bool:
    """Whether every workload has its replicas ready in these zones."""
    found = await by_workload(lab, namespace)
    ready = [sum(zone in zones for zone in each) for each in found.values()]
    return len(ready) == len(boutique.load(scheduler="", cpu=POD_CPU).deployments) and min(ready) >= REPLICAS


async def until(holds: Any, patience_s: float) -> float | None:
    """Seconds until it held; None when it did not in time."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        if await holds():
            return round(time.monotonic() - began, 1)
        await asyncio.sleep(2)
    return None


async def evictions(lab: Lab, namespace: str) -> int:
    """Pods that the descheduler moved, by its events."""
    listed = json.loads(
        await lab.control_plane.run_kubectl("-n", namespace, "get", "events.events.k8s.io", "-o", "json")
    )["items"]
    return sum((e.get("series") or {}).get("count", 1) for e in listed if e["reason"] == DESCHEDULED)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run it and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="zone-lost")
    parser.add_argument(
        "--only", action="append", choices=PLACEMENTS, help="of the placements; the last one loses the zone"
    )
    parser.add_argument("--zones", type=int, choices=(2, 3), default=2, help="of the cluster; with 3 none is lost")
    options = parser.parse_args()
    zones = THREE_ZONES if options.zones == 3 else TWO_ZONES
    print(json.dumps(asyncio.run(run(options.name, options.only or tuple(PLACEMENTS), zones)), indent=1))


if __name__ == "__main__":
    main()
