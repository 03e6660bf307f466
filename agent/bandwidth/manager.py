"""Checks the limits of the node's pods, repairs them in ``enforce``, and reports by events, log lines and metrics.

Reconciles after changes of pods and of traffic control, and at least every `FULL_CHECK_INTERVAL_S`. Reconciliations are at least
`MIN_PAUSE_S` apart, which bounds their CPU on nodes with many changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from agent.bandwidth.annotations import Direction, PodBandwidthSpec, read_spec
from agent.bandwidth.backoff import RepairBackoff
from agent.bandwidth.cni import ResultCache, read_network
from agent.bandwidth.counters import take_readings
from agent.bandwidth.meters import TrafficMeters
from agent.bandwidth.metrics import BandwidthMetrics
from agent.bandwidth.rules import RepairPolicy, plan_cleanup, plan_limits, with_excess_or_dispute
from agent.bandwidth.snapshot import take_snapshot
from agent.bandwidth.state import Action, BandwidthPlan, LimitKey, LimitStatus, SetEgressLimit, SetIngressLimit
from agent.bandwidth.tc_reader import read_tc_state
from agent.bandwidth.tc_writer import execute
from agent.config import AgentConfig
from agent.netlink import KernelError
from kubekit import logs
from kubekit.events import EventRecorder, ObjectReference
from kubekit.reflector import Reflector
from kubekit.waiting import wait_until_set
from kubekit.wire import PODS, Pod

log = logs.get("agent.bandwidth")

FULL_CHECK_INTERVAL_S = 300.0
"""Longest time between full reads, in case an event was lost."""
DEBOUNCE_S = 0.3
"""Changes within this time are handled together."""
MIN_PAUSE_S = 2.0
RETRY_S = 5.0
"""Delay of the next attempt after the kernel refused to be read."""
DEVICE_COUNTERS_INTERVAL_S = 4.5
"""Interval of reading counters. Two readings, so at most ten seconds, show an excess."""
NEW_POD_AGE_S = 120.0
"""Pods older than this get no events when an agent starts, because the previous agent may have sent them."""
MAX_UNLOCATED_LOGGED = 5
"""Number of pods in a log line about pods whose device is unknown."""
_ACTION_BY_DIRECTION: dict[Direction, type[Action]] = {"ingress": SetIngressLimit, "egress": SetEgressLimit}


class BandwidthManager:
    """Checks and repairs bandwidth limits of one node's pods."""

    def __init__(
        self, config: AgentConfig, recorder: EventRecorder, registry: CollectorRegistry, pods: Reflector[Pod]
    ) -> None:
        self._config, self._recorder = config, recorder
        self._result_cache = ResultCache()
        self._policy = RepairPolicy(enforce=config.bandwidth == "enforce", repair_burst=config.repair_burst)
        self._pods = pods
        self._pods.subscribe(self._on_pod_change)
        self._metrics = BandwidthMetrics(registry)
        self._wake = asyncio.Event()
        self._last_statuses: dict[LimitKey, LimitStatus] = {}
        self._has_reported = False
        self._mismatch_by_uid: dict[str, str] = {}
        self._has_unlocated_pods = False
        self._backoff = RepairBackoff()
        self._meters = TrafficMeters()
        self._plan, self._pod_specs = BandwidthPlan(), tuple[PodBandwidthSpec, ...]()

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Tasks to run, by name."""
        return {"bandwidth": self._reconcile_forever(), "bandwidth-traffic": self._measure_traffic()}

    def on_kernel_change(self) -> None:
        """Reconcile soon, because devices or traffic control changed; ignored while there is nothing to check or enforce."""
        if self._last_statuses or self._has_unlocated_pods or self._policy.enforce:
            self._wake.set()

    def _on_pod_change(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if old is None or new is None or read_spec(old) != read_spec(new):
            self._wake.set()

    async def _reconcile_forever(self) -> None:
        await self._pods.synced.wait()
        while True:
            self._wake.clear()
            try:
                await self._reconcile()
            except KernelError as error:
                log.log_change("kernel", str(error), "cannot read traffic control", error=error)
                asyncio.get_running_loop().call_later(RETRY_S, self._wake.set)
            else:
                log.log_change("kernel", "", "traffic control can be read again")
            await asyncio.sleep(MIN_PAUSE_S)
            if await wait_until_set(self._wake, FULL_CHECK_INTERVAL_S):
                await asyncio.sleep(DEBOUNCE_S)

    async def _reconcile(self) -> None:
        """Read, check and repair limits, and read again after repairs before reporting."""
        pods = tuple(
            read_spec(pod) for pod in self._pods if not pod.is_finished and not pod.metadata.deletion_timestamp
        )
        plan = await self._plan_limits(pods)
        due_actions = self._backoff.select_due(plan.actions, asyncio.get_running_loop().time())
        if due_actions:
            for action in due_actions:
                await self._repair(action)
            plan = await self._plan_limits(pods)
        self.report_plan(plan, pods)

    def report_plan(self, plan: BandwidthPlan, pods: tuple[PodBandwidthSpec, ...]) -> None:
        """Report the statuses of a plan for these pods, now and after each reading of counters."""
        self._plan, self._pod_specs = plan, pods
        self._report_statuses()

    async def _plan_limits(self, pods: tuple[PodBandwidthSpec, ...]) -> BandwidthPlan:
        if not self._policy.enforce and not any(pod.limits for pod in pods):
            return BandwidthPlan()
        network = read_network()
        if self._config.cni_network:
            network = msgspec.structs.replace(network, name=self._config.cni_network)
        snapshot = await take_snapshot(self._config.proc, network, pods, self._result_cache)
        return plan_limits(snapshot, self._policy)

    async def _repair(self, action: Action) -> None:
        loop = asyncio.get_running_loop()
        kind = type(action).__name__
        topic, has_succeeded = f"repair/{action.device_name}/{kind}", False
        try:
            await execute(action)
        except KernelError as error:
            log.log_change(topic, str(error), "cannot set a limit", device=action.device_name, action=kind, error=error)
        else:
            has_succeeded = True
            log.log_change(topic, "", "limits can be set again", device=action.device_name, action=kind)
        loop.call_later(self._backoff.record_attempt(action, loop.time(), has_succeeded=has_succeeded), self._wake.set)

    async def _measure_traffic(self) -> None:
        """Compare measured traffic with limits until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(DEVICE_COUNTERS_INTERVAL_S)
            statuses = [status for status in self._plan.statuses if status.counter_source is not None]
            if not statuses:
                continue
            try:
                await take_readings(self._meters, self._config.proc, statuses, loop.time())
            except KernelError as error:
                log.log_change("counters", str(error), "cannot read the counters of limits", error=error)
                continue
            log.log_change("counters", "", "counters can be read again")
            self._report_statuses()

    def _report_statuses(self) -> None:
        """Report the plan's statuses by metrics, and their changes by events and log lines."""
        excess_by_key = self._meters.excess_by_key
        dispute_by_repair = self._backoff.describe_disputes(asyncio.get_running_loop().time())
        statuses = tuple(
            with_excess_or_dispute(
                status,
                excess_by_key.get(status.key, ""),
                dispute_by_repair.get((_ACTION_BY_DIRECTION[status.direction], status.host_device_name), ""),
            )
            for status in self._plan.statuses
        )
        self._metrics.statuses, self._metrics.meter_by_key = statuses, self._meters.meter_by_key
        for status in statuses:
            self._report_change(status, self._last_statuses.get(status.key))
        # A pod that temporarily cannot be located keeps its reported status.
        uids = {pod.uid for pod in self._pod_specs}
        previous = {key: status for key, status in self._last_statuses.items() if status.pod.uid in uids}
        self._last_statuses = previous | {status.key: status for status in statuses}
        self._report_mismatches()
        self._has_reported = True
        self._report_unlocated(self._plan.unlocated_reasons)

    def _report_unlocated(self, reasons: Mapping[str, str]) -> None:
        self._has_unlocated_pods = bool(reasons)
        listed = ", ".join(f"{key}: {reason}" for key, reason in sorted(reasons.items())[:MAX_UNLOCATED_LOGGED])
        log.log_change("unlocated", listed, "pods without verdict", level="info", count=len(reasons), pods=listed)

    def _report_mismatches(self) -> None:
        """Report pods whose reservation and limit differ, once per change."""
        before = self._mismatch_by_uid
        self._mismatch_by_uid = {pod.uid: pod.mismatch for pod in self._pod_specs if pod.mismatch}
        for pod in self._pod_specs:
            if pod.mismatch and pod.mismatch != before.get(pod.uid):
                log.warning("reservation and limit differ", pod=pod.key, why=pod.mismatch)
                self._send_event(pod, "BandwidthMismatch", pod.mismatch, "Compare", is_first=pod.uid not in before)

    def _report_change(self, status: LimitStatus, before: LimitStatus | None) -> None:
        """Log a status whose verdict or rate changed; send an event about a changed verdict, and about a first one unless enforced."""
        if before is not None and (before.verdict, before.wanted_bps) == (status.verdict, status.wanted_bps):
            return
        is_normal = status.verdict == "enforced"
        verdict_changed = status.verdict != (before.verdict if before is not None else "enforced")
        write_log: Callable[..., None] = log.warning if verdict_changed and not is_normal else log.info
        write_log(
            "limit",
            pod=status.pod.key,
            direction=status.direction,
            verdict=status.verdict,
            wanted_bps=status.wanted_bps,
            device=status.device_name,
            why=status.detail,
        )
        if verdict_changed:
            reason = "Bandwidth" + "".join(part.capitalize() for part in status.verdict.split("-"))
            note, is_first = _format_event_note(status), before is None
            self._send_event(status.pod, reason, note, "CheckBandwidth", is_first=is_first, is_normal=is_normal)

    def _send_event(
        self, pod: PodBandwidthSpec, reason: str, note: str, action: str, *, is_first: bool, is_normal: bool = False
    ) -> None:
        """Send an event, except about an older pod in the first report after the agent's start."""
        if is_first and not self._has_reported and not _is_new(pod, time.time()):
            return
        send = self._recorder.record_normal if is_normal else self._recorder.record_warning
        regarding = ObjectReference(PODS.api_version, PODS.kind, pod.name, pod.namespace, pod.uid)
        send(regarding, reason, note, action=action)


async def remove_limits() -> int:
    """Remove all our limits and ifbs from this node; returns the number of executed actions.

    Raises:
        KernelError: the kernel refused or did not answer.
    """
    tc_state, _ = await read_tc_state({})
    actions = plan_cleanup(tc_state)
    for action in actions:
        await execute(action)
    return len(actions)


def _format_event_note(status: LimitStatus) -> str:
    rate = f"{status.wanted_bps} bit/s" if status.wanted_bps is not None else "the annotation"
    detail = f": {status.detail}" if status.detail else ""
    where = f" on {status.device_name}" if status.device_name else ""
    return f"{status.direction} limit of {rate}: {status.verdict}{where}{detail}"


def _is_new(pod: PodBandwidthSpec, now_s: float) -> bool:
    """Whether a pod is so new that no earlier agent can have reported it."""
    try:
        return now_s - datetime.fromisoformat(pod.created_at).timestamp() < NEW_POD_AGE_S
    except ValueError:
        return True
