"""Monitors the health of a lab from outside while faults are injected, and compares its programs' usage.

A lab is healthy if the API server answers, all programs of ours are ready, and a controller renews the Lease. Recovery
lasts from the last fault, or from its revert, to the first moment at which the lab is healthy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime

import aiohttp
import msgspec
import psutil

from controller.cluster.crds import NETPERF_COSTS
from controller.topology.weights import zone_costs_of
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.lease import Lease
from kubekit.wire import LEASES
from lab.cluster import Lab
from lab.installation import get_network_topology
from netperf.contract import CONTROLLER, NETAWARE_NAMESPACE
from tests.chaos.faults import CONTROL_PLANE, FAULT_KINDS, Fault

STABLE_S = 10.0
_POLL_S = 0.5
_REQUEST_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)
# Python returns memory to the system late, so only growth beyond these allowances is a leak.
_RSS_FACTOR, _RSS_ALLOWANCE_BYTES = 1.5, 40 << 20
_DESCRIPTORS_ALLOWANCE, _PROCESSES_ALLOWANCE = 25, 3


class HealthMonitor:
    """Checks a lab's health twice a second, with a client that has the administrator's rights and a short timeout.

    Attributes:
        problems: why the lab is not healthy now; empty if it is.
        recoveries: duration of each recovery, and the outage that its faults may cause, in seconds.
        outages: begin and end of times in which no gate could be opened.
    """

    def __init__(self, client: Client, urls: dict[str, str], count_pending_reverts: Callable[[], int]) -> None:
        self._client, self._url_by_program, self._count_pending_reverts = client, urls, count_pending_reverts
        self._last_fault_at_s: float | None = None
        self._allowed_outage_s = 0.0
        self._healthy_since_s: float | None = None
        self.recoveries: list[tuple[float, float]] = []
        self.problems: list[str] = []
        self.outages: list[tuple[float, float]] = []

    def on_fault(self, fault: Fault) -> None:
        """Begin a new recovery."""
        self._last_fault_at_s, self._healthy_since_s = time.monotonic(), None
        self._allowed_outage_s = max(self._allowed_outage_s, FAULT_KINDS[fault.kind].max_outage_s)

    @property
    def healthy_s(self) -> float:
        """Seconds since which the lab has been healthy."""
        return 0.0 if self._healthy_since_s is None else time.monotonic() - self._healthy_since_s

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)) as session:
            while True:
                started_s = time.monotonic()
                if self._count_pending_reverts():
                    self._last_fault_at_s = started_s if self._last_fault_at_s is not None else None
                self.problems = await self._find_problems(session)
                # Gates are opened without agents and the extender.
                if any(not problem.startswith(("agent-", "extender")) for problem in self.problems):
                    self.outages.append((time.time() - _POLL_S - (time.monotonic() - started_s), time.time()))
                if self.problems:
                    self._healthy_since_s = None
                elif self._last_fault_at_s is None or self._last_fault_at_s <= started_s:
                    self._on_healthy(started_s)
                await asyncio.sleep(_POLL_S)

    def _on_healthy(self, now_s: float) -> None:
        self._healthy_since_s = self._healthy_since_s or now_s
        if self._last_fault_at_s is not None and not self._count_pending_reverts():
            duration_s = max(0.0, now_s - self._last_fault_at_s)
            self.recoveries.append((duration_s, self._allowed_outage_s))
            log.info("healthy %.1f s after the last fault", duration_s)
            self._last_fault_at_s, self._allowed_outage_s = None, 0.0

    async def _find_problems(self, session: aiohttp.ClientSession) -> list[str]:
        async def find_readiness_problem(name: str, url: str) -> str:
            try:
                async with session.get(f"{url}/readyz") as response:
                    body = await response.text()
                    return "" if response.status == 200 else f"{name}: {response.status} {body[:200]}"
            except (aiohttp.ClientError, TimeoutError) as error:
                return f"{name}: {type(error).__name__}"

        problems = await asyncio.gather(
            self._find_lease_problem(),
            *(find_readiness_problem(name, url) for name, url in self._url_by_program.items()),
        )
        return [problem for problem in problems if problem]

    async def _find_lease_problem(self) -> str:
        try:
            lease = await self._client.get(LEASES, CONTROLLER, Lease, namespace=NETAWARE_NAMESPACE)
        except KubekitError as error:
            return f"API server: {error}"
        renewed_at = lease.spec.renew_time
        if not lease.spec.holder_identity or renewed_at is None:
            return "Lease: no replica holds it"
        age_s = time.time() - datetime.fromisoformat(renewed_at).timestamp()
        is_expired = age_s > (lease.spec.lease_duration_seconds or 0)
        return f"Lease: not renewed for {age_s:.0f} s" if is_expired else ""

    async def read_costs(self) -> dict[tuple[str, str], int]:
        return zone_costs_of((await get_network_topology(self._client)).weight(NETPERF_COSTS))


class Usage(msgspec.Struct, frozen=True):
    """Resident memory in bytes, file descriptors and processes of a program with its children."""

    rss_bytes: int
    descriptors: int
    processes: int


def read_usage(lab: Lab) -> dict[str, Usage]:
    """Name of a program -> its usage, without programs that have ended."""
    usage_by_program = {}
    for program in lab.programs:
        try:
            processes = program.find_process_tree()
            rss_bytes = sum(p.memory_info().rss for p in processes)
            usage_by_program[program.name] = Usage(rss_bytes, sum(p.num_fds() for p in processes), len(processes))
        except psutil.Error:
            continue
    return usage_by_program


def find_leaks(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> list[str]:
    """Violations by programs whose usage grew by more than an allowance.

    Memory of the control plane is not compared: etcd and the API server's watch cache keep old versions until a
    compaction, which the faults delay.
    """
    violations = []
    for name, usage_before in before.items():
        usage_after = after.get(name)
        if usage_after is None:
            violations.append(f"not running: {name}")
            continue
        max_rss_bytes = usage_before.rss_bytes * _RSS_FACTOR + _RSS_ALLOWANCE_BYTES
        if name not in CONTROL_PLANE and usage_after.rss_bytes > max_rss_bytes:
            mib_before, mib_after = usage_before.rss_bytes >> 20, usage_after.rss_bytes >> 20
            violations.append(f"memory: {name} from {mib_before} to {mib_after} MiB")
        if usage_after.descriptors > usage_before.descriptors + _DESCRIPTORS_ALLOWANCE:
            violations.append(f"descriptors: {name} from {usage_before.descriptors} to {usage_after.descriptors}")
        if usage_after.processes > usage_before.processes + _PROCESSES_ALLOWANCE:
            violations.append(f"processes: {name} from {usage_before.processes} to {usage_after.processes}")
    return violations
