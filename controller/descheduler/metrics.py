"""Metrics of the descheduler; labels come from small fixed sets and from the names of node pools."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.descheduler.config import Settings
from controller.descheduler.decision import Decision
from controller.descheduler.evict import ResultKind
from controller.descheduler.followup import FAILED, Ended
from controller.descheduler.limits import Trust
from controller.descheduler.memory import HOUR_S, Memory, Outcome, Strategy
from controller.descheduler.usage import Refusal

KINDS = ("over", "under", "normal", "unknown")
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
PREDICTIONS = {True: "true", False: "false"}
SCOPES = ("pool", "workload")
_PREFIX = "netaware_descheduler"


class DeschedulerMetrics:
    """What a round did. Gauges are of the newest round and vanish with the leadership."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, labels, registry=registry)

        self.rounds = counter("rounds", "Rounds, by how they ended.", "outcome")
        self.evictions = counter("evictions", "Evictions asked for, by the answer.", "strategy", "result")
        self.ended = counter("moves_ended", "Moves by what became of them.", "strategy", "outcome")
        self.predictions = counter(
            "predictions", "Forecasts of where a replacement lands, by what they came to.", "strategy", "result"
        )
        self.vain = counter("moves_without_benefit", "Evictions that helped nobody.", "strategy")
        self._stopped = gauge("stopped", "Pools and workloads whose moves are stopped, as too few came true.", "scope")
        self.refused = counter("usage_refused", "Usage readings that were not believed.", "reason")
        self.faults = counter("usage_faults", "Questions for usage that got no answer.")
        self.plan_seconds = Histogram(
            f"{_PREFIX}_plan_seconds",
            "Time to decide one round.",
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
            registry=registry,
        )
        self._nodes = gauge("nodes", "Nodes by pool and load.", "pool", "load")
        self._hot = gauge("hot_nodes", "Nodes found hot for long enough.")
        self._stuck = gauge("stuck_nodes", "Hot nodes that the newest round could not relieve as needed.")
        self._planned = gauge("planned_moves", "Moves of the newest round.", "strategy")
        self._skipped = gauge("skipped_pods", "Pods that should go and stay, by reason.", "reason")
        self._followed = gauge("followed_moves", "Moves whose end is not known yet.")
        self._resting = gauge("resting_workloads", "Workloads left alone after moves that did not help.")
        self._spent = gauge("hourly_budget_spent", "Evictions of the last hour, those without nodeFit counted twice.")
        self._limit = gauge("hourly_budget", "Evictions allowed in an hour.")

    def count_from_zero(self) -> None:
        """Begin all counts of rare things at zero: increase() does not see the first of a series that begins with it."""
        for strategy in STRATEGIES:
            for result in get_args(ResultKind):
                self.evictions.labels(strategy, result)
            for outcome in get_args(Outcome):
                self.ended.labels(strategy, outcome)
            for known in PREDICTIONS.values():
                self.predictions.labels(strategy, known)
            self.vain.labels(strategy)

    def show_round(self, decision: Decision) -> None:
        """Show what was decided."""
        plan = decision.plan
        self._nodes.clear()
        by_pool: dict[str, Tally[str]] = {}
        for state in plan.nodes:
            by_pool.setdefault(state.pool, Tally())[state.kind] += 1
        for pool, tally in by_pool.items():
            for kind in KINDS:
                self._nodes.labels(pool, kind).set(tally[kind])
        self._hot.set(sum(1 for detector in decision.watched.detectors.values() if detector.hot))
        self._stuck.set(sum(1 for state in plan.nodes if state.stuck))
        strategies = Tally(move.strategy for move in plan.moves)
        for strategy in STRATEGIES:
            self._planned.labels(strategy).set(strategies[strategy])
        self._skipped.clear()
        for kind, count in plan.skipped.items():
            self._skipped.labels(kind).set(count)

    def show_memory(self, memory: Memory, settings: Settings, now: float) -> None:
        """Show what is remembered."""
        self._followed.set(len(memory.follows))
        self._resting.set(sum(1 for name in memory.rests if memory.resting(name, now)))
        self._spent.set(memory.spent_since(now - HOUR_S))
        self._limit.set(settings.limits.per_hour)
        trust = Trust(memory, settings.limits, now)
        for scope in SCOPES:
            self._stopped.labels(scope).set(len(trust.stopped(scope)))

    def count_refused(self, refused: Mapping[Refusal, int]) -> None:
        """Count readings that were not believed."""
        for reason, count in refused.items():
            self.refused.labels(reason).inc(count)

    def count_end(self, ended: Ended) -> None:
        """Count a move that ended."""
        strategy = ended.move.strategy
        self.ended.labels(strategy, ended.outcome).inc()
        if ended.came_true is not None:
            self.predictions.labels(strategy, PREDICTIONS[ended.came_true]).inc()
        if ended.outcome in FAILED:
            self.vain.labels(strategy).inc()

    def clear(self) -> None:
        """Take back what only the leader knows."""
        for labelled in (self._nodes, self._planned, self._skipped, self._stopped):
            labelled.clear()
        for plain in (self._hot, self._stuck, self._followed, self._resting, self._spent):
            plain.set(0)
