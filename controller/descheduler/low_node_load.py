"""LowNodeLoad: chooses pods of hot nodes until these are within their thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.requests import add
from controller.descheduler.args import LowNodeLoad, Pool
from controller.descheduler.conditions import (
    MOVE_CONDITIONS,
    POD_CONDITIONS,
    REASON_CONDITIONS,
    Candidate,
    TargetFinder,
    check,
)
from controller.descheduler.fit import TargetPool
from controller.descheduler.history import PendingMove
from controller.descheduler.node_load import (
    Detector,
    NodeLoad,
    classify,
    describe_overload,
    next_victim,
    update_detectors,
    usage_of,
)
from controller.descheduler.round import Round, workload_of
from controller.descheduler.round_plan import Move, NodeState
from controller.descheduler.usage import above, percents
from netperf.contract import HOT_TAINT

MAX_SEARCHES = 500
"""Pods for which a round looks for a node, before the other hot nodes wait for the next round. One takes some milliseconds on 5,000
nodes, of a processor that the leader's other work shares with the round."""
LEAST_RELIEF = 0.02
"""Of what has to leave a node, the share that a pod must take along."""
GAIN_PERCENT = 5.0
"""A move is a gain where a resource that is exceeded is used less by so many percent of a node."""


class LoadRound(TargetFinder):
    """One round of LowNodeLoad.

    Attributes:
        loads: of every node of every pool.
    """

    def __init__(self, base: Round, settings: LowNodeLoad) -> None:
        self._base, self._settings = base, settings
        self.loads = classify(settings, base.snapshot.nodes.values(), base.snapshot.usage.nodes)
        self._why: dict[str, str] = {}
        self._stuck: set[str] = set()
        self._searches = 0
        self._by_node = {load.name: load for load in self.loads}
        self._moved_there = self._usage_of_recent_moves()
        self._pools: dict[str, TargetPool] = {pool.name: self._target_pool(pool) for pool in settings.pools}

    def plan(self, detectors: Mapping[str, Detector], *, confirmed: bool) -> dict[str, Detector]:
        """Plan moves into the round.

        Args:
            detectors: as the last round left them.
            confirmed: take every hot node for hot long enough, as a dry-run from outside does.

        Returns:
            The detectors after this round.
        """
        base = self._base
        # A cache that forgets between two rounds would never count to five; with long intervals it keeps three rounds.
        keep_s = max(self._settings.cache_timeout_s, 3 * base.settings.interval_s)
        detectors = update_detectors(detectors, self.loads, keep_s, base.now)
        if base.settings.taint_hot_nodes:
            base.predictor.taint(nodes_to_taint(self.states(), detectors, base.snapshot.nodes))
        for pool in self._settings.pools:
            hot = [load for load in self.loads if load.pool is pool and load.kind == "over"]
            for load in self._in_turn(hot):
                detector, most = detectors[load.name], load.pool.anomaly.consecutive_abnormalities
                lasted = confirmed or detector.hot
                if self._searches >= MAX_SEARCHES:
                    self._why[load.name] = f"its turn comes: {MAX_SEARCHES} pods were looked at in this round"
                else:
                    self._relieve(load, "" if lasted else f"over for {detector.abnormal} of {most} consecutive rounds")
        return detectors

    def _in_turn(self, hot: Iterable[NodeLoad]) -> list[NodeLoad]:
        """The hottest first; where one round cannot look at all, each begins where the one before will have ended."""
        order = sorted(hot, key=lambda load: (-load.mean, load.name))
        pods = sum(len(self._base.snapshot.pods.on_node(load.name)) for load in order)
        if pods <= MAX_SEARCHES:
            return order
        number = int(self._base.now // self._base.settings.interval_s)
        at = number * max(1, len(order) * MAX_SEARCHES // pods) % len(order)
        return order[at:] + order[:at]

    def states(self) -> tuple[NodeState, ...]:
        """The classification of every node, with what keeps hot ones from being relieved."""
        expired = self._base.snapshot.usage.expired
        return tuple(
            NodeState(
                load.name,
                load.pool.name,
                load.kind,
                load.share,
                load.thresholds.low,
                load.thresholds.high,
                load.name in self._stuck,
                self._why.get(load.name, "") if load.kind != "unknown" else _unknown(load, expired),
            )
            for load in self.loads
        )

    def _usage_of_recent_moves(self) -> dict[str, dict[str, float]]:
        """Node -> usage that recent moves take there and that its own usage does not show yet."""
        lag_s, now = self._base.settings.limits.usage_lag_s, self._base.now
        found: dict[str, dict[str, float]] = {}
        for pending in self._base.history.pending:
            if not pending.landed or now - pending.landed_s < lag_s:
                add(found.setdefault(pending.landed or pending.move.target, {}), pending.move.used)
        return found

    def _target_pool(self, pool: Pool) -> TargetPool:
        loads = [load for load in self.loads if load.pool is pool]
        members, targets = ({n.name for n in loads}, [load for load in loads if load.kind == "under"])
        names = {load.name for load in targets}
        awaited = [pending.move for pending in self._base.history.pending if not pending.landed]
        nowhere = [move.used for move in awaited if move.node in members and move.target not in names]
        found = TargetPool(targets, self._base.fit, nowhere)
        for name in self._moved_there.keys() & names:
            found.reserve(self._moved_there[name], name)
        return found

    def _relieve(self, load: NodeLoad, waits: str) -> None:
        """Plan moves off one node."""
        base, stays = self._base, Counter[str]()
        victims: dict[str, Candidate] = {}
        for pod in base.snapshot.pods.on_node(load.name).values():
            if not pod.is_active or not pod.running:
                continue
            candidate = Candidate(pod, "LowNodeLoad", self, usage_of(pod, base.snapshot, load.used), load, waits)
            refusal = check(base, candidate, REASON_CONDITIONS)
            if refusal is not None:
                self._why[load.name] = refusal.why
                return
            refusal = check(base, candidate, POD_CONDITIONS)
            if refusal is None:
                victims[pod.key] = candidate
            else:
                stays[refusal.condition.name] += 1
        used = dict(load.used)
        while exceeded := above(percents(used, load.node.allocatable), load.thresholds.high):
            choice = ((v.pod, v.used) for v in victims.values())
            victim = next_victim(choice, load, used, exceeded, least_relief=LEAST_RELIEF)
            if victim is None:
                self._set_stuck(load, _describe_nobody(stays))
                return
            candidate = victims.pop(victim[0].key)
            refusal = check(base, candidate, MOVE_CONDITIONS)
            if refusal is None:
                used = self._add(candidate, load, used, exceeded)
            elif refusal.condition.scope == "pod":
                stays[refusal.condition.name] += 1
            else:
                self._set_stuck(load, refusal.why)
                return

    def _set_stuck(self, load: NodeLoad, why: str) -> None:
        self._why[load.name] = why
        self._stuck.add(load.name)

    def free_capacity(self, candidate: Candidate) -> str:
        """See `controller.descheduler.conditions.TargetFinder`."""
        assert candidate.load is not None
        pool = self._pools[candidate.load.pool.name]
        least = self._settings.number_of_nodes
        if len(pool) <= least:
            nodes = "node has" if len(pool) == 1 else "nodes have"
            text = f"pool {candidate.load.pool.name}: {len(pool)} {nodes} low load, and numberOfNodes asks for more than {least}"
            self._base.note(text)
            return text
        empty = sorted(resource for resource, free in pool.free().items() if free <= 0)
        return f"nodes with low load can take no more {', '.join(empty)}" if empty else ""

    def find_target(self, candidate: Candidate) -> str:
        """See `controller.descheduler.conditions.TargetFinder`."""
        assert candidate.load is not None
        pool = self._pools[candidate.load.pool.name]
        self._searches += 1
        if self._settings.node_fit:
            candidate.target, why = pool.find(candidate.pod, candidate.used)
            return why
        free = pool.free()
        short = [r for r in candidate.load.pool.high if candidate.used.get(r, 0) > free.get(r, 0)]
        return f"it uses more {', '.join(short)} than nodes with low load can take" if short else ""

    def predict(self, candidate: Candidate) -> str:
        """See `controller.descheduler.conditions.TargetFinder`."""
        base, load = self._base, candidate.load
        assert load is not None
        least = base.settings.limits.min_chance_percent
        if not least or not base.predictor.can_predict(candidate.pod):
            return ""
        prediction = base.predictor.predict(candidate.pod, lambda node: self._objection(node, candidate.used, load))
        if prediction.gain < least / 100.0:
            return prediction.describe()
        candidate.expected = prediction.expected
        candidate.target = candidate.expected[0]
        return ""

    def objection(self, move: Move, _: PodInfo, node: Host) -> str:
        """Why it would be no gain if a withdrawn move went to this node; empty when it would be one."""
        return self._objection(node.name, move.used, self._by_node[move.node])

    def _objection(self, name: str, used: Mapping[str, float], source: NodeLoad) -> str:
        """Why it would be no gain if a pod that uses so much went from a hot node to this one; empty when it would be one."""
        if name == source.name:
            return "it would come back"
        load = self._by_node.get(name)
        if load is None or load.kind == "unknown":
            return "its load is not known"
        if load.node.closing:
            return "it is about to be removed"
        total = {r: amount + used.get(r, 0.0) for r, amount in load.used.items()}
        for more in (self._moved_there.get(name), self._base.arriving.get(name)):
            if more:
                total = {r: amount + more.get(r, 0.0) for r, amount in total.items()}
        share = percents(total, load.node.allocatable)
        for resource in share:
            if used.get(resource, 0.0) > 0 and share[resource] > load.thresholds.high[resource]:
                return f"its {resource} usage would be {share[resource]:.0f} %"
            if resource in source.exceeded and share[resource] > source.share[resource] - GAIN_PERCENT:
                return f"its {resource} usage would be {share[resource]:.0f} %, not {GAIN_PERCENT:g} less than here"
        return ""

    def redirected(self, move: Move, _: PodInfo, node: str) -> Move:
        """A withdrawn move, to this node."""
        load = self._by_node.get(node)
        if load is None:
            return msgspec.structs.replace(move, target=node, target_before={}, target_after={})
        arriving = self._base.arriving.get(node, {})
        before = {r: amount + arriving.get(r, 0.0) for r, amount in load.used.items()}
        shares = _around(load.node, before, move.used)
        return msgspec.structs.replace(move, target=node, target_before=shares[0], target_after=shares[1])

    def _add(
        self, candidate: Candidate, load: NodeLoad, used: Mapping[str, float], exceeded: Sequence[str]
    ) -> dict[str, float]:
        """Plan a move; what is in use on its node after it."""
        pod, pool = candidate.pod, self._pools[load.pool.name]
        after = {resource: max(0.0, amount - candidate.used.get(resource, 0.0)) for resource, amount in used.items()}
        node_before = percents(used, load.node.allocatable)
        target_before: Mapping[str, float] = {}
        target_after: Mapping[str, float] = {}
        if candidate.target:
            target = pool.get(candidate.target)
            there = self._by_node[candidate.target]
            target_before, target_after = _around(there.node, target.used if target else there.used, candidate.used)
        move = Move(
            pod=pod.key,
            uid=pod.uid,
            workload=workload_of(pod),
            node=load.name,
            target=candidate.target,
            strategy="LowNodeLoad",
            reason=describe_overload(node_before, load.thresholds.high, exceeded),
            used=candidate.used,
            node_before=node_before,
            node_after=percents(after, load.node.allocatable),
            target_before=target_before,
            target_after=target_after,
            group=self._base.snapshot.group_of(pod),
        )
        relief = percents(candidate.used, load.node.allocatable)
        pending = PendingMove(
            move,
            self._base.now,
            share_before={r: load.share[r] for r in load.exceeded},
            relief={r: relief.get(r, 0.0) for r in load.exceeded},
            high={r: load.thresholds.high[r] for r in load.exceeded},
        )
        self._base.add(pod, pending, candidate.expected)
        pool.reserve(candidate.used, candidate.target)
        return after


def _around(node: Host, used: Mapping[str, float], more: Mapping[str, float]) -> tuple[dict[str, float], ...]:
    """Percent of allocatable before and after more usage arrives."""
    after = {r: amount + more.get(r, 0.0) for r, amount in used.items()}
    return percents(used, node.allocatable), percents(after, node.allocatable)


def nodes_to_taint(
    states: Iterable[NodeState], detectors: Mapping[str, Detector], nodes: Mapping[str, Host]
) -> frozenset[str]:
    """Nodes that are to carry the taint: hot ones, and those more than half way there, until they have low load again.

    A node just below its threshold is no better place, because any pod there makes it hot.
    """

    def has_it(name: str) -> bool:
        return name in nodes and any(taint.key == HOT_TAINT for taint in nodes[name].prefer_no_schedule_taints)

    def is_above(state: NodeState, part: float) -> bool:
        return any(
            share > state.low[resource] + part * (state.high[resource] - state.low[resource])
            for resource, share in state.share.items()
        )

    return frozenset(
        state.node
        for state in states
        if (state.node in detectors and detectors[state.node].hot)
        or is_above(state, 0.5)
        # What is not known is no reason to let pods come.
        or (has_it(state.node) and (state.kind == "unknown" or is_above(state, 0.0)))
    )


def _describe_nobody(stays: Mapping[str, int]) -> str:
    if not stays:
        return "no pod runs on it"
    parts = ", ".join(f"{count} {name}" for name, count in sorted(stays.items(), key=lambda e: (-e[1], e[0])))
    return f"no further pod can go: {parts}"


def _unknown(load: NodeLoad, expired: Iterable[str]) -> str:
    if load.name in expired:
        return "its usage is older than nodeMetricExpirationSeconds"
    missing = [r for r in load.thresholds.high if r not in load.share]
    return f"no usage of {', '.join(missing)}" if missing else "no usage"
