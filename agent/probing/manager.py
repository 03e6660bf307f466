"""Starts the parts of probing, and restarts those that depend on the address, the passphrase or a port when one changes.

Outcomes of probes, also of the background prober's: `ProbeScheduler` -> `ProbingManager._record_outcome` -> metrics and results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from agent.config import AgentConfig
from agent.node import OwnNodeWatch
from agent.probing.background import BackgroundProber
from agent.probing.metrics import ProbeMetrics
from agent.probing.passphrase import PassphraseSource
from agent.probing.plan_source import PlanSource
from agent.probing.probe_responder import ProbeResponder, ServerSettings, maintain_announcement
from agent.probing.results_queue import ResultsQueue
from agent.probing.results_writer import ResultsWriter
from agent.probing.scheduler import ProbeOutcome, ProbeScheduler
from kubekit.addresses import parse_host_address
from kubekit.client import Client
from kubekit.waiting import run_until
from netperf.contract import Announcement
from netperf.plans import ProbeSettings
from netperf.probers.netperf import NetperfProber, find_binary


class ProbingManager:
    """Runs all parts of probing on one node.

    Args:
        on_throughput: called with the throughput of each stream run, bits per second.
    """

    def __init__(
        self,
        client: Client,
        node_watch: OwnNodeWatch,
        config: AgentConfig,
        registry: CollectorRegistry,
        on_throughput: Callable[[float], None],
    ) -> None:
        self._client, self._node_watch, self._config = client, node_watch, config
        self._on_throughput = on_throughput
        self._passphrase_source = PassphraseSource(config.passphrase_file)
        self._plan_source = PlanSource(config.node_name)
        self._metrics = ProbeMetrics(self._plan_source, lambda: bool(self._passphrase_source.problem), registry)
        self._results_queue = ResultsQueue()
        self._writer = ResultsWriter(client, config, self._plan_source, self._results_queue, registry)
        self._background = BackgroundProber(self._plan_source)
        self._scheduler = ProbeScheduler(
            self._plan_source, config.max_stream_bps, self._record_outcome, self._background
        )
        self._responder: ProbeResponder | None = None
        self._passphrase: bytes | None = None
        self._changed = asyncio.Event()
        node_watch.subscribe(self._wake)
        self._plan_source.on_change = self._apply_plan

    @property
    def problem(self) -> str:
        """The reason why this node cannot be probed or cannot write results, for /readyz; empty if it can."""
        if self._responder is None:
            return self._passphrase_source.problem or "waiting for the node's address"
        return self._responder.problem or self._writer.readiness_error

    @property
    def warning(self) -> str:
        """The problem with the passphrase, else with the results, for /readyz and the announcement; empty if there is none."""
        return self._passphrase_source.problem or self._writer.refusal_summary

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Coroutines to run as tasks, by name of the task."""
        return {
            "probe-passphrase": self._watch_passphrase(),
            "probe-servers": self._run_servers(),
            "probe-plan": self._plan_source.run(self._client, self._node_watch, self._config.namespace),
            "probe-runs": self._scheduler.run(),
            "probe-datagrams": self._scheduler.run_datagram_checks(),
            "probe-results": self._writer.run(),
            "announcement": maintain_announcement(self._client, self._node_watch, self._make_announcement),
        }

    def _make_announcement(self) -> Announcement | None:
        announcement = self._responder.announcement if self._responder is not None else None
        return msgspec.structs.replace(announcement, problem=self.warning) if announcement is not None else None

    def _apply_plan(self) -> None:
        self._metrics.apply_plan()
        self._writer.apply_plan()
        self._background.apply_plan()
        self._scheduler.apply_plan()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()  # wakes the present waiters only
        self._changed = asyncio.Event()

    def _record_outcome(self, outcome: ProbeOutcome) -> None:
        """Pass an outcome on to metrics and results, and its throughput to ``on_throughput``."""
        self._metrics.add_outcome(outcome)
        if outcome.sample is not None:
            self._results_queue.add_sample(outcome.sample)
            if outcome.sample.measurement.throughput_bps is not None:
                self._on_throughput(outcome.sample.measurement.throughput_bps)
        elif outcome.failure is not None:
            self._results_queue.add_failure(outcome.failure, outcome.test)
        elif outcome.has_round_trip:
            probe = outcome.probe
            self._results_queue.clear_failure(probe.origin.location, probe.destination.location, outcome.test)

    async def _watch_passphrase(self) -> None:
        async for passphrase in self._passphrase_source.watch():
            self._passphrase = passphrase
            self._wake()

    def _choose_settings(self) -> ServerSettings | None:
        """Choose the servers' settings; None while the address or the passphrase is unknown or unusable."""
        node = self._node_watch.node
        address = self._config.address or (node.status.internal_ip if node is not None else "")
        if self._passphrase is None or parse_host_address(address) is None:
            return None
        plan = self._plan_source.plan
        probe_settings = plan.settings if plan is not None else ProbeSettings()
        return ServerSettings(address, probe_settings.control_port, probe_settings.datagram_port, self._passphrase)

    async def _run_servers(self) -> None:
        while True:
            settings = self._choose_settings()
            if settings is None:
                await self._changed.wait()
                continue
            self._responder = ProbeResponder(settings, find_binary("netserver"))
            binary = find_binary("netperf")
            self._scheduler.set_prober(NetperfProber(binary, settings.passphrase) if binary is not None else None)
            background_run = self._background.run(settings.address, settings.passphrase)
            await run_until(self._wait_for_other_settings(settings), self._responder.run(), background_run)

    async def _wait_for_other_settings(self, settings: ServerSettings) -> None:
        # None: servers keep running if the address or the passphrase becomes unknown.
        while self._choose_settings() in {None, settings}:
            await self._changed.wait()
