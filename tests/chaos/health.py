"""Tells while faults are injected whether all is well, and how long it took to be well again.

Well is what somebody outside sees: the API server answers, every program of ours says it is ready, one of the controllers renews
the Lease. A disturbance lasts from the first fault to the first moment at which all is well; more faults may fall into it, and
recovery counts from the last of them, when what lasts a while is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime

import aiohttp

from controller.cluster.crds import NETPERF_COSTS, NETWORK_TOPOLOGIES, NetworkTopology
from controller.topology.weights import zone_costs_of
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.lease import Lease
from kubekit.wire import LEASES
from lab.installation import TOPOLOGY_NAME
from netperf.contract import CONTROLLER, NETAWARE_NAMESPACE
from tests.chaos.faults import Fault

SETTLED_S = 10.0
_POLL_S = 0.5
_ANSWER_S = 2.0
LOST_S = {
    "kill": 14.0,
    "pause": 14.0,
    "deny": 14.0,
    "etcd-full": 14.0,
    "pause-control-plane": 14.0,
    "kill-control-plane": 30.0,
}
"""Seconds of outage that a fault may cause, by kind: a Lease's duration and two attempts to take it; a control plane's restart."""

log = logging.getLogger(__name__)


class HealthMonitor:
    """Looks at a lab from outside.

    Args:
        client: the administrator's, with a short deadline.
        urls: what serves ``/readyz``, by program.
        pending: how many faults still last.
    """

    def __init__(self, client: Client, urls: dict[str, str], pending: Callable[[], int]) -> None:
        self._client, self._urls, self._pending = client, urls, pending
        self._fault_at: float | None = None
        self._lost_s = 0.0
        self._well_since: float | None = None
        self.recoveries: list[tuple[float, float]] = []
        self.ailing: list[str] = []
        self.away: list[tuple[float, float]] = []

    def injected(self, fault: Fault) -> None:
        """A fault is done now."""
        self._fault_at, self._well_since = time.monotonic(), None
        self._lost_s = max(self._lost_s, LOST_S.get(fault.kind, 0.0))

    @property
    def well_s(self) -> float:
        """For how long all has been well, seconds."""
        return 0.0 if self._well_since is None else time.monotonic() - self._well_since

    async def run(self) -> None:
        """Until cancelled."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
            while True:
                began = time.monotonic()
                if self._pending():
                    self._fault_at = began if self._fault_at is not None else None
                self.ailing = await self._look(session)
                # Without them no gate is opened.
                if any(not text.startswith(("agent-", "extender")) for text in self.ailing):
                    self.away.append((time.time() - _POLL_S - (time.monotonic() - began), time.time()))
                if self.ailing:
                    self._well_since = None
                elif self._fault_at is None or self._fault_at <= began:
                    self._is_well(began)
                await asyncio.sleep(_POLL_S)

    def _is_well(self, now: float) -> None:
        self._well_since = self._well_since or now
        if self._fault_at is not None and not self._pending():
            took_s = max(0.0, now - self._fault_at)
            self.recoveries.append((took_s, self._lost_s))
            log.info("well again %.1f s after the last fault", took_s)
            self._fault_at, self._lost_s = None, 0.0

    async def _look(self, session: aiohttp.ClientSession) -> list[str]:
        async def ready(name: str, url: str) -> str:
            try:
                async with session.get(f"{url}/readyz") as answer:
                    return "" if answer.status == 200 else f"{name}: {answer.status} {(await answer.text())[:200]}"
            except (aiohttp.ClientError, TimeoutError) as error:
                return f"{name}: {type(error).__name__}"

        answers = await asyncio.gather(self._lease(), *(ready(*item) for item in self._urls.items()))
        return [text for text in answers if text]

    async def _lease(self) -> str:
        try:
            lease = await self._client.get(LEASES, CONTROLLER, Lease, namespace=NETAWARE_NAMESPACE)
        except KubekitError as error:
            return f"API server: {error}"
        renewed = lease.spec.renew_time
        if not lease.spec.holder_identity or renewed is None:
            return "Lease: nobody holds it"
        age_s = time.time() - datetime.fromisoformat(renewed).timestamp()
        lasts_s = lease.spec.lease_duration_seconds or 0
        return f"Lease: not renewed for {age_s:.0f} s" if age_s > lasts_s else ""

    async def costs(self) -> dict[tuple[str, str], int]:
        """The costs between zones as they stand."""
        network = await self._client.get(
            NETWORK_TOPOLOGIES, TOPOLOGY_NAME, NetworkTopology, namespace=NETAWARE_NAMESPACE
        )
        return zone_costs_of(network.weight(NETPERF_COSTS))
