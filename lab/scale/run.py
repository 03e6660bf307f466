"""One scale run from beginning to end: boot, fill, start our programs, live, read the figures; everything is gone afterwards."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import aiohttp
import msgspec
import psutil

from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import KubekitError
from kubekit.lease import Lease
from kubekit.waiting import until
from kubekit.wire import LEASES
from lab.cluster import Lab
from lab.errors import BootError
from lab.installation import MANIFESTS, start_without_pods
from lab.programs import is_ready
from lab.progress import Say
from lab.scale import figures, populate
from lab.scale.agents import Traffic, ZoneAgents
from lab.scale.exposition import SHARE, Exposition, scraped, start_scraping
from lab.scale.figures import Levels, ScaleReport
from lab.scale.kubelets import Kubelets
from lab.scale.life import Audience, Life
from lab.scale.objects import zone_name
from lab.scale.participants import Participants
from lab.scale.populate import Sizes
from lab.scale.readings import Readings
from lab.scale.restore import client_context
from lab.tool_builds import PROMETHEUS, find_or_build_tools
from netperf.contract import AGENT, CONTROLLER, HOME_NAMESPACE

# Ten thousand kubelets renew their Leases a thousand times a second, which two cores do not bear: here there are none, kubelets
# report the nodes' status every twenty minutes, and the node controller is as patient.
_MANAGER = ("--node-monitor-grace-period=60m", "--node-monitor-period=10s")
_SETTLE_S, _SAMPLE_EVERY_S = 30.0, 5.0
_DEADLINE_S = 600.0
_SAID_EVERY = 12


async def run_scale(sizes: Sizes, *, name: str, say: Say) -> ScaleReport:
    """Run a cluster of these sizes in a lab of its own, measure it, and clean up.

    Raises:
        LabError: the control plane did not come up, or our programs did not become ready.
    """
    started = time.monotonic()
    async with Lab.start(None, name=name, components=()) as lab:
        plane = lab.control_plane
        manager = await plane.start_controller_manager(_MANAGER)
        say("control plane is up")
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Client(lab.client_config, timeout_s=60.0))
            await populate.install_rules(lab, admin)
            await populate.create_namespaces(admin, sizes, say)
            # It would take every node for a new one of a cluster that just begins, and write to it more than once.
            await lab.programs.stop(manager)
            nodes = await populate.restore(plane, sizes, say)
            await plane.start_controller_manager(_MANAGER)
            programs = await _start_programs(lab, say)
            life = Life(admin, nodes)
            participants = Participants(stack, say)
            kubelets = await _start_kubelets(lab, stack, life, participants)
            agents = Agents(lab, sizes, say, nodes, participants)
            life.deployments = await populate.create_groups(admin, sizes, say)
            await agents.open(stack, life)
            say(f"the cluster stands after {time.monotonic() - started:.0f} s")
            report = await Run(lab, admin, agents, life, kubelets, programs, sizes, say, participants).live(stack)
            return msgspec.structs.replace(report, took_s=round(time.monotonic() - started, 1))


async def _start_kubelets(lab: Lab, stack: AsyncExitStack, life: Life, participants: Participants) -> Kubelets:
    client = await stack.enter_async_context(Client(lab.client_config, timeout_s=60.0))
    kubelets = Kubelets(client, lambda: life.nodes, life.is_silent)
    participants.start("kubelets", kubelets.run())
    return kubelets


class ServingPrograms(msgspec.Struct, frozen=True):
    """Where our programs serve."""

    controller_url: str
    extender_url: str


async def _start_programs(lab: Lab, say: Say) -> ServingPrograms:
    # The configuration as it is shipped.
    controller, extender = await start_without_pods(lab, MANIFESTS / "base" / "controller" / "config.yaml")
    for url in (controller, extender):
        await until(
            partial(is_ready, f"{url}/readyz", 5),
            f"{url} to be ready",
            _DEADLINE_S,
            every_s=0.5,
            meanwhile=lab.programs.check,
            error=BootError,
        )
    say("controller and extender are ready")
    await lab.control_plane.start_scheduler(extender_url=extender)
    return ServingPrograms(controller, extender)


class Agents:
    """The simulated agents of all zones, and the Prometheus that scrapes a tenth of them."""

    def __init__(self, lab: Lab, sizes: Sizes, say: Say, nodes: list[list[str]], participants: Participants) -> None:
        self._lab, self._sizes, self._say, self._participants = lab, sizes, say, participants
        self.traffic = Traffic()
        every = round(1 / SHARE)
        self._shown = Exposition({zone_name(zone): names[::every] for zone, names in enumerate(nodes)})
        self._zones: list[ZoneAgents] = []

    async def open(self, stack: AsyncExitStack, life: Life) -> None:
        """Watch all plans, and write what the round before would have left."""
        kubeconfig = await self._lab.control_plane.write_token_kubeconfig(HOME_NAMESPACE, AGENT)
        client = await stack.enter_async_context(Client(load_cluster(str(kubeconfig)), timeout_s=60.0))
        dead = life.dead.__contains__
        agents, shown = self._sizes.nodes_per_zone, self._shown
        self._zones = [
            ZoneAgents(client, zone_name(zone), agents, self.traffic, dead, shown=shown)
            for zone in range(self._sizes.zones)
        ]
        for zone in self._zones:
            self._participants.start(f"plan of {zone.zone}", zone.mirror())
        async with asyncio.timeout(_DEADLINE_S):
            await asyncio.gather(*(zone.fill() for zone in self._zones))
        self._say(f"{len(self._zones)} zones have a plan, and every pair a first sample")

    async def scrape(self, stack: AsyncExitStack) -> str:
        """Let Prometheus scrape them; its URL."""
        program = await asyncio.to_thread(find_or_build_tools, PROMETHEUS)
        address = await stack.enter_async_context(self._shown.serve())
        return await start_scraping(self._lab, program["prometheus"], address, self._shown.nodes)

    def begin(self) -> None:
        """Probe from now on; what was sent so far does not count."""
        for zone in self._zones:
            self._participants.start(f"agents of {zone.zone}", zone.run())
        self.traffic.reset()


@dataclass(frozen=True)
class Run:
    """Everything that takes part, once it stands."""

    lab: Lab
    admin: Client
    agents: Agents
    life: Life
    kubelets: Kubelets
    programs: ServingPrograms
    sizes: Sizes
    say: Say
    participants: Participants

    async def live(self, stack: AsyncExitStack) -> ScaleReport:
        """Let life go on for as long as was asked, and read the figures."""
        audience = Audience(self.programs.controller_url)
        for _ in range(self.sizes.viewers):
            self.participants.start("viewer", audience.watch())
        self.participants.start("scraping of the controller", audience.scrape())
        prometheus = await self.agents.scrape(stack)
        # What beginning costs is no part of a day's life.
        await asyncio.sleep(_SETTLE_S)
        sources = Sources(self.lab, self.admin, self.programs)
        before, begun, first = await sources.read(), time.monotonic(), levels_of(self.lab)
        transitions, losses = await self._transitions(), self._losses()
        audience.reset()
        self.kubelets.reset()
        self._begin()
        samples, longest = await self._look(sources, begun)
        after, seconds = await sources.read(), time.monotonic() - begun
        return figures.report(
            self.sizes,
            before,
            after,
            seconds=seconds,
            levels=[first, *samples, levels_of(self.lab)],
            longest=longest,
            lease_transitions=await self._transitions() - transitions,
            leadership_losses=self._losses() - losses,
            traffic=self.agents.traffic,
            audience=audience,
            started_s=self.kubelets.started_s,
            scraped=await scraped(prometheus),
            done={**self.life.done, "status_reports": self.kubelets.reports},
            failures=self.participants.failures,
        )

    def _begin(self) -> None:
        self.agents.begin()
        self.participants.start("replacing of nodes", self.life.churn())
        if self.sizes.living_groups:
            self.participants.start("rollouts", self.life.rollouts())
        length_s = self.sizes.minutes * 60
        # After a third of the time, for a fifth of it: that leaves room for the way back.
        failing = self.life.fail_zone(self.sizes.zones // 2, length_s / 3, min(length_s / 5, 300.0))
        self.participants.start("failure of a zone", failing)
        self.say(f"{self.sizes.minutes:g} minutes of life begin")

    async def _look(self, sources: Sources, begun: float) -> tuple[list[Levels], dict[str, float]]:
        """Levels again and again until the time is over, and the longest steps of the controller's loop."""
        samples: list[Levels] = []
        longest = {"delay": 0.0, "busy": 0.0}
        length_s = self.sizes.minutes * 60
        while (elapsed_s := time.monotonic() - begun) < length_s:
            await asyncio.sleep(min(_SAMPLE_EVERY_S, length_s - elapsed_s))
            self.lab.programs.check()
            samples.append(sample := levels_of(self.lab))
            # The gauge looks back a minute, and the first minute's has what was before in it.
            if elapsed_s > figures.LOOKBACK_S or length_s <= figures.LOOKBACK_S:
                found = await sources.longest()
                longest = {of: max(longest[of], found.get(of, 0.0)) for of in longest}
            if len(samples) % _SAID_EVERY == 0:
                self.say(
                    f"{elapsed_s / 60:.1f} min: controller {sample.rss['controller'] >> 20} MiB,"
                    f" {sample.connections} connections, longest step {longest['busy'] * 1000:.0f} ms, {self.life.done}"
                )
        return samples, longest

    async def _transitions(self) -> int:
        lease = await self.admin.get(LEASES, CONTROLLER, Lease, namespace=HOME_NAMESPACE)
        return lease.spec.lease_transitions or 0

    def _losses(self) -> int:
        """How often the controller has said that it leads no more; the Lease does not tell when it is the next leader itself."""
        log = next(program.log for program in self.lab.programs if program.name == "controller")
        return log.read_text(errors="replace").count("leadership lost")


class Sources:
    """Where figures are read: API server, etcd, controller, extender."""

    def __init__(self, lab: Lab, admin: Client, programs: ServingPrograms) -> None:
        self._lab, self._admin, self._programs = lab, admin, programs

    async def read(self) -> Mapping[str, Readings]:
        """Each program's, at this moment."""
        server = await self._admin.request("GET", "/metrics", timeout_s=120.0)
        context = client_context(self._lab.control_plane)
        return {
            "server": await asyncio.to_thread(Readings, server.decode(), figures.SERVER),
            "etcd": Readings(await _fetch(f"{self._lab.control_plane.etcd}/metrics", context), figures.ETCD),
            "controller": Readings(await _fetch(f"{self._programs.controller_url}/metrics"), figures.CONTROLLER),
            "extender": Readings(await _fetch(f"{self._programs.extender_url}/metrics"), figures.EXTENDER),
        }

    async def longest(self) -> dict[str, float]:
        """The longest delay and step of the last minute in the controller's loop, seconds; nothing where it does not answer."""
        url = f"{self._programs.controller_url}/metrics?name[]=netaware_loop_longest_seconds"
        try:
            found = Readings(await _fetch(url), ["netaware_loop_longest_seconds"])
        except (aiohttp.ClientError, TimeoutError, KubekitError):
            return {}
        return {labels["of"]: value for labels, value in found.of("netaware_loop_longest_seconds")}


async def _fetch(url: str, context: ssl.SSLContext | None = None) -> str:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=context or True) as answer:
        return await answer.text()


def levels_of(lab: Lab) -> Levels:
    """Memory and processor time of each program, and the controller's connections to the API server."""
    rss, cpu_s, connections = {}, {}, 0
    port = int(lab.control_plane.server.rpartition(":")[2])
    for program in lab.programs:
        try:
            family = program.family()
            rss[program.name] = family[0].memory_info().rss
            cpu_s[program.name] = sum(sum(p.cpu_times()[:2]) for p in family)
            if program.name == "controller":
                found = family[0].net_connections("tcp")
                connections = sum(
                    c.status == psutil.CONN_ESTABLISHED and bool(c.raddr) and c.raddr.port == port for c in found
                )
        except psutil.Error:
            continue
    own = psutil.Process().cpu_times()
    cpu_s["simulation"] = own.user + own.system
    return Levels(time.monotonic(), rss, cpu_s, connections)
