"""One run from beginning to end: boot, install, faults, quiet, check; everything is gone afterwards."""

from __future__ import annotations

import asyncio
import base64
import logging
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kubekit.client import Client
from kubekit.errors import KubekitError
from lab.cluster import Lab
from lab.controlplane import find_free_ports
from lab.controlplane_commands import LOOPBACK
from lab.demo import COMPONENTS
from lab.errors import BootError
from lab.installation import Installation, install, start_central_program, write_bound_kubeconfig
from lab.programs import agent_program_name
from lab.topology import Topology
from netperf.contract import CONTROLLER
from netperf.policy import CostPolicy
from tests.chaos import audit, usage
from tests.chaos.faults import Fault, World, draw
from tests.chaos.health import SETTLED_S, HealthMonitor
from tests.chaos.injector import FaultInjector
from tests.chaos.workload import Workload

SECOND_CONTROLLER = "controller-2"
_POLICY = Path(__file__).parent / "audit-policy.yaml"
_WELL_DEADLINE_S, _QUIET_DEADLINE_S, _REVERT_S = 180.0, 240.0, 240.0
RECOVERY_LIMIT_S = 10.0
# Short, so that a run of minutes sees costs go stale and expire, and gates open by the clock.
GATE_S = 30.0
# A Lease that is taken over, a request that waits: what opens gates may be that late.
_GATE_LEEWAY_S = 45.0
CONFIG: dict[str, Any] = {
    "topology": {"costPolicy": {"staleAfterS": 20, "expireAfterS": 60, "percentile": "p50"}},
    "scheduler": {"gates": {"maxWaitS": GATE_S}},
}
_UNREACHABLE = CostPolicy().unreachable_cost

log = logging.getLogger(__name__)


class ChaosReport(msgspec.Struct, frozen=True):
    """The result of a run.

    Attributes:
        faults: how many were injected, by kind.
        violations: the invariants that were broken.
        recovery_s: from the last fault, or its end, until all was well again: ``p50``, ``p99``, ``max``.
        restarts: of programs.
    """

    seed: int
    faults: dict[str, int]
    violations: list[str]
    recovery_s: dict[str, float]
    restarts: int


class ChaosRun:
    """The parts of one run, in a lab that is up."""

    def __init__(self, client: Client, probe: Client, installation: Installation, second_url: str) -> None:
        self.lab = installation.lab
        self.injector = FaultInjector(client, self.lab)
        self.workload = Workload(client)
        urls = {"controller": installation.controller_url, SECOND_CONTROLLER: second_url}
        urls |= {"extender": installation.extender_url}
        urls |= {agent_program_name(node): url for node, url in installation.agent_urls.items()}
        self.health = HealthMonitor(probe, urls, lambda: self.injector.pending)
        zones = tuple(self.lab.topology.zones) if self.lab.topology else ()
        self.pairs = len(zones) * (len(zones) - 1)
        self.world = World(tuple(urls), zones, tuple(installation.agent_urls))

    async def until_well(self, deadline_s: float) -> bool:
        """Wait until all has been well for a while, and every zone pair has its cost; whether that came in time."""
        ends = time.monotonic() + deadline_s
        while time.monotonic() < ends:
            if self.health.well_s >= SETTLED_S and await self.priced() == self.pairs:
                return True
            await asyncio.sleep(0.5)
        return False

    async def priced(self) -> int:
        """Pairs with a cost that is none of a dead pair."""
        try:
            return sum(0 < cost < _UNREACHABLE for cost in (await self.health.costs()).values())
        except KubekitError:
            return 0

    async def inject_all(self, faults: list[Fault]) -> None:
        """Inject each at its time, whether or not all is well again after the last."""
        started = time.monotonic()
        # Beside each other: a fault that needs an API server that another has stopped keeps none of them waiting.
        async with asyncio.TaskGroup() as injecting:
            for fault in faults:
                await asyncio.sleep(max(0.0, started + fault.at_s - time.monotonic()))
                self.health.injected(fault)
                injecting.create_task(self.injector.inject(fault))

    async def check_quiet(self) -> list[str]:
        """Violations of what must hold once all faults are over."""
        violations = []
        if not await self.until_well(_QUIET_DEADLINE_S):
            ailing = self.health.ailing or [f"only {await self.priced()} of {self.pairs} pairs have a cost"]
            violations.append(f"no recovery: {'; '.join(ailing)}")
        # No pod is younger than the quiet: a gate that is closed now has been so for too long.
        await asyncio.sleep(GATE_S + SETTLED_S)
        try:
            for pod in await self.workload.waiting():
                gated = ", ".join(g.name for g in pod.spec.scheduling_gates or ())
                violations.append(f"{'gated' if gated else 'not placed'}: {pod.metadata.key} {gated}")
        except KubekitError as error:
            violations.append(f"no recovery: objects cannot be listed: {error}")
        violations += [
            f"recovery: {took_s:.1f} s, and {lost_s:.0f} s were lost"
            for took_s, lost_s in self.health.recoveries
            if took_s > lost_s + RECOVERY_LIMIT_S
        ]
        return violations


async def run_chaos(topology: Topology, *, name: str, seed: int, minutes: float, kept: Path) -> ChaosReport:
    """Inject faults into a lab of its own, check what happened, and clean up.

    Args:
        topology: of the lab.
        name: of the lab.
        seed: of the faults.
        minutes: how long they come.
        kept: folder for the audit log and the programs' logs when something was violated.

    Raises:
        LabError: the lab did not come up, or not everything became ready before the first fault.
    """
    with_log = kept.with_suffix(".audit")
    flags = (f"--audit-policy-file={_POLICY}", f"--audit-log-path={with_log}", "--audit-log-maxsize=10000")
    with_log.parent.mkdir(parents=True, exist_ok=True)
    with_log.unlink(missing_ok=True)
    async with Lab.start(topology, name=name, components=COMPONENTS, api_server_flags=flags) as lab:
        installation = await install(lab, controller_config=CONFIG)
        async with (
            Client(lab.client_config, timeout_s=10.0) as client,
            Client(lab.client_config, timeout_s=3.0) as probe,
        ):
            url = f"http://{LOOPBACK}:{find_free_ports(1)[0]}"
            await _start_second_controller(client, installation, url)
            run = ChaosRun(client, probe, installation, url)
            try:
                report = await _run(run, seed, minutes, with_log)
            finally:
                await run.injector.cancel()
            if report.violations:
                shutil.copytree(lab.paths.logs, kept, dirs_exist_ok=True)
            else:
                with_log.unlink()
            return report


async def _run(run: ChaosRun, seed: int, minutes: float, audit_log: Path) -> ChaosReport:
    faults = draw(seed, minutes * 60, run.world)
    async with _beside(run.health.run()), _beside(run.injector.restart_dead()):
        if not await run.until_well(_WELL_DEADLINE_S):
            raise BootError(f"not well before any fault: {'; '.join(run.health.ailing) or 'costs are missing'}")
        async with _beside(run.workload.run()):
            await asyncio.sleep(SETTLED_S)
            before = usage.read_usage(run.lab)
            log.info("%s faults of seed %s in %g minutes", len(faults), seed, minutes)
            await run.inject_all(faults)
        log.info("waits for quiet")
        violations = [*await run.injector.revert_all(_REVERT_S), *await run.check_quiet()]
        violations += [*usage.leaks(before, usage.read_usage(run.lab)), *run.injector.crashes]
    violations += await asyncio.to_thread(_check_log, run, audit_log)
    took_s = sorted(round(took_s, 1) for took_s, _ in run.health.recoveries) or [0.0]
    return ChaosReport(
        seed=seed,
        faults=dict(sorted(Counter(fault.kind for fault in faults).items())),
        violations=violations,
        recovery_s={"p50": took_s[len(took_s) // 2], "p99": took_s[int(len(took_s) * 0.99)], "max": took_s[-1]},
        restarts=run.injector.restarts,
    )


def _check_log(run: ChaosRun, audit_log: Path) -> list[str]:
    with audit_log.open("rb") as file:
        events = audit.read(file)
    too_long = audit.gated_too_long(events, GATE_S + _GATE_LEEWAY_S, run.health.away)
    return [*audit.unfenced_writes(events), *too_long]


async def _start_second_controller(client: Client, installation: Installation, url: str) -> None:
    """Another replica of the manager, for which the Deployment's second pod stands."""
    lab = installation.lab
    first = _bound_pod(lab.control_plane.kubeconfig_of("controller"))
    kubeconfig = await write_bound_kubeconfig(
        client, lab.control_plane, CONTROLLER, SECOND_CONTROLLER, lambda pod: pod.metadata.uid != first
    )
    start_central_program(
        lab.programs, SECOND_CONTROLLER, "manager", url, kubeconfig=kubeconfig, config=installation.config
    )


def _bound_pod(kubeconfig: Path) -> str:
    """The uid of the pod that the token of this kubeconfig is bound to."""
    payload = str(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]).split(".")[1]
    claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims["kubernetes.io"]["pod"]["uid"])


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
