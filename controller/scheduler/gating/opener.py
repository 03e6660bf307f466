"""The gate opener: a program that opens overdue gates while no leader does.

The leader opens each gate within ``gates.maxWaitS``. This program opens it `GRACE_S` later, without an order and without a plan. It only
patches pods, and takes part in no leader election. With ``--all`` it opens every gate at once, as the first step of an uninstallation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from controller.cluster.pods import GATE, Pod
from kubekit import logs
from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.config import ClusterConfig
from kubekit.errors import KubekitError
from kubekit.http import HealthChecks, Server
from kubekit.reflector import Reflector
from kubekit.runtime import supervise
from kubekit.waiting import backoff_delay_s
from kubekit.wire import PODS, Object

log = logs.get("controller.scheduler.gating.opener")

GRACE_S = 30.0
"""Time beyond ``gates.maxWaitS`` in which the leader should open a gate; the command line adds it."""
CHECK_INTERVAL_S, MAX_RETRY_S = 5.0, 60.0
"""Time between checks, and longest time between failed patches of a pod."""
UNINSTALL_CHECK_INTERVAL_S = 0.2
"""Time between checks with ``--all``, while there are gates."""
_PENDING_FIELD_SELECTOR = "spec.nodeName=,status.phase=Pending"
_CONCURRENT_WRITES = 16


async def run_gate_opener(cluster: ClusterConfig, *, max_wait_s: float | None, listen: str) -> None:
    """Watch pods and open overdue gates until cancelled.

    Args:
        cluster: which API server.
        max_wait_s: longest time that a gate stays closed; None to open all at once.
        listen: ``HOST:PORT`` of metrics and health checks.

    Raises:
        ConfigError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    async with Client(cluster, user_agent="netaware-gate-opener") as client:
        opener = GateOpener(client, max_wait_s=max_wait_s)
        checks = HealthChecks()
        checks.ready["pods"] = lambda: "" if opener.pods.synced.is_set() else "not listed yet: pods"
        await supervise({**opener.tasks(), "http": Server(listen, checks=checks, registry=registry).serve()})


class GateOpener:
    """Opens the gates of pods that have waited for longer than ``max_wait_s``, or of all pods if that is None.

    Attributes:
        pods: pending pods of all namespaces.
    """

    def __init__(self, client: Client, *, max_wait_s: float | None, clock: Callable[[], float] = time.time) -> None:
        self._client, self._max_wait_s, self._clock = client, max_wait_s, clock
        self.pods: Reflector[Pod] = Reflector(client, PODS, Pod, field_selector=_PENDING_FIELD_SELECTOR)
        self._other_gates_opened_at: dict[str, float] = {}
        """Pod key -> unix seconds at which its last gate of another owner opened."""
        self._failures: dict[str, tuple[int, float]] = {}
        """Pod key -> number of failed patches, and the time before which the pod is not patched again."""
        self.pods.subscribe(self._on_pod_change)

    def tasks(self) -> dict[str, Awaitable[None]]:
        """The endless tasks, for `kubekit.runtime.supervise`."""
        return {"pods": self.pods.run(), "gates": self.run()}

    async def run(self) -> None:
        """Open overdue gates every few seconds, until cancelled."""
        await self.pods.synced.wait()
        while True:
            overdue = self.find_overdue()
            for begin in range(0, len(overdue), _CONCURRENT_WRITES):
                await asyncio.gather(*(self._open_gate(pod) for pod in overdue[begin : begin + _CONCURRENT_WRITES]))
            is_uninstalling = self._max_wait_s is None and bool(overdue)
            await asyncio.sleep(UNINSTALL_CHECK_INTERVAL_S if is_uninstalling else CHECK_INTERVAL_S)

    def find_overdue(self) -> list[Pod]:
        """Pods whose gates should be open by now, oldest first. Pods whose patch failed are left out during their back-off."""
        now = self._clock()
        overdue = (pod for pod in self.pods if pod.is_gated and pod.is_active and self._is_overdue(pod, now))
        due = (pod for pod in overdue if now >= self._failures.get(pod.metadata.key, (0, 0.0))[1])
        return sorted(due, key=lambda pod: pod.metadata.creation_timestamp or "")

    def _is_overdue(self, pod: Pod, now: float) -> bool:
        """Whether the pod has no other gate, and has waited too long since its creation or since its last other gate opened."""
        if self._max_wait_s is None:
            return True
        other_gates_opened_at = self._other_gates_opened_at.get(pod.metadata.key, 0.0)
        return not pod.other_gates and min(pod.age_s(now), now - other_gates_opened_at) >= self._max_wait_s

    def _on_pod_change(self, key: str, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            self._other_gates_opened_at.pop(key, None)
            self._failures.pop(key, None)
        elif old is not None and old.other_gates and not new.other_gates:
            self._other_gates_opened_at[key] = self._clock()

    async def _open_gate(self, pod: Pod) -> None:
        metadata = pod.metadata
        patch = {"metadata": {"uid": metadata.uid}, "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
        try:
            await self._client.patch(
                PODS, metadata.name, patch, Object, patch_type=STRATEGIC_PATCH, namespace=metadata.namespace
            )
        except KubekitError as error:
            if error.is_not_found:
                return
            failures = self._failures.get(metadata.key, (0, 0.0))[0] + 1
            delay_s = backoff_delay_s(failures, CHECK_INTERVAL_S, MAX_RETRY_S)
            self._failures[metadata.key] = failures, self._clock() + delay_s
            log.log_change(metadata.key, str(error), "cannot open a gate", pod=metadata.key, error=error)
            return
        if self._max_wait_s is None:
            log.info("opened a gate", pod=metadata.key)
        else:
            log.warning("opened an overdue gate", pod=metadata.key)
