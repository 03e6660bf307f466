"""Events, log lines and metrics of the descheduler."""

from __future__ import annotations

import collections
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.descheduler.config import STRATEGIES, LimitsConfig
from controller.descheduler.decide import DescheduleDecision
from controller.descheduler.evaluation import INEFFECTIVE_OUTCOMES, EvaluatedMove, find_stopped_strategies
from controller.descheduler.evict import EvictionResult, ResultKind
from controller.descheduler.history import History, MoveOutcome, is_workload
from controller.descheduler.node_load import LoadClass
from controller.descheduler.plan import DeschedulePlan, Move
from kubekit import logs
from kubekit.events import EventRecorder, ObjectReference

log = logs.get("controller.descheduler")

LOAD_CLASSES: tuple[LoadClass, ...] = get_args(LoadClass)
_PREFIX = "netaware_descheduler"


def _pod_reference(key: str, uid: str) -> ObjectReference:
    namespace, _, name = key.partition("/")
    return ObjectReference("v1", "Pod", name, namespace, uid)


class DeschedulerReporter:
    """Writes events and log lines. Failures are logged, and nodes reported, only when they change; each failure is an event."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def report_eviction(self, move: Move, result: EvictionResult, *, dry_run: bool) -> None:
        """Report the result of an eviction or, with ``dry_run``, of a dry run."""
        fields = {"pod": move.pod, "node": move.node, "target": move.target, "reason": move.reason}
        if result.kind == "evicted":
            log.info("pod evicted", **fields)
            note = f'Pod evicted from node "{move.node}" by the reason "{move.reason}"'  # koord-descheduler's wording
            self._recorder.record("Normal", _pod_reference(move.pod, move.uid), "Descheduled", note)
        elif result.kind == "dry-run":
            log.log_change(f"dry-run/{move.pod}", move.node, "pod would be evicted", level="info", **fields)
        elif result.kind != "gone":
            subject = "dry run of the eviction" if dry_run else "eviction"
            outcome = {"unknown": "may have failed", "throttled": "failed"}.get(result.kind, "was refused")
            log.log_change(f"evict/{move.pod}", result.kind, f"{subject} {outcome}", pod=move.pod, error=result.message)
            origin = f'from node "{move.node}" for the reason "{move.reason}"'
            note = f"{subject.capitalize()} {origin} {outcome}: {result.message}"
            event_reason = "EvictionFailed" if result.stops_evictions else "EvictionRefused"
            self._recorder.record("Warning", _pod_reference(move.pod, move.uid), event_reason, note)

    def report_outcome(self, evaluated: EvaluatedMove) -> None:
        """Report the outcome of a move; as an event if it did not help."""
        pending, outcome, backoff_s = evaluated
        move = pending.move
        fields = {"pod": move.pod, "node": move.node, "replacement_node": pending.replacement_node, "outcome": outcome}
        if outcome not in INEFFECTIVE_OUTCOMES:
            log.info("move evaluated", **fields)
            return
        log.warning("move did not help", workload=move.workload, backoff_s=int(backoff_s), **fields)
        note = (
            f'Pod "{move.pod}" was evicted from node "{move.node}", but {INEFFECTIVE_OUTCOMES[outcome]}; '
            f"{move.workload} is not moved for {backoff_s / 60:.0f} min"
        )
        pod = (pending.replacement_pod, pending.replacement_uid) if pending.replacement_pod else (move.pod, move.uid)
        self._recorder.record("Warning", _pod_reference(*pod), "MoveDidNotHelp", note)

    def report_plan(self, plan: DeschedulePlan) -> None:
        """Report nodes that the round cannot relieve, and those that it can again; log the notes at level debug."""
        nodes_with_moves = {move.node for move in plan.moves}
        for state in plan.nodes:
            topic = f"relief/{state.node}"
            if state.is_stuck:
                is_new = log.log_change(topic, state.reason, "node not relieved", node=state.node, reason=state.reason)
                if is_new:
                    note = f"Node is overutilized, but {state.reason}"
                    self._recorder.record("Warning", ObjectReference("v1", "Node", state.node), "NotRelieved", note)
            # A node whose anomaly timed out is still above a threshold: it is not reported as relieved.
            elif state.kind not in {"overutilized", "unknown"}:
                log.log_change(topic, "", "node is within its thresholds", node=state.node)
            elif state.node in nodes_with_moves:
                log.log_change(topic, "", "node has enough moves", node=state.node)
        for note in plan.notes:
            log.debug("note on the round", note=note)


class DeschedulerMetrics:
    """Metrics of rounds. Gauges show the leader's newest round; on other replicas, labelled gauges have no series, others are 0."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, labels, registry=registry)

        results, outcomes = ", ".join(get_args(ResultKind)), ", ".join(get_args(MoveOutcome))
        self.rounds = counter("rounds", "Rounds: finished, usage-missing (a source failed), failed.", "outcome")
        self.evictions = counter("evictions", f"Evictions, by result: {results}.", "strategy", "result")
        self.outcomes = counter("moves_evaluated", f"Evaluated moves, by outcome: {outcomes}.", "strategy", "outcome")
        self._stopped = gauge(
            "stopped", "1 while the circuit breaker of a strategy is open: too few moves helped.", "strategy"
        )
        buckets = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10)
        name = f"{_PREFIX}_plan_seconds"
        self.plan_seconds = Histogram(name, "Time to decide one round.", buckets=buckets, registry=registry)
        self._nodes = gauge("nodes", f"Nodes, by pool and load: {', '.join(LOAD_CLASSES)}.", "pool", "load")
        self._anomalous = gauge("anomalous_nodes", "Nodes that were overutilized for consecutiveAbnormalities rounds.")
        self._stuck = gauge("stuck_nodes", "Anomalous nodes that the newest round cannot relieve enough.")
        self._skipped = gauge("skipped_pods", "Pods that were not moved, by the condition that failed.", "condition")
        self._backed_off = gauge("backed_off", "Back-offs, by kind: workload or replica.", "kind")

    def init_counters(self) -> None:
        """Start counters of rare events at 0, because increase() misses the first event of a series that starts at 1."""
        for strategy in STRATEGIES:
            for result in get_args(ResultKind):
                self.evictions.labels(strategy, result)
            for outcome in get_args(MoveOutcome):
                self.outcomes.labels(strategy, outcome)

    def set_round_gauges(self, decision: DescheduleDecision) -> None:
        """Set the gauges of nodes and skipped pods."""
        plan = decision.plan
        self._nodes.clear()
        counts = collections.Counter((state.pool, state.kind) for state in plan.nodes)
        for pool in {state.pool for state in plan.nodes}:
            for load in LOAD_CLASSES:
                self._nodes.labels(pool, load).set(counts[pool, load])
        self._anomalous.set(sum(1 for detector in decision.durations.detectors.values() if detector.is_anomalous))
        self._stuck.set(sum(1 for state in plan.nodes if state.is_stuck))
        self._skipped.clear()
        for condition, count in plan.skip_counts.items():
            self._skipped.labels(condition).set(count)

    def set_backoff_gauges(self, history: History, limits: LimitsConfig, now: float) -> None:
        """Set the gauges of back-offs and breakers."""
        active = [key for key in history.backoffs if history.active_backoff(key, now)]
        kinds = collections.Counter("workload" if is_workload(key) else "replica" for key in active)
        for kind in ("workload", "replica"):
            self._backed_off.labels(kind).set(kinds[kind])
        stopped = find_stopped_strategies(history, limits)
        for strategy in STRATEGIES:
            self._stopped.labels(strategy).set(strategy in stopped)

    def clear_gauges(self) -> None:
        """Remove the gauges of a replica that no longer leads."""
        for gauge in (self._nodes, self._skipped, self._stopped, self._backed_off):
            gauge.clear()
        for gauge in (self._anomalous, self._stuck):
            gauge.set(0)
