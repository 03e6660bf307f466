"""Monitors the health of a lab from outside while faults are injected, and measures how long recovery takes.

A lab is healthy if the API server answers, all programs of ours are ready, and a controller renews the Lease. Recovery
lasts from the last fault, or from its revert, to the first moment at which the lab is healthy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime

import aiohttp

from controller.cluster.crds import NETPERF_COSTS
from controller.topology.weights import zone_costs_of
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.lease import Lease
from kubekit.wire import LEASES
from lab.installation import get_network_topology
from netperf.contract import CONTROLLER, NETAWARE_NAMESPACE
from tests.chaos.faults import FAULT_KINDS, Fault

STABLE_S = 10.0
_POLL_S = 0.5
_REQUEST_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


class HealthMonitor:
    """Checks a lab's health twice a second.

    Args:
        client: has the administrator's rights and a short timeout.
        urls: URL of each program.
        count_pending_reverts: returns how many faults are not reverted yet.

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
        """Check until cancelled."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)) as session:
            while True:
                started = time.monotonic()
                if self._count_pending_reverts():
                    self._last_fault_at_s = started if self._last_fault_at_s is not None else None
                self.problems = await self._find_problems(session)
                # Gates are opened without agents and the extender.
                if any(not problem.startswith(("agent-", "extender")) for problem in self.problems):
                    self.outages.append((time.time() - _POLL_S - (time.monotonic() - started), time.time()))
                if self.problems:
                    self._healthy_since_s = None
                elif self._last_fault_at_s is None or self._last_fault_at_s <= started:
                    self._on_healthy(started)
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
        """Costs between zones."""
        return zone_costs_of((await get_network_topology(self._client)).weight(NETPERF_COSTS))
