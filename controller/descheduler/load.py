"""LowNodeLoad's rule: from hot nodes to nodes with room, pod by pod, until the node is cool or nothing more can be taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.requests import add
from controller.descheduler.args import LowNodeLoad, Pool
from controller.descheduler.classify import (
    Detector,
    Load,
    Victim,
    classify,
    describe_overload,
    forget_unseen,
    mark,
    miss,
    next_victim,
    usage_of,
    victim_refusal,
)
from controller.descheduler.decision import Move, NodeState
from controller.descheduler.fit import TargetNode, TargetPool
from controller.descheduler.foresight import Landing
from controller.descheduler.memory import Followed, mark_of
from controller.descheduler.round import Round, workload_of
from controller.descheduler.usage import above, percents
from netperf.contract import HOT_TAINT

UNRESERVED_WEIGHT = 2
"""What an eviction without nodeFit costs of the hourly budget: on a stock cluster nothing is reserved for the pod."""
MOST_LOOKS = 500
"""Pods that a round asks for where kube-scheduler would put them, before the other hot nodes wait for their turn. One takes 2 ms on 5,000
nodes, of a processor that the leader's other work shares with the round."""


class LoadRound:
    """One round of LowNodeLoad.

    Attributes:
        loads: every node of every pool, judged.
        free_before: what targets could take before anything was planned, by pool.
    """

    def __init__(self, base: Round, load: LowNodeLoad) -> None:
        self._base, self._load = base, load
        self.loads = classify(load, base.snapshot.nodes.values(), base.snapshot.usage.nodes)
        self._weight = 1 if load.node_fit else UNRESERVED_WEIGHT
        self._why: dict[str, str] = {}
        self._stuck: set[str] = set()
        self._stopped: dict[str, str] = {}
        self._cooling = base.cooling
        self._looks = 0
        self._by_node = {load.node.name: load for load in self.loads}
        self._promised = self._underway()
        self._rooms: dict[str, TargetPool] = {pool.name: self._room(pool) for pool in load.pools}
        self.free_before = {name: room.free() for name, room in self._rooms.items()}

    @property
    def free_after(self) -> dict[str, dict[str, float]]:
        """What targets can take now, by pool."""
        return {name: room.free() for name, room in self._rooms.items()}

    def plan(self, detectors: Mapping[str, Detector], *, confirmed: bool) -> dict[str, Detector]:
        """Plan moves into the round.

        Args:
            detectors: as the last round left them.
            confirmed: take every hot node for hot long enough, as a dry-run from outside does.

        Returns:
            The detectors after this round.
        """
        if self._load.paused:
            self._base.note("LowNodeLoad is paused")
            return dict(detectors)
        marked = self._mark(detectors)
        if self._base.settings.taint_hot_nodes:
            self._base.foresight.shun(shunned_by(self.states(), marked, self._base.snapshot.nodes))
        for pool in self._load.pools:
            loads = [load for load in self.loads if load.pool is pool]
            hot = [load for load in loads if load.kind == "over"]
            sources = [load for load in hot if self._is_source(load, marked, confirmed=confirmed)]
            if sources and self._is_trusted(pool, sources) and self._may_start(pool, sources):
                for source in self._in_turn(sources):
                    if self._looks >= MOST_LOOKS:
                        self._why[source.node.name] = f"its turn comes: {MOST_LOOKS} pods were looked at in this round"
                        continue
                    self._why[source.node.name] = self._relieve(source)
                    if self._why[source.node.name]:
                        self._stuck.add(source.node.name)
        return marked

    def _in_turn(self, sources: Iterable[Load]) -> list[Load]:
        """The hottest first; where one round cannot look at all, each round begins where the one before will have ended."""
        order = sorted(sources, key=lambda load: (-load.load, load.node.name))
        pods = sum(len(self._base.snapshot.pods.on_node(load.node.name)) for load in order)
        if pods <= MOST_LOOKS:
            return order
        number = int(self._base.now // self._base.settings.interval_s)
        at = number * max(1, len(order) * MOST_LOOKS // pods) % len(order)
        return order[at:] + order[:at]

    def states(self) -> tuple[NodeState, ...]:
        """How every node was judged, and what keeps hot ones from being relieved."""
        expired = self._base.snapshot.usage.expired
        return tuple(
            NodeState(
                load.node.name,
                load.pool.name,
                load.kind,
                load.share,
                load.thresholds.low,
                load.thresholds.high,
                load.node.name in self._stuck,
                self._why.get(load.node.name, "") if load.kind != "unknown" else _unknown(load, expired),
                self._stopped.get(load.node.name, ""),
            )
            for load in self.loads
        )

    def _room(self, pool: Pool) -> TargetPool:
        members = {load.node.name for load in self.loads if load.pool is pool}
        targets = [load for load in self.loads if load.pool is pool and load.kind == "under"]
        names = {load.node.name for load in targets}
        waiting = [m for m in self._base.memory.follows if not m.landed]
        nowhere = [m.used for m in waiting if m.node in members and m.target not in names]
        room = TargetPool(targets, self._base.fit, nowhere)
        for name, used in self._promised.items():
            room.expect(name, used)
        return room

    def _mark(self, detectors: Mapping[str, Detector]) -> dict[str, Detector]:
        now = self._base.now
        # A cache that forgets between two rounds would never count to five; with long intervals it keeps three rounds.
        keep_s = max(self._load.cache_timeout_s, 3 * self._base.settings.interval_s)
        found = forget_unseen(detectors, keep_s, now)
        for load in self.loads:
            if load.kind != "unknown":
                before = found.get(load.node.name, Detector())
                over = load.kind == "over"
                found[load.node.name] = mark(before, over=over, condition=load.pool.anomaly, now=now)
            elif load.node.name in found:
                found[load.node.name] = miss(found[load.node.name])
        return {name: detector for name, detector in found.items() if name in self._base.snapshot.nodes}

    def _is_source(self, load: Load, detectors: Mapping[str, Detector], *, confirmed: bool) -> bool:
        name, condition = load.node.name, load.pool.anomaly
        detector = detectors[name]
        if not confirmed and not detector.hot:
            self._why[name] = f"over for {detector.abnormal} of {condition.abnormal} consecutive rounds"
        elif name in self._cooling:
            self._why[name] = f"waiting until {self._cooling[name]} recent moves show in its usage"
        else:
            return True
        return False

    def _is_trusted(self, pool: Pool, sources: Iterable[Load]) -> bool:
        why = self._base.trust.against_pool(pool.name)
        if why:
            self._base.note(why)
            for load in sources:
                self._hold(load, why)
                self._stopped[load.node.name] = why
        return not why

    def _hold(self, load: Load, why: str) -> None:
        self._why[load.node.name] = why
        self._stuck.add(load.node.name)

    def _may_start(self, pool: Pool, sources: Iterable[Load]) -> bool:
        low = len(self._rooms[pool.name])
        if low > self._load.number_of_nodes:
            return True
        nodes = "node has" if low == 1 else "nodes have"
        text = f"pool {pool.name}: {low} {nodes} low load, and numberOfNodes asks for more than {self._load.number_of_nodes}"
        self._base.note(text)
        for load in sources:
            self._hold(load, text)
        return False

    def _relieve(self, source: Load) -> str:
        """Plan moves off one node; returns why it is still hot after them, empty when it is not."""
        base, room = self._base, self._rooms[source.pool.name]
        used = dict(source.used)
        victims, stays = self._victims(source)
        while exceeded := above(percents(used, source.node.allocatable), source.thresholds.high):
            why = self._stop(source, room)
            if why:
                return why
            least = base.settings.limits.least_relief_percent / 100.0
            victim = next_victim(victims, source, used, exceeded, least_relief=least)
            if victim is None:
                return _nobody(stays)
            victims.remove(victim)
            admitted, target = self._admit(victim, source, room, stays)
            if not admitted:
                continue
            outlook = self._look_ahead(victim, source)
            if outlook is not None:
                if outlook.gain < base.settings.limits.least_chance_percent / 100.0:
                    stays["scheduler"] += 1
                    base.skip(victim.pod, "scheduler", outlook.describe())
                    continue
                target = room.target(outlook.expected[0]) or TargetNode(self._by_node[outlook.expected[0]])
            move, after = _move(victim, source, used, exceeded, target, group=base.snapshot.group_of(victim.pod))
            follow = _follow(victim, move, source, base.now, self._weight)
            if outlook is not None:
                marks = tuple(mark_of(name) for name in outlook.expected)
                follow = msgspec.structs.replace(follow, expected=marks)
            base.take(victim.pod, move, follow, () if outlook is None else outlook.expected)
            room.book(victim.used, target)
            used = after
        return ""

    def _look_ahead(self, victim: Victim, source: Load) -> Landing | None:
        """Where kube-scheduler would put the replacement; None where that cannot be told, or is not asked."""
        base = self._base
        if not base.settings.limits.least_chance_percent or not base.foresight.knows(victim.pod):
            return None
        self._looks += 1
        return base.foresight.of(victim.pod, lambda host: self.loss(host.name, victim.used, source))

    def loss_of(self, move: Move, node: str) -> str:
        """The same of a planned move that is expected nowhere, were it to a node."""
        source = self._by_node.get(move.node)
        return self.loss(node, move.used, source) if source is not None else ""

    def redirected(self, move: Move, node: str) -> Move:
        """The move, told as one to this node."""
        load = self._by_node.get(node)
        if load is None:
            return msgspec.structs.replace(move, target=node, target_before={}, target_after={})
        arriving = self._base.arriving.get(node, {})
        before = {r: amount + arriving.get(r, 0.0) for r, amount in load.used.items()}
        after = {r: amount + move.used.get(r, 0.0) for r, amount in before.items()}
        shares = (percents(used, load.node.allocatable) for used in (before, after))
        return msgspec.structs.replace(move, target=node, target_before=next(shares), target_after=next(shares))

    def loss(self, name: str, used: Mapping[str, float], source: Load) -> str:
        """Why it would be no gain if a pod went from a hot node to this one; empty when it would be one.

        Args:
            name: of the node.
            used: what the pod uses; nothing of it is booked to arrive anywhere.
            source: where it is.
        """
        if name == source.node.name:
            return "it would come back"
        load = self._by_node.get(name)
        if load is None or load.kind == "unknown":
            return "its load is not known"
        if load.node.closing:
            return "it is about to be removed"
        total = {r: amount + used.get(r, 0.0) for r, amount in load.used.items()}
        for more in (self._promised.get(name, {}), self._base.arriving.get(name, {})):
            total = {r: amount + more.get(r, 0.0) for r, amount in total.items()}
        share = percents(total, load.node.allocatable)
        margin = self._base.settings.limits.margin_percent
        for resource in share:
            if used.get(resource, 0.0) > 0 and share[resource] > load.thresholds.high[resource]:
                return f"its {resource} usage would be {share[resource]:.0f} %"
            if resource in source.exceeded and share[resource] > source.share[resource] - margin:
                return f"its {resource} usage would be {share[resource]:.0f} %, not {margin:g} less than here"
        return ""

    def _underway(self) -> dict[str, dict[str, float]]:
        """Node -> usage that recent moves take there and that its own usage does not show yet."""
        settle_s, now = self._base.settings.limits.settle_s, self._base.now
        found: dict[str, dict[str, float]] = {}
        for move in self._base.memory.follows:
            if not move.landed or now - move.landed_s < settle_s:
                add(found.setdefault(move.landed or move.target, {}), move.used)
        return found

    def _stop(self, source: Load, room: TargetPool) -> str:
        why = self._base.exhausted(self._weight)
        if why:
            self._base.note(why)
            return why
        why = self._base.limits.node_full(source.node.name)
        if why:
            return why
        empty = sorted(resource for resource, free in room.free().items() if free <= 0)
        return f"nodes with low load can take no more {', '.join(empty)}" if empty else ""

    def _victims(self, source: Load) -> tuple[list[Victim], Counter[str]]:
        """Who may go from a node, and how many stay, by the kind of reason."""
        base, stays = self._base, Counter[str]()
        victims: list[Victim] = []
        for pod in base.snapshot.pods.on_node(source.node.name).values():
            if pod.going or not pod.running:
                continue
            used = usage_of(pod, base.snapshot, source.used)
            kind, why = victim_refusal(pod, source, self._load, base.settings.protection, used)
            if kind:
                stays[kind] += 1
                base.skip(pod, kind, why)
            else:
                victims.append(Victim(pod, used))
        return victims, stays

    def _admit(
        self, victim: Victim, source: Load, room: TargetPool, stays: Counter[str]
    ) -> tuple[bool, TargetNode | None]:
        """Whether the pod goes, and to which target (None when nodeFit is off); a pod that stays is noted."""
        base, pod = self._base, victim.pod
        kind = base.refuses(pod)
        if kind:
            stays[kind] += 1
            against = base.trust.against_workload(workload_of(pod))
            if against:
                self._stopped.setdefault(source.node.name, against)
            return False, None
        target: TargetNode | None = None
        if self._load.node_fit:
            target, why = room.find(pod, victim.used)
            kind = "no-fit"
        else:
            free = room.free()
            short = [r for r in source.pool.high if victim.used.get(r, 0) > free.get(r, 0)]
            kind, why = "no-room", f"more {', '.join(short)} than nodes with low load can take" if short else ""
        if why:
            stays[kind] += 1
            base.skip(pod, kind, why)
        return not why, target


def shunned_by(
    states: Iterable[NodeState], detectors: Mapping[str, Detector], nodes: Mapping[str, Host]
) -> frozenset[str]:
    """Nodes that are to carry the taint: hot ones, and those more than half way there, until they have low load again.

    A node just below its threshold is no better a place: whatever lands there makes it hot.
    """

    def has_it(name: str) -> bool:
        return name in nodes and any(taint.key == HOT_TAINT for taint in nodes[name].prefer_no_schedule_taints)

    def above(state: NodeState, part: float) -> bool:
        return any(
            share > state.low[resource] + part * (state.high[resource] - state.low[resource])
            for resource, share in state.share.items()
        )

    return frozenset(
        state.node
        for state in states
        if (state.node in detectors and detectors[state.node].hot)
        or above(state, 0.5)
        # What is not known is no reason to let pods come.
        or (has_it(state.node) and (state.kind == "unknown" or above(state, 0.0)))
    )


def _move(
    victim: Victim,
    source: Load,
    used: Mapping[str, float],
    exceeded: Sequence[str],
    target: TargetNode | None,
    *,
    group: str,
) -> tuple[Move, dict[str, float]]:
    node = source.node
    after = {resource: max(0.0, amount - victim.used.get(resource, 0.0)) for resource, amount in used.items()}
    before_share = percents(used, node.allocatable)
    target_before: dict[str, float] = {}
    target_after: dict[str, float] = {}
    name = ""
    if target is not None:
        name, allocatable = target.name, target.load.node.allocatable
        arrived = {r: amount + victim.used.get(r, 0.0) for r, amount in target.used.items()}
        target_before, target_after = percents(target.used, allocatable), percents(arrived, allocatable)
    move = Move(
        pod=victim.pod.key,
        uid=victim.pod.uid,
        workload=workload_of(victim.pod),
        node=node.name,
        target=name,
        strategy="LowNodeLoad",
        reason=describe_overload(before_share, source.thresholds.high, exceeded),
        used=victim.used,
        node_before=before_share,
        node_after=percents(after, node.allocatable),
        target_before=target_before,
        target_after=target_after,
        group=group,
    )
    return move, after


def _follow(victim: Victim, move: Move, source: Load, now: float, weight: int) -> Followed:
    relief = percents(victim.used, source.node.allocatable)
    return Followed(
        pod=move.pod,
        uid=move.uid,
        workload=move.workload,
        node=move.node,
        at_s=now,
        target=move.target,
        group=move.group,
        used=dict(victim.used),
        share_before={r: source.share[r] for r in source.exceeded},
        relief={r: relief.get(r, 0.0) for r in source.exceeded},
        high={r: source.thresholds.high[r] for r in source.exceeded},
        pool=source.pool.name,
        weight=weight,
    )


def _nobody(stays: Mapping[str, int]) -> str:
    if not stays:
        return "no pod runs on it"
    parts = ", ".join(f"{count} {kind}" for kind, count in sorted(stays.items(), key=lambda e: (-e[1], e[0])))
    return f"no further pod can go: {parts}"


def _unknown(load: Load, expired: Iterable[str]) -> str:
    missing = [r for r in load.thresholds.high if r not in load.share]
    if load.node.name in expired:
        return "its usage is older than nodeMetricExpirationSeconds"
    return f"no usage of {', '.join(missing)}" if missing else "no usage"
