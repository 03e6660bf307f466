"""One run from beginning to end: boot, install, faults, quiet, check; everything is gone afterwards."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
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
from lab.topology import Topology
from netperf.contract import CONTROLLER
from netperf.policy import CostPolicy
from tests.chaos import audit, checker, usage
from tests.chaos.api_faults import left_over
from tests.chaos.checker import History, Spread, spread_of
from tests.chaos.faults import Fault, World, draw
from tests.chaos.health import SETTLED_S, HealthMonitor
from tests.chaos.injector import FaultInjector
from tests.chaos.journal import Journal
from tests.chaos.restarter import SECOND_CONTROLLER, Restarter, start_second_controller
from tests.chaos.workload import Workload

_POLICY = Path(__file__).parent / "audit-policy.yaml"
_WELL_DEADLINE_S, _QUIET_DEADLINE_S, _REVERT_S = 180.0, 240.0, 240.0
RECOVERY_LIMIT_S = 10.0
# Short, so that a run of minutes sees costs go stale and expire, and gates open by the clock.
LIFETIME_S, GATE_S = 60.0, 30.0
# Between a cost's end and its removal: a resync of the lab's controller, and a round that prices the others.
_LIFETIME_LEEWAY_S = 25.0
# A Lease that is taken over, a request that waits: what opens gates may be that late.
_GATE_LEEWAY_S = 45.0
CONFIG: dict[str, Any] = {
    "topology": {"costPolicy": {"staleAfterS": 20, "expireAfterS": LIFETIME_S, "percentile": "p50"}},
    "scheduler": {"gates": {"maxWaitS": GATE_S}},
}
_UNREACHABLE = CostPolicy().unreachable_cost


class ChaosReport(msgspec.Struct, frozen=True):
    """What a run found.

    Attributes:
        faults: how many were injected; ``faults_by_kind`` says of what kinds, ``faults_failed`` how many could not be.
        violations: how many invariants were broken; ``violation_list`` says which.
        recovery_s: from the last fault of a disturbance, or its end, until all was well, over ``recoveries`` disturbances.
        restarts: programs that were started again.
        costs: zone pairs with a cost in the end, of ``cost_pairs``.
        history: what the audit log tells of costs and pods.
    """

    seed: int
    minutes: float
    faults: int
    violations: int
    recovery_s: Spread
    violation_list: list[str]
    faults_by_kind: dict[str, int]
    faults_failed: int
    recoveries: int
    restarts: int
    deployed: int
    costs: int
    cost_pairs: int
    history: History
    journal: str
    elapsed_s: float


class ChaosRun:
    """The parts of one run, in a lab that is up."""

    def __init__(
        self, client: Client, probe: Client, installation: Installation, journal: Journal, second_url: str
    ) -> None:
        self.client, self.lab, self.journal = client, installation.lab, journal
        self.restarter = Restarter(client, installation, journal)
        self.injector = FaultInjector(client, installation, self.restarter, journal)
        self.workload = Workload(client, journal)
        self._agents = tuple(installation.agent_urls)
        urls = {"controller": installation.controller_url, SECOND_CONTROLLER: second_url}
        urls |= {"extender": installation.extender_url}
        urls |= {agent_program(node): url for node, url in installation.agent_urls.items()}
        self.health = HealthMonitor(probe, urls, journal, lambda: self.injector.pending)
        self._programs = tuple(urls)
        self.failed = 0
        self.kinds: Counter[str] = Counter()

    async def until_well(self, deadline_s: float) -> bool:
        """Wait until all has been well for a while, and every zone pair has its cost; whether that came in time."""
        ends = time.monotonic() + deadline_s
        while time.monotonic() < ends:
            if self.health.well_s >= SETTLED_S and await self.priced() == self.pairs:
                return True
            await asyncio.sleep(0.5)
        return False

    @property
    def _zones(self) -> tuple[str, ...]:
        return tuple(self.lab.topology.zones) if self.lab.topology else ()

    @property
    def pairs(self) -> int:
        """Directed pairs of zones."""
        return len(self._zones) * (len(self._zones) - 1)

    async def priced(self) -> int:
        """Pairs with a cost that is none of a dead pair."""
        try:
            return sum(0 < cost < _UNREACHABLE for cost in (await self.health.costs()).values())
        except KubekitError:
            return 0

    async def inject_all(self, faults: list[Fault]) -> None:
        """Inject each at its time, whether or not all is well again after the last."""
        started, injecting = time.monotonic(), list[asyncio.Task[None]]()
        for fault in faults:
            await asyncio.sleep(max(0.0, started + fault.at_s - time.monotonic()))
            self.health.injected(fault)
            self.kinds[fault.kind] += 1
            # Beside the next ones: a fault that needs an API server that another has stopped keeps none of them waiting.
            injecting.append(asyncio.create_task(self._inject(fault)))
        await asyncio.gather(*injecting)

    async def _inject(self, fault: Fault) -> None:
        error = await self.injector.inject(fault)
        self.failed += bool(error)
        self.journal.write("fault", **msgspec.to_builtins(fault), error=error)

    def world(self) -> World:
        """What can be hit."""
        return World(self._programs, self._agents, self._zones, self._agents)

    async def check_quiet(self, devices: dict[str, list[str]]) -> list[str]:
        """What must hold once all is quiet again."""
        violations = []
        if not await self.until_well(_QUIET_DEADLINE_S):
            ailing = self.health.ailing or [f"only {await self.priced()} of {self.pairs} pairs have a cost"]
            violations.append(f"no recovery: {'; '.join(ailing)}")
        # No pod is younger than the quiet: a gate that is closed now has been so for too long.
        await asyncio.sleep(GATE_S + SETTLED_S)
        try:
            for pod in await self.workload.waiting():
                gated = [g.name for g in pod.spec.scheduling_gates or ()]
                where = f"{pod.metadata.namespace}/{pod.metadata.name}"
                violations.append(f"gated: {where} by {', '.join(gated)}" if gated else f"not placed: {where}")
            violations += [f"a fault is not reverted: {left}" for left in await left_over(self.client)]
        except KubekitError as error:
            violations.append(f"no recovery: objects cannot be listed: {error}")
        violations += usage.orphans(self.lab)
        now = usage.read_devices(self.lab)
        violations += [f"leaked device: {n}: {now[n]}, had {old}" for n, old in devices.items() if now[n] != old]
        violations += [
            f"recovery: {took_s:.1f} s, and {lost_s:.0f} s were lost"
            for took_s, lost_s in self.health.recoveries
            if took_s > lost_s + RECOVERY_LIMIT_S
        ]
        return violations


async def run_chaos(
    topology: Topology, *, name: str, faults_of: tuple[int, float], kinds: tuple[str, ...], journal_path: Path, say: Say
) -> ChaosReport:
    """Inject faults into a lab of its own, check what happened, and clean up.

    Args:
        topology: of the lab.
        name: of the lab.
        faults_of: the seed of the faults, and for how many minutes they come.
        kinds: of faults, to draw from.
        journal_path: where the journal goes; the audit log is kept beside it when something was violated.
        say: told what goes on.

    Raises:
        LabError: the lab did not come up, or not everything became ready before the first fault.
    """
    started = time.monotonic()
    log = place_of(name).state_dir / "audit.log"
    flags = (f"--audit-policy-file={_POLICY}", f"--audit-log-path={log}", "--audit-log-maxsize=10000")
    journal = Journal(journal_path)
    journal.write("begun", seed=faults_of[0], minutes=faults_of[1], topology=topology.name, kinds=kinds)
    try:
        async with Lab.start(topology, name=name, components=COMPONENTS, api_server_flags=flags) as lab:
            installation = await install(lab, controller_config=CONFIG)
            say(f"lab and programs up after {time.monotonic() - started:.0f} s")
            async with (
                Client(lab.client_config, timeout_s=10.0) as client,
                Client(lab.client_config, timeout_s=3.0) as probe,
            ):
                url = f"http://{LOOPBACK}:{free_ports(1)[0]}"
                await start_second_controller(client, installation, url)
                report = await _run(ChaosRun(client, probe, installation, journal, url), faults_of, kinds, log, say)
        return msgspec.structs.replace(report, elapsed_s=round(time.monotonic() - started, 1))
    finally:
        journal.close()


async def _run(run: ChaosRun, faults_of: tuple[int, float], kinds: tuple[str, ...], log: Path, say: Say) -> ChaosReport:
    seed, minutes = faults_of
    try:
        async with _beside(run.health.run()), _beside(run.restarter.run()):
            if not await run.until_well(_WELL_DEADLINE_S):
                raise BootError(f"not well before any fault: {'; '.join(run.health.ailing) or 'costs are missing'}")
            async with _beside(run.workload.run()):
                await asyncio.sleep(SETTLED_S)
                before, devices = usage.read_usage(run.lab), usage.read_devices(run.lab)
                say(f"{minutes:g} minutes of faults, seed {seed}; journal: {run.journal.path}")
                await run.inject_all(draw(seed, minutes * 60, run.world(), kinds))
            say(f"{run.kinds.total()} faults injected; waiting for quiet")
            lasting = await run.injector.revert_all(_REVERT_S)
            violations = [f"a fault is not reverted: {fault}" for fault in lasting]
            violations += await run.check_quiet(devices)
            violations += usage.leaks(before, usage.read_usage(run.lab))
            costs = await run.priced()
        events = await asyncio.to_thread(_read_log, log)
        history = await asyncio.to_thread(_check_history, run, events)
        violations += [*run.restarter.crashes, *history.violations]
        violations += [*audit.foreign_writes(events, CONTROLLER), *audit.foreign_keys(events)]
        if violations:
            shutil.copy(log, run.journal.path.with_suffix(".audit"))
            shutil.copytree(run.lab.place.logs, run.journal.path.with_suffix(".logs"), dirs_exist_ok=True)
        for text in violations:
            run.journal.write("violation", what=text)
    finally:
        await run.injector.cancel()
        run.restarter.wake_all()
    return ChaosReport(
        seed=seed,
        minutes=minutes,
        faults=run.kinds.total(),
        violations=len(violations),
        recovery_s=spread_of(took_s for took_s, _ in run.health.recoveries),
        violation_list=violations,
        faults_by_kind=dict(sorted(run.kinds.items())),
        faults_failed=run.failed,
        recoveries=len(run.health.recoveries),
        restarts=run.restarter.restarts,
        deployed=run.workload.deployed,
        costs=costs,
        cost_pairs=run.pairs,
        history=history,
        journal=str(run.journal.path),
        elapsed_s=0.0,
    )


def _check_history(run: ChaosRun, events: list[audit.AuditEvent]) -> History:
    return checker.check(
        events,
        lifetime_s=LIFETIME_S + _LIFETIME_LEEWAY_S,
        gate_s=GATE_S + _GATE_LEEWAY_S,
        seen=run.health.seen,
        away=run.health.away,
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
