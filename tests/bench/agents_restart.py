"""What it costs the API server that the agents of a large cluster start within a minute, as in a rollout that nobody paces.

Run by hand (minutes): ``python tests/bench/agents_restart.py --agents 10000``. Nodes and pods stand in etcd as a restored backup would be.
Each agent has a TLS connection of its own for each of its three mirrors (its node, the pods on it, its zone's plan), fills them by
the product's own code, watches for a moment and ends. Ways to fill a mirror:

stream: list and watch in one request from the server's memory (WatchList), where it is served.
memory: a list from the server's memory (resourceVersion=0), then a watch: what is done where lists are not streamed.
etcd: a list in pages without a resourceVersion, then a watch, as the first version did.

Processor time and bytes are those of the server's process, from its start to write to its last agent's end, less what it takes alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.node import OwnNode
from kubekit.client import Client, RawPage, WatchEvent
from kubekit.config import ClusterConfig
from kubekit.errors import ApiError
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, NAMESPACES, NODES, PODS, ConfigMap, Object, Pod, Resource
from lab.build import find_or_build
from lab.controlplane import ControlPlane
from netperf.contract import HOME_NAMESPACE
from netperf.plans import plan_object_name
from tests.scale.objects import zone_name
from tests.scale.populate import Sizes, restore

MEMORY, ETCD, STREAM = WAYS = ("memory", "etcd", "stream")
PLAN_BYTES = 20_000
STAY_S, REST_S = 1.0, 10.0


class Listing(Client):
    """Asks for lists as on a server that does not stream them."""

    @asynccontextmanager
    async def watch(self, *args: Any, initial: bool = False, **kwargs: Any) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """As the client's; of a streamed list, what such a server answers."""
        if initial:
            raise ApiError(422, "Invalid", "sendInitialEvents is forbidden")
        async with super().watch(*args, **kwargs) as events:
            yield events


class Asking(Listing):
    """Asks for lists in pages, and for the newest there is."""

    def pages(self, resource: Resource, *, from_cache: bool = False, **kwargs: Any) -> AsyncIterator[RawPage]:
        """As the client's, never from memory."""
        assert from_cache, "the product would ask for these in pages too"
        return super().pages(resource, **kwargs)


CLIENTS = {STREAM: Client, MEMORY: Listing, ETCD: Asking}


async def life(config: ClusterConfig, way: str, node: str, zone: str) -> float:
    """One agent from its start to its end; seconds until all mirrors were filled."""
    started = time.monotonic()
    async with CLIENTS[way](config) as client:
        plan = f"metadata.name={plan_object_name(zone)}"
        mirrors: tuple[Reflector[Any], ...] = (
            Reflector(client, NODES, OwnNode, field_selector=f"metadata.name={node}"),
            Reflector(client, PODS, Pod, field_selector=f"spec.nodeName={node}"),
            Reflector(client, CONFIGMAPS, ConfigMap, namespace=HOME_NAMESPACE, field_selector=plan),
        )
        tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
        try:
            for mirror in mirrors:
                await mirror.synced.wait()
            took_s = time.monotonic() - started
            assert all(len(mirror) for mirror in mirrors), "an agent did not find its node, its pods or its plan"
            await asyncio.sleep(STAY_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return took_s


class Meter:
    """Processor seconds and bytes written of a process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def read(self) -> tuple[float, float]:
        """So far."""
        times = self._process.cpu_times()
        return times.user + times.system, float(self._process.io_counters().write_chars)


async def measure(plane: ControlPlane, way: str, names: list[tuple[str, str]], within_s: float) -> dict[str, Any]:
    """Let agents start at random moments of ``within_s``; what that took."""
    meters = {name: Meter(p.pid) for p in plane.programs if (name := p.name) in {"kube-apiserver", "etcd"}}

    async def taken(doing: Any) -> tuple[Any, float, dict[str, tuple[float, float]]]:
        before, started = {name: meter.read() for name, meter in meters.items()}, time.monotonic()
        done = await doing
        after, took_s = {name: meter.read() for name, meter in meters.items()}, time.monotonic() - started
        return done, took_s, {n: (after[n][0] - before[n][0], after[n][1] - before[n][1]) for n in meters}

    _, rest_s, alone = await taken(asyncio.sleep(REST_S))
    config = plane.client_config
    rng = random.Random(1)

    async def one(zone: str, node: str) -> float:
        await asyncio.sleep(rng.uniform(0, within_s))
        return await life(config, way, node, zone)

    lives, took_s, used = await taken(asyncio.gather(*(one(zone, node) for zone, node in names)))
    share = took_s / rest_s
    lives.sort()
    figures = {
        name: {
            "cpu_s": round(cpu_s - alone[name][0] * share, 1),
            "written_mb": round((written - alone[name][1] * share) / 1e6, 1),
        }
        for name, (cpu_s, written) in used.items()
    }
    return {
        "way": way,
        "version": plane.version,
        "agents": len(names),
        "took_s": round(took_s, 1),
        "filled_p50_s": round(lives[len(lives) // 2], 2),
        "filled_p99_s": round(lives[len(lives) * 99 // 100], 2),
        **figures,
    }


async def run(args: argparse.Namespace) -> None:
    """Fill a control plane once, then measure each way."""
    binaries = await asyncio.to_thread(find_or_build)
    sizes = Sizes(zones=100, nodes_per_zone=args.nodes // 100, pods=args.pods, groups=0)
    with tempfile.TemporaryDirectory() as folder:
        async with ControlPlane.start(
            "restart", state_dir=Path(folder) / "state", components=(), binaries=binaries
        ) as plane:
            names = await restore(plane, sizes, lambda text: print(text, file=sys.stderr))
            async with Client(plane.client_config) as client:
                await client.create(NAMESPACES, {"metadata": {"name": HOME_NAMESPACE}}, Object)
                for index in range(sizes.zones):
                    body = {
                        "metadata": {"name": plan_object_name(zone_name(index))},
                        "data": {"plan": "x" * PLAN_BYTES},
                    }
                    await client.create(CONFIGMAPS, body, ConfigMap, namespace=HOME_NAMESPACE)
            flat = [(zone_name(zone), name) for zone, nodes in enumerate(names) for name in nodes]
            for way in args.ways:
                chosen = random.Random(2).sample(flat, min(args.agents, len(flat)))
                within_s = args.within * len(chosen) / args.nodes
                print(json.dumps(await measure(plane, way, chosen, within_s)), flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000, help="of the cluster; in a hundred zones")
    parser.add_argument("--pods", type=int, default=30_000, help="of the cluster")
    parser.add_argument("--agents", type=int, default=10_000, help="that start; fewer start in as much less time")
    parser.add_argument(
        "--within", type=float, default=60.0, metavar="SECONDS", help="in which all nodes' agents would start"
    )
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}; {STREAM} where none is named")
    args = parser.parse_args()
    if unknown := set(args.ways) - set(WAYS):
        parser.error(f"no such way: {', '.join(sorted(unknown))}")
    args.ways = args.ways or [STREAM]
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
