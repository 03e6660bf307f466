"""Watches the node's pods and the kernel, checks limits, repairs them if told to, and reports by events, log and metrics.

Changes of pods and of traffic control wake it, and it reads everything every five minutes. Reconciliations are at least two seconds
apart, which bounds their CPU on nodes with many changes; each reads once more after a repair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from agent.bandwidth.annotations import Direction, PodBandwidthSpec, spec_of
from agent.bandwidth.backoff import RepairBackoff, RepairKey
from agent.bandwidth.cni import Network, ResultCache, read_network
from agent.bandwidth.counters import take_readings
from agent.bandwidth.kernel import execute
from agent.bandwidth.meters import TrafficMeters
from agent.bandwidth.metrics import BandwidthMetrics
from agent.bandwidth.rules import Policy, plan_limits, with_excess_or_dispute
from agent.bandwidth.snapshot import take_snapshot
from agent.bandwidth.state import Action, BandwidthPlan, Key, LimitStatus
from agent.config import AgentConfig
from agent.netlink import KernelError
from kubekit import logs
from kubekit.client import Client
from kubekit.events import EventRecorder, ObjectReference
from kubekit.reflector import Reflector
from kubekit.waiting import wait_until_set
from kubekit.wire import PODS, Pod

log = logs.get("agent.bandwidth")

FULL_CHECK_INTERVAL_S = 300.0
"""Everything is read at least this often, in case a change went unnoticed."""
CHANGE_GATHER_S = 0.3
"""Changes within this time are handled by one reading."""
MIN_PAUSE_S = 2.0
RETRY_S = 5.0
DEVICE_COUNTERS_INTERVAL_S = 4.5
"""Interval of reading pods' own counters; an excess shows in the second reading, within ten seconds."""
NEW_POD_AGE_S = 120.0
"""An agent that starts sends no events about older pods, because an earlier agent may have."""
_KIND_OF: dict[Direction, str] = {"ingress": "LimitIngress", "egress": "LimitEgress"}


class BandwidthManager:
    """Checks and repairs bandwidth limits of one node's pods.

    Args:
        client: the cluster's.
        config: flags.
        recorder: for events on pods.
        registry: for metrics.
        pods: the store of this node's pods.
    """

    def __init__(
        self,
        client: Client,
        config: AgentConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        pods: Reflector[Pod],
    ) -> None:
        self._client, self._config, self._recorder = client, config, recorder
        self._cache = ResultCache()
        self._policy = Policy(enforce=config.bandwidth == "enforce", repair_burst=config.repair_burst)
        self._pods = pods
        self._pods.subscribe(self._on_pod_change)
        self._metrics = BandwidthMetrics(registry)
        self._wake = asyncio.Event()
        self._last_statuses: dict[Key, LimitStatus] = {}
        self._reconciled = False
        self._mismatches: dict[str, str] = {}
        self._has_unlocated_pods = False
        self._backoff = RepairBackoff()
        self._meters = TrafficMeters()
        self._last_excesses_and_disputes: tuple[Mapping[Key, str], Mapping[RepairKey, str]] = ({}, {})
        self._plan, self._specs = BandwidthPlan(), tuple[PodBandwidthSpec, ...]()

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Tasks to run, by name."""
        return {"bandwidth": self._run(), "bandwidth-traffic": self._compare_traffic()}

    def on_kernel_change(self) -> None:
        """Reconcile soon, because devices or traffic control changed."""
        if self._last_statuses or self._has_unlocated_pods or self._policy.enforce:
            self._wake.set()

    def _on_pod_change(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if (spec_of(old) if old is not None else None) != (spec_of(new) if new is not None else None):
            self._wake.set()

    async def _run(self) -> None:
        await self._pods.synced.wait()
        while True:
            self._wake.clear()
            try:
                await self._reconcile()
            except KernelError as error:
                log.change("kernel", str(error), "cannot read traffic control", error=error)
                asyncio.get_running_loop().call_later(RETRY_S, self._wake.set)
            else:
                log.change("kernel", "", "traffic control can be read again")
            await asyncio.sleep(MIN_PAUSE_S)
            if await wait_until_set(self._wake, FULL_CHECK_INTERVAL_S):
                await asyncio.sleep(CHANGE_GATHER_S)

    async def _reconcile(self) -> None:
        """Read, check and repair limits, and read again after repairs before reporting."""
        pods = tuple(spec_of(pod) for pod in self._pods if not pod.is_finished and not pod.metadata.deletion_timestamp)
        plan = await self._plan_limits(pods)
        due = self._backoff.due(plan.actions, asyncio.get_running_loop().time())
        if due:
            for action in due:
                await self._repair(action)
            plan = await self._plan_limits(pods)
        self.publish(plan, pods)

    def publish(self, plan: BandwidthPlan, pods: tuple[PodBandwidthSpec, ...]) -> None:
        """Export a plan's statuses, and report changes."""
        self._plan, self._specs = plan, pods
        self._report()

    async def _plan_limits(self, pods: tuple[PodBandwidthSpec, ...]) -> BandwidthPlan:
        if not self._policy.enforce and not any(pod.limits for pod in pods):
            return BandwidthPlan()
        snapshot = await take_snapshot(self._config.proc, network_of(self._config), pods, cache=self._cache)
        return plan_limits(snapshot, self._policy)

    async def _repair(self, action: Action) -> None:
        loop = asyncio.get_running_loop()
        topic, kind = f"repair/{action.name}/{type(action).__name__}", type(action).__name__
        done = False
        try:
            await execute(action)
        except KernelError as error:
            log.change(topic, str(error), "cannot set a limit", device=action.name, what=kind, error=error)
        else:
            done = True
            log.change(topic, "", "limits can be set again", device=action.name, what=kind)
        loop.call_later(self._backoff.record(action, loop.time(), done=done), self._wake.set)

    async def _compare_traffic(self) -> None:
        """Compare traffic with the limits while there are any."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(DEVICE_COUNTERS_INTERVAL_S)
            statuses = [status for status in self._plan.statuses if status.counter_source is not None]
            if not statuses:
                continue
            try:
                await take_readings(self._meters, self._config.proc, statuses, loop.time())
            except KernelError as error:
                log.change("counters", str(error), "cannot read the counters of limits", error=error)
                continue
            log.change("counters", "", "counters can be read again")
            if self._excesses_and_disputes() != self._last_excesses_and_disputes:
                self._report()
            else:  # nearly always: only rates have changed
                self._metrics.set_traffic(self._meters.by_limit)

    def _excesses_and_disputes(self) -> tuple[Mapping[Key, str], Mapping[RepairKey, str]]:
        """Exceeded and disputed limits, which overrule the verdict on the configuration."""
        return self._meters.current_excesses, self._backoff.disputed(asyncio.get_running_loop().time())

    # --- reporting ---------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Report verdicts by events and log lines, once per change."""
        self._last_excesses_and_disputes = self._excesses_and_disputes()
        pods, (_, disputed) = self._specs, self._last_excesses_and_disputes
        statuses = tuple(
            with_excess_or_dispute(
                status,
                self._meters.excess_of(status),
                disputed.get((_KIND_OF[status.direction], status.host_device), ""),
            )
            for status in self._plan.statuses
        )
        self._metrics.set_statuses(statuses, self._meters.by_limit)
        current = {status.key: status for status in statuses}
        for key, status in current.items():
            self._report_status(status, self._last_statuses.get(key))
        # A pod that temporarily cannot be located keeps its reported status.
        living = {pod.uid for pod in pods}
        previous = {key: status for key, status in self._last_statuses.items() if key[0] in living}
        self._last_statuses = previous | current
        self._report_mismatches(pods)
        self._reconciled = True
        unlocated = self._plan.unlocated
        self._has_unlocated_pods = bool(unlocated)
        waiting = ", ".join(f"{key}: {why}" for key, why in sorted(unlocated.items())[:5])
        log.change("unlocated", waiting, "pods without verdict", level="info", count=len(unlocated), pods=waiting)

    def _report_mismatches(self, pods: tuple[PodBandwidthSpec, ...]) -> None:
        """Report pods whose reservation and limit differ, once per change."""
        before, self._mismatches = self._mismatches, {pod.uid: pod.mismatch for pod in pods if pod.mismatch}
        for pod in pods:
            if pod.mismatch and pod.mismatch != before.get(pod.uid):
                log.warning("scheduled and enforced bandwidth differ", pod=pod.key, why=pod.mismatch)
                is_first = pod.uid not in before
                self._send_event(pod, "BandwidthMismatch", pod.mismatch, "Compare", is_first=is_first)

    def _report_status(self, now: LimitStatus, before: LimitStatus | None) -> None:
        if before is not None and (before.verdict, before.wanted_bps) == (now.verdict, now.wanted_bps):
            return
        if before is not None and before.verdict == now.verdict:
            log.info("limit", pod=now.pod.key, direction=now.direction, verdict=now.verdict, wanted_bps=now.wanted_bps)
            return
        is_normal = now.verdict == "enforced"
        if before is None and is_normal:  # no news
            log.info("limit", pod=now.pod.key, direction=now.direction, verdict=now.verdict, device=now.device)
            return
        write_line: Callable[..., None] = log.info if is_normal else log.warning
        write_line(
            "limit", pod=now.pod.key, direction=now.direction, verdict=now.verdict, device=now.device, why=now.detail
        )
        reason = "Bandwidth" + "".join(part.capitalize() for part in now.verdict.split("-"))
        self._send_event(now.pod, reason, describe(now), "CheckBandwidth", is_first=before is None, is_normal=is_normal)

    def _send_event(
        self, pod: PodBandwidthSpec, reason: str, note: str, action: str, *, is_first: bool, is_normal: bool = False
    ) -> None:
        """Send an event, except about older pods at the first check after a restart."""
        if is_first and not self._reconciled and not _is_new(pod, time.time()):
            return
        send = self._recorder.normal if is_normal else self._recorder.warning
        regarding = ObjectReference(PODS.api_version, PODS.kind, pod.name, pod.namespace, pod.uid)
        send(regarding, reason, note, action=action)


def network_of(config: AgentConfig) -> Network:
    """The CNI network of the node's configuration, with the name of ``--cni-network`` if given."""
    network = read_network()
    return msgspec.structs.replace(network, name=config.cni_network) if config.cni_network else network


async def remove_limits(client: Client, config: AgentConfig) -> int:
    """Remove all our limits and devices from this node; returns the number of removals.

    Raises:
        KubekitError: the pods cannot be listed, or the kernel refused.
    """
    pods = await client.list(PODS, Pod, field_selector=f"spec.nodeName={config.node}")
    unlimited = tuple(msgspec.structs.replace(spec_of(pod), limits={}) for pod in pods if not pod.is_finished)
    snapshot = await take_snapshot(config.proc, network_of(config), unlimited, cache=ResultCache())
    actions = plan_limits(snapshot, Policy(enforce=True)).actions
    for action in actions:
        await execute(action)
    return len(actions)


def describe(status: LimitStatus) -> str:
    """The note of an event about a verdict."""
    rate = f"{status.wanted_bps} bit/s" if status.wanted_bps is not None else "the annotation"
    detail = f": {status.detail}" if status.detail else ""
    where = f" on {status.device}" if status.device else ""
    return f"{status.direction} limit of {rate}: {status.verdict}{where}{detail}"


def _is_new(pod: PodBandwidthSpec, now_s: float) -> bool:
    """Whether a pod is so new that no earlier agent can have reported it."""
    try:
        return now_s - datetime.fromisoformat(pod.created).timestamp() < NEW_POD_AGE_S
    except ValueError:
        return True
