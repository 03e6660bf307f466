"""Runs chaos in a new lab: installs our programs, injects faults, waits for recovery, and checks invariants."""

from __future__ import annotations

import asyncio
import base64
import logging
import shutil
import time
from collections import Counter
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
from tests.chaos import audit
from tests.chaos.faults import Fault, FaultTargets, draw_faults
from tests.chaos.health import STABLE_S, HealthMonitor, find_leaks, read_usage
from tests.chaos.injector import FaultInjector
from tests.chaos.workload import Workload
from tests.support.tasks import supervised_tasks

SECOND_CONTROLLER = "controller-2"
_POLICY = Path(__file__).parent / "audit-policy.yaml"
_START_TIMEOUT_S, _RECOVERY_TIMEOUT_S, _REVERT_TIMEOUT_S = 180.0, 240.0, 240.0
_RECOVERY_LIMIT_S = 10.0
# Short, so that gates open by timeout within a run of minutes.
_MAX_GATE_S = 30.0
# A gate may be opened this late, because a Lease is taken over or a request waits.
_GATE_LEEWAY_S = 45.0
_CONTROLLER_CONFIG: dict[str, Any] = {
    # Costs expire within a run too.
    "topology": {"costPolicy": {"staleAfterS": 20, "expireAfterS": 60, "percentile": "p50"}},
    "scheduler": {"gates": {"maxWaitS": _MAX_GATE_S}},
}
_UNREACHABLE_COST = CostPolicy().unreachable_cost

log = logging.getLogger(__name__)


class ChaosReport(msgspec.Struct, frozen=True):
    """The result of a run.

    Attributes:
        faults: number of injected faults by kind.
        violations: what broke an invariant.
        recovery_s: ``p50``, ``p99`` and ``max`` of the times in which the lab recovered.
    """

    seed: int
    faults: dict[str, int]
    violations: list[str]
    recovery_s: dict[str, float]
    restarts: int


class ChaosRun:
    """The fault injector, workload and health monitor of a lab."""

    def __init__(
        self, client: Client, health_client: Client, installation: Installation, second_controller_url: str
    ) -> None:
        self.lab = installation.lab
        self.injector = FaultInjector(client, self.lab)
        self.workload = Workload(client)
        urls = {
            "controller": installation.controller_url,
            SECOND_CONTROLLER: second_controller_url,
            "extender": installation.extender_url,
            **{agent_program_name(node): url for node, url in installation.agent_urls.items()},
        }
        self.health = HealthMonitor(health_client, urls, lambda: self.injector.pending_reverts)
        zones = tuple(self.lab.topology.zones) if self.lab.topology else ()
        self.pair_count = len(zones) * (len(zones) - 1)
        self.targets = FaultTargets(tuple(urls), zones, tuple(installation.agent_urls))

    async def wait_until_healthy(self, timeout_s: float) -> bool:
        """Wait until the lab has been healthy for `STABLE_S` and all zone pairs have costs; False after the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.health.healthy_s >= STABLE_S and await self.count_priced_pairs() == self.pair_count:
                return True
            await asyncio.sleep(0.5)
        return False

    async def count_priced_pairs(self) -> int:
        """Number of zone pairs with a cost that is not that of an unreachable pair."""
        try:
            return sum(0 < cost < _UNREACHABLE_COST for cost in (await self.health.read_costs()).values())
        except KubekitError:
            return 0

    async def inject_all(self, faults: list[Fault]) -> None:
        """Inject each fault at its time, whether or not the lab has recovered from the last."""
        started_s = time.monotonic()
        # In parallel: a fault may wait for an API server that another fault stopped.
        async with asyncio.TaskGroup() as injecting:
            for fault in faults:
                await asyncio.sleep(max(0.0, started_s + fault.at_s - time.monotonic()))
                self.health.on_fault(fault)
                injecting.create_task(self.injector.inject(fault))

    async def find_violations_after_faults(self) -> list[str]:
        """Violations of invariants that hold after all faults are reverted."""
        violations = []
        if not await self.wait_until_healthy(_RECOVERY_TIMEOUT_S):
            missing_costs = f"only {await self.count_priced_pairs()} of {self.pair_count} pairs have a cost"
            violations.append(f"no recovery: {'; '.join(self.health.problems) or missing_costs}")
        # The workload has stopped, so after this time every gate must be open.
        await asyncio.sleep(_MAX_GATE_S + STABLE_S)
        try:
            for pod in await self.workload.list_unbound_pods():
                gates = ", ".join(g.name for g in pod.spec.scheduling_gates or ())
                violations.append(f"{'gated' if gates else 'not placed'}: {pod.metadata.key} {gates}")
        except KubekitError as error:
            violations.append(f"no recovery: objects cannot be listed: {error}")
        violations += [
            f"recovery: {duration_s:.1f} s after an outage of at most {allowed_s:.0f} s"
            for duration_s, allowed_s in self.health.recoveries
            if duration_s > allowed_s + _RECOVERY_LIMIT_S
        ]
        return violations


async def run_chaos(topology: Topology, *, name: str, seed: int, minutes: float, logs_dir: Path) -> ChaosReport:
    """Inject faults into a lab, check invariants, and remove the lab.

    If an invariant is broken, ``logs_dir`` gets the programs' logs, and the audit log is kept beside it. Raises
    LabError if the lab does not start, or is not healthy before the first fault.
    """
    audit_log = logs_dir.with_suffix(".audit")
    flags = (f"--audit-policy-file={_POLICY}", f"--audit-log-path={audit_log}", "--audit-log-maxsize=10000")
    audit_log.parent.mkdir(parents=True, exist_ok=True)
    audit_log.unlink(missing_ok=True)
    async with Lab.start(topology, name=name, components=COMPONENTS, api_server_flags=flags) as lab:
        installation = await install(lab, controller_config=_CONTROLLER_CONFIG)
        async with (
            Client(lab.client_config, timeout_s=10.0) as client,
            Client(lab.client_config, timeout_s=3.0) as health_client,
        ):
            url = f"http://{LOOPBACK}:{find_free_ports(1)[0]}"
            await _start_second_controller(client, installation, url)
            run = ChaosRun(client, health_client, installation, url)
            try:
                report = await _run_faults(run, seed, minutes, audit_log)
            finally:
                await run.injector.cancel()
            if report.violations:
                shutil.copytree(lab.paths.logs, logs_dir, dirs_exist_ok=True)
            else:
                audit_log.unlink()
            return report


async def _run_faults(run: ChaosRun, seed: int, minutes: float, audit_log: Path) -> ChaosReport:
    faults = draw_faults(seed, duration_s=minutes * 60, targets=run.targets)
    async with supervised_tasks({"health": run.health.run(), "restarts": run.injector.restart_ended_programs()}):
        if not await run.wait_until_healthy(_START_TIMEOUT_S):
            raise BootError(
                f"not healthy before the first fault: {'; '.join(run.health.problems) or 'costs are missing'}"
            )
        async with supervised_tasks({"workload": run.workload.run()}):
            await asyncio.sleep(STABLE_S)
            usage_before = read_usage(run.lab)
            log.info("%s faults of seed %s in %g minutes", len(faults), seed, minutes)
            await run.inject_all(faults)
        log.info("waits for recovery")
        violations = [
            *await run.injector.wait_for_reverts(_REVERT_TIMEOUT_S),
            *await run.find_violations_after_faults(),
        ]
        violations += [*find_leaks(usage_before, read_usage(run.lab)), *run.injector.crashes]
    violations += await asyncio.to_thread(_check_audit_log, run, audit_log)
    recoveries_s = sorted(round(duration_s, 1) for duration_s, _ in run.health.recoveries) or [0.0]
    p50_s, p99_s = recoveries_s[len(recoveries_s) // 2], recoveries_s[int(len(recoveries_s) * 0.99)]
    return ChaosReport(
        seed=seed,
        faults=dict(sorted(Counter(fault.kind for fault in faults).items())),
        violations=violations,
        recovery_s={"p50": p50_s, "p99": p99_s, "max": recoveries_s[-1]},
        restarts=run.injector.restarts,
    )


def _check_audit_log(run: ChaosRun, audit_log: Path) -> list[str]:
    with audit_log.open("rb") as file:
        events = audit.read_events(file)
    gated_pods = audit.find_pods_gated_too_long(events, _MAX_GATE_S + _GATE_LEEWAY_S, run.health.outages)
    return [*audit.find_unfenced_writes(events), *gated_pods]


async def _start_second_controller(client: Client, installation: Installation, url: str) -> None:
    """Start another replica of the manager, with the token of the Deployment's second pod."""
    lab = installation.lab
    first_pod_uid = _read_bound_pod_uid(lab.control_plane.kubeconfig_of("controller"))
    kubeconfig = await write_bound_kubeconfig(
        client, lab.control_plane, CONTROLLER, SECOND_CONTROLLER, lambda pod: pod.metadata.uid != first_pod_uid
    )
    start_central_program(
        lab.programs, SECOND_CONTROLLER, "manager", url, kubeconfig=kubeconfig, config=installation.config
    )


def _read_bound_pod_uid(kubeconfig: Path) -> str:
    """Uid of the pod that a kubeconfig's token is bound to."""
    payload = str(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]).split(".")[1]
    claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims["kubernetes.io"]["pod"]["uid"])
