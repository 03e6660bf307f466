"""Puts the parts of probing together and follows what they depend on: own address, secret, zone, plan.

Each of these may change while the agent runs: nodes are relabelled, secrets rotated, ports moved. What depends on the
changed thing is started anew, the rest goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry

from agent.config import AgentConfig
from agent.node import NodeView
from agent.probing.answering import Answering, keep_announced
from agent.probing.between import BetweenRuns
from agent.probing.metrics import ProbeMetrics
from agent.probing.results import ResultsWriter
from agent.probing.rounds import Outcome, OutcomeListener, Rounds
from agent.probing.secret import SecretSource
from kubekit import logs
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, ConfigMap
from netperf.errors import PlanRefusedError
from netperf.plans import Probe, ProbeSettings, ZonePlan, decode_plan, is_address, plan_object_name
from netperf.probers.echo import EchoProber
from netperf.probers.netperf import NetperfProber, find_binary
from netperf.probers.prober import ProbeFailedError, Prober
from netperf.results import keys_of

log = logs.get("agent.probing")


class ProbingRoom:
    """Everything about probing on one node.

    Args:
        client: the cluster's.
        view: the own node.
        config: flags.
        registry: for metrics.
        listeners: told of each outcome beside metrics and results.
    """

    def __init__(
        self,
        client: Client,
        view: NodeView,
        config: AgentConfig,
        registry: CollectorRegistry,
        listeners: tuple[OutcomeListener, ...] = (),
    ) -> None:
        self._client, self._view, self._config = client, view, config
        self._source = SecretSource(client, config.namespace, config.passphrase_file)
        self._metrics = ProbeMetrics(registry)
        self._metrics.rejected = lambda: self._answering.rejected if self._answering else 0
        self._writer = ResultsWriter(client, config.namespace, upstream=config.upstream_percentiles, registry=registry)
        told: tuple[OutcomeListener, ...] = (self._metrics.take, self._hand_on, *listeners)
        self._between = BetweenRuns(config.node, self._conclude)
        self._rounds = Rounds(config.node, config.budget, told, between=self._between)
        self._answering: Answering | None = None
        self._secret: bytes | None = None
        self._changed = asyncio.Event()
        view.subscribe(self._wake)

    @property
    def problem(self) -> str:
        """Why this node cannot be probed or may not write what it measures, for /readyz; empty when it can."""
        answering = self._answering.problem if self._answering is not None else "waiting for the node's address"
        return answering or self._writer.problem

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What must run, by name."""
        return {
            "probe-secret": self._follow_secret(),
            "probe-servers": self._serve(),
            "probe-plan": self._follow_plan(),
            "probe-rounds": self._rounds.run(),
            "probe-datagrams": self._between.run(),
            "probe-results": self._writer.run(),
            "announcement": keep_announced(self._client, self._view, lambda: self._answering),
        }

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _hand_on(self, outcome: Outcome) -> None:
        if outcome.sample is not None:
            self._writer.take(outcome.sample)
        elif outcome.failure is not None:
            self._writer.take_failure(outcome.failure, outcome.test)
        elif outcome.heard:
            self._writer.take_back(outcome.origin, outcome.destination, outcome.test)

    def _conclude(self, probe: Probe, failure: ProbeFailedError | None) -> None:
        """A pair of nodes without runs: what its datagrams say is an outcome like any other."""
        plan = self._rounds.plan
        if plan is not None:
            self._rounds.tell(self._rounds.conclude(probe, plan.settings.test, failure))

    # --- the answering end ---------------------------------------------------------------------------------------

    async def _follow_secret(self) -> None:
        self._secret = await self._source.read()
        while True:
            self._wake()
            self._secret = await self._source.changed(self._secret)
            log.info("the probing secret was replaced")

    def _needs(self) -> tuple[str, ProbeSettings, bytes] | None:
        """Address, settings and secret, once all are known."""
        node = self._view.node
        address = self._config.address or (node.status.internal_ip if node is not None else "")
        if self._secret is None or not is_address(address):
            return None
        plan = self._rounds.plan
        settings = plan.settings if plan is not None else ProbeSettings()
        return address, settings, self._secret

    async def _serve(self) -> None:
        while True:
            needs = self._needs()
            if needs is None:
                await self._changed.wait()
                continue
            address, settings, secret = needs
            self._answering = Answering(address, settings, secret, find_binary("netserver"))
            self._rounds.use(make_prober(secret))
            await run_until(self._serve_both(self._answering, secret), self._until_needs_differ(needs))

    async def _serve_both(self, answering: Answering, secret: bytes) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(answering.run(), name="answering")
            group.create_task(self._between.serve(answering.address, secret), name="datagrams")

    async def _until_needs_differ(self, needs: tuple[str, ProbeSettings, bytes]) -> None:
        address, settings, secret = needs
        while True:
            changed = self._changed
            now = self._needs()
            if now is not None and (now[0], _ports(now[1]), now[2]) != (address, _ports(settings), secret):
                return
            await changed.wait()

    # --- the plan ------------------------------------------------------------------------------------------------

    async def _follow_plan(self) -> None:
        while True:
            node = await self._view.known()
            zone = node.zone
            if not zone:
                log.change("zone", "none", "this node has no zone label and takes no part in measuring")
                self._use_plan(None)
                await self._view.changed()
                continue
            log.change("zone", "", "this node has a zone", zone=zone)
            reflector = Reflector(
                self._client,
                CONFIGMAPS,
                ConfigMap,
                namespace=self._config.namespace,
                field_selector=f"metadata.name={plan_object_name(zone)}",
            )

            def take(_key: str, _old: ConfigMap | None, new: ConfigMap | None, zone: str = zone) -> None:
                self._take_plan(zone, new)

            reflector.subscribe(take)
            await run_until(reflector.run(), self._until_zone_differs(zone))
            self._use_plan(None)

    async def _until_zone_differs(self, zone: str) -> None:
        while True:
            node = await self._view.known()
            if node.zone != zone:
                return
            await self._view.changed()

    def _take_plan(self, zone: str, found: ConfigMap | None) -> None:
        if found is None:
            self._use_plan(None)
            return
        try:
            decoded = decode_plan(found.data, zone=zone, in_force=self._rounds.plan)
        except PlanRefusedError as error:
            self._metrics.refuse(error.reason)
            log.change("plan", error.reason, "plan refused, the one before stays in force", error=error)
            return
        log.change("plan", "", "plan accepted again", epoch=decoded.plan.epoch)
        for refusal in decoded.refusals:
            self._metrics.refuse(refusal.reason)
        reasons = ",".join(sorted({refusal.reason for refusal in decoded.refusals}))
        log.change(
            "plan/probes", reasons, "some probes of the plan were refused", epoch=decoded.plan.epoch, why=reasons
        )
        self._use_plan(decoded.plan)

    def _use_plan(self, plan: ZonePlan | None) -> None:
        if plan is not None:
            own = plan.of_node(self._config.node)
            log.change("plan/use", str(plan.epoch), "plan", level="info", epoch=plan.epoch, probes=len(own))
            self._writer.keep({key for probe in own for key in keys_of(plan, probe)})
            self._writer.aim(plan.results, plan.settings.test, plan.interval_s)
        else:
            log.change("plan/use", "", "no plan: this node probes nobody")
            self._writer.keep(set())
            self._writer.aim(None)
        self._metrics.follow(plan, self._config.node)
        self._rounds.follow(plan)
        self._between.follow(plan)
        self._wake()


def make_prober(secret: bytes) -> Prober:
    """Netperf where it is installed, else the built-in echo."""
    binary = find_binary("netperf")
    return NetperfProber(binary, secret) if binary is not None else EchoProber(secret)


def _ports(settings: ProbeSettings) -> tuple[int, int]:
    return settings.port, settings.echo_port


async def run_until(work: Coroutine[Any, Any, None], end: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until ``end`` returns, then cancel it. ``work`` must not end by itself; its errors are raised."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(end)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    for task in tasks:
        if not task.cancelled():
            task.result()
