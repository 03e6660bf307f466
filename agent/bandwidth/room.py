"""Watches the node's pods and the kernel, judges, repairs where asked to, and tells: events, log, metrics.

Changes of pods and of traffic control wake it; a full look every five minutes catches what no event told. Reads are at
least two seconds apart, so that a node where pods come and go all the time does not spend its CPU here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from agent.bandwidth.cni import find_network
from agent.bandwidth.kernel import execute
from agent.bandwidth.metrics import BandwidthMetrics
from agent.bandwidth.rules import Policy, plan_limits
from agent.bandwidth.snapshot import take_snapshot
from agent.bandwidth.state import Action, BandwidthPlan, BandwidthSnapshot, Judgement
from agent.bandwidth.wanted import Direction, PodWish, wish_of
from agent.config import AgentConfig
from agent.errors import KernelError
from kubekit import logs
from kubekit.backoff import Backoff
from kubekit.client import Client
from kubekit.events import EventRecorder, Reference
from kubekit.reflector import Reflector
from kubekit.wire import PODS, Pod

log = logs.get("agent.bandwidth")

FULL_LOOK_S = 300.0
GATHER_S = 0.3
LEAST_PAUSE_S = 2.0
RETRY_S = 5.0
USAGE_S = 15.0
_UNTOLD = frozenset({"enforced"})
"""A first verdict that is no news."""


class BandwidthRoom:
    """Everything about bandwidth annotations on one node.

    Args:
        client: the cluster's.
        config: flags.
        recorder: for events on pods.
        registry: for metrics.
    """

    def __init__(
        self, client: Client, config: AgentConfig, recorder: EventRecorder, registry: CollectorRegistry
    ) -> None:
        self._config, self._recorder = config, recorder
        self._policy = Policy(enforce=config.bandwidth == "enforce", repair_burst=config.repair_burst)
        self._pods = Reflector(client, PODS, Pod, field_selector=f"spec.nodeName={config.node}")
        self._pods.subscribe(self._note_pod)
        self._metrics = BandwidthMetrics(registry)
        self._wake = asyncio.Event()
        self._verdicts: dict[tuple[str, Direction], Judgement] = {}
        self._mismatches: dict[str, str] = {}
        self._unlocated = False
        self._patience: dict[Action, tuple[Backoff, float]] = {}

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What must run, by name."""
        return {"pods": self._pods.run(), "bandwidth": self._run(), "bandwidth-usage": self._count()}

    def note_kernel_change(self) -> None:
        """Devices or traffic control changed."""
        if self._verdicts or self._unlocated or self._policy.enforce:
            self._wake.set()

    def _note_pod(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if (wish_of(old) if old is not None else None) != (wish_of(new) if new is not None else None):
            self._wake.set()

    async def _run(self) -> None:
        await self._pods.synced.wait()
        while True:
            self._wake.clear()
            try:
                await self._look()
            except KernelError as error:
                log.change("kernel", str(error), "cannot read traffic control", error=error)
                asyncio.get_running_loop().call_later(RETRY_S, self._wake.set)
            else:
                log.change("kernel", "", "traffic control can be read again")
            await asyncio.sleep(LEAST_PAUSE_S)
            try:
                async with asyncio.timeout(FULL_LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(GATHER_S)

    async def _look(self) -> None:
        """Read, judge, repair, and read again what was repaired before telling anybody."""
        pods = tuple(wish_of(pod) for pod in self._pods if not pod.terminal and not pod.metadata.deletion_timestamp)
        plan = await self._judge(pods)
        due = self._due(plan.actions)
        if due:
            for action in due:
                await self._repair(action)
            plan = await self._judge(pods)
        self._tell(plan, pods)

    async def _judge(self, pods: tuple[PodWish, ...]) -> BandwidthPlan:
        if not self._policy.enforce and not any(pod.wishes for pod in pods):
            return BandwidthPlan()
        network = self._config.cni_network or find_network(self._config.cni_conf_dir)
        snapshot: BandwidthSnapshot = await take_snapshot(self._config.proc, network, pods)
        return plan_limits(snapshot, self._policy)

    def _due(self, actions: tuple[Action, ...]) -> list[Action]:
        """Actions that did not help are tried again ever less often, in case somebody else insists on another limit."""
        now = asyncio.get_running_loop().time()
        self._patience = {action: self._patience[action] for action in actions if action in self._patience}
        return [action for action in actions if action not in self._patience or self._patience[action][1] <= now]

    async def _repair(self, action: Action) -> None:
        loop = asyncio.get_running_loop()
        backoff, _ = self._patience.get(action, (Backoff(base_s=5.0, cap_s=300.0), 0.0))
        wait_s = backoff.next()
        self._patience[action] = (backoff, loop.time() + wait_s)
        loop.call_later(wait_s, self._wake.set)
        topic, what = f"repair/{action.name}/{type(action).__name__}", type(action).__name__
        try:
            await execute(action)
        except KernelError as error:
            self._metrics.repairs.labels("failed").inc()
            log.change(topic, str(error), "cannot set a limit", device=action.name, what=what, error=error)
        else:
            self._metrics.repairs.labels("ok").inc()
            log.change(topic, "", "limits can be set again", device=action.name, what=what)

    async def _count(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(USAGE_S)
            if self._metrics.judgements:
                self._metrics.usage.read(self._metrics.judgements, loop.time())

    # --- telling ---------------------------------------------------------------------------------------------------

    def _tell(self, plan: BandwidthPlan, pods: tuple[PodWish, ...]) -> None:
        self._metrics.take(plan)
        verdicts = {(j.pod.uid, j.direction): j for j in plan.judgements}
        for key, judgement in verdicts.items():
            self._tell_one(judgement, self._verdicts.get(key))
        self._verdicts = verdicts
        for pod in pods:
            if pod.mismatch and self._mismatches.get(pod.uid) != pod.mismatch:
                log.warning("scheduled and enforced bandwidth differ", pod=pod.key, why=pod.mismatch)
                self._recorder.warning(_reference(pod), "BandwidthMismatch", pod.mismatch, action="Compare")
        self._mismatches = {pod.uid: pod.mismatch for pod in pods if pod.mismatch}
        self._unlocated = bool(plan.unlocated)
        waiting = ", ".join(f"{key}: {why}" for key, why in sorted(plan.unlocated.items())[:5])
        log.change("unlocated", waiting, "pods without verdict", level="info", count=len(plan.unlocated), pods=waiting)

    def _tell_one(self, now: Judgement, before: Judgement | None) -> None:
        if before is not None and (before.verdict, before.wanted_bps) == (now.verdict, now.wanted_bps):
            return
        fine = now.verdict == "enforced"
        if before is None and now.verdict in _UNTOLD:
            log.info("limit", pod=now.pod.key, direction=now.direction, verdict=now.verdict, device=now.device)
            return
        say: Callable[..., None] = log.info if fine else log.warning
        say("limit", pod=now.pod.key, direction=now.direction, verdict=now.verdict, device=now.device, why=now.detail)
        send = self._recorder.normal if fine else self._recorder.warning
        reason = "Bandwidth" + "".join(part.capitalize() for part in now.verdict.split("-"))
        send(_reference(now.pod), reason, describe(now), action="CheckBandwidth")


async def remove_limits(client: Client, config: AgentConfig) -> int:
    """Take off every limit that an agent in ``enforce`` set on this node, and its devices; the number of removals.

    Raises:
        KubekitError: the pods cannot be listed, or the kernel refused.
    """
    pods = await client.list(PODS, Pod, field_selector=f"spec.nodeName={config.node}")
    unlimited = tuple(msgspec.structs.replace(wish_of(pod), wishes={}) for pod in pods if not pod.terminal)
    snapshot = await take_snapshot(config.proc, config.cni_network or find_network(config.cni_conf_dir), unlimited)
    actions = plan_limits(snapshot, Policy(enforce=True)).actions
    for action in actions:
        await execute(action)
    return len(actions)


def describe(judgement: Judgement) -> str:
    """One sentence about a verdict, for an event."""
    rate = f"{judgement.wanted_bps} bit/s" if judgement.wanted_bps is not None else "its annotation"
    detail = f": {judgement.detail}" if judgement.detail else ""
    where = f" on {judgement.device}" if judgement.device else ""
    return f"{judgement.direction} bandwidth of {rate} is {judgement.verdict}{where}{detail}"


def _reference(pod: PodWish) -> Reference:
    return Reference(PODS.api_version, PODS.kind, pod.name, pod.namespace, pod.uid)
