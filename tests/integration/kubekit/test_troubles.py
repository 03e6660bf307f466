"""A real API server in trouble: killed again and again, without room, with a history that is gone, slow, or behind a dead wire."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

from kubekit.client import WATCH_SILENCE_S, Client
from kubekit.config import load_cluster
from kubekit.errors import ApiError, KubekitError, UnreachableError
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, NAMESPACES, ConfigMap, Object, Resource
from kubekit.workqueue import WorkQueue
from lab.controlplane import ControlPlane, credentials_of
from tests.support.stores import wait_synced
from tests.support.tunnels import Tunnels

NAMESPACE = "troubles"
RESTARTS = int(os.environ.get("NETAWARE_RESTARTS", "2"))
"""Of the API server in one test; 8 of them take two minutes."""
UP_S = 12.0
MANY = 100
FLOW_SCHEMAS = Resource("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema", namespaced=False)
ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
PRIORITY_LEVELS = Resource(
    "flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", namespaced=False
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own_plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane that may be killed."""
    state = tmp_path_factory.mktemp("troubles") / "state"
    async with ControlPlane.start("troubles", state_dir=state, components=()) as plane:
        async with Client(plane.client_config) as client:
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}, Object)
        yield plane


@asynccontextmanager
async def tunnelled(plane: ControlPlane) -> AsyncIterator[tuple[Tunnels, Client]]:
    tunnels = Tunnels(urlsplit(plane.server).port or 443)
    async with (
        tunnels.running() as address,
        Client(replace(plane.client_config, proxy=f"http://{address}")) as client,
    ):
        yield tunnels, client


@asynccontextmanager
async def reflecting(*clients: Client, selector: str = "") -> AsyncIterator[list[Reflector[ConfigMap]]]:
    stores = [
        Reflector(client, CONFIGMAPS, ConfigMap, namespace=NAMESPACE, label_selector=selector) for client in clients
    ]
    tasks = [asyncio.create_task(store.run()) for store in stores]
    try:
        yield stores
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(check: Callable[[], bool], deadline_s: float = 120.0) -> float:
    """Seconds until it holds."""
    started = time.monotonic()
    async with asyncio.timeout(deadline_s):
        while not check():
            await asyncio.sleep(0.05)
    return time.monotonic() - started


def config_map(name: str, text: str = "", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"v": text}}


async def restart_api_server(plane: ControlPlane, *, down_s: float = 0.0) -> tuple[float, float]:
    """Kill it, leave it down, start it; return when it was killed and when it was ready again."""
    (server,) = [program for program in plane.programs if program.name == "kube-apiserver"]
    os.kill(server.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    await server.wait()
    await asyncio.sleep(down_s)
    await plane.programs.restart(server)
    async with Client(plane.client_config, timeout_s=2.0) as client, asyncio.timeout(120):
        while True:
            with suppress(KubekitError):
                await client.request("GET", "/readyz")
                return killed_at, time.monotonic()
            await asyncio.sleep(0.1)


@pytest.mark.chaos
@pytest.mark.asyncio(loop_scope="module")
async def test_an_api_server_killed_again_and_again_loses_and_doubles_nothing(own_plane: ControlPlane) -> None:
    """Each object counts up in a log of its own, guarded by its version, as our programs write; stores are soon current."""
    counters = [f"counter-{i}" for i in range(10)]
    targets = dict.fromkeys(counters, 0)
    queue, current_s, rates = WorkQueue(), [], []

    async with tunnelled(own_plane) as (tunnels, client), Client(own_plane.client_config) as administrator:
        for name in counters:
            await client.create(CONFIGMAPS, config_map(name), ConfigMap, namespace=NAMESPACE)

        async def count(name: str) -> float | None:
            there = await client.get(CONFIGMAPS, name, ConfigMap, namespace=NAMESPACE)
            log = (there.data or {})["v"].split()
            if len(log) >= targets[name]:
                return None
            body = config_map(name, " ".join([*log, str(len(log) + 1)]))
            body["metadata"]["resourceVersion"] = there.metadata.resource_version
            await client.replace(CONFIGMAPS, name, body, ConfigMap, namespace=NAMESPACE)
            return 0.0

        async def ask_for_more() -> None:
            while True:
                for name in counters:
                    targets[name] += 1
                    queue.add(name)
                await asyncio.sleep(0.25)

        tasks = [asyncio.create_task(queue.work(count, name="counters", cap_s=5.0)) for _ in range(4)]
        asking = asyncio.create_task(ask_for_more())
        async with reflecting(*[client] * 10) as stores:
            await wait_synced(*stores, timeout_s=60)
            for round_ in range(RESTARTS):
                await asyncio.sleep(UP_S)
                killed_at, ready_at = await restart_api_server(own_plane, down_s=1.0)
                rates.append(len([t for t in tunnels.asked_at if killed_at <= t < ready_at]) / (ready_at - killed_at))
                key = f"{NAMESPACE}/mark-{round_}"
                await administrator.create(CONFIGMAPS, config_map(f"mark-{round_}"), ConfigMap, namespace=NAMESPACE)
                await until(partial(_have, stores, key))
                current_s.append(time.monotonic() - ready_at)
            asking.cancel()
            await until(lambda: all(_log_of(stores[0], name) == targets[name] for name in counters))
        for task in (asking, *tasks):
            task.cancel()
        await asyncio.gather(asking, *tasks, return_exceptions=True)
        for name in counters:
            there = await administrator.get(CONFIGMAPS, name, ConfigMap, namespace=NAMESPACE)
            assert (there.data or {})["v"].split() == [str(i + 1) for i in range(targets[name])]
    assert rates
    assert sum(targets.values()) > 0
    print(f"\n{RESTARTS} kills, 10 stores and 4 writers: connections/s while down {_shown(rates)}")
    print(f"seconds from ready to the last of 10 stores current {_shown(current_s)}; writes {sum(targets.values())}")


def _have(stores: list[Reflector[ConfigMap]], key: str) -> bool:
    return all(store.get(key) is not None for store in stores)


def _log_of(store: Reflector[ConfigMap], name: str) -> int:
    there = store.get(f"{NAMESPACE}/{name}")
    return len((there.data or {})["v"].split()) if there is not None else -1


def _shown(values: list[float]) -> str:
    return f"median {sorted(values)[len(values) // 2]:.1f}, most {max(values):.1f}"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_version_that_etcd_has_compacted_is_listed_anew(own_plane: ControlPlane) -> None:
    async with tunnelled(own_plane) as (tunnels, client), Client(own_plane.client_config) as administrator:
        for name in ("stays", "goes", "turns"):
            await administrator.create(CONFIGMAPS, config_map(name, kind="410"), ConfigMap, namespace=NAMESPACE)
        async with reflecting(client, selector="kind=410") as (store,):
            await wait_synced(store, timeout_s=60)
            told: Counter[str] = Counter()
            store.subscribe(lambda key, old, new: told.update([f"{key.split('/')[1]} {new is not None}"]))
            tunnels.refusing = True
            tunnels.cut()
            await administrator.delete(CONFIGMAPS, "goes", namespace=NAMESPACE)
            turned = await administrator.patch(
                CONFIGMAPS, "turns", {"data": {"v": "2"}}, ConfigMap, namespace=NAMESPACE
            )
            await compact(own_plane, turned.metadata.resource_version)
            await restart_api_server(own_plane)
            tunnels.refusing = False
            await until(lambda: store.get(f"{NAMESPACE}/goes") is None and not store.failure)
            assert told == {"goes False": 1, "turns True": 1}
            await administrator.create(CONFIGMAPS, config_map("comes", kind="410"), ConfigMap, namespace=NAMESPACE)
            await until(lambda: store.get(f"{NAMESPACE}/comes") is not None)


async def compact(plane: ControlPlane, revision: str) -> None:
    pki = plane.authority.folder
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    context.load_cert_chain(pki / "etcd.crt", pki / "etcd.key")
    body = {"revision": revision, "physical": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{plane.etcd}/v3/kv/compaction", json=body, ssl=context) as answer,
    ):
        assert answer.status == 200, await answer.text()


@asynccontextmanager
async def few_seats(administrator: Client, user: str) -> AsyncIterator[None]:
    """Priority and fairness serves one request of ``user`` at a time, which is the fewest, and refuses the rest at once."""
    level = {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        },
    }
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    schema = {
        "matchingPrecedence": 2,
        "priorityLevelConfiguration": {"name": "few-seats"},
        "rules": [{"subjects": [{"kind": "User", "user": {"name": user}}], "resourceRules": [everything]}],
    }
    await administrator.create(PRIORITY_LEVELS, {"metadata": {"name": "few-seats"}, "spec": level}, Object)
    await administrator.create(FLOW_SCHEMAS, {"metadata": {"name": "few-seats"}, "spec": schema}, Object)
    try:
        yield
    finally:
        await administrator.delete(FLOW_SCHEMAS, "few-seats")
        await administrator.delete(PRIORITY_LEVELS, "few-seats")


async def refused(administrator: Client) -> int:
    text = (await administrator.request("GET", "/metrics")).decode()
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("apiserver_flowcontrol_rejected_requests_total") and 'flow_schema="few-seats"' in line
    ]
    return sum(int(float(line.split()[-1])) for line in lines)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_server_without_room_is_asked_when_it_said_and_gets_every_write_once(own_plane: ControlPlane) -> None:
    # No member of system:masters, whom nothing limits.
    kubeconfig = own_plane.write_kubeconfig("crowd", "crowd")
    binding = {
        "metadata": {"name": "crowd"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "crowd"}],
    }
    async with (
        Client(own_plane.client_config) as administrator,
        Client(load_cluster(credentials_of(kubeconfig))) as client,
    ):
        await administrator.create(ROLE_BINDINGS, binding, Object)
        async with few_seats(administrator, "crowd"), AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(client.config, timeout_s=60)) for _ in range(8)]
            async with asyncio.timeout(60):
                while not await refused(administrator):
                    await asyncio.gather(*(list_once(one) for one in clients))
            before, started = await refused(administrator), time.monotonic()
            writes = turned_away = 0
            async with reflecting(client, selector="kind=429") as (store,), asyncio.timeout(120):
                # Whether two callers meet is up to the machine: it goes on until some have been turned away.
                while not turned_away:
                    numbers = range(writes, writes + MANY)
                    await asyncio.gather(*(write_once(clients[i % 8], i) for i in numbers))
                    writes, turned_away = writes + MANY, await refused(administrator) - before
                took_s = time.monotonic() - started
                await until(lambda: len(store) == writes)
            print(f"\none seat, 8 callers: {writes} writes in {took_s:.1f} s, {turned_away} times turned away")
        written = await administrator.list(CONFIGMAPS, ConfigMap, namespace=NAMESPACE, label_selector="kind=429")
    assert Counter((found.metadata.labels or {})["number"] for found in written) == {str(i): 1 for i in range(writes)}


async def list_once(client: Client) -> None:
    with suppress(ApiError):
        await client.request("GET", CONFIGMAPS.path(NAMESPACE), timeout_s=0.9)


async def write_once(client: Client, number: int) -> None:
    """With a name of the server's choice, so that a write that came twice would be seen."""
    body = {"metadata": {"generateName": "full-", "labels": {"kind": "429", "number": str(number)}}}
    while True:
        try:
            await client.create(CONFIGMAPS, body, ConfigMap, namespace=NAMESPACE)
        except ApiError as error:
            if not error.throttled:
                raise
            await asyncio.sleep(error.retry_after_s or 1.0)
        else:
            return


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_wire_that_went_dead_without_a_word_is_given_up_and_the_mirror_is_current(
    own_plane: ControlPlane,
) -> None:
    """As of a balancer that keeps a connection whose other half is gone: TCP is answered, and nothing comes."""
    async with (
        tunnelled(own_plane) as (tunnels, client),
        Client(own_plane.client_config) as administrator,
        reflecting(client, selector="kind=silent") as (store,),
    ):
        await wait_synced(store, timeout_s=60)
        tunnels.freeze()
        await administrator.create(CONFIGMAPS, config_map("unheard", kind="silent"), ConfigMap, namespace=NAMESPACE)
        took_s = await until(lambda: len(store) == 1, WATCH_SILENCE_S + 60)
        print(f"\na frozen wire: current after {took_s:.0f} s")
        # A request on a connection that was kept and froze ends by its own deadline, and the next is answered.
        with suppress(UnreachableError):
            await client.get(CONFIGMAPS, "unheard", ConfigMap, namespace=NAMESPACE)
        there = await client.get(CONFIGMAPS, "unheard", ConfigMap, namespace=NAMESPACE)
        assert there.metadata.name == "unheard"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("streams", [True, False])
async def test_a_slow_list_is_taken_in_and_a_lease_does_not_wait_for_it(own_plane: ControlPlane, streams: bool) -> None:
    async with tunnelled(own_plane) as (tunnels, client), Client(own_plane.client_config) as administrator:
        label = f"slow-{str(streams).lower()}"
        for i in range(10):
            body = config_map(f"{label}-{i}", os.urandom(50_000).hex(), kind=label)
            await administrator.create(CONFIGMAPS, body, ConfigMap, namespace=NAMESPACE)
        tunnels.bytes_per_s = 60_000
        store = Reflector(client, CONFIGMAPS, ConfigMap, namespace=NAMESPACE, label_selector=f"kind={label}")
        store._streams = streams
        task = asyncio.create_task(store.run())
        try:
            await until(lambda: tunnels.bytes_down > 100_000)
            answered = 0
            while not store.synced.is_set() and answered < 5:
                await client.with_dedicated_connection().request("GET", "/version")
                answered += not store.synced.is_set()
            assert answered == 5, "the list was still on its way"
            await wait_synced(store, timeout_s=120)
            assert len(store) == 10
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
