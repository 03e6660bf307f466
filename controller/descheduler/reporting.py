"""What is told: events, log lines and conditions on nodes (what moved and why, what it came to, why a hot node is not relieved), and metrics.

Conditions are written on a change alone, by a patch that is keyed on the condition's type: the kubelet's own are not touched.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.descheduler.classify import Class, Detector
from controller.descheduler.config import Settings, Strategy
from controller.descheduler.decision import Move, NodeState, RoundDecision, RoundPlan
from controller.descheduler.evict import Result, ResultKind
from controller.descheduler.followup import FAILED, Ended
from controller.descheduler.foresight import HOT_EFFECT
from controller.descheduler.memory import HOUR_S, Memory, Outcome
from controller.descheduler.round import Trust
from controller.descheduler.usage import Refusal, above
from kubekit import conditions, logs, patches
from kubekit.client import STRATEGIC_PATCH, Client
from kubekit.events import EventRecorder, Reference
from kubekit.patches import Operation
from kubekit.wire import NODES, Condition, Node, Object, format_time
from netperf.contract import HOT_TAINT

log = logs.get("controller.descheduler")

DESCHEDULED, REFUSED, NOT_HELPED, STUCK = "Descheduled", "EvictionRefused", "MoveDidNotHelp", "NotRelieved"
_ENDS = {
    "returned": "its replacement came back to the same node",
    "not-cooled": "the node did not cool",
    "cost-not-fallen": "its network cost did not fall",
    "lost": "its replacement is not running",
    "not-running": "its replacement is not ready",
    "moved-heat": "its new node is above a threshold as well",
}


def describe_eviction(move: Move) -> str:
    """The note that users know: ``Pod evicted from node "n1" by the reason "node is overutilized, ..."``."""
    return f'Pod evicted from node "{move.node}" by the reason "{move.reason}"'


def _about_pod(key: str, uid: str) -> Reference:
    namespace, _, name = key.partition("/")
    return Reference("v1", "Pod", name, namespace, uid)


class Teller:
    """Says each thing once per change of state."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._stuck: dict[str, str] = {}

    def tell_result(self, move: Move, result: Result) -> None:
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

    def tell_end(self, ended: Ended) -> None:
        """A followed move ended."""
        move = ended.move
        fields = {"pod": move.pod, "node": move.node, "landed": move.landed, "outcome": ended.outcome}
        if ended.outcome not in FAILED:
            log.info("move ended", **fields)
            return
        log.warning("move did not help", workload=move.workload, rest_s=int(ended.rest_s), **fields)
        note = (
            f'Pod "{move.pod}" was evicted from node "{move.node}", but {_ENDS[ended.outcome]}; '
            f"{move.workload} is left alone for {ended.rest_s / 60:.0f} min"
        )
        about = _about_pod(move.landed_pod, move.landed_uid) if move.landed_pod else _about_pod(move.pod, move.uid)
        self._recorder.warning(about, NOT_HELPED, note)

    def tell_plan(self, plan: RoundPlan) -> None:
        """A round was decided: hot nodes that it could not relieve, and those that it no more has to."""
        stuck = {state.node: state.why for state in plan.nodes if state.stuck}
        for node, why in stuck.items():
            if self._stuck.get(node) != why:
                log.warning("hot node not relieved", node=node, why=why)
                self._recorder.warning(Reference("v1", "Node", node), STUCK, f"Node is overutilized, but {why}")
        # A node whose anomaly timed out is still over, and soon found hot again: that is no change worth telling.
        still_over = {state.node for state in plan.nodes if state.kind in {"over", "unknown"}}
        still_over -= {move.node for move in plan.moves}
        for node in self._stuck.keys() - stuck.keys() - still_over:
            log.info("hot node needs nothing more", node=node)
        self._stuck = {node: why for node, why in self._stuck.items() if node in still_over} | stuck
        for note in plan.notes:
            log.debug("round", note=note)


OVERUTILIZED, STOPPED = "Overutilized", "RebalancingStopped"


def plan_conditions(
    states: Iterable[NodeState],
    detectors: Mapping[str, Detector],
    current: Mapping[str, Sequence[Condition]],
    now: float,
) -> dict[str, list[Condition]]:
    """Which conditions of which nodes have to change, and to what.

    Args:
        states: of the round.
        detectors: after the round; hot is what they say, not one round's usage.
        current: conditions of each node as they stand.
        now: unix seconds.
    """
    wanted: dict[str, list[Condition]] = {}
    for state in states:
        detector, known = detectors.get(state.node), current.get(state.node)
        if state.kind == "unknown" or detector is None:
            continue
        fresh = (_overutilized(state, detector, conditions.find(known, OVERUTILIZED)), _stopped(state))
        told = [c for c in fresh if c.status == "True" or conditions.find(known, c.type)]
        if changes := conditions.changed(known, told, now):
            wanted[state.node] = changes
    return wanted


def _overutilized(state: NodeState, detector: Detector, before: Condition | None) -> Condition:
    # After a change of the leader no detector knows that it was hot; a node that is still above is not within its threshold.
    if detector.warm or (state.kind == "over" and before is not None and before.status == "True"):
        exceeded = above(state.share, state.high)
        if not exceeded and before is not None and before.status == "True":
            return before  # below for a round is not within; nothing new is above
        what = ", ".join(f"{r} above {state.high[r]:g} %" for r in exceeded or state.high)
        text = f"{what} for several rounds"
        return conditions.condition(OVERUTILIZED, holds=True, reason="AboveHighThreshold", message=text)
    text = "usage is within the high thresholds"
    return conditions.condition(OVERUTILIZED, holds=False, reason="WithinThresholds", message=text)


def _stopped(state: NodeState) -> Condition:
    if state.stopped:
        return conditions.condition(STOPPED, holds=True, reason="MovesDidNotHelp", message=state.stopped)
    text = "pods are moved where that is needed and helps"
    return conditions.condition(STOPPED, holds=False, reason="Running", message=text)


async def write_conditions(client: Client, node: str, wanted: Iterable[Condition], now: float) -> None:
    """Write conditions of one node.

    Raises:
        KubekitError: it was not written.
    """
    heartbeat = {"lastHeartbeatTime": format_time(now)}
    body = {"status": {"conditions": [msgspec.to_builtins(found) | heartbeat for found in wanted]}}
    await client.patch(NODES, node, body, Object, kind=STRATEGIC_PATCH, subresource="status")


def taint_patches(nodes: Mapping[str, Node], wanted: frozenset[str]) -> dict[str, list[Operation]]:
    """JSON patches that give the soft taint to these nodes and take it from all others.

    Others' taints are not written: we do not read all of their fields. A node whose taints have changed since refuses the patch.
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


KINDS: tuple[str, ...] = get_args(Class)
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

    def show_round(self, decision: RoundDecision) -> None:
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
