"""One storm from beginning to end: boot, install, faults, quiet, judgement; everything is gone afterwards."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kubekit.client import Client
from kubekit.errors import KubekitError
from lab.cluster import Lab
from lab.controlplane import LOOPBACK, free_ports
from lab.demo import COMPONENTS
from lab.errors import BootError
from lab.installation import Installation, install
from lab.programs import agent_program
from lab.progress import Say
from lab.reclaim import place_of
from lab.storm import audit, history, levels
from lab.storm.acts import Acts
from lab.storm.clock import set_offset
from lab.storm.entrance import clock_of, left_over
from lab.storm.faults import KINDS, Fault, World, draw
from lab.storm.history import History, Spread, spread_of
from lab.storm.journal import Journal
from lab.storm.kubelet import SECOND_CONTROLLER, Kubelet, start_second_controller
from lab.storm.load import Load
from lab.storm.proxy import Proxy
from lab.storm.watcher import SETTLED_S, Watcher
from lab.topology import Topology
from netperf.contract import CONTROLLER
from netperf.policy import CostPolicy

_POLICY = Path(__file__).parent / "audit-policy.yaml"
_WELL_DEADLINE_S, _QUIET_DEADLINE_S, _TAKE_BACK_S = 180.0, 240.0, 240.0
RECOVERY_LIMIT_S = 10.0
# Short, so that a storm of minutes sees costs go stale and expire, and gates open by the clock.
LIFETIME_S, GATE_S = 60.0, 30.0
# Between a cost's end and its removal: a resync of the lab's controller, and a round that prices the others.
_LIFETIME_LEEWAY_S = 25.0
# A Lease that is taken over, a request that waits, a clock that is behind: what opens gates may be that late.
_GATE_LEEWAY_S = 45.0
CONFIG: dict[str, Any] = {
    "topology": {"costPolicy": {"staleAfterS": 20, "expireAfterS": LIFETIME_S, "percentile": "p50"}},
    "scheduler": {"gates": {"maxWaitS": GATE_S}},
}
_UNREACHABLE = CostPolicy().unreachable_cost


class StormReport(msgspec.Struct, frozen=True):
    """What a storm found.

    Attributes:
        faults: how many were done; ``faults_by_kind`` says of what kinds, ``faults_failed`` how many could not be.
        violations: how many invariants were broken; ``violation_list`` says which.
        recovery_s: from the last fault of a disturbance, or its end, until all was well, over ``recoveries`` disturbances; ``overlapping`` of the faults fell into one.
        restarts: programs that were started again.
        costs: zone pairs with a cost in the end, of ``cost_pairs``.
        history: what the audit log tells of costs and pods.
        levels: memory in bytes, descriptors, processes and tasks, by program, before and after.
        highest: the same, the most that a look every 15 s saw while the storm lasted.
    """

    seed: int
    minutes: float
    faults: int
    violations: int
    recovery_s: Spread
    violation_list: list[str]
    faults_by_kind: dict[str, int]
    faults_failed: int
    overlapping: int
    recoveries: int
    restarts: int
    deployed: int
    costs: int
    cost_pairs: int
    history: History
    highest: dict[str, levels.Level]
    levels: dict[str, tuple[levels.Level, levels.Level]]
    journal: str
    elapsed_s: float


class Storm:
    """The parts of one storm, in a lab that is up."""

    def __init__(
        self, client: Client, probe: Client, installation: Installation, journal: Journal, *, proxy: Proxy, say: Say
    ) -> None:
        self.client, self.installation, self.journal, self.say = client, installation, journal, say
        self.kubelet = Kubelet(client, installation, journal)
        self.acts = Acts(client, installation, self.kubelet, proxy, journal)
        self.load = Load(client, journal)
        urls = {"controller": installation.controller_url, "extender": installation.extender_url}
        urls |= {agent_program(node): url for node, url in installation.agent_urls.items()}
        self.urls = urls
        self.watcher = Watcher(probe, urls, journal, lambda: self.acts.pending)
        self.overlapping = self.failed = 0
        self.kinds: Counter[str] = Counter()

    async def until_well(self, deadline_s: float) -> bool:
        """Wait until all has been well for a while, and every zone pair has its cost; whether that came in time."""
        ends = time.monotonic() + deadline_s
        while time.monotonic() < ends:
            if self.watcher.well_s >= SETTLED_S and await self.priced() == self.pairs:
                return True
            await asyncio.sleep(0.5)
        return False

    @property
    def pairs(self) -> int:
        """Directed pairs of zones."""
        topology = self.installation.lab.topology
        zones = len(topology.zones) if topology else 0
        return zones * (zones - 1)

    async def read_levels(self) -> dict[str, levels.Level]:
        """What every program takes now."""
        tasks = await levels.read_tasks(self.urls, attempts=5)
        return await asyncio.to_thread(levels.read_levels, self.installation.lab, tasks)

    async def priced(self) -> int:
        """Pairs with a cost that is none of a dead pair."""
        try:
            return sum(0 < cost < _UNREACHABLE for cost in (await self.watcher.costs()).values())
        except KubekitError:
            return 0

    async def rage(self, seed: int, length_s: float, kinds: Sequence[str]) -> None:
        """Do the faults of this seed."""
        lab = self.installation.lab
        agents = tuple(self.installation.agent_urls)
        ours = ("controller", SECOND_CONTROLLER, "extender", *map(agent_program, agents))
        zones = lab.topology.zones if lab.topology else ()
        world = World(ours, agents, tuple(zones), agents)
        started, doing = time.monotonic(), list[asyncio.Task[None]]()
        for number, fault in enumerate(draw(seed, length_s, world, kinds)):
            await asyncio.sleep(max(0.0, started + fault.at_s - time.monotonic()))
            self.overlapping += self.watcher.well_s == 0
            self.watcher.hit(fault)
            self.kinds[fault.kind] += 1
            # Beside the next ones: a fault that needs an API server that another has stopped keeps none of them waiting.
            doing.append(asyncio.create_task(self._do(number, fault)))
        await asyncio.gather(*doing)

    async def _do(self, number: int, fault: Fault) -> None:
        error = await self.acts.do(fault)
        self.failed += bool(error)
        self.journal.write("fault", n=number, **msgspec.to_builtins(fault), error=error)


async def run_storm(
    topology: Topology,
    *,
    name: str,
    seed: int,
    minutes: float,
    journal_path: Path,
    say: Say,
    kinds: Sequence[str] = tuple(KINDS),
    second_version: Path | None = None,
) -> StormReport:
    """Run a storm in a lab of its own and clean up.

    Args:
        topology: of the lab.
        name: of the lab.
        seed: of the faults.
        minutes: how long faults come.
        journal_path: where the journal goes; the audit log is kept beside it when something was violated.
        say: told what goes on.
        kinds: of faults, to draw from.
        second_version: a checkout of another version, from which the second controller runs.

    Raises:
        LabError: the lab did not come up, or not everything became ready before the storm.
    """
    started = time.monotonic()
    place = place_of(name)
    log = place.state_dir / "audit.log"
    flags = (f"--audit-policy-file={_POLICY}", f"--audit-log-path={log}", "--audit-log-maxsize=10000")
    journal = Journal(journal_path)
    journal.write("storm", seed=seed, minutes=minutes, topology=topology.name, kinds=kinds)
    try:
        async with (
            Lab.start(topology, name=name, components=COMPONENTS, api_server_flags=flags) as lab,
            Proxy.serve(lab.control_plane) as proxy,
        ):
            lab.control_plane.entrance = proxy.url
            installation = await install(lab, controller_config=CONFIG, python=partial(_with_clock, place.state_dir))
            say(f"lab and programs up after {time.monotonic() - started:.0f} s")
            async with (
                Client(lab.client_config, timeout_s=10.0) as client,
                Client(lab.client_config, timeout_s=3.0) as probe,
            ):
                url = f"http://{LOOPBACK}:{free_ports(1)[0]}"
                await start_second_controller(client, installation, url, second_version)
                storm = Storm(client, probe, installation, journal, proxy=proxy, say=say)
                storm.urls[SECOND_CONTROLLER] = url
                report = await _weather(storm, seed, minutes, kinds, log)
        elapsed_s = round(time.monotonic() - started, 1)
        return msgspec.structs.replace(report, journal=str(journal_path), elapsed_s=elapsed_s)
    finally:
        journal.close()


def _with_clock(folder: Path, program: str) -> tuple[str, ...]:
    file = clock_of(folder, program)
    set_offset(file, 0.0)
    # By its path: another version of this project need not have it.
    return sys.executable, "-P", str(Path(__file__).with_name("clock.py")), str(file)


async def _weather(storm: Storm, seed: int, minutes: float, kinds: Sequence[str], log: Path) -> StormReport:
    lab, say = storm.installation.lab, storm.say
    try:
        async with _beside(storm.watcher.run()), _beside(storm.kubelet.run()):
            if not await storm.until_well(_WELL_DEADLINE_S):
                raise BootError(f"not well before the storm: {'; '.join(storm.watcher.ailing) or 'costs are missing'}")
            async with _beside(storm.load.run()):
                await asyncio.sleep(SETTLED_S)
                before = await storm.read_levels()
                if silent := sorted(name for name in storm.urls if name in before and before[name].tasks is None):
                    say(f"an older version, which does not tell its tasks: {', '.join(silent)}")
                links = levels.read_links(lab)
                say(f"storm of {minutes:g} minutes, seed {seed}; journal: {storm.journal.path}")
                highest = levels.Highest(lab, storm.urls)
                async with _beside(highest.watch()):
                    await storm.rage(seed, minutes * 60, kinds)
            say(f"{storm.kinds.total()} faults done; waiting for quiet")
            # A fault that lasts on leaves nothing to be judged: it is told, and nothing waits for it.
            lasting = await storm.acts.take_back_all(_TAKE_BACK_S)
            violations = [f"the storm's own is not taken back: {fault}" for fault in lasting]
            violations += await _judge_quiet(storm, links)
            after = await storm.read_levels()
            violations += [*levels.risen(before, after), *highest.violations(before)]
            costs = await storm.priced()
        events = await asyncio.to_thread(_read_log, log)
        past = await asyncio.to_thread(_judge_history, storm, events)
        violations += [*storm.kubelet.crashes, *past.violations]
        violations += [*audit.foreign_writes(events, CONTROLLER), *audit.foreign_keys(events)]
        if violations:
            shutil.copy(log, storm.journal.path.with_suffix(".audit"))
            shutil.copytree(lab.place.logs, storm.journal.path.with_suffix(".logs"), dirs_exist_ok=True)
        for text in violations:
            storm.journal.write("violation", what=text)
    finally:
        await storm.acts.cancel()
        storm.kubelet.wake_all()
    took = [took_s for took_s, _ in storm.watcher.recoveries]
    return StormReport(
        seed=seed,
        minutes=minutes,
        faults=storm.kinds.total(),
        violations=len(violations),
        recovery_s=spread_of(took),
        violation_list=violations,
        faults_by_kind=dict(sorted(storm.kinds.items())),
        faults_failed=storm.failed,
        overlapping=storm.overlapping,
        recoveries=len(took),
        restarts=storm.kubelet.restarts,
        deployed=storm.load.deployed,
        costs=costs,
        cost_pairs=storm.pairs,
        history=past,
        levels={name: (before[name], after[name]) for name in sorted(before.keys() & after.keys())},
        highest=dict(sorted(highest.levels.items())),
        journal="",
        elapsed_s=0.0,
    )


async def _judge_quiet(storm: Storm, links: dict[str, list[str]]) -> list[str]:
    """What must hold once all is quiet again."""
    violations = []
    if not await storm.until_well(_QUIET_DEADLINE_S):
        ailing = storm.watcher.ailing or [f"only {await storm.priced()} of {storm.pairs} pairs have a cost"]
        violations.append(f"no recovery: {'; '.join(ailing)}")
    # No pod is younger than the quiet: a gate that is closed now has been so for too long.
    await asyncio.sleep(GATE_S + SETTLED_S)
    try:
        for pod in await storm.load.waiting():
            gated = [g.name for g in pod.spec.scheduling_gates or ()]
            where = f"{pod.metadata.namespace}/{pod.metadata.name}"
            violations.append(f"gated: {where} by {', '.join(gated)}" if gated else f"not placed: {where}")
        violations += [f"the storm's own is not taken back: {left}" for left in await left_over(storm.client)]
    except KubekitError as error:
        violations.append(f"no recovery: objects cannot be listed: {error}")
    violations += levels.orphans(storm.installation.lab)
    now = levels.read_links(storm.installation.lab)
    violations += [f"leaked link: {name}: {now[name]}, had {old}" for name, old in links.items() if now[name] != old]
    limit = RECOVERY_LIMIT_S
    violations += [
        f"recovery: {took_s:.1f} s, and {lost_s:.0f} s were lost"
        for took_s, lost_s in storm.watcher.recoveries
        if took_s > lost_s + limit
    ]
    return violations


def _judge_history(storm: Storm, events: list[audit.AuditEvent]) -> History:
    return history.check(
        events,
        lifetime_s=LIFETIME_S + _LIFETIME_LEEWAY_S,
        gate_s=GATE_S + _GATE_LEEWAY_S,
        seen=storm.watcher.seen,
        away=storm.watcher.away,
    )


def _read_log(log: Path) -> list[audit.AuditEvent]:
    with log.open("rb") as file:
        return audit.read(file)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something endless while the block runs; its failure is raised when the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        ended = task.done()
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if ended and isinstance(outcome, Exception):
            raise outcome
