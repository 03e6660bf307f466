"""The leader's loop: read usage, follow up, decide, remember, evict, tell.

What is about to be done is remembered before it is done: a leader that ends between the two leaves a successor that knows of a
move too many, never of one too few.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry

from controller.cluster.volumes import Volumes
from controller.descheduler.config import DeschedulerConfig, Settings
from controller.descheduler.decision import Move, RoundDecision, Watched
from controller.descheduler.evict import ApiEvictor, DryRunEvictor, Evictor, Result, outdated
from controller.descheduler.followup import rest_refused
from controller.descheduler.load import shunned_by
from controller.descheduler.memory import Followed, Memory, MemoryStore, add_moves, take_back
from controller.descheduler.plan import Confirmed, MovePlanner, Thought, confirm, questions, think
from controller.descheduler.reporting import (
    DeschedulerMetrics,
    Teller,
    plan_conditions,
    taint_patches,
    write_conditions,
)
from controller.descheduler.snapshot import BUDGETS, Budget, LoadSnapshot, World
from controller.descheduler.sources import UsageSource, source_of
from controller.descheduler.usage import Batch, Refusal, UsageBook
from controller.scheduler.state import State
from kubekit import logs
from kubekit.client import JSON_PATCH, Client
from kubekit.errors import ApiError, KubekitError
from kubekit.events import EventRecorder
from kubekit.reflector import Reflector
from kubekit.runtime import supervise
from kubekit.wire import NODES, Object

if TYPE_CHECKING:
    from controller.cluster.caches import Caches

log = logs.get("controller.descheduler")

CHANGED_SINCE = frozenset({404, 409, 422})
"""Answers to a patch of a node that is gone, or not as it was any more: the next round sees it."""
FILL_S, FILLING_ROUNDS = 15.0, 3
"""Between two looks at a zone that is being filled, and for how many rounds after its last pod it is."""
REFUSALS_IN_A_ROW = 3
"""So many evictions refused in a round, and none that was not: a right is missing, or a webhook refuses everything."""


class Descheduler:
    """Runs rounds while this replica leads.

    Args:
        client: fenced by the leadership.
        caches: nodes, AppGroups and NetworkTopologies; all pods and the disruption budgets are mirrored here, and only while
            leading, since nobody else needs them.
        config: its section, checked.
        scheduler: the scheduler's section, so that both judge misplacement alike.
        volumes: from where the data of pods can be reached.
        planner: places pods of AppGroups, and is asked before one of them is moved.
        tell_heat: told which nodes are hot, so that plans avoid them.
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
        namespace: str,
        network: State,
        volumes: Volumes,
        planner: MovePlanner,
        tell_heat: Callable[[frozenset[str]], None],
        source: UsageSource | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._caches, self._config, self._wall = client, caches, config, wall
        self._settings: Settings = config.compiled()
        self._usage = UsageBook(config.usage.half_life_s, self._settings.expiry_s)
        self._source, self._planner, self._tell_heat = source, planner, tell_heat
        self._store = MemoryStore(client, namespace)
        self._metrics = DeschedulerMetrics(registry)
        self._teller = Teller(recorder)
        self._memory, self._watched = Memory(), Watched()
        self._thread = ThreadPoolExecutor(1, "descheduler")
        self.world = World(network, volumes, feeds_network=False)
        self._budgets: Reflector[Budget] = Reflector(client, BUDGETS, Budget)
        self._budgets.subscribe(self.world.take_budget)
        if config.enabled:
            caches.nodes.subscribe(self.world.take_node)
            caches.pods.subscribe(self.world.take_pod)

    async def run(self) -> None:
        """Run rounds until cancelled; does nothing where the descheduler is not enabled."""
        if not self._config.enabled:
            await asyncio.Event().wait()
        self._metrics.count_from_zero()
        # What was mirrored while this replica led before may be hours old; rounds wait for a fresh list.
        self._budgets.synced.clear()
        try:
            await supervise({"budgets": self._budgets.run(), "rounds": self._rounds()})
        finally:
            self._metrics.clear()
            self._tell_heat(frozenset())

    async def _rounds(self) -> None:
        await self._caches.pods.synced.wait()
        await self._budgets.synced.wait()
        # Another leader may have moved pods since this one last led.
        self._watched, loaded = Watched(), False
        log.info("descheduler runs", interval_s=self._settings.interval_s, dry_run=self._settings.dry_run)
        while True:
            left_s = 0.0
            try:
                if not loaded:
                    self._memory, loaded = await self._store.load(), True
                await self.round()
                left_s = self._settings.interval_s
                while self._fills_a_zone and left_s > FILL_S:
                    await asyncio.sleep(FILL_S)
                    left_s -= FILL_S
                    await self.round(survival_only=True)
            except KubekitError as error:
                self._metrics.rounds.labels("failed").inc()
                log.change("round", type(error).__name__, "round not finished", error=error)
            else:
                log.change("round", "", "rounds finish again")
            await asyncio.sleep(left_s or self._settings.interval_s)

    @property
    def _fills_a_zone(self) -> bool:
        """Whether a zone that is back is being filled: with one pod of a group a round, ten workloads would take ten rounds."""
        moves = (move for move in self._memory.follows if move.strategy == "ZoneSurvival")
        return any(self._wall() - move.at_s < FILLING_ROUNDS * self._settings.interval_s for move in moves)

    async def round(self, *, survival_only: bool = False) -> RoundDecision:
        """One round.

        Args:
            survival_only: only what brings a workload out of its one zone; nothing is told of the others.

        Raises:
            KubekitError: the API server is out of reach, or this replica leads no more; nothing was evicted that is not
                remembered.
        """
        batch = await self._read_usage()
        now = self._wall()
        thought = await self._think(batch, now, survival_only=survival_only)
        self._memory = thought.memory
        self._tell_refused(thought.refused)
        for end in thought.ended:
            self._metrics.count_end(end)
            self._teller.tell_end(end)
        self._watched = thought.deliberation.decision.watched
        self._tell_heat(frozenset(n for n, detector in self._watched.detectors.items() if detector.warm))
        asked = questions(thought.snapshot, thought.deliberation.decision.plan.moves)
        confirmed = await confirm(thought.deliberation, asked, self._planner.simulate_replacement)
        decision = confirmed.decision
        self._watched = decision.watched
        if not survival_only:
            self._metrics.show_round(decision)
            self._teller.tell_plan(decision.plan)
            await self._taint(decision)
        self._promise(confirmed)
        await self._execute(decision, thought.snapshot)
        self._metrics.show_memory(self._memory, self._settings, now)
        if survival_only:
            return decision
        if self._config.node_conditions:
            await self._write_conditions(decision, now)
        self._metrics.rounds.labels("usage-missing" if batch.faults else "finished").inc()
        return decision

    async def _think(self, batch: Batch, now: float, *, survival_only: bool) -> Thought:
        """In a thread, of a copy of the world: seconds on thousands of nodes, in which the Lease is renewed and pods are placed.

        The rounds of one process have one thread: one that a lost leadership left behind ends before the next begins.
        """
        world = self.world.copy()

        def work() -> Thought:
            with self._metrics.plan_seconds.time():
                return think(
                    world,
                    self._usage,
                    batch,
                    self._memory,
                    self._watched,
                    settings=self._settings,
                    now=now,
                    survival_only=survival_only,
                )

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _taint(self, decision: RoundDecision) -> None:
        """Before anybody is evicted: the forecast counts on it.

        Raises:
            KubekitError: a taint was not written, for a reason other than a node that has changed since.
        """
        if not self._settings.taint_hot_nodes or self._settings.is_dry("LowNodeLoad"):
            return
        wanted = shunned_by(decision.plan.nodes, decision.watched.detectors, self.world.nodes)
        for name, patch in taint_patches(self._caches.nodes.items, wanted).items():
            try:
                await self._client.patch(NODES, name, patch, Object, kind=JSON_PATCH)
            except ApiError as error:
                if error.status not in CHANGED_SINCE:
                    raise

    def _promise(self, confirmed: Confirmed) -> None:
        """Before the eviction: the replacement may be there before its answer."""
        for move in confirmed.decision.plan.moves:
            if move.uid in confirmed.promises and not self._is_dry(move) and not outdated(self.world, move):
                question, target = confirmed.promises[move.uid]
                known = self.world.pods.of_workload(question.pod.workload).keys() - {move.pod}
                self._planner.expect(
                    question.group,
                    question.workload,
                    target,
                    known,
                    for_s=self._settings.limits.lost_s,
                    requests=question.pod.asks,
                )

    async def _read_usage(self) -> Batch:
        if self._source is None:
            self._source = source_of(self._config.usage, self._client)
        batch = await self._source.read()
        self._metrics.faults.inc(len(batch.faults))
        first = batch.faults[0] if batch.faults else ""
        what = "usage not read, nodes without it are left alone" if first else "usage is read again"
        log.change("usage", first.partition(":")[0], what, error=first)
        return batch

    def _tell_refused(self, refused: Mapping[Refusal, int]) -> None:
        self._metrics.count_refused(refused)
        # Pods come and go between a source's rounds and ours; that alone is no news.
        kinds = ",".join(sorted(kind for kind in refused if kind != "unknown-pod"))
        what = "usage readings ignored" if kinds else "all usage readings are good again"
        log.change("usage-refused", kinds, what, count=sum(refused.values()))

    async def _execute(self, decision: RoundDecision, snapshot: LoadSnapshot) -> None:
        pairs = list(zip(decision.plan.moves, decision.follows, strict=True))
        self._memory = add_moves(self._memory, (follow for move, follow in pairs if not self._is_dry(move)))
        await self._store.save(self._memory)
        real, rehearsal = ApiEvictor(self._client), DryRunEvictor(self._client, snapshot)
        stopped_by: Result | None = None
        refusals, others = 0, 0
        for move, followed in pairs:
            if stopped_by is not None:
                self._memory = take_back(self._memory, followed)
                continue
            evictor: Evictor = rehearsal if self._is_dry(move) else real
            why = outdated(self.world, move)
            result = Result("gone", why) if why else await evictor.evict(move)
            self._record(move, followed, result)
            refusals += result.refused
            others += not result.refused and not why
            everybody = refusals >= REFUSALS_IN_A_ROW and not others
            stopped_by = result if result.ends_round or everybody else None
        if stopped_by is not None and stopped_by.kind == "throttled":
            until_s = self._wall() + stopped_by.retry_after_s
            self._memory = msgspec.structs.replace(self._memory, hold_until_s=until_s)
        await self._store.save(self._memory)

    def _is_dry(self, move: Move) -> bool:
        return self._settings.is_dry(move.strategy)

    def _record(self, move: Move, followed: Followed, result: Result) -> None:
        if result.kind not in {"evicted", "unknown"} and not self._is_dry(move):
            self._memory = take_back(self._memory, followed)
        if result.refused and not self._is_dry(move):
            self._memory = rest_refused(self._memory, move.workload, self._settings.limits, self._wall())
        self._metrics.evictions.labels(move.strategy, result.kind).inc()
        self._teller.tell_result(move, result)

    async def _write_conditions(self, decision: RoundDecision, now: float) -> None:
        current = {name: node.status.conditions or () for name, node in self._caches.nodes.items.items()}
        wanted = plan_conditions(decision.plan.nodes, decision.watched.detectors, current, now)
        for node, conditions in wanted.items():
            try:
                await write_conditions(self._client, node, conditions, now)
            except ApiError as error:
                # The condition is for people; a missing right must not stop the rounds.
                log.change("condition", str(error.status), "node condition not written", node=node, error=error)
                return
        log.change("condition", "", "node conditions are written again")
