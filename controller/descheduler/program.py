"""The descheduler's loop: read usage, evaluate earlier moves, decide, confirm, report, taint nodes, reserve targets, record moves, evict.

A move is recorded before its eviction, so that the next leader knows the move if this one ends in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.descheduler.config import DeschedulerConfig
from controller.descheduler.decide import DescheduleDecision, ReasonDurations, UnconfirmedDecision, decide
from controller.descheduler.disruption_budgets import DISRUPTION_BUDGETS, PodDisruptionBudget
from controller.descheduler.evict import EvictionResult, evict, outdated_reason
from controller.descheduler.history import History, HistoryStore, PendingMove, add_moves, extend_backoff, remove_move
from controller.descheduler.plan import Move
from controller.descheduler.reporting import DeschedulerMetrics, DeschedulerReporter
from controller.descheduler.snapshot import take_snapshot
from controller.descheduler.sources import UsageReader
from controller.descheduler.taints import HOT_EFFECT, build_taint_patches, nodes_to_taint
from controller.descheduler.usage import DropReason, UsageBatch, UsageStore
from controller.scheduler.gating.controller import GatingController
from kubekit import logs
from kubekit.client import JSON_PATCH, Client
from kubekit.errors import KubekitError
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.runtime import supervise
from kubekit.wire import NODES, Object
from netperf.contract import HOT_TAINT

log = logs.get("controller.descheduler")

NODE_CHANGED_STATUSES = frozenset({404, 409, 422})
"""HTTP statuses of a patch of a node that was deleted or changed since it was read; the next round patches it again."""


class Descheduler:
    """Runs rounds while this replica leads.

    ``client`` is fenced by the leadership. ``scheduling`` has the planner, which confirms moves of pods that it placed, and its inputs:
    snapshots are taken from them, and the nodes that plans avoid are set there. Usage comes from the configured sources unless there
    is a ``usage_reader``. ``wall`` returns unix seconds.
    """

    def __init__(
        self,
        client: Client,
        cache: ClusterCache,
        config: DeschedulerConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        scheduling: GatingController,
        usage_reader: UsageReader | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._cache, self._wall = client, cache, wall
        self._is_enabled, self._config = config.enabled, config.resolve()
        self._usage_store = UsageStore(self._config.usage_expiry_s)
        self._usage_reader = usage_reader or UsageReader(config.usage, client)
        self._inputs, self._planner = scheduling.inputs, scheduling.plans
        self._history_store = HistoryStore(client, cache.netaware_namespace)
        self._metrics = DeschedulerMetrics(registry)
        self._reporter = DeschedulerReporter(recorder)
        self._history, self._durations = History(), ReasonDurations()
        self._executor = ThreadPoolExecutor(1, "descheduler")
        self._budgets: Reflector[PodDisruptionBudget] = Reflector(client, DISRUPTION_BUDGETS, PodDisruptionBudget)

    async def run(self) -> None:
        """Run rounds until cancelled. If the descheduler is not enabled, only remove the taints that it had written."""
        while not self._is_enabled:
            await self._write_taints(frozenset())
            await asyncio.sleep(self._config.interval_s)
        self._metrics.init_counters()
        # After an earlier leadership of this replica the budgets may be hours old: wait for a new list.
        self._budgets.synced.clear()
        try:
            await supervise({"budgets": self._budgets.run(), "rounds": self._run_rounds()})
        finally:
            self._metrics.clear_gauges()
            self._inputs.node_cache.set_avoided_nodes(frozenset())

    async def _run_rounds(self) -> None:
        await self._cache.pods.synced.wait()
        await self._budgets.synced.wait()
        # Another replica may have led since: start without durations, and load the history.
        self._durations, is_loaded = ReasonDurations(), False
        log.info("descheduler runs", interval_s=self._config.interval_s, dry_run=self._config.dry_run)
        for warning in self._config.warnings:
            log.warning("setting has no effect", setting=warning)
        while True:
            try:
                if not is_loaded:
                    self._history, is_loaded = await self._history_store.load(), True
                await self.run_round()
            except KubekitError as error:
                self._metrics.rounds.labels("failed").inc()
                log.log_change("round", error.kind, "round not finished", error=error)
            else:
                log.log_change("round", "", "rounds finish again")
            await asyncio.sleep(self._config.interval_s)

    async def run_round(self) -> DescheduleDecision:
        """Run one round.

        Raises:
            KubekitError: taints or history were not written, or this replica no longer leads. A recorded move may not be evicted yet.
        """
        batch = await self._read_usage()
        now = self._wall()
        unconfirmed = await self._decide(batch, now)
        decision = unconfirmed.decision
        self._history, self._durations = decision.history, decision.durations
        for evaluated in decision.evaluated_moves:
            self._metrics.outcomes.labels(evaluated.pending.move.strategy, evaluated.outcome).inc()
            self._reporter.report_outcome(evaluated)
        avoided = frozenset(name for name, detector in self._durations.detectors.items() if detector.is_avoided)
        self._inputs.node_cache.set_avoided_nodes(avoided)
        decision = await unconfirmed.confirm(self._planner.simulate_replacement)
        self._history = decision.history
        self._metrics.set_round_gauges(decision)
        self._reporter.report_plan(decision.plan)
        # Before the evictions, so that kube-scheduler, which does not know usage, avoids these nodes.
        states = () if self._config.dry_run else decision.plan.nodes
        await self._write_taints(nodes_to_taint(states, decision.durations.detectors, self._inputs.node_cache.hosts))
        if not self._config.dry_run:
            self._reserve_replacement_targets(decision)
        await self._evict_pods(decision)
        self._metrics.set_backoff_gauges(self._history, self._config.limits, now)
        self._metrics.rounds.labels("usage-missing" if batch.faults else "finished").inc()
        return decision

    async def _decide(self, batch: UsageBatch, now: float) -> UnconfirmedDecision:
        """Decide in a thread, from a copy of the cluster, because it takes seconds on thousands of nodes.

        There is one thread, so that a round of an earlier leadership ends before the next one begins.
        """
        cache = self._cache
        snapshot = take_snapshot(self._inputs, cache.pods.items, self._budgets, cache.netaware_namespace)
        usage_store, history, durations, config = self._usage_store, self._history, self._durations, self._config

        def decide_in_thread() -> tuple[UnconfirmedDecision, Counter[DropReason]]:
            with self._metrics.plan_seconds.time():
                dropped = usage_store.update(batch, snapshot.nodes, snapshot.pods.by_key, now)
                with_usage = replace(snapshot, usage=usage_store.view(now))
                return decide(with_usage, history, durations, config, now), dropped

        unconfirmed, dropped = await asyncio.get_running_loop().run_in_executor(self._executor, decide_in_thread)
        # Usage of unknown pods is normal: pods start and end while it is read.
        reasons = ",".join(sorted(reason for reason in dropped if reason != "unknown-pod"))
        message = "usage readings dropped" if reasons else "no usage readings are dropped any more"
        log.log_change("usage-dropped", reasons, message, count=sum(dropped.values()) - dropped["unknown-pod"])
        return unconfirmed

    async def _write_taints(self, tainted: frozenset[str]) -> None:
        """Add the taint to these nodes, and remove it from all others. A change of a node meanwhile is no failure.

        Raises:
            KubekitError: a taint was not written. If only removals are left to do, the first failure is logged instead.
        """
        for name, patch in build_taint_patches(self._cache.nodes.items, tainted).items():
            try:
                await self._client.patch(NODES, name, patch, Object, patch_type=JSON_PATCH)
            except KubekitError as error:
                if error.status in NODE_CHANGED_STATUSES:
                    continue
                if tainted:
                    raise
                message = f"taint not removed; to remove it: kubectl taint nodes --all {HOT_TAINT}:{HOT_EFFECT}-"
                log.log_change("taints", error.kind, message, error=error)
                return
        log.log_change("taints", "", "taints are written again")

    def _reserve_replacement_targets(self, decision: DescheduleDecision) -> None:
        """Reserve the planner's targets before the evictions, because a replacement may be created before the eviction's response."""
        for move in decision.plan.moves:
            target = decision.replacement_targets.get(move.uid)
            if target is not None and not self._outdated_reason(move):
                duration_s = self._config.limits.start_timeout_s
                self._planner.expect_replacement(move.group, move.pod, target, duration_s=duration_s)

    async def _read_usage(self) -> UsageBatch:
        batch = await self._usage_reader.read()
        fault = batch.faults[0] if batch.faults else ""
        message = "usage not read; nodes of unknown usage are ignored" if fault else "usage is read again"
        log.log_change("usage", fault.partition(":")[0], message, error=fault)
        return batch

    async def _evict_pods(self, decision: DescheduleDecision) -> None:
        """Record the moves, then evict their pods until a result stops evictions, and record the results; a dry run records no moves."""
        dry_run = self._config.dry_run
        if not dry_run:
            self._history = add_moves(self._history, decision.pending_moves)
        await self._history_store.save(self._history)
        is_stopped = False
        for pending in decision.pending_moves:
            if is_stopped:
                self._history = remove_move(self._history, pending)
                continue
            if reason := self._outdated_reason(pending.move):
                result = EvictionResult("gone", reason)
            else:
                result = await evict(self._client, pending.move, dry_run=dry_run)
            self._record_result(pending, result)
            is_stopped = result.stops_evictions
        await self._history_store.save(self._history)

    def _outdated_reason(self, move: Move) -> str:
        return outdated_reason(move, self._cache.pods.items, self._inputs.node_cache.hosts)

    def _record_result(self, pending: PendingMove, result: EvictionResult) -> None:
        move, is_live = pending.move, not self._config.dry_run
        if is_live and result.kind not in {"evicted", "unknown"}:
            self._history = remove_move(self._history, pending)
        # A retry would be refused too.
        if is_live and result.kind in {"forbidden", "refused"}:
            base_s = self._config.limits.failure_backoff_s
            self._history = extend_backoff(self._history, move.workload, "refused", base_s, self._wall())
        self._metrics.evictions.labels(move.strategy, result.kind).inc()
        self._reporter.report_eviction(move, result, dry_run=not is_live)
