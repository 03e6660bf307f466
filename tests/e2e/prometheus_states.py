"""States of a lab that alerts are for: each is entered by what really causes it, and left again."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from controller.cluster.pods import GATE
from controller.cluster.resources import APPGROUP_LABEL, APPGROUPS, NETWORK_TOPOLOGIES, WORKLOAD_LABEL
from controller.descheduler.history import DAY_S, KEY, NAME, History, MoveResult
from controller.descheduler.round import BREAKER_RESULTS
from kubekit.client import JSON_PATCH, MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.wire import CONFIGMAPS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Node, Object
from lab.cluster import Lab
from lab.controlplane import LOOPBACK, PLAYED_BY_KWOK, free_ports
from lab.installation import Installation
from netperf.contract import CAPACITY_ANNOTATION, HOME_NAMESPACE, REGION_LABEL, ZONE_LABEL
from tests.e2e.program_states import busy_uplink, frozen, limit_not_set
from tests.integration.agent.pods_on_node import NodePod
from tests.integration.descheduler.stage import place

SHOP, QUEUE = "shop", "queue"
HANGING_NODE = "n2"
NETWORK_AWARE = "network-aware-scheduler"
GATED: dict[str, Any] = {"schedulingGates": [{"name": GATE}]}
NAMES_OF_A_LARGE_REQUEST = 250_000
"""A fifth of a second of one core: twice what the extender may take, and on a busy machine still less than the second that a
scrape waits. While the extender answers nobody can scrape it, and of what is not scraped nothing is known to be slow."""


@asynccontextmanager
async def group_in_trouble(client: Client) -> AsyncIterator[None]:
    """An AppGroup whose web (z2) is too far from its db (z4), whose path cannot carry what it asks, and which has a cycle and
    a dependency that leads nowhere."""
    await client.create(NAMESPACES, {"metadata": {"name": SHOP}}, Object)
    await _until_account(client)
    workloads = [
        _workload("web", _needs("db", minBandwidth="500M")),
        _workload("db"),
        _workload("chicken", _needs("egg")),
        _workload("egg", _needs("chicken"), _needs("nobody")),
    ]
    tied = {"nodeSelector": {ZONE_LABEL: "z4"}}
    for name, node, extra in (("db", "n7", tied), ("web", "n3", {})):
        labels = {APPGROUP_LABEL: "shop", WORKLOAD_LABEL: name}
        await place(client, SHOP, name, 0.2, [node], labels=labels, schedulerName=NETWORK_AWARE, **extra)
    await _set_capacity_between_zones(client, "100M")
    async with _shop(client, workloads):
        yield


@asynccontextmanager
async def web_misplaced(client: Client) -> AsyncIterator[None]:
    """The same two pods, where `group_in_trouble` left them, and a group that asks for nothing but to be near."""
    async with _shop(client, [_workload("web", _needs("db")), _workload("db")]):
        yield


@asynccontextmanager
async def _shop(client: Client, workloads: list[dict[str, Any]]) -> AsyncIterator[None]:
    spec = {"numMembers": 2, "topologySortingAlgorithm": "ReverseKahn", "workloads": workloads}
    group = {"apiVersion": APPGROUPS.api_version, "kind": "AppGroup", "metadata": {"name": "shop"}, "spec": spec}
    await client.create(APPGROUPS, group, Object, namespace=SHOP)
    try:
        yield
    finally:
        await client.delete(APPGROUPS, "shop", namespace=SHOP)


def _reference(name: str) -> dict[str, Any]:
    return {"kind": "ReplicaSet", "name": name, "selector": name, "apiVersion": "apps/v1", "namespace": SHOP}


def _workload(name: str, *dependencies: dict[str, Any]) -> dict[str, Any]:
    return {"workload": _reference(name), "dependencies": list(dependencies)}


def _needs(name: str, **more: Any) -> dict[str, Any]:
    return {"workload": _reference(name), "maxNetworkCost": 5, **more}


async def _two_workloads(client: Client, namespace: str, **pods: dict[str, Any]) -> None:
    """An AppGroup of two pods, the second of which waits for the first.

    Args:
        client: as an administrator.
        namespace: becomes its name, too.
        pods: those of ``first`` and ``second`` that exist, and what their specs have besides.
    """
    await client.create(NAMESPACES, {"metadata": {"name": namespace}}, Object)
    await _until_account(client, namespace)

    def ref(name: str) -> dict[str, Any]:
        return {"kind": "Pod", "name": name, "selector": name, "apiVersion": "v1", "namespace": namespace}

    workloads = [
        {"workload": ref("second"), "dependencies": [{"workload": ref("first"), "maxNetworkCost": 5}]},
        {"workload": ref("first")},
    ]
    spec = {"numMembers": 2, "topologySortingAlgorithm": "ReverseKahn", "workloads": workloads}
    group = {"apiVersion": APPGROUPS.api_version, "kind": "AppGroup", "metadata": {"name": namespace}, "spec": spec}
    await client.create(APPGROUPS, group, Object, namespace=namespace)
    for name, extra in pods.items():
        body = {
            "metadata": {"name": name, "labels": {APPGROUP_LABEL: namespace, WORKLOAD_LABEL: name}},
            "spec": {
                "schedulerName": NETWORK_AWARE,
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "none"}],
                **extra,
            },
        }
        await client.create(PODS, body, Object, namespace=namespace)


async def land_a_group(client: Client) -> None:
    """Two pods that are released one after the other, and placed."""
    await _two_workloads(client, "landed", first=GATED, second=GATED)


@asynccontextmanager
async def pods_behind_their_gate(client: Client) -> AsyncIterator[None]:
    """A group whose first workload has no pods yet, so that the second waits behind its gate.

    A first pod that fits nowhere would hold up nobody: the plan foresees it.
    """
    await _two_workloads(client, QUEUE, second=GATED)
    try:
        yield
    finally:
        await client.delete(PODS, "second", namespace=QUEUE, grace_period_s=0)


async def _until_account(client: Client, namespace: str = SHOP) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(ApiError):
                await client.get(SERVICE_ACCOUNTS, "default", Object, namespace=namespace)
                return
            await asyncio.sleep(0.2)


async def _set_capacity_between_zones(client: Client, capacity: str) -> None:
    """A weight of the user's with capacities and no costs that anybody uses."""

    def level(key: str, origin: str, destination: str) -> dict[str, Any]:
        cost = {"destination": destination, "networkCost": 50, "bandwidthCapacity": capacity}
        return {"topologyKey": key, "originList": [{"origin": origin, "costList": [cost]}]}

    weight = {
        "name": "Capacities",
        "topologyList": [level(REGION_LABEL, "us-west-1", "us-east-1"), level(ZONE_LABEL, "z2", "z4")],
    }
    patch = [{"op": "add", "path": "/spec/weights/-", "value": weight}]
    await client.patch(NETWORK_TOPOLOGIES, "nt-default", patch, Object, kind=JSON_PATCH, namespace=HOME_NAMESPACE)


@asynccontextmanager
async def mesh_that_tells_calls() -> AsyncIterator[str]:
    """What Istio's proxies of the group in trouble would export: its db calls its web, which no AppGroup says. Gives HOST:PORT."""
    began_s = time.monotonic()
    ends = f'source_workload_namespace="{SHOP}",source_workload="db"'
    ends += f',destination_workload_namespace="{SHOP}",destination_workload="web"'

    async def metrics(_: web.Request) -> web.Response:
        moved = 50_000 * (time.monotonic() - began_s)
        name = "istio_request_bytes_sum"
        return web.Response(text=f'# TYPE {name} counter\n{name}{{reporter="source",{ends}}} {moved}\n')

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, LOOPBACK, port).start()
    try:
        yield f"{LOOPBACK}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def zone_without_agent(client: Client, zone: str, node: str) -> AsyncIterator[None]:
    """A new node in a zone of its own, on which no agent announces itself."""
    labels = {"kubernetes.io/hostname": node, ZONE_LABEL: zone, REGION_LABEL: "us-west-1"}
    amounts = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    body = {
        "metadata": {"name": node, "labels": labels, "annotations": dict([PLAYED_BY_KWOK])},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    await client.create(NODES, body, Node)
    try:
        yield
    finally:
        await client.delete(NODES, node)


@asynccontextmanager
async def results_of_others(client: Client, values: dict[str, str]) -> AsyncIterator[None]:
    """Another component writes what it measured between two nodes."""

    async def write(data: Mapping[str, str | None]) -> None:
        await client.patch(
            CONFIGMAPS, "netperf-metrics", {"data": data}, Object, kind=MERGE_PATCH, namespace=HOME_NAMESPACE
        )

    await write(values)
    try:
        yield
    finally:
        await write(dict.fromkeys(values))


def measured_by_others(origin: str, destination: str, value: str) -> dict[str, str]:
    """Upstream's keys."""
    ends = f"origin.{origin}.destination.{destination}"
    return {f"netperf.{percentile}.latency.milliseconds.{ends}": value for percentile in ("p50", "p90", "p99")}


@asynccontextmanager
async def capacity_of(client: Client, node: str, value: str | None) -> AsyncIterator[None]:
    """The user says another capacity for a node, or none at all."""

    async def write(text: str | None) -> None:
        await client.patch(
            NODES, node, {"metadata": {"annotations": {CAPACITY_ANNOTATION: text}}}, Node, kind=MERGE_PATCH
        )

    before = (await client.get(NODES, node, Node)).metadata.annotation(CAPACITY_ANNOTATION)
    await write(value)
    try:
        yield
    finally:
        await write(before)


async def remember_ineffective_moves(client: Client, forgotten_in_s: float) -> None:
    """An earlier leader made moves that helped nobody, and remembered them; they count for a day."""
    at_s = time.time() - DAY_S + forgotten_in_s
    results = (MoveResult(at_s, "NetworkMisplacement"),) * BREAKER_RESULTS
    body = {"data": {KEY: msgspec.json.encode(History(results=results)).decode()}}
    await client.patch(CONFIGMAPS, NAME, body, Object, kind=MERGE_PATCH, namespace=HOME_NAMESPACE)


@asynccontextmanager
async def limit_that_is_none(client: Client) -> AsyncIterator[None]:
    """A pod with a bandwidth annotation that is no quantity."""
    body = {
        "metadata": {"name": "limited", "annotations": {"kubernetes.io/egress-bandwidth": "ten"}},
        "spec": {
            "nodeName": "n1",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    await client.create(PODS, body, Object, namespace="default")
    try:
        yield
    finally:
        await client.delete(PODS, "limited", namespace="default", grace_period_s=0)


@asynccontextmanager
async def link(lab: Lab, one: str, other: str, **changes: float) -> AsyncIterator[None]:
    """A link of the emulated network changes."""
    before = lab.wan.links()[min(one, other), max(one, other)]
    lab.wan.change_link(one, other, **changes)
    try:
        yield
    finally:
        lab.wan.set_link(one, other, before)


@asynccontextmanager
async def bad_requests(installation: Installation) -> AsyncIterator[None]:
    """Somebody sends the extender nonsense, and requests so large that they take their time."""
    names = ",".join(f'"nobody-{i:06}"' for i in range(NAMES_OF_A_LARGE_REQUEST))
    large = ('{"pod":{"metadata":{"name":"p"}},"nodenames":[' + names + "]}").encode()

    async def send(verb: str, body: bytes) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                with suppress(aiohttp.ClientError, TimeoutError):
                    # aiohttp warns of large bodies that are no files.
                    async with session.post(f"{installation.extender_url}/{verb}", data=io.BytesIO(body)) as answer:
                        await answer.read()
                await asyncio.sleep(0.3)

    sending = [asyncio.create_task(send("filter", b"{")), asyncio.create_task(send("prioritize", large))]
    try:
        yield
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


@asynccontextmanager
async def secret_without_a_passphrase(lab: Lab) -> AsyncIterator[None]:
    """The mounted Secret holds next to nothing; agents go on with the last good one."""
    file = lab.place.state_dir / "probe-passphrase"
    good = file.read_text()
    file.write_text("short")
    try:
        yield
    finally:
        file.write_text(good)


@asynccontextmanager
async def everything_at_once(lab: Lab, installation: Installation, client: Client, pod: NodePod) -> AsyncIterator[None]:
    """All states that do not stand in each other's way."""
    async with AsyncExitStack() as stack:
        for state in (
            group_in_trouble(client),
            pods_behind_their_gate(client),
            # What others measured from the first to the second and on to the third tells of the way from first to third; of
            # their ways to zones of ours nothing is known.
            zone_without_agent(client, "z9", "n9"),
            zone_without_agent(client, "z10", "n10"),
            zone_without_agent(client, "z11", "n11"),
            results_of_others(client, measured_by_others("n9", "n10", "12")),
            results_of_others(client, measured_by_others("n10", "n11", "12")),
            results_of_others(client, measured_by_others("n1", "n3", "12ms")),
            capacity_of(client, "n8", None),
            capacity_of(client, "n7", "2k"),
            busy_uplink(lab, "n7", "n8"),
            limit_that_is_none(client),
            limit_not_set(pod),
            bad_requests(installation),
            secret_without_a_passphrase(lab),
            frozen(lab, f"agent-{HANGING_NODE}"),
            link(lab, "z1", "z3", rtt_us=60_000.0),
            link(lab, "z1", "z4", loss=0.05),
            link(lab, "z2", "z3", loss=1.0),
            # Some datagrams come back, so the path is not dead, but hardly any run ends.
            link(lab, "z3", "z4", loss=0.7),
        ):
            await stack.enter_async_context(state)
        yield
