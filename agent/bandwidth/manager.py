"""Checks the limits of the node's pods, repairs them in ``enforce``, and measures the pods' traffic.

Reconciles after changes of pods and of traffic control, and at least every `FULL_CHECK_INTERVAL_S`. Reconciliations are at least
`MIN_PAUSE_S` apart, which bounds their CPU on nodes with many changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from agent.bandwidth.annotations import Direction, PodBandwidthSpec, read_spec
from agent.bandwidth.backoff import RepairBackoff
from agent.bandwidth.cni import ResultCache, read_network
from agent.bandwidth.counters import take_readings
from agent.bandwidth.meters import TrafficMeters
from agent.bandwidth.reporter import LimitReporter
from agent.bandwidth.rules import RepairPolicy, plan_cleanup, plan_limits, with_excess_or_dispute
from agent.bandwidth.snapshot import take_snapshot
from agent.bandwidth.state import Action, BandwidthPlan, SetEgressLimit, SetIngressLimit
from agent.bandwidth.tc_reader import read_tc_state
from agent.bandwidth.tc_writer import execute
from agent.config import AgentConfig
from agent.netlink import KernelError
from kubekit import logs
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.waiting import wait_until_set
from kubekit.wire import Pod

log = logs.get("agent.bandwidth")

FULL_CHECK_INTERVAL_S = 300.0
"""Longest time between full reads, in case an event was lost."""
DEBOUNCE_S = 0.3
"""Changes within this time are handled together."""
MIN_PAUSE_S = 2.0
"""Shortest time between two reconciliations."""
RETRY_S = 5.0
"""Delay of the next attempt after the kernel refused to be read."""
DEVICE_COUNTERS_INTERVAL_S = 4.5
"""Interval of reading counters. An excess shows after two readings, so within ten seconds."""
_ACTION_BY_DIRECTION: dict[Direction, type[Action]] = {"ingress": SetIngressLimit, "egress": SetEgressLimit}


class BandwidthManager:
    """Checks and repairs the limits of one node's pods, and compares them with the pods' traffic."""

    def __init__(
        self, config: AgentConfig, recorder: EventRecorder, registry: CollectorRegistry, pods: Reflector[Pod]
    ) -> None:
        self._config, self._result_cache = config, ResultCache()
        self._repair_policy = RepairPolicy(enforce=config.bandwidth == "enforce", repair_burst=config.repair_burst)
        self._pods = pods
        self._pods.subscribe(self._on_pod_change)
        self._reporter = LimitReporter(recorder, registry)
        self._wake = asyncio.Event()
        self._backoff, self._meters = RepairBackoff(), TrafficMeters()
        self._plan, self._pod_specs = BandwidthPlan(), tuple[PodBandwidthSpec, ...]()

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Tasks to run, by name."""
        return {"bandwidth": self._reconcile_forever(), "bandwidth-traffic": self._measure_forever()}

    def on_kernel_change(self) -> None:
        """Reconcile soon, because devices or traffic control changed. Ignored without limits to check, pods to locate, and ``enforce``."""
        if self._plan.statuses or self._plan.unlocated_reason_by_pod or self._repair_policy.enforce:
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
        self._plan, self._pod_specs = plan, pods
        self._report()

    async def _plan_limits(self, pods: tuple[PodBandwidthSpec, ...]) -> BandwidthPlan:
        if not self._repair_policy.enforce and not any(pod.limits for pod in pods):
            return BandwidthPlan()
        network = read_network()
        if self._config.cni_network:
            network = msgspec.structs.replace(network, name=self._config.cni_network)
        snapshot = await take_snapshot(self._config.proc, network, pods, self._result_cache)
        return plan_limits(snapshot, self._repair_policy)

    async def _repair(self, action: Action) -> None:
        loop = asyncio.get_running_loop()
        kind = type(action).__name__
        topic = f"repair/{action.device_name}/{kind}"
        has_succeeded = False
        try:
            await execute(action)
        except KernelError as error:
            log.log_change(
                topic, str(error), "cannot change a limit", device=action.device_name, action=kind, error=error
            )
        else:
            has_succeeded = True
            log.log_change(topic, "", "limits can be changed again", device=action.device_name, action=kind)
        loop.call_later(self._backoff.record_attempt(action, loop.time(), has_succeeded=has_succeeded), self._wake.set)

    async def _measure_forever(self) -> None:
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
            self._report()

    def _report(self) -> None:
        """Report the plan's statuses, with current excesses and disputes."""
        excess_by_key = self._meters.excess_by_key
        dispute_by_repair = self._backoff.describe_disputes(asyncio.get_running_loop().time())
        statuses = [
            with_excess_or_dispute(
                status,
                excess_by_key.get(status.key, ""),
                dispute_by_repair.get((_ACTION_BY_DIRECTION[status.direction], status.host_device_name), ""),
            )
            for status in self._plan.statuses
        ]
        self._reporter.report(statuses, self._pod_specs, self._meters.meter_by_key)
        self._reporter.log_unlocated(self._plan.unlocated_reason_by_pod)


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
