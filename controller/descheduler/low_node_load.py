"""LowNodeLoad: chooses pods of hot nodes until these are within their thresholds.

Free capacity is the sum over the nodes with low load of ``high x allocatable - usage`` (docs/contracts, section 11), for example:
96 cores at 20 % under a threshold of 70 % can take 48 cores.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from weakref import proxy

from controller.cluster.hosts import Host
from controller.cluster.requests import add
from controller.descheduler.args import LowNodeLoad, Pool
from controller.descheduler.conditions import MOVE_CONDITIONS, POD_CONDITIONS, REASON_CONDITIONS, check
from controller.descheduler.fit import OTHER_PODS, describe_misfits
from controller.descheduler.history import PendingMove
from controller.descheduler.node_load import (
    Detector,
    NodeLoad,
    classify,
    describe_overload,
    update_detectors,
    usage_of,
)
from controller.descheduler.round import Candidate, MoveStrategy, Round, workload_of
from controller.descheduler.round_plan import Move, NodeState
from controller.descheduler.usage import RESOURCES, Amounts, above, percents, weighted_percent
from netperf.contract import HOT_TAINT

LEAST_RELIEF = 0.02
"""Least share of the excess that one pod must remove: a pod of a millicore relieves no node, however low its priority."""


class LoadRound(MoveStrategy):
    """One round of LowNodeLoad.

    Attributes:
        loads: of every node of every pool, by name.
    """

    def __init__(self, base: Round, settings: LowNodeLoad) -> None:
        self._base, self._settings = base, settings
        loads = classify(settings, base.snapshot.nodes.values(), base.snapshot.usage.nodes)
        self.loads = {load.name: load for load in loads}
        self._why: dict[str, str] = {}
        self._misfits: dict[tuple[object, ...], tuple[Amounts, str]] = {}
        self._stuck: set[str] = set()
        self._targets = {
            pool.name: sorted((load for load in loads if load.pool is pool and load.kind == "under"), key=self._order)
            for pool in settings.pools
        }
        self._free = {pool.name: self._free_of(pool) for pool in settings.pools}

    def plan(self, detectors: Mapping[str, Detector], *, confirmed: bool) -> dict[str, Detector]:
        """Plan moves into the round.

        Args:
            detectors: as the last round left them.
            confirmed: take every hot node for hot long enough, as a dry-run from outside does.

        Returns:
            The detectors after this round.
        """
        # A cache that forgets between two rounds would never count to five; with long intervals it keeps three rounds.
        keep_s = max(self._settings.cache_timeout_s, 3 * self._base.settings.interval_s)
        detectors = update_detectors(detectors, self.loads.values(), keep_s, self._base.now)
        for pool in self._settings.pools:
            hot = (load for load in self.loads.values() if load.pool is pool and load.kind == "over")
            for load in sorted(hot, key=lambda load: (-load.mean, load.name)):
                detector, most = detectors[load.name], pool.anomaly.consecutive_abnormalities
                lasted = confirmed or detector.hot
                self._relieve(load, "" if lasted else f"over for {detector.abnormal} of {most} consecutive rounds")
        return detectors

    def states(self) -> tuple[NodeState, ...]:
        """The classification of every node, with what keeps hot ones from being relieved."""
        expired = self._base.snapshot.usage.expired
        return tuple(
            NodeState(
                node=load.name,
                pool=load.pool.name,
                kind=load.kind,
                share=load.share,
                low=load.low,
                high=load.high,
                stuck=load.name in self._stuck,
                why=self._why.get(load.name, "") if load.kind != "unknown" else _unknown(load, expired),
            )
            for load in self.loads.values()
        )

    def _expected(self, load: NodeLoad) -> dict[str, float]:
        """What will be in use on a node once all that is planned has arrived."""
        arriving = self._base.arriving.get(load.name, {})
        return {resource: amount + arriving.get(resource, 0.0) for resource, amount in load.used.items()}

    def _order(self, load: NodeLoad) -> tuple[float, str]:
        """The least loaded target first."""
        return weighted_percent(percents(self._expected(load), load.node.allocatable), load.pool.weights), load.name

    def _free_of(self, pool: Pool) -> dict[str, float]:
        """Free capacity of the pool's targets, of resources that any of them knows."""
        free: dict[str, float] = {}
        for load in self._targets[pool.name]:
            add(free, {resource: load.limit(resource) - amount for resource, amount in self._expected(load).items()})
        nowhere = self._base.arriving.get("", {})
        return {resource: free[resource] - nowhere.get(resource, 0.0) for resource in RESOURCES if resource in free}

    def _relieve(self, load: NodeLoad, waits: str) -> None:
        """Plan moves off one node."""
        base, stays = self._base, Counter[str]()
        victims: list[Candidate] = []
        for pod in base.snapshot.pods.where("node", load.name).values():
            if not pod.is_active or not pod.running:
                continue
            candidate = Candidate(pod, "LowNodeLoad", proxy(self), usage_of(pod, base.snapshot, load.used), load, waits)
            refusal = check(base, candidate, REASON_CONDITIONS)
            if refusal is not None:
                self._why[load.name] = refusal.why
                return
            refusal = check(base, candidate, POD_CONDITIONS)
            if refusal is None:
                victims.append(candidate)
            else:
                stays[refusal.condition.name] += 1
        used = dict(load.used)
        while exceeded := above(percents(used, load.node.allocatable), load.high):
            victim = next_victim(victims, load, used, exceeded)
            if victim is None:
                self._set_stuck(load, _describe_nobody(stays))
                return
            victims.remove(victim)
            refusal = check(base, victim, MOVE_CONDITIONS)
            if refusal is None:
                used = self._add(victim, load, used, exceeded)
            elif refusal.condition.scope == "pod":
                stays[refusal.condition.name] += 1
            else:
                self._set_stuck(load, refusal.why)
                return

    def _set_stuck(self, load: NodeLoad, why: str) -> None:
        self._why[load.name] = why
        self._stuck.add(load.name)

    def free_capacity(self, candidate: Candidate) -> str:
        """See `MoveStrategy`."""
        assert candidate.load is not None
        pool, least = candidate.load.pool.name, self._settings.args.number_of_nodes
        count = len(self._targets[pool])
        if count <= least:
            nodes = "node has" if count == 1 else "nodes have"
            text = f"pool {pool}: {count} {nodes} low load, and numberOfNodes asks for more than {least}"
            self._base.note(text)
            return text
        empty = sorted(resource for resource, free in self._free[pool].items() if free <= 0)
        return f"nodes with low load can take no more {', '.join(empty)}" if empty else ""

    def set_target_or_refusal(self, candidate: Candidate) -> str:
        """See `MoveStrategy`: the least loaded node that fits by everything the scheduler would check and by usage."""
        assert candidate.load is not None
        pod, pool, fit = candidate.pod, candidate.load.pool, self._base.fit
        if not self._settings.args.node_fit:
            free = self._free[pool.name]
            short = [r for r in pool.high if candidate.used.get(r, 0) > free.get(r, 0)]
            return f"it uses more {', '.join(short)} than nodes with low load can take" if short else ""
        # What the round plans only takes room: pods like one that fits nowhere, and that use as much, fit nowhere either.
        alike = pool.name, pod.constraints, pod.claims, tuple(pod.asks.items())
        used, why = self._misfits.get(alike, ({}, ""))
        if why and all(candidate.used.get(resource, 0.0) >= amount for resource, amount in used.items()):
            return why
        reasons: Counter[str] = Counter()
        for load in self._targets[pool.name]:
            arriving = self._base.arriving.get(load.name, {})
            why = fit.static_refusal(load.node, pod) or load.overload(candidate.used, arriving)
            why = why or fit.dynamic_refusal(load.node, pod)
            if not why:
                candidate.target = load.name
                return ""
            reasons[why] += 1
        why = describe_misfits(reasons)
        if not pod.claims and not reasons.keys() & OTHER_PODS:
            self._misfits[alike] = candidate.used, why
        return why

    def objection(self, candidate: Candidate, node: Host) -> str:
        """See `MoveStrategy`."""
        load = self.loads.get(node.name)
        if load is None or load.kind == "unknown":
            return "its load is not known"
        return load.overload(candidate.used, self._base.arriving.get(node.name, {}))

    def _add(self, candidate: Candidate, load: NodeLoad, used: Amounts, exceeded: Sequence[str]) -> dict[str, float]:
        """Plan a move; what is in use on its node after it."""
        pod, allocatable = candidate.pod, load.node.allocatable
        after = {resource: max(0.0, amount - candidate.used.get(resource, 0.0)) for resource, amount in used.items()}
        node_before, relief = percents(used, allocatable), percents(candidate.used, allocatable)
        move = Move(
            pod=pod.key,
            uid=pod.uid,
            workload=workload_of(pod),
            node=load.name,
            target=candidate.target,
            strategy="LowNodeLoad",
            reason=describe_overload(node_before, load.high, exceeded),
            used=candidate.used,
            node_before=node_before,
            node_after=percents(after, allocatable),
            group=self._base.snapshot.group_of(pod),
        )
        pending = PendingMove(
            move,
            self._base.now,
            usage_percent_before={r: load.share[r] for r in load.exceeded},
            expected_relief_percent={r: relief.get(r, 0.0) for r in load.exceeded},
            exceeded_thresholds={r: load.high[r] for r in load.exceeded},
        )
        self._base.add(candidate, pending)
        self._reserve(candidate, self._free[load.pool.name])
        return after

    def _reserve(self, candidate: Candidate, free: dict[str, float]) -> None:
        """Deduct usage that will arrive."""
        target = self.loads.get(candidate.target)
        gone = candidate.used if target is None else {r: a for r, a in candidate.used.items() if r in target.used}
        add(free, {resource: amount for resource, amount in gone.items() if resource in free}, -1)
        if target is not None:
            targets = self._targets[target.pool.name]
            targets.remove(target)
            insort(targets, target, key=self._order)


def next_victim(
    victims: Iterable[Candidate], load: NodeLoad, used: Amounts, exceeded: Iterable[str]
) -> Candidate | None:
    """The best victim for what is still exceeded.

    In order: lower priority; lower QoS class; lower eviction cost; those whose move alone suffices, the one that uses least
    first, so that no more is moved than needed; then those that use more; then younger ones; then by name.

    Args:
        victims: pods that may go.
        load: of the hot node.
        used: what is in use on it, after the moves planned so far.
        exceeded: resources still above their threshold.
    """
    weights = {r: load.pool.weights.get(r, 1) for r in exceeded}
    surplus = {r: used[r] - load.limit(r) for r in weights}

    def rank(victim: Candidate) -> tuple[object, ...]:
        pod, uses = victim.pod, victim.used
        share = sum(weight * uses.get(r, 0.0) / load.node.allocatable[r] for r, weight in weights.items())
        suffices = all(uses.get(r, 0.0) >= surplus[r] for r in weights)
        by_use = share if suffices else -share
        return (pod.priority, pod.qos, pod.cost, not suffices, by_use, -pod.created_s, pod.key)

    worth = (v for v in victims if any(v.used.get(r, 0.0) >= LEAST_RELIEF * surplus[r] for r in weights))
    return min(worth, key=rank, default=None)


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
        # Keep the taint while usage is unknown.
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
    missing = [r for r in load.high if r not in load.share]
    return f"no usage of {', '.join(missing)}" if missing else "no usage"
