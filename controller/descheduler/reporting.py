"""Reports moves, their outcome and stuck nodes: events, log lines and metrics."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.descheduler.config import Settings, Strategy
from controller.descheduler.decide import RoundDecision
from controller.descheduler.evict import Result, ResultKind
from controller.descheduler.follow_up import INEFFECTIVE, EndedMove
from controller.descheduler.history import History, Outcome
from controller.descheduler.node_load import Class
from controller.descheduler.round import EvictionBreaker
from controller.descheduler.round_plan import Move, RoundPlan
from kubekit import logs, patches
from kubekit.events import EventRecorder, Reference
from kubekit.patches import Operation
from kubekit.wire import Node
from netperf.contract import HOT_TAINT

HOT_EFFECT = "PreferNoSchedule"
"""The effect of `HOT_TAINT`."""
log = logs.get("controller.descheduler")

DESCHEDULED, REFUSED, NOT_HELPED, STUCK = "Descheduled", "EvictionRefused", "MoveDidNotHelp", "NotRelieved"
_ENDS = {
    "returned": "its replacement came back to the same node",
    "node-still-hot": "the node did not cool",
    "cost-not-fallen": "its network cost did not fall",
    "lost": "its replacement is not running",
    "not-running": "its replacement is not ready",
    "target-overloaded": "its new node is above a threshold as well",
}


def describe_eviction(move: Move) -> str:
    """The note that users know: ``Pod evicted from node "n1" by the reason "node is overutilized, ..."``."""
    return f'Pod evicted from node "{move.node}" by the reason "{move.reason}"'


def _about_pod(key: str, uid: str) -> Reference:
    namespace, _, name = key.partition("/")
    return Reference("v1", "Pod", name, namespace, uid)


class RoundReporter:
    """Says each thing once per change of state."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._stuck: dict[str, str] = {}

    def report_result(self, move: Move, result: Result) -> None:
        """An eviction was tried."""
        if result.kind == "evicted":
            log.info("pod evicted", pod=move.pod, node=move.node, target=move.target, reason=move.reason)
            self._recorder.normal(_about_pod(move.pod, move.uid), DESCHEDULED, describe_eviction(move))
        elif result.kind == "dry-run":
            fields = {"pod": move.pod, "node": move.node, "target": move.target, "reason": move.reason}
            log.change(f"dry-run/{move.pod}", move.node, "pod would be evicted", level="info", **fields)
        elif result.kind != "gone":
            log.change(f"evict/{move.pod}", result.kind, "pod not evicted", pod=move.pod, error=result.message)
            note = f'Eviction from node "{move.node}" by the reason "{move.reason}" was refused: {result.message}'
            self._recorder.warning(_about_pod(move.pod, move.uid), REFUSED, note)

    def report_end(self, ended: EndedMove) -> None:
        """The outcome of a move is known."""
        pending, move = ended.pending, ended.pending.move
        fields = {
            "pod": move.pod,
            "node": move.node,
            "replacement_node": pending.replacement_node,
            "outcome": ended.outcome,
        }
        if ended.outcome not in INEFFECTIVE:
            log.info("move ended", **fields)
            return
        log.warning("move did not help", workload=move.workload, backoff_s=int(ended.backoff_s), **fields)
        note = (
            f'Pod "{move.pod}" was evicted from node "{move.node}", but {_ENDS[ended.outcome]}; '
            f"{move.workload} is not moved for {ended.backoff_s / 60:.0f} min"
        )
        pod = (pending.replacement_pod, pending.replacement_uid) if pending.replacement_pod else (move.pod, move.uid)
        self._recorder.warning(_about_pod(*pod), NOT_HELPED, note)

    def report_plan(self, plan: RoundPlan) -> None:
        """Report hot nodes that the round could not relieve, and those that no longer need it."""
        stuck = {state.node: state.why for state in plan.nodes if state.stuck}
        for node, why in stuck.items():
            if self._stuck.get(node) != why:
                log.warning("hot node not relieved", node=node, why=why)
                self._recorder.warning(Reference("v1", "Node", node), STUCK, f"Node is overutilized, but {why}")
        # A node whose anomaly timed out is still above its thresholds and soon hot again, so that is not reported.
        still_over = {state.node for state in plan.nodes if state.kind in {"over", "unknown"}}
        still_over -= {move.node for move in plan.moves}
        for node in self._stuck.keys() - stuck.keys() - still_over:
            log.info("hot node needs nothing more", node=node)
        self._stuck = {node: why for node, why in self._stuck.items() if node in still_over} | stuck
        for note in plan.notes:
            log.debug("round", note=note)


def taint_patches(nodes: Mapping[str, Node], wanted: frozenset[str]) -> dict[str, list[Operation]]:
    """JSON patches that give the soft taint to these nodes and take it from all others.

    Others' taints are not written: we do not read all of their fields. A removal, and a first taint, are refused if the node has changed
    since; adding a taint that is there already is refused by the API server.
    """
    ours = {"key": HOT_TAINT, "effect": HOT_EFFECT}
    found: dict[str, list[Operation]] = {}
    for name, node in nodes.items():
        taints = node.spec.taints or []
        at = next((i for i, taint in enumerate(taints) if (taint.key, taint.effect) == (HOT_TAINT, HOT_EFFECT)), None)
        if name in wanted and at is None and taints:
            found[name] = [patches.add("/spec/taints/-", ours)]
        elif name in wanted and at is None:
            as_seen = patches.test("/metadata/resourceVersion", node.metadata.resource_version)
            found[name] = [as_seen, patches.add("/spec/taints", [ours])]
        elif name not in wanted and at is not None:
            place = f"/spec/taints/{at}"
            found[name] = [patches.test(f"{place}/{field}", value) for field, value in ours.items()]
            found[name].append(patches.remove(place))
    return found


KINDS: tuple[Class, ...] = get_args(Class)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_PREFIX = "netaware_descheduler"


class DeschedulerMetrics:
    """Metrics of rounds. Gauges are of the leader's newest round; other replicas have no series, or 0 where a gauge has no labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, labels, registry=registry)

        self.rounds = counter("rounds", "Rounds, by how they ended.", "outcome")
        self.evictions = counter("evictions", "Evictions, by the API server's answer.", "strategy", "result")
        self.ended = counter("moves_ended", "Ended moves, by outcome.", "strategy", "outcome")
        self._stopped = gauge("stopped", "1 while the breaker of a strategy is open: too few moves helped.", "strategy")
        self.plan_seconds = Histogram(
            f"{_PREFIX}_plan_seconds",
            "Time to decide one round.",
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
            registry=registry,
        )
        self._nodes = gauge("nodes", "Nodes by pool and load.", "pool", "load")
        self._hot = gauge("hot_nodes", "Nodes found hot for long enough.")
        self._stuck = gauge("stuck_nodes", "Hot nodes that the newest round could not relieve enough.")
        self._skipped = gauge("skipped_pods", "Pods that were not moved, by the condition that failed.", "condition")
        self._backed_off = gauge("backed_off", "Workloads and replicas that are not moved for a while.", "kind")

    def count_from_zero(self) -> None:
        """Begin all counts of rare things at zero: increase() does not see the first of a series that begins with it."""
        for strategy in STRATEGIES:
            for result in get_args(ResultKind):
                self.evictions.labels(strategy, result)
            for outcome in get_args(Outcome):
                self.ended.labels(strategy, outcome)

    def show_round(self, decision: RoundDecision) -> None:
        """Show what was decided."""
        plan = decision.plan
        self._nodes.clear()
        counts = Counts((state.pool, state.kind) for state in plan.nodes)
        for pool in {state.pool for state in plan.nodes}:
            for kind in KINDS:
                self._nodes.labels(pool, kind).set(counts[pool, kind])
        self._hot.set(sum(1 for detector in decision.state.detectors.values() if detector.hot))
        self._stuck.set(sum(1 for state in plan.nodes if state.stuck))
        self._skipped.clear()
        for condition, count in plan.skip_counts.items():
            self._skipped.labels(condition).set(count)

    def show_history(self, history: History, settings: Settings, now: float) -> None:
        """Show what is remembered."""
        kinds = Counts("workload" if "/" in key else "replica" for key in history.backoffs if history.backoff(key, now))
        for kind in ("workload", "replica"):
            self._backed_off.labels(kind).set(kinds[kind])
        breaker = EvictionBreaker(history, settings.limits, now)
        for strategy in STRATEGIES:
            self._stopped.labels(strategy).set(bool(breaker.refusal(strategy)))

    def count_end(self, ended: EndedMove) -> None:
        """Count a move that ended."""
        self.ended.labels(ended.pending.move.strategy, ended.outcome).inc()

    def clear(self) -> None:
        """Take back what only the leader knows."""
        for labelled in (self._nodes, self._skipped, self._stopped, self._backed_off):
            labelled.clear()
        for plain in (self._hot, self._stuck):
            plain.set(0)
