"""The descheduler's loop: read usage, follow up, decide, record, evict, report.

What is about to be done is remembered before it is done: a leader that ends between the two leaves a successor that knows of a
move too many, never of one too few.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from controller.cluster.resources import WORKLOAD_LABEL
from controller.descheduler.config import DeschedulerConfig
from controller.descheduler.decide import RoundDecision, RoundState, UnconfirmedRound, decide
from controller.descheduler.evict import Result, evict, why_outdated
from controller.descheduler.history import History, HistoryStore, PendingMove, add_moves, back_off, remove_move
from controller.descheduler.low_node_load import nodes_to_taint
from controller.descheduler.reporting import DeschedulerMetrics, RoundReporter, taint_patches
from controller.descheduler.round_plan import Move
from controller.descheduler.snapshot import BUDGETS, Budget, take_snapshot
from controller.descheduler.sources import UsageReader
from controller.descheduler.usage import Refusal, UsageBatch, UsageStore
from controller.scheduler.placement.inputs import PlanInputs
from kubekit import logs
from kubekit.client import JSON_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.runtime import supervise
from kubekit.wire import NODES, Object

if TYPE_CHECKING:
    from controller.cluster.caches import Caches
    from controller.scheduler.gating.group_plans import GroupPlans

log = logs.get("controller.descheduler")

CHANGED_SINCE = frozenset({404, 409, 422})
"""Answers to a patch of a node that is gone, or not as it was any more: the next round sees it."""


class Descheduler:
    """Runs rounds while this replica leads.

    Args:
        client: fenced by the leadership.
        caches: nodes and pods; the disruption budgets are watched here, and only while leading.
        config: its section, checked.
        inputs: what plans are made from, so that both see one cluster; told which nodes are hot, so that plans avoid them.
        planner: places pods of AppGroups, and is asked before one of them is moved.
        source: of usage; by default what the configuration names.
    """

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: DeschedulerConfig,
        recorder: EventRecorder,
        registry: CollectorRegistry,
        *,
        inputs: PlanInputs,
        planner: GroupPlans,
        source: UsageReader | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._caches, self._wall = client, caches, wall
        self._enabled, self._settings = config.enabled, config.compiled()
        self._usage = UsageStore(self._settings.expiry_s)
        self._source = source or UsageReader(config.usage, client)
        self._inputs, self._planner = inputs, planner
        self._store = HistoryStore(client, caches.home)
        self._metrics = DeschedulerMetrics(registry)
        self._reporter = RoundReporter(recorder)
        self._history, self._state = History(), RoundState()
        self._thread = ThreadPoolExecutor(1, "descheduler")
        self._budgets: Reflector[Budget] = Reflector(client, BUDGETS, Budget)

    async def run(self) -> None:
        """Run rounds until cancelled; does nothing where the descheduler is not enabled."""
        if not self._enabled:
            await asyncio.Event().wait()
        self._metrics.count_from_zero()
        # What was listed while this replica led before may be hours old; rounds wait for a fresh list.
        self._budgets.synced.clear()
        try:
            await supervise({"budgets": self._budgets.run(), "rounds": self._rounds()})
        finally:
            self._metrics.clear()
            self._inputs.node_cache.set_hot_nodes(frozenset())

    async def _rounds(self) -> None:
        await self._caches.pods.synced.wait()
        await self._budgets.synced.wait()
        # Another leader may have moved pods since this one last led.
        self._state, loaded = RoundState(), False
        log.info("descheduler runs", interval_s=self._settings.interval_s, dry_run=self._settings.dry_run)
        while True:
            try:
                if not loaded:
                    self._history, loaded = await self._store.load(), True
                await self.round()
            except KubekitError as error:
                self._metrics.rounds.labels("failed").inc()
                log.change("round", type(error).__name__, "round not finished", error=error)
            else:
                log.change("round", "", "rounds finish again")
            await asyncio.sleep(self._settings.interval_s)

    async def round(self) -> RoundDecision:
        """One round.

        Raises:
            KubekitError: the API server is out of reach, or this replica leads no more; nothing was evicted that is not
                remembered.
        """
        batch = await self._read_usage()
        now = self._wall()
        unconfirmed = await self._decide(batch, now)
        decision = unconfirmed.decision
        self._history, self._state = decision.history, decision.state
        for end in decision.ended:
            self._metrics.count_end(end)
            self._reporter.report_end(end)
        warm = frozenset(name for name, detector in self._state.detectors.items() if detector.warm)
        self._inputs.node_cache.set_hot_nodes(warm)
        decision = await unconfirmed.confirm(self._planner.simulate_replacement)
        self._history = decision.history
        self._metrics.show_round(decision)
        self._reporter.report_plan(decision.plan)
        if not self._settings.dry_run:
            await self._taint(decision)
            self._promise(decision)
        await self._execute(decision)
        self._metrics.show_history(self._history, self._settings, now)
        self._metrics.rounds.labels("usage-missing" if batch.faults else "finished").inc()
        return decision

    async def _decide(self, batch: UsageBatch, now: float) -> UnconfirmedRound:
        """In a thread, of a copy of the cluster: seconds on thousands of nodes, in which the Lease is renewed and pods are placed.

        The rounds of one process have one thread: one that a lost leadership left behind ends before the next begins.
        """
        snapshot = take_snapshot(self._inputs, self._caches.pods.items, self._budgets)
        usage, history, state, settings = self._usage, self._history, self._state, self._settings

        def work() -> tuple[UnconfirmedRound, Counter[Refusal]]:
            with self._metrics.plan_seconds.time():
                refused = usage.update(batch, snapshot.nodes, snapshot.pods.by_key, now)
                return decide(replace(snapshot, usage=usage.view(now)), history, state, settings, now), refused

        unconfirmed, refused = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        # Pods may start or end between a source's rounds and ours; that alone is not reported.
        kinds = ",".join(sorted(kind for kind in refused if kind != "unknown-pod"))
        what = "usage readings ignored" if kinds else "all usage readings are good again"
        log.change("usage-refused", kinds, what, count=sum(refused.values()))
        return unconfirmed

    async def _taint(self, decision: RoundDecision) -> None:
        """Taint hot nodes before evictions: kube-scheduler knows requests, not usage, and would place replacements there.

        Raises:
            KubekitError: a taint was not written, for a reason other than a node that has changed since.
        """
        wanted = nodes_to_taint(decision.plan.nodes, decision.state.detectors, self._inputs.node_cache.hosts)
        for name, patch in taint_patches(self._caches.nodes.items, wanted).items():
            try:
                await self._client.patch(NODES, name, patch, Object, kind=JSON_PATCH)
            except ApiError as error:
                if error.status not in CHANGED_SINCE:
                    raise

    def _promise(self, decision: RoundDecision) -> None:
        """Before the eviction: the replacement may be there before its answer."""
        for move in decision.plan.moves:
            promise = decision.promises.get(move.uid)
            if promise is None or self._why_outdated(move):
                continue
            pod = promise.pod
            known = {p.key for p in self._caches.pods if p.workload == pod.workload} - {move.pod}
            self._planner.expect(
                promise.group,
                pod.labels.get(WORKLOAD_LABEL, ""),
                promise.target,
                known,
                for_s=self._settings.limits.start_timeout_s,
                requests=pod.asks,
            )

    async def _read_usage(self) -> UsageBatch:
        batch = await self._source.read()
        first = batch.faults[0] if batch.faults else ""
        what = "usage not read, nodes without it are left alone" if first else "usage is read again"
        log.change("usage", first.partition(":")[0], what, error=first)
        return batch

    async def _execute(self, decision: RoundDecision) -> None:
        if not self._settings.dry_run:
            self._history = add_moves(self._history, decision.pending)
        await self._store.save(self._history)
        stopped = False
        for pending in decision.pending:
            if stopped:
                self._history = remove_move(self._history, pending)
                continue
            why = self._why_outdated(pending.move)
            dry_run = self._settings.dry_run
            result = Result("gone", why) if why else await evict(self._client, pending.move, dry_run=dry_run)
            self._record(pending, result)
            stopped = result.ends_round
        await self._store.save(self._history)

    def _why_outdated(self, move: Move) -> str:
        return why_outdated(move, self._caches.pods.items, self._inputs.node_cache.hosts)

    def _record(self, pending: PendingMove, result: Result) -> None:
        move, live = pending.move, not self._settings.dry_run
        if live and result.kind not in {"evicted", "unknown"}:
            self._history = remove_move(self._history, pending)
        if live and result.refused:
            first_s = self._settings.limits.failure_backoff_s
            self._history = back_off(self._history, move.workload, "refused", first_s, self._wall())
        self._metrics.evictions.labels(move.strategy, result.kind).inc()
        self._reporter.report_result(move, result)
