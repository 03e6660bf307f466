"""Contended launches of groups while leader and schedulers are killed at random: is a group left half placed with room for the rest?

Run by hand (minutes): ``python tests/bench/launches.py --launches 1000``. More groups want in than fit; one that is whole leaves after
a moment. Pods of a second scheduler, which knows of no nomination, come and go among them and take room from under the first one's
reservations. Leader, scheduler and second scheduler are killed (SIGKILL) one at a time and started again. Nodes are API objects
without a kubelet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.cluster.pods import GATE
from controller.cluster.resources import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.reflector import Reflector
from kubekit.wire import NODES, PODS, Node, Object
from lab.controlplane import ControlPlane, credentials_of, free_ports
from lab.programs import Program
from lab.scheduling import DEFAULT_PROFILE, build_config
from netperf.contract import REGION_LABEL, ZONE_LABEL
from tests.bench.control_plane import make_topology, started
from tests.bench.decision_quality import in_batches, until
from tests.bench.throughput import NAMESPACE, Bound, counted

HOSTS, ZONES, CPUS = 24, 3, 8
ALIVE, STRANGERS = 22, 12
"""Groups that want in at a time, 12 cpus each on average, and pods of the second scheduler; hosts have 192 cpus."""
SECOND = "second-scheduler"
PATIENCE_S, QUIET_S = 45.0, 4.0
"""A group that is half placed for so long in all, with room for the rest, is left half placed. Not counted is the latter time after
each kill, in which a program starts and reads what is there: kills are 8 s apart in the mean, so most of the run counts.
"""
GIVES_UP_S, STALLED_S = 15.0, 150.0
"""Where nothing became whole for so long, since everybody holds a part of the room, a group gives up; and is nothing done then?"""


class Group(msgspec.Struct):
    """A group that was launched.

    Attributes:
        cpus: of each pod.
        half_s: for how long it was half placed with room for the rest, since it last was not.
    """

    name: str
    cpus: list[int]
    launched_at: float
    half_s: float = 0.0


class Tally(msgspec.Struct):
    """What happened."""

    whole: int = 0
    gave_up: int = 0
    kills: Counter[str] = msgspec.field(default_factory=Counter)
    left_half: list[str] = msgspec.field(default_factory=list)
    overcommitted: int = 0
    longest_half_s: float = 0.0
    launch_s: list[float] = msgspec.field(default_factory=list)
    stalled: list[str] = msgspec.field(default_factory=list)
    crashes: list[str] = msgspec.field(default_factory=list)


class Killable:
    """A program that is killed now and then, and started again, as it is when it ended by itself."""

    def __init__(self, plane: ControlPlane, name: str, running: Program) -> None:
        self._programs, self.name, self._running = plane.programs, name, running
        self._turn = asyncio.Lock()

    async def kill(self) -> None:
        """As a node's crash would end it."""
        async with self._turn:
            if not self._running.failed:
                os.kill(self._running.pid, signal.SIGKILL)
            self._running = await self._programs.restart(self._running)

    async def revive(self) -> str:
        """Start it again if it ended by itself, as a kubelet would; the end of its log then, else nothing."""
        async with self._turn:
            if not self._running.failed:
                return ""
            last_words = self._running.log_tail()
            self._running = await self._programs.restart(self._running)
            return last_words

    async def stop(self) -> None:
        """For good."""
        await self._programs.stop(self._running)


async def scheduler(plane: ControlPlane, name: str) -> Killable:
    config = build_config(Path("unused"), profiles=(name,))
    config["clientConnection"] = {"qps": 2000, "burst": 4000}
    return Killable(plane, name, await plane.start_scheduler(config, name=name))


def leader(plane: ControlPlane, placement: str) -> Killable:
    config = plane.state_dir / "manager.yaml"
    document: dict[str, Any] = {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    config.write_text(yaml.safe_dump({**document, "scheduler": {"placement": placement, "gates": {"settleS": 0.2}}}))
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "controller",
        "manager",
        f"--credentials={credentials_of(plane.kubeconfig)}",
    ]
    argv += [f"--config={config}", f"--listen=127.0.0.1:{free_ports(1)[0]}", "--log-level=warning", "--no-leader-elect"]
    return Killable(plane, "leader", plane.programs.start("leader", argv, essential=False))


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[ControlPlane, Client]]:
    async with started("launches", (NAMESPACE, "netaware-system"), kwok=False) as (plane, client):
        await in_batches([make_host(client, number) for number in range(HOSTS)])
        await until(lambda: make_costs(client))
        yield plane, client


async def make_host(client: Client, number: int) -> None:
    name = f"h{number:02}"
    labels = {ZONE_LABEL: f"z{number % ZONES}", REGION_LABEL: "r", "kubernetes.io/hostname": name}
    amounts = {"cpu": str(CPUS), "memory": "64Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status}, Node)
    await client.patch(NODES, name, {"spec": {"taints": None}}, Node, kind=MERGE_PATCH)


async def make_costs(client: Client) -> bool:
    zones = [f"z{zone}" for zone in range(ZONES)]
    origins = [
        {"origin": a, "costList": [{"destination": b, "networkCost": 5} for b in zones if a != b]} for a in zones
    ]
    return await make_topology(client, NAMESPACE, [{"topologyKey": ZONE_LABEL, "originList": origins}])


def pod_body(name: str, cpu: int, scheduler_name: str, labels: dict[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulerName": scheduler_name,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": str(cpu)}}}],
    }
    if labels:
        spec["schedulingGates"] = [{"name": GATE}]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


class Launches:
    """The whole run."""

    def __init__(self, client: Client, mirror: Reflector[Bound], rng: random.Random, launches: int) -> None:
        self._client, self._mirror, self._rng, self._left = client, mirror, rng, launches
        self._groups: dict[str, Group] = {}
        self._cpus: dict[str, int] = {}
        self._strangers: dict[str, float] = {}
        self._last_kill = self._last_look = time.monotonic()
        self._last_whole = self._last_gave_up = time.monotonic()
        self._number = 0
        self.tally = Tally()

    @property
    def over(self) -> bool:
        return bool(self.tally.stalled) or (not self._left and not self._groups)

    async def launch(self) -> None:
        """Keep as many groups wanting in as should."""
        while not self.over:
            while self._left and len(self._groups) < ALIVE:
                self._left -= 1
                await self._make_group()
            await asyncio.sleep(0.1)

    async def _make_group(self) -> None:
        self._number += 1
        name, workloads = f"g{self._number}", self._rng.randint(2, 4)
        sizes = [self._rng.randint(1, 3) for _ in range(workloads)]
        replicas = [self._rng.randint(1, 3) for _ in range(workloads)]
        refer = [{"kind": "Deployment", "name": f"w{i}", "selector": f"w{i}"} for i in range(workloads)]
        spec = {
            "numMembers": sum(replicas),
            "topologySortingAlgorithm": "KahnSort",
            "workloads": [
                {
                    "workload": one,
                    "dependencies": [{"workload": refer[i + 1], "maxNetworkCost": 100}] if i + 1 < workloads else [],
                }
                for i, one in enumerate(refer)
            ],
        }
        body = {**APPGROUPS.type_meta, "metadata": {"name": name}, "spec": spec}
        await self._client.create(APPGROUPS, body, Object, namespace=NAMESPACE)
        pods = [(f"{name}-w{w}-{k}", sizes[w], w) for w, count in enumerate(replicas) for k in range(count)]
        self._groups[name] = Group(name, [cpu for _, cpu, _ in pods], time.monotonic())
        for pod, cpu, workload in pods:
            self._cpus[pod] = cpu
            labels = {APPGROUP_LABEL: name, WORKLOAD_LABEL: f"w{workload}"}
            await self._client.create(PODS, pod_body(pod, cpu, DEFAULT_PROFILE, labels), Object, namespace=NAMESPACE)

    async def mingle(self) -> None:
        """Strangers come and go."""
        number = 0
        while not self.over:
            now = time.monotonic()
            for name in [name for name, ends in self._strangers.items() if ends < now]:
                del self._strangers[name]
                await self._delete(name)
            if self._left and len(self._strangers) < STRANGERS:
                number += 1
                name, cpu = f"stranger-{number}", self._rng.randint(1, 2)
                self._cpus[name] = cpu
                self._strangers[name] = now + self._rng.uniform(2.0, 8.0)
                await self._client.create(PODS, pod_body(name, cpu, SECOND, {}), Object, namespace=NAMESPACE)
            await asyncio.sleep(0.2)

    async def _delete(self, name: str) -> None:
        try:
            path = PODS.path(NAMESPACE, name)
            await self._client.request("DELETE", path, body={"gracePeriodSeconds": 0})
        except ApiError as error:
            if not error.not_found:
                raise

    async def kill(self, victims: Sequence[Killable]) -> None:
        """One after the other, at random; never twice within what a start takes."""
        while not self.over:
            await asyncio.sleep(self._rng.uniform(4.0, 12.0))
            if self._left:
                victim = self._rng.choice(victims)
                self._last_kill = time.monotonic()
                self.tally.kills[victim.name] += 1
                await victim.kill()

    async def revive(self, victims: Sequence[Killable]) -> None:
        """What ends by itself is a defect, and is started again."""
        while not self.over:
            await asyncio.sleep(1.0)
            for victim in victims:
                if last_words := await victim.revive():
                    self._last_kill = time.monotonic()
                    self.tally.crashes.append(f"{victim.name}: {last_words[-300:]}")

    async def judge(self) -> None:
        """Count what is whole, and what is left half placed."""
        while not self.over:
            await asyncio.sleep(0.5)
            now, bound = time.monotonic(), self._bound_by_group()
            counts_s = now - self._last_look if now - self._last_kill > QUIET_S else 0.0
            self._last_look, free = now, self._free()
            self.tally.overcommitted = max(self.tally.overcommitted, sum(left < 0 for left in free.values()))
            for group in list(self._groups.values()):
                await self._judge_group(group, bound.get(group.name, Counter()), free, now, counts_s)
            if now - self._last_whole > STALLED_S:
                self.tally.stalled = [await self._describe(group, free) for group in self._groups.values()]
            elif now - max(self._last_whole, self._last_gave_up) > GIVES_UP_S and self._groups:
                self._last_gave_up = now
                self.tally.gave_up += 1
                # Whose patience ends first: the last one to come holds nothing that would help another.
                eldest = min(self._groups.values(), key=lambda group: group.launched_at)
                del self._groups[eldest.name]
                await self._remove(eldest)

    def _bound_by_group(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for pod in self._mirror:
            group = pod.metadata.label(APPGROUP_LABEL)
            if group:
                found.setdefault(group, Counter())["bound" if pod.spec.node_name else pod.metadata.name] += 1
        return found

    def _free(self) -> dict[str, int]:
        free = {f"h{number:02}": CPUS for number in range(HOSTS)}
        for pod in self._mirror:
            if pod.spec.node_name:
                free[pod.spec.node_name] -= self._cpus[pod.metadata.name]
        return free

    async def _judge_group(
        self, group: Group, pods: Counter[str], free: dict[str, int], now: float, counts_s: float
    ) -> None:
        if pods["bound"] == len(group.cpus):
            del self._groups[group.name]
            self.tally.whole += 1
            self.tally.launch_s.append(now - group.launched_at)
            self._last_whole = now
            await self._remove(group)
            return
        if not pods["bound"]:
            group.half_s = 0.0
            return
        if not has_room([self._cpus[name] for name in pods if name != "bound"], free):
            return
        before, group.half_s = group.half_s, group.half_s + counts_s
        self.tally.longest_half_s = max(self.tally.longest_half_s, group.half_s)
        if before <= PATIENCE_S < group.half_s:
            self.tally.left_half.append(await self._describe(group, free))

    async def _describe(self, group: Group, free: dict[str, int]) -> str:
        """What the rest of a group waits for: the words of its pods, and whether nominations of others hold the room."""
        pods = json.loads(await self._client.request("GET", PODS.path(NAMESPACE)))["items"]
        mine = [pod for pod in pods if pod["metadata"].get("labels", {}).get(APPGROUP_LABEL) == group.name]
        rest = [pod for pod in mine if not pod["spec"].get("nodeName")]
        left = dict(free)
        for pod in pods:
            host = pod["status"].get("nominatedNodeName")
            if pod not in mine and host and not pod["spec"].get("nodeName"):
                left[host] -= self._cpus[pod["metadata"]["name"]]
        room = has_room([self._cpus[pod["metadata"]["name"]] for pod in rest], left)
        lines = [
            f"{group.name}, {time.monotonic() - group.launched_at:.0f} s old: {len(mine) - len(rest)} of {len(mine)} are bound;"
        ]
        lines.append(f"room {'beside' if room else 'only without'} nominations of others")
        for pod in rest:
            said = next(
                (c.get("message", "") for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"), ""
            )
            state = "gated" if pod["spec"].get("schedulingGates") else f"open: {said[:200]}"
            host = pod["status"].get("nominatedNodeName", "no host")
            lines.append(f"{pod['metadata']['name']} ({self._cpus[pod['metadata']['name']]} cpu, for {host}) {state}")
        return "; ".join(lines)

    async def _remove(self, group: Group) -> None:
        for pod in [p.metadata.name for p in self._mirror if p.metadata.label(APPGROUP_LABEL) == group.name]:
            await self._delete(pod)
        await self._client.delete(APPGROUPS, group.name, namespace=NAMESPACE)


def has_room(cpus: Sequence[int], free: dict[str, int]) -> bool:
    """Whether pods of these sizes fit, the largest first."""
    left = dict(free)
    for cpu in sorted(cpus, reverse=True):
        host = max(left, key=lambda name: left[name])
        if left[host] < cpu:
            return False
        left[host] -= cpu
    return True


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--placement", choices=("affinity", "nominated"), default="nominated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=15.0)
    args = parser.parse_args()
    began = time.monotonic()
    async with cluster() as (plane, client), counted(client) as mirror:
        victims = [leader(plane, args.placement)]
        victims += [await scheduler(plane, name) for name in (DEFAULT_PROFILE, SECOND)]
        run = Launches(client, mirror, random.Random(args.seed), args.launches)
        try:
            async with asyncio.timeout(args.minutes * 60), asyncio.TaskGroup() as tasks:
                for work in (run.launch(), run.mingle(), run.kill(victims), run.revive(victims), run.judge()):
                    tasks.create_task(work)
        except TimeoutError:
            print("the time is over", file=sys.stderr)
        finally:
            for victim in victims:
                await victim.stop()
    tally, times = run.tally, sorted(run.tally.launch_s)
    figures = {
        "whole": tally.whole,
        "gave up": tally.gave_up,
        "left half placed": tally.left_half,
        "stalled": tally.stalled,
        "ended by themselves": tally.crashes,
        "kills": dict(tally.kills),
        "most hosts overcommitted at a time": tally.overcommitted,
        "longest half placed with room, s": round(tally.longest_half_s, 1),
        "launch p50, s": round(times[len(times) // 2], 1) if times else None,
        "launch p99, s": round(times[int(len(times) * 0.99)], 1) if times else None,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
