"""A proposal applied on real nodes: bytes across zones and what the frontend's users feel, against what `propose` said before.

Run by hand, as root (ten minutes): ``python tests/bench/applied_proposal.py``. The Online Boutique runs with two replicas of each
workload on real kubelets in three zones, placed by the default scheduler and described by nobody. Agents count its connections;
then Services keep calls in their zone, and ``propose --spread zone --scheduler network-aware-scheduler --apply``. Bytes are counted
packet by packet by nftables on each node, which knows nothing of connections or proposals. Our programs run beside their pods, and
costs are the operator's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.cluster.pods import TARGET_ANNOTATION
from lab import boutique
from lab.cluster import Lab, find_node_programs
from lab.installation import TOPOLOGY_NAME, install
from lab.programs import run_to_end
from lab.prometheus_server import start_prometheus
from lab.realnode.cluster import APP_IMAGE
from lab.shipped import await_rollout
from lab.tool_builds import PROMETHEUS, find_or_build_tools
from lab.topology import Topology, load
from netperf.contract import HOME_NAMESPACE, ZONE_LABEL
from tests.e2e import test_traffic_of_real_nodes as real
from tests.support.packet_count import counted, on_node, rates_by_zone, start_counting

TOPOLOGY = """\
name: applied
regions:
  - name: r1
    zones:
      - {name: z1, nodes: [{name: applied-a}]}
      - {name: z2, nodes: [{name: applied-b}]}
      - {name: z3, nodes: [{name: applied-c}]}
links:
  - {between: [z1, z2], rtt: 20ms}
  - {between: [z1, z3], rtt: 30ms}
  - {between: [z2, z3], rtt: 40ms}
nodeDefaults: {kubelet: real, cpu: 2, memory: 4Gi}
"""
COMPONENTS = ("controller-manager", "kwok")
SCHEDULER = "network-aware-scheduler"
NEAR = {"spec": {"trafficDistribution": "PreferSameZone"}}
RATE, WARM_UP_S, WINDOW_S = 4, 30, 120
IN_ZONE_MS = 0.1
POD_CPU, REPLICAS = "100m", 2


async def run(name: str, *, near: bool, one_by_one: bool) -> dict[str, Any]:
    """Both measurements, the prediction between them, and how far they are apart."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "topology.yaml"
        file.write_text(TOPOLOGY)
        topology = load(str(file))
        programs = await asyncio.to_thread(find_node_programs, topology)
        assert programs is not None
        prometheus = (await asyncio.to_thread(find_or_build_tools, PROMETHEUS))["prometheus"]
        async with Lab.start(topology, name=name, components=COMPONENTS) as lab:
            say(f"{len(lab.nodes)} real nodes after {lab.boot_s:.0f} s")
            for node in lab.nodes:
                on_node(node.netns, "sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1")
                start_counting(programs, node.netns)
            installation = await install(lab, agent_flags=["--traffic=conntrack"])
            targets = [url.removeprefix("http://") for url in installation.agent_urls.values()]
            url = await start_prometheus(lab, prometheus, {"netaware-agent": targets})
            patch = ("--type=merge", "-p=" + json.dumps({"spec": {"weights": [costs_of(topology)]}}))
            await lab.control_plane.run_kubectl("-n", HOME_NAMESPACE, "patch", "networktopology", TOPOLOGY_NAME, *patch)
            application = boutique.made_to_run(boutique.load(scheduler="default-scheduler", cpu=POD_CPU), APP_IMAGE)
            for deployment in application.deployments.values():
                deployment["spec"]["replicas"] = REPLICAS
                deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
            if near:
                for service in application.services.values():
                    service["spec"] |= NEAR["spec"]
            address = await real.deploy(lab, application, Path(folder))
            say("the application runs, placed by the default scheduler")
            before = await measure(lab, programs, address)
            before["network"] = network_of_a_request(application, await pods_of(lab), topology, near)
            say(f"before: {json.dumps(before)}")
            if not near:
                patch = ("--type=merge", f"-p={json.dumps(NEAR)}")
                for called in application.services:
                    await lab.control_plane.run_kubectl("-n", real.NAMESPACE, "patch", "service", called, *patch)
            (Path(folder) / "prices.yaml").write_text(real.PRICES)
            words = ["propose", "-n", real.NAMESPACE, f"--window={WINDOW_S // 60}m", "--spread=zone"]
            words += [f"--scheduler={SCHEDULER}", f"--prices={folder}/prices.yaml", "--apply", "--yes"]
            words += ["--one-by-one"] if one_by_one else []
            proposed = await real.ask(lab, url, *words, timeout_s=1200)
            (gain,) = proposed["gains"]
            say(f"applied: {json.dumps(gain)}")
            await await_rollout(lab, real.NAMESPACE)
            await settled(lab, REPLICAS * len(application.deployments))
            after = await measure(lab, programs, address)
            after["network"] = network_of_a_request(application, await pods_of(lab), topology, near=True)
            after["strayed"] = strayed(await pods_of(lab))
            say(f"after: {json.dumps(after)}")
    return judged(before, gain, after)


def network_of_a_request(
    application: boutique.Application, pods: list[dict[str, Any]], topology: Topology, near: bool
) -> dict[str, float]:
    """What the network alone would take of a request, in milliseconds: the most that a forecast could know.

    The true calls (each dependency once, one after the other), the true round trips and the true places of the pods; for each call
    a replica is drawn as the Services say. What is left open is how many round trips a call takes: an answer that is larger than
    what TCP sends at once after a pause takes more than one.
    """
    calls: dict[str, list[str]] = defaultdict(list)
    for d in application.dependencies:
        calls[d.origin].append(d.destination)
    zones: dict[str, list[str]] = defaultdict(list)
    zone_of = {node.name: node.zone for node in topology.nodes}
    for pod in pods:
        zones[pod["metadata"]["labels"]["app"]].append(zone_of[pod["spec"]["nodeName"]])
    dice = random.Random(1)

    def takes_ms(here: str, called: str) -> float:
        there = here if near and here in zones[called] else dice.choice(zones[called])
        way_ms = IN_ZONE_MS if here == there else topology.link(here, there).rtt_us / 1000
        return way_ms + sum(takes_ms(there, each) for each in calls[called])

    drawn = sorted(takes_ms(topology.nodes[0].zone, "frontend") for _ in range(20_000))
    return {"p50_ms": round(drawn[10_000], 1), "p99_ms": round(drawn[19_800], 1)}


def costs_of(topology: Topology) -> dict[str, Any]:
    """What an operator writes by hand: a millisecond between two zones is 1. Agents beside their pods are not asked to measure."""
    zones = list(topology.zones)

    def cost(a: str, b: str) -> dict[str, Any]:
        return {"destination": b, "networkCost": round(topology.link(a, b).rtt_us / 1000)}

    origins = [{"origin": a, "costList": [cost(a, b) for b in zones if b != a]} for a in zones]
    return {"name": "UserDefined", "topologyList": [{"topologyKey": ZONE_LABEL, "originList": origins}]}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def pods_of(lab: Lab) -> list[dict[str, Any]]:
    listed = json.loads(await lab.control_plane.run_kubectl("-n", real.NAMESPACE, "get", "pods", "-o", "json"))["items"]
    return [pod for pod in listed if not pod["metadata"].get("deletionTimestamp")]


def strayed(pods: list[dict[str, Any]]) -> list[str]:
    """Pods that were bound elsewhere than their plan had them."""
    found = []
    for pod in pods:
        planned = (pod["metadata"].get("annotations") or {}).get(TARGET_ANNOTATION)
        if planned is None or json.loads(planned)["node"] != pod["spec"]["nodeName"]:
            found.append(pod["metadata"]["name"])
    return found


async def settled(lab: Lab, wanted: int) -> None:
    """Wait until pods of before are gone."""
    while len(await pods_of(lab)) != wanted:
        await asyncio.sleep(1)


async def measure(lab: Lab, programs: Any, address: str) -> dict[str, Any]:
    """Load from the first node; bytes by zones as packets had them, and percentiles of the frontend."""
    command: list[str | Path] = ["nsenter", f"--net=/run/netns/{lab.nodes[0].netns}", programs.app, "load"]
    command += [f"--url=http://{address}/", f"--rate={RATE}", f"--duration={WINDOW_S}s", f"--warm-up={WARM_UP_S}s"]
    loading = asyncio.create_task(run_to_end(command, "requests to the frontend", WINDOW_S + WARM_UP_S + 120))
    await asyncio.sleep(WARM_UP_S)
    first, began = counted(lab, programs), time.monotonic()
    await asyncio.sleep(WINDOW_S - 5)
    last, took_s = counted(lab, programs), time.monotonic() - began
    felt = json.loads(await loading)
    zone_of = {node.node.name: node.node.zone for node in lab.nodes}
    pods = await pods_of(lab)
    zones = {pod["status"]["podIP"]: zone_of[pod["spec"]["nodeName"]] for pod in pods}
    crossing, within = rates_by_zone(first, last, took_s, zones)
    spread: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        spread[pod["metadata"]["labels"]["app"]][zone_of[pod["spec"]["nodeName"]]] += 1
    return {
        "crossing": round(crossing, 1),
        "bytes": round(crossing + within, 1),
        "p50_ms": felt["p50_ms"],
        "p99_ms": felt["p99_ms"],
        "requests": felt["requests"],
        "errors": felt["errors"],
        "zones": {name: dict(found) for name, found in sorted(spread.items())},
        "least_zones": min(len(found) for found in spread.values()),
    }


def judged(before: Mapping[str, Any], gain: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Shares of today's bytes, since the rate of requests is not the same to the last one."""
    spared = 1 - after["crossing"] / after["bytes"] / (before["crossing"] / before["bytes"])
    foreseen, best, worst = (
        round(1 - gain[f"crossing_{name}"] / gain["crossing_now"], 4) for name in ("then", "least", "most")
    )
    return {
        "before": before,
        "foreseen": gain,
        "after": after,
        "crossing_now_off": round(gain["crossing_now"] / before["crossing"] - 1, 3),
        "crossing_spared": round(spared, 4),
        "crossing_spared_foreseen": foreseen,
        "crossing_spared_foreseen_between": [worst, best],
        "p50_spared_ms": round(before["p50_ms"] - after["p50_ms"], 1),
        "p99_spared_ms": round(before["p99_ms"] - after["p99_ms"], 1),
    }


def main() -> None:
    """Run it and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="applied")
    parser.add_argument("--near", action="store_true", help="Services keep calls in their zone from the start")
    parser.add_argument("--one-by-one", action="store_true", help="roll one workload after the other")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(run(options.name, near=options.near, one_by_one=options.one_by_one)), indent=1))


if __name__ == "__main__":
    main()
