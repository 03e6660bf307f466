"""Everything that moves pods at once: descheduler, planner, rollouts, a pair of zones that becomes distant, a zone lost and back.

Run by hand, half an hour or more: ``nice -n 10 python tests/bench/together.py --minutes 60 --json``. API server, scheduler,
controller and extender are real, under the rights of the descheduler overlay; kwok plays the kubelets. Agents are simulated, and so
is usage, which the controller asks for as it asks Prometheus. A round of the descheduler is five seconds apart instead of a minute, and
its times are shortened in the same way, so an hour is half a day. Judged is what the descheduler remembers of each move, and the API
server's own account of where pods were.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.cluster.resources import APPGROUPS, WORKLOAD_LABEL
from controller.descheduler.memory import KEY, NAME, Followed, Memory, mark_of
from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, DEPLOYMENTS, NAMESPACES, PODS, ConfigMap, Object, Pod
from lab import boutique
from lab.cluster import Lab
from lab.controlplane import LOOPBACK, credentials_of, free_ports
from lab.installation import MANIFESTS, start_without_pods
from netperf.contract import AGENT, HOME_NAMESPACE
from tests.scale import populate
from tests.scale.agents import Traffic, ZoneAgents
from tests.scale.life import Life
from tests.scale.metrics import Readings
from tests.scale.objects import zone_name
from tests.scale.participants import Participants
from tests.scale.populate import Sizes

SIZES = Sizes(zones=3, nodes_per_zone=5, pods=15, groups=0)
CORES = 8.0
WEB, REPLICAS = 12, 4
GROUPS = 3
SURGE, SURGE_S = 2.5, 240.0
NEAR_US = {frozenset({0, 1}): 1_000.0, frozenset({1, 2}): 2_000.0, frozenset({0, 2}): 6_000.0}
FAR_US = 40_000.0
HIGH = 70.0
QUERIES = dict.fromkeys(("nodeMemory", "nodeBandwidth", "podMemory", "podBandwidth"), "") | {
    "nodeCpu": "node",
    "podCpu": "pod",
}
ENDED, PREDICTIONS = "netaware_descheduler_moves_ended_total", "netaware_descheduler_predictions_total"
TWELFTH = {
    "settleS": 10,
    "judgeS": 25,
    "lostS": 60,
    "workloadBackoffS": 25,
    "failureBackoffS": 600,
    "movedPodRestS": 300,
    "trustWindowS": 7200,
    "perHour": 1200,
    "perWorkload": 1,
    "unavailablePerWorkload": 1,
}
"""The defaults' seconds by twelve, but for a replacement's rest: with a twelfth of half a day none would move twice in a run."""


def configuration(url: str) -> dict[str, Any]:
    """The overlay's, with short times, and awake."""
    document: dict[str, Any] = yaml.safe_load((MANIFESTS / "components" / "descheduler" / "config.yaml").read_text())
    document["topology"] = {"probing": {"intervalS": 8.0, "slotS": 2.5, "durationS": 1.0}}
    document["topology"]["costPolicy"] = {"percentile": "p50"}
    document["descheduler"] |= {
        "dryRun": False,
        "intervalS": 5,
        "limits": TWELFTH,
        "protection": {"minPodAgeS": 5},
        "usage": {"source": "prometheus", "halfLifeS": 3, "prometheus": {"url": url, "queries": QUERIES}},
        "misplacement": {"enabled": True, "holdS": 25},
        "policy": {
            "lowThresholds": {"cpu": 50},
            "highThresholds": {"cpu": HIGH},
            "nodeMetricExpirationSeconds": 30,
            "anomalyCondition": {"timeout": "60s"},
            "evictableNamespaces": {"exclude": ["kube-system", HOME_NAMESPACE]},
        },
    }
    return document


class Usage:
    """What pods use, made up; answers the two queries of `QUERIES` as Prometheus does.

    Every workload has a mean of its own and, one after the other, a time in which it surges.
    """

    def __init__(self, client: Client, dead: set[str]) -> None:
        self.pods: Reflector[Pod] = Reflector(client, PODS, Pod)
        self.dead, self._nodes = dead, dict[str, str]()
        self._begun = time.monotonic()
        self.hot_s: Counter[str] = Counter()

    def know(self, nodes: dict[str, str]) -> None:
        """Nodes and their zones."""
        self._nodes = nodes

    def cores(self, pod: Pod) -> float:
        """Of a pod, now."""
        label = pod.metadata.label("app") or pod.metadata.label(WORKLOAD_LABEL)
        if not label:
            return 0.05
        rng = random.Random(f"{pod.metadata.namespace}/{label}")
        mean, phase = rng.uniform(0.25, 0.75), rng.uniform(0, 6 * SURGE_S)
        surges = (time.monotonic() - self._begun + phase) % (6 * SURGE_S) < SURGE_S
        return mean * (SURGE if surges else 1.0)

    def now(self) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
        """Cores by node and by pod; nodes that are out of reach say nothing."""
        nodes = {node: 0.2 for node, zone in self._nodes.items() if zone not in self.dead}
        pods = {}
        for pod in self.pods:
            node = pod.spec.node_name
            if node in nodes and pod.status.phase == "Running":
                used = pods[pod.metadata.namespace, pod.metadata.name] = self.cores(pod)
                nodes[node] += used
        return nodes, pods

    async def answer(self, request: web.Request) -> web.Response:
        """One query."""
        asked = (await request.post())["query"]
        nodes, pods = self.now()
        found: Iterable[tuple[dict[str, str], float]] = (({"node": node}, used) for node, used in nodes.items())
        if asked == "pod":
            found = (({"namespace": space, "pod": name}, used) for (space, name), used in pods.items())
        result = [{"metric": labels, "value": [time.time(), f"{used:.4f}"]} for labels, used in found]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    async def measure(self) -> None:
        """Count hot seconds by node until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            for node, used in self.now()[0].items():
                self.hot_s[node] += 100 * used / CORES > HIGH


class Watcher:
    """What the descheduler remembered of its moves, and where every pod was.

    Attributes:
        moves: by uid of the pod that was moved.
        heirs: mark of a replacement -> the move that it came from.
        places: uid -> workload and node of every pod that was bound.
    """

    def __init__(self, client: Client, pods: Reflector[Pod]) -> None:
        self.moves: dict[str, Followed] = {}
        self.heirs: dict[str, Followed] = {}
        self.places: dict[str, str] = {}
        self.judged: dict[str, bool] = {}
        self._memory = Reflector(
            client, CONFIGMAPS, ConfigMap, namespace=HOME_NAMESPACE, field_selector=f"metadata.name={NAME}"
        )
        self._memory.subscribe(self._take)
        pods.subscribe(self._see)

    async def run(self) -> None:
        """Until cancelled."""
        await self._memory.run()

    def _take(self, _key: str, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None:
            return
        memory = msgspec.json.decode((new.data or {}).get(KEY, "{}"), type=Memory)
        for move in memory.follows:
            self.moves[move.uid] = move
            if move.landed_uid:
                self.heirs[mark_of(move.landed_uid)] = move
        self.judged |= {mark: not heir.vain for mark, heir in memory.heirs.items()}

    def _see(self, _key: str, _old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name:
            self.places[new.metadata.uid] = new.spec.node_name


class Chain(msgspec.Struct, frozen=True):
    """Two moves of one replica, one after the other.

    Attributes:
        strategies, nodes: of both moves; nodes from, between and to.
        helped: whether the first was judged to have helped; None when its end was not seen.
        back: the second went to the node that the first left, or, where the network moved it, to its zone. By one strategy that is
            no fight: latency, zones and load change, and each move is judged by what it came to.
    """

    workload: str
    strategies: tuple[str, str]
    nodes: tuple[str, str, str]
    seconds: float
    helped: bool | None
    back: bool


def chains(watcher: Watcher, zones: dict[str, str]) -> list[Chain]:
    """Every replica that was moved twice."""
    found = []
    for move in watcher.moves.values():
        first = watcher.heirs.get(mark_of(move.uid))
        if first is None:
            continue
        to = move.landed or move.target
        by_zone = "LowNodeLoad" not in (first.strategy, move.strategy)
        back = to == first.node or (by_zone and zones.get(to) == zones.get(first.node))
        found.append(
            Chain(
                move.workload,
                (first.strategy, move.strategy),
                (first.node, move.node, to),
                round(move.at_s - first.at_s, 1),
                watcher.judged.get(mark_of(move.uid)),
                back,
            )
        )
    return found


async def apply_load(client: Client) -> list[tuple[str, str]]:
    """AppGroups of two replicas a workload, one of them to survive a zone, and plain Deployments; namespaces and names."""
    application = boutique.load(scheduler="network-aware-scheduler", cpu="200m")
    homes = [f"group-{i}" for i in range(GROUPS)]
    for home in (*homes, "web"):
        await client.create(NAMESPACES, {"metadata": {"name": home}}, Object)
    for home in (*homes, "web"):
        await populate.await_account(client, home)
    living = []
    for i, home in enumerate(homes):
        note = {"netaware.io/spread": "zone"} if i == 0 else {}
        group = {**application.group, "metadata": {**application.group["metadata"], "annotations": note}}
        await client.create(APPGROUPS, group, Object, namespace=home)
        for body in application.deployments.values():
            body = {**body, "spec": {**body["spec"], "replicas": 2}}
            await client.create(DEPLOYMENTS, short_lived(body), Object, namespace=home)
            living.append((home, body["metadata"]["name"]))
    for i in range(WEB):
        await client.create(DEPLOYMENTS, plain(f"web{i:02}"), Object, namespace="web")
        living.append(("web", f"web{i:02}"))
    return living


def plain(name: str) -> dict[str, Any]:
    """A Deployment of the stock scheduler's, which asks for less than it uses."""
    labels = {"app": name}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"requests": {"cpu": "300m", "memory": "128Mi"}},
    }
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
    }
    return short_lived(body)


def short_lived(body: dict[str, Any]) -> dict[str, Any]:
    """Its pods leave a node that is out of reach after a twelfth of the usual five minutes."""
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    leave = [{"key": k, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 25} for k in keys]
    spec = body["spec"]
    inner = {**spec["template"]["spec"], "tolerations": leave, "terminationGracePeriodSeconds": 1}
    return {**body, "spec": {**spec, "template": {**spec["template"], "spec": inner}}}


class Network:
    """Latency between zones; one pair may be far apart for a while."""

    def __init__(self) -> None:
        self.far = False

    def latency_us(self, one: str, other: str) -> float:
        """Microseconds."""
        pair = frozenset({int(one[-3:]), int(other[-3:])})
        return FAR_US if self.far and pair == {0, 1} else NEAR_US[pair]

    async def grow_far(self, begins_s: float, lasts_s: float) -> None:
        """Zones 0 and 1, for a while."""
        await asyncio.sleep(begins_s)
        self.far = True
        await asyncio.sleep(lasts_s)
        self.far = False


async def start_programs(lab: Lab, usage_url: str) -> str:
    """Controller, extender, scheduler; the controller's address."""
    path = lab.place.state_dir / "controller.yaml"
    path.write_text(yaml.safe_dump(configuration(usage_url)))
    controller, extender = await start_without_pods(lab, path)
    await lab.control_plane.start_scheduler(extender_url=extender)
    return controller


async def run(minutes: float, name: str) -> dict[str, Any]:
    """Live for so long, and judge."""
    length_s = 60 * minutes
    async with Lab.start(None, name=name, components=()) as lab, AsyncExitStack() as stack:
        plane = lab.control_plane
        await plane.start_controller_manager(("--node-monitor-grace-period=30m", "--node-monitor-period=2s"))
        admin = await stack.enter_async_context(Client(lab.client_config, timeout_s=30.0))
        await populate.install_rules(lab, admin, MANIFESTS / "overlays" / "descheduler")
        await populate.await_account(admin, HOME_NAMESPACE)
        names = await populate.restore(plane, SIZES, say)
        await plane.start_kwok(("--node-lease-duration-seconds=0",))
        life = Life(admin, names)
        usage = Usage(admin, life.dead)
        usage.know({node: zone_name(z) for z, zone in enumerate(names) for node in zone})
        watcher = Watcher(admin, usage.pods)
        participants = Participants(stack, say)
        participants.start("mirror of pods", usage.pods.run())
        participants.start("watcher", watcher.run())
        url = await serve(stack, usage)
        controller = await start_programs(lab, url)
        network, traffic = Network(), Traffic()
        agents_config = load_cluster(credentials_of(await plane.write_token_kubeconfig(HOME_NAMESPACE, AGENT)))
        agents = await stack.enter_async_context(Client(agents_config, timeout_s=30.0))
        dead = life.dead.__contains__
        zones = [
            ZoneAgents(agents, zone_name(z), SIZES.nodes_per_zone, traffic, dead, latency_us=network.latency_us)
            for z in range(3)
        ]
        for zone in zones:
            participants.start(f"plan of {zone.zone}", zone.mirror())
        async with asyncio.timeout(120):
            await asyncio.gather(*(zone.fill() for zone in zones))
        for zone in zones:
            participants.start(f"agents of {zone.zone}", zone.run())
        living = await apply_load(admin)
        say("everything stands")
        participants.start("usage", usage.measure())
        participants.start("rollouts", roll_out(life, living, every_s=45.0))
        participants.start("far network", network.grow_far(length_s * 0.15, length_s * 0.15))
        participants.start("failure of a zone", life.fail_zone(0, length_s * 0.4, min(300.0, length_s * 0.15)))
        participants.start("far network again", network.grow_far(length_s * 0.75, length_s * 0.1))
        started = time.monotonic()
        while (elapsed_s := time.monotonic() - started) < length_s:
            await asyncio.sleep(min(60.0, length_s - elapsed_s))
            lab.programs.check()
            say(f"{(time.monotonic() - started) / 60:.0f} min, {len(watcher.moves)} moves, {life.done}")
        figures = await read_figures(controller)
        waiting = [p.metadata.key for p in usage.pods if not p.spec.node_name]
        found = judge(watcher, usage, figures, life, waiting, minutes)
        return {**found, "failed beside it": participants.failures}


async def roll_out(life: Life, living: list[tuple[str, str]], every_s: float) -> None:
    """Restart one Deployment after the other until cancelled."""
    for space, name in itertools.cycle(living):
        await asyncio.sleep(every_s)
        await life.restart(space, name)


async def serve(stack: AsyncExitStack, usage: Usage) -> str:
    """Usage, for the controller."""
    app = web.Application()
    app.router.add_post("/api/v1/query", usage.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    port = free_ports(1)[0]
    await web.TCPSite(runner, LOOPBACK, port).start()
    return f"http://{LOOPBACK}:{port}"


async def read_figures(controller: str) -> Readings:
    """The descheduler's own counts."""
    async with aiohttp.ClientSession() as session, session.get(f"{controller}/metrics") as answer:
        return Readings(await answer.text(), [ENDED, PREDICTIONS])


def judge(
    watcher: Watcher, usage: Usage, figures: Readings, life: Life, waiting: list[str], minutes: float
) -> dict[str, Any]:
    """What came of it."""
    zones = dict(usage._nodes)
    twice = chains(watcher, zones)
    ended: dict[str, dict[str, int]] = defaultdict(dict)
    for labels, value in figures.of(ENDED):
        if value:
            ended[labels["strategy"]][labels["outcome"]] = int(value)
    predictions = {True: 0, False: 0}
    for labels, value in figures.of(PREDICTIONS):
        predictions[labels["result"] == "true"] += int(value)
    vain = [c for c in twice if c.helped is False]
    fights = [c for c in twice if c.back and len(set(c.strategies)) > 1]
    return {
        "minutes": minutes,
        "life": life.done,
        "moves": dict(Counter(move.strategy for move in watcher.moves.values())),
        "ended": dict(ended),
        "predictions": {"true": predictions[True], "false": predictions[False]},
        "moved twice": len(twice),
        "moved twice without benefit": [msgspec.to_builtins(c) for c in vain],
        "came back by the same strategy, another state of the world": sum(c.back for c in twice) - len(fights),
        "undone by another strategy": [msgspec.to_builtins(c) for c in fights],
        "hot node-minutes": round(sum(usage.hot_s.values()) / 60, 1),
        "pods waiting at the end": waiting,
    }


def main() -> int:
    """Print the figures; fails when a pod was moved twice in vain, strategies undid each other's moves, or a participant failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--name", default="together")
    parser.add_argument("--json", action="store_true", help="on one line")
    options = parser.parse_args()
    found = asyncio.run(run(options.minutes, options.name))
    print(json.dumps(found, indent=None if options.json else 2))
    bad = ("moved twice without benefit", "undone by another strategy", "failed beside it")
    return int(any(found[what] for what in bad))


def say(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
