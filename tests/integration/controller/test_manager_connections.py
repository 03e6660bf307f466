"""At 100 zones with 20 viewers of the page the manager holds few connections, and its Lease waits for none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil

from controller.cluster.resources import NETWORK_TOPOLOGIES
from kubekit.client import Client
from kubekit.lease import Lease
from kubekit.wire import CONFIGMAPS, LEASES, ConfigMap, Object
from lab.controlplane import ControlPlane
from netperf.shards import shard_names
from tests.integration.conftest import MakeNode, eventually
from tests.integration.controller.harness import Replica

ZONES, VIEWERS = 100, 20
WATCHED = (
    "nodes",
    "pods",
    "services",
    "namespaces",
    "resourcequotas",
    "persistentvolumes",
    "persistentvolumeclaims",
    "storageclasses",
    "deployments",
    "statefulsets",
    "appgroups",
    "networktopologies",
    "configmaps: plans",
    "configmaps: others of our namespace",
)
"""Every kind that a manager watches, and nothing else may need a connection for itself."""
OTHERS = 6


def connections(replica: Replica, plane: ControlPlane) -> int:
    assert replica._process is not None
    port = int(plane.client_config.server.rpartition(":")[2])
    found = psutil.Process(replica._process.pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and bool(c.raddr) and c.raddr.port == port for c in found)


async def test_connections_follow_neither_zones_nor_viewers(
    control_plane: ControlPlane,
    client: Client,
    namespace: str,
    crds: list[str],
    make_node: MakeNode,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    await asyncio.gather(*(make_node(f"{namespace}-{i}", zone=f"{namespace}-{i}") for i in range(ZONES)))
    for name in shard_names("netperf-metrics", ZONES):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}
        await client.create(CONFIGMAPS, body, ConfigMap, namespace=namespace)
    topology = {
        "apiVersion": NETWORK_TOPOLOGIES.api_version,
        "kind": NETWORK_TOPOLOGIES.kind,
        "metadata": {"name": "nt-default"},
        "spec": {"configmapName": "netperf-metrics", "weights": []},
    }
    await client.create(NETWORK_TOPOLOGIES, topology, Object, namespace=namespace)
    replica = Replica(tmp_path, control_plane.kubeconfig, namespace, {"page": {"auth": "none"}})
    replica.start()
    try:
        await eventually(replica.leads)

        async def all_shards_are_read() -> bool:
            shown = await replica.metrics()
            return sum(name.startswith("netaware_results_size_bytes{") for name in shown) >= ZONES

        await eventually(all_shards_are_read)
        most = 0
        async with aiohttp.ClientSession() as session:

            async def view() -> None:
                async with session.get(f"http://{replica.listen}/api/v1/overview") as answer:
                    assert answer.status == 200

            for _ in range(20):
                await asyncio.gather(*(view() for _ in range(VIEWERS)))
                most = max(most, connections(replica, control_plane))
                await asyncio.sleep(0.25)
        shown = await replica.metrics()
        record_property("connections", most)
        print(f"{most} connections")
        # Fewer than one each, and the Lease's: the list above names a kind that is not watched any more.
        assert len(WATCHED) < most <= len(WATCHED) + OTHERS
        assert shown['netaware_informer_age_seconds{kind="results"}'] >= 0
        lease = await client.get(LEASES, "netaware-controller", Lease, namespace=namespace)
        assert lease.spec.lease_transitions == 0
    finally:
        await replica.stop()
