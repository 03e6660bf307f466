"""Pods per second of the real kube-scheduler over thousands of nodes: stock, asking our extender, and told by affinity.

Run by hand (minutes): ``python tests/bench/throughput.py --nodes 5000 --pods 1000``. Nodes are API objects without a kubelet.
Pods exist before the clock starts; it runs from the start of the scheduler to the last binding. Modes:

stock: no extender, pods of the default profile.
echo: an extender that only repeats what it is sent, the floor for any extender.
ruled: our extender, pods without a plan, so that it answers by the plain rule.
extender: our extender, pods with the plan's targets, as the leader writes them before it opens a gate.
terms: no extender, pods with the node affinity that the leader writes before it opens a gate.
affinity: the same end to end: the clock runs from the opening of the first gate, and plans and releases count too.

Targets and terms of the modes "extender" and "terms" are those of the real leader, taken from pods that it released in
a round before. Extender and leader run in processes of their own, as they would beside a scheduler.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.cluster.pods import GATE, TARGET_ANNOTATION
from controller.cluster.resources import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL
from kubekit.client import MERGE_PATCH, Client
from kubekit.reflector import Reflector
from kubekit.wire import NODES, PODS, Node, Object, Wire
from lab.controlplane import ControlPlane, credentials_of, free_ports
from lab.scheduling import build_config
from netperf.contract import REGION_LABEL, ZONE_LABEL
from tests.bench.control_plane import make_topology, started
from tests.bench.decision_quality import in_batches, until

NAMESPACE = "throughput"
ZONES, REGIONS, GROUP_SIZE = 40, 4, 10
LONGEST_S = 600.0
MODES = ("stock", "echo", "ruled", "extender", "terms", "affinity")
EXTENDERS = ("echo", "ruled", "extender")
HANDED = frozenset({"extender", "terms"})
# Nobody owns these pods in truth; with an owner they are treated as pods of a Deployment are.
OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "of-the-bench",
    "uid": "00000000-0000-0000-0000-000000000001",
    "controller": True,
}


class BoundSpec(Wire, frozen=True):
    node_name: str = ""
    scheduling_gates: list[Any] | None = None
    affinity: dict[str, Any] | None = None


class Handover(msgspec.Struct, frozen=True):
    """What the leader wrote to a pod."""

    target: str
    affinity: dict[str, Any] | None


class Bound(Object, frozen=True):
    """A pod, of which only the binding matters here."""

    spec: BoundSpec = BoundSpec()


@asynccontextmanager
async def cluster(nodes: int) -> AsyncIterator[tuple[ControlPlane, Client]]:
    async with started("throughput", (NAMESPACE, "netaware-system"), kwok=False) as (plane, client):
        await in_batches([make_node(client, i) for i in range(nodes)])
        await until(lambda: make_costs(client))
        yield plane, client


async def make_node(client: Client, number: int) -> None:
    zone, name = number % ZONES, f"node-{number:05d}"
    labels = {ZONE_LABEL: f"z{zone:02d}", REGION_LABEL: f"r{zone % REGIONS}", "kubernetes.io/hostname": name}
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status}, Node)
    # Admission taints every new node; there is no node controller here to take that away.
    await client.patch(NODES, name, {"spec": {"taints": None}}, Node, kind=MERGE_PATCH)


async def make_costs(client: Client) -> bool:
    rng = random.Random(1)
    levels = []
    for key, names in (
        (REGION_LABEL, [f"r{r}" for r in range(REGIONS)]),
        (ZONE_LABEL, [f"z{z:02d}" for z in range(ZONES)]),
    ):
        origins = [
            {
                "origin": a,
                "costList": [{"destination": b, "networkCost": rng.randint(2, 20)} for b in names if a != b],
            }
            for a in names
        ]
        levels.append({"topologyKey": key, "originList": origins})
    return await make_topology(client, NAMESPACE, levels)


async def make_groups(client: Client, count: int, mode: str, handed: dict[str, Handover]) -> None:
    await in_batches([make_group(client, number, mode, handed) for number in range(count // GROUP_SIZE)])


async def make_group(client: Client, number: int, mode: str, handed: dict[str, Handover]) -> None:
    rng = random.Random(number)
    references = [{"kind": "Deployment", "name": f"w{i}", "selector": f"w{i}"} for i in range(GROUP_SIZE)]
    workloads = [
        {
            "workload": reference,
            "dependencies": [
                {"workload": references[j], "maxNetworkCost": 20}
                for j in range(i + 1, GROUP_SIZE)
                if rng.random() < 0.3
            ],
        }
        for i, reference in enumerate(references)
    ]
    spec = {"numMembers": GROUP_SIZE, "topologySortingAlgorithm": "ReverseKahn", "workloads": workloads}
    head = {"apiVersion": APPGROUPS.api_version, "kind": APPGROUPS.kind, "metadata": {"name": f"g{number}"}}
    await client.create(APPGROUPS, {**head, "spec": spec}, Object, namespace=NAMESPACE)
    for i in range(GROUP_SIZE):
        await client.create(PODS, pod_body(number, i, mode, handed), Object, namespace=NAMESPACE)


def pod_body(group: int, workload: int, mode: str, handed: dict[str, Handover]) -> dict[str, Any]:
    name = f"g{group}-w{workload}"
    labels = {APPGROUP_LABEL: f"g{group}", WORKLOAD_LABEL: f"w{workload}"}
    metadata: dict[str, Any] = {"name": name, "labels": labels, "ownerReferences": [OWNER]}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}}
    spec: dict[str, Any] = {
        "schedulerName": "network-aware-scheduler" if mode in EXTENDERS else "default-scheduler",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if mode == "affinity":
        spec["schedulingGates"] = [{"name": GATE}]
    elif mode == "extender":
        metadata["annotations"] = {TARGET_ANNOTATION: handed[name].target}
    elif mode == "terms":
        spec["affinity"] = handed[name].affinity
    return {"metadata": metadata, "spec": spec}


@asynccontextmanager
async def counted(client: Client) -> AsyncIterator[Reflector[Bound]]:
    store: Reflector[Bound] = Reflector(client, PODS, Bound, namespace=NAMESPACE)
    running = asyncio.create_task(store.run())
    try:
        await store.synced.wait()
        yield store
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def program(plane: ControlPlane, verb: str, placement: str) -> AsyncIterator[str]:
    """``python -m controller <verb>``, ready; its address."""
    port = free_ports(1)[0]
    config = plane.state_dir / f"{verb}.yaml"
    document: dict[str, Any] = {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    config.write_text(yaml.safe_dump({**document, "scheduler": {"placement": placement}}))
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "controller",
        verb,
        f"--credentials={credentials_of(plane.kubeconfig)}",
    ]
    argv += [f"--config={config}", f"--listen=127.0.0.1:{port}", "--log-level=warning"]
    if verb == "manager":
        argv.append("--no-leader-elect")
    started = plane.programs.start(f"{verb}-{time.time_ns()}", argv)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await plane.programs.stop(started)


async def ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            try:
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """An extender in a process of its own that repeats the names, and scores them by their place in the list."""
    port = free_ports(1)[0]
    process = multiprocessing.get_context("spawn").Process(target=serve_echo, args=(port,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


class Asked(msgspec.Struct):
    node_names: list[str] = msgspec.field(name="NodeNames")


def serve_echo(port: int) -> None:
    decode, encode = msgspec.json.Decoder(Asked).decode, msgspec.json.Encoder().encode

    async def answer_filter(request: web.Request) -> web.Response:
        names = decode(await request.read()).node_names
        return web.Response(body=encode({"nodenames": names, "failedNodes": {}}), content_type="application/json")

    async def answer_prioritize(request: web.Request) -> web.Response:
        names = decode(await request.read()).node_names
        scores = [{"host": name, "score": i % 100} for i, name in enumerate(names)]
        return web.Response(body=encode(scores), content_type="application/json")

    async def answer_ready(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/filter", answer_filter)
    app.router.add_post("/prioritize", answer_prioritize)
    app.router.add_get("/readyz", answer_ready)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=lambda *_: None)


async def leader_figures(url: str) -> dict[str, float]:
    """What releasing all these pods took of the leader."""
    wanted = {"netaware_placement_plans_total": "plans", "process_cpu_seconds_total": "processor seconds"}
    wanted["netaware_placement_plan_duration_seconds_sum"] = "of it planning"
    found: dict[str, float] = {}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        for family in text_string_to_metric_families(await answer.text()):
            for sample in family.samples:
                if sample.name in wanted:
                    found[wanted[sample.name]] = found.get(wanted[sample.name], 0.0) + sample.value
    return found


def processor_s(plane: ControlPlane) -> dict[str, float]:
    """Processor seconds of each program of the control plane and of ours so far, the planner apart from the leader."""
    found: dict[str, float] = {}
    for program in plane.programs:
        name = program.name.rpartition("-")[0] if program.name[-1].isdigit() else program.name
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(program.pid)
            for suffix, one in (("", process), *((" (child)", child) for child in process.children(recursive=True))):
                times = one.cpu_times()
                found[name + suffix] = found.get(name + suffix, 0.0) + times.user + times.system
    return found


async def asked(client: Client) -> dict[str, float]:
    """Requests to the API server so far, but for watches, by verb and resource."""
    found: dict[str, float] = {}
    text = (await client.request("GET", "/metrics", timeout_s=60)).decode()
    lines = "\n".join(line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            labels = sample.labels
            name = f"{labels['verb']} {labels['resource']}/{labels['subresource']}".rstrip("/")
            if labels["verb"] != "WATCH":
                found[name] = found.get(name, 0.0) + sample.value
    return found


class Run(msgspec.Struct, frozen=True):
    """Pods per second, on the pods' way from Pending to bound, and what the leader wrote to them, if there was one."""

    rate: float
    handed: dict[str, Handover] = {}


async def run_mode(
    plane: ControlPlane, client: Client, mode: str, percentage: int, pods: int, handed: dict[str, Handover]
) -> Run:
    """One round, cleaned up after."""
    await make_groups(client, pods, mode, handed)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(counted(client))
        url, leader = None, ""
        if mode in EXTENDERS:
            service = echo() if mode == "echo" else program(plane, "extender", "extender")
            url = await stack.enter_async_context(service)
            await ready(url)
        data = build_config(Path("unused"), extender_url=url, percentage_of_nodes_to_score=percentage)
        data["clientConnection"] = {"qps": 2000, "burst": 4000}
        running = await plane.start_scheduler(data, name=f"scheduler-{time.time_ns()}")
        started, before = time.monotonic(), processor_s(plane)
        try:
            if mode == "affinity":
                leader = await stack.enter_async_context(program(plane, "manager", mode))
                while all(p.spec.scheduling_gates for p in store):
                    await asyncio.sleep(0.01)
                started, before = time.monotonic(), processor_s(plane)
            requests = await asked(client)
            async with asyncio.timeout(LONGEST_S):
                while (bound := sum(bool(p.spec.node_name) for p in store)) < pods:
                    await asyncio.sleep(0.1)
            took_s, after = time.monotonic() - started, processor_s(plane)
            spent = {name: round(value - before.get(name, 0.0), 1) for name, value in sorted(after.items())}
            print(f"processor seconds of {took_s:.1f} s: {spent}", file=sys.stderr, flush=True)
            more = {name: int(count - requests.get(name, 0.0)) for name, count in (await asked(client)).items()}
            often = {
                name: count for name, count in sorted(more.items(), key=lambda item: -item[1]) if count >= pods / 20
            }
            print(f"requests: {often}", file=sys.stderr, flush=True)
            if leader:
                print(f"the leader: {await leader_figures(leader)}", file=sys.stderr, flush=True)
            wrote = {
                p.metadata.name: Handover(p.metadata.annotation(TARGET_ANNOTATION), p.spec.affinity) for p in store
            }
            return Run(bound / took_s, wrote if mode == "affinity" else {})
        finally:
            await plane.programs.stop(running)
            await clean(client)


async def clean(client: Client) -> None:
    for resource in (PODS, APPGROUPS):
        await client.request("DELETE", resource.path(NAMESPACE), body={"gracePeriodSeconds": 0}, timeout_s=120)
    await until(lambda: is_empty(client))


async def is_empty(client: Client) -> bool:
    return not await client.list(PODS, Object, namespace=NAMESPACE)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int, default=1, help="of each mode, in turns; the best counts")
    args = parser.parse_args()
    figures: dict[str, float] = {}
    async with cluster(args.nodes) as (plane, client):
        modes = args.modes.split(",")
        handed: dict[str, Handover] = {}
        if HANDED.intersection(modes):
            handed = (await run_mode(plane, client, "affinity", 100, args.pods, {})).handed
        for percentage, label in ((0, "default"), (100, "100 %")):
            for mode in modes * args.rounds:
                run = await run_mode(plane, client, mode, percentage, args.pods, handed)
                name = f"{mode}, {label} of nodes scored"
                figures[name] = max(figures.get(name, 0.0), round(run.rate, 1))
                print(f"{name}: {run.rate:.1f} pods/s", file=sys.stderr, flush=True)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
