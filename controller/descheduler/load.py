"""LowNodeLoad's rule: from hot nodes to nodes with room, pod by pod, until the node is cool or nothing more can be taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from controller.descheduler.amounts import percents
from controller.descheduler.anomaly import Detector, forget_unseen, mark
from controller.descheduler.args import LowNodeLoad, Pool
from controller.descheduler.classify import Load, classify, describe_overload
from controller.descheduler.decision import Move, NodeState
from controller.descheduler.limits import group_key, workload_of
from controller.descheduler.memory import Followed
from controller.descheduler.room import Room, Target
from controller.descheduler.round import Round
from controller.descheduler.victims import Victim, next_victim, usage_of, victim_refusal

UNRESERVED_WEIGHT = 2
"""What an eviction without nodeFit costs of the hourly budget: on a stock cluster nothing is reserved for the pod."""


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
        self._cooling = base.cooling
        self._rooms: dict[str, Room] = {pool.name: self._room(pool) for pool in load.pools}
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
        for pool in self._load.pools:
            loads = [load for load in self.loads if load.pool is pool]
            hot = [load for load in loads if load.kind == "over"]
            sources = [load for load in hot if self._is_source(load, marked, confirmed=confirmed)]
            if sources and self._may_start(pool, sources):
                for source in sorted(sources, key=lambda load: (-load.load, load.node.name)):
                    self._why[source.node.name] = self._relieve(source)
                    if self._why[source.node.name]:
                        self._stuck.add(source.node.name)
        return marked

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
            )
            for load in self.loads
        )

    def _room(self, pool: Pool) -> Room:
        settle_s, now = self._base.settings.limits.settle_s, self._base.now
        members = {load.node.name for load in self.loads if load.pool is pool}
        underway = [m.used for m in self._base.memory.follows if m.node in members and not m.landed]
        targets = (load for load in self.loads if load.pool is pool and load.kind == "under")
        room = Room(targets, self._base.snapshot, underway)
        for move in self._base.memory.follows:
            if move.landed and now - move.landed_s < settle_s:
                room.expect(move.landed, move.used)
        return room

    def _mark(self, detectors: Mapping[str, Detector]) -> dict[str, Detector]:
        now = self._base.now
        found = forget_unseen(detectors, self._load.cache_timeout_s, now)
        for load in self.loads:
            if load.kind != "unknown":
                before = found.get(load.node.name, Detector())
                over = load.kind == "over"
                found[load.node.name] = mark(before, over=over, condition=load.pool.anomaly, now=now)
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

    def _may_start(self, pool: Pool, sources: Iterable[Load]) -> bool:
        low = len(self._rooms[pool.name])
        if low > self._load.number_of_nodes:
            return True
        nodes = "node has" if low == 1 else "nodes have"
        text = f"pool {pool.name}: {low} {nodes} low load, and numberOfNodes asks for more than {self._load.number_of_nodes}"
        self._base.note(text)
        for load in sources:
            self._why[load.node.name] = text
            self._stuck.add(load.node.name)
        return False

    def _relieve(self, source: Load) -> str:
        """Plan moves off one node; returns why it is still hot after them, empty when it is not."""
        base, room = self._base, self._rooms[source.pool.name]
        used = dict(source.used)
        victims, stays = self._victims(source)
        while exceeded := _exceeded(source, used):
            why = self._stop(source, room)
            if why:
                return why
            victim = next_victim(victims, source, used, exceeded)
            if victim is None:
                return _nobody(stays)
            victims.remove(victim)
            admitted, target = self._admit(victim, source, room, stays)
            if not admitted:
                continue
            move, after = _move(victim, source, used, exceeded, target)
            follow = _follow(victim, move, source, base.now, self._weight)
            base.take(victim.pod, move, follow)
            room.book(victim.pod, victim.used, target)
            used = after
        return ""

    def _stop(self, source: Load, room: Room) -> str:
        why = self._base.exhausted(self._weight)
        if why:
            self._base.note(why)
            return why
        if self._base.limits.node_full(source.node.name):
            return f"limit of {self._base.settings.limits.per_node} evictions per node and round"
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

    def _admit(self, victim: Victim, source: Load, room: Room, stays: Counter[str]) -> tuple[bool, Target | None]:
        """Whether the pod goes, and to which target (None when nodeFit is off); a pod that stays is noted."""
        base, pod = self._base, victim.pod
        if not base.admits(pod):
            stays[base.skips[-1].kind if base.skips else "limits"] += 1
            return False, None
        target: Target | None = None
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


def _exceeded(source: Load, used: Mapping[str, float]) -> tuple[str, ...]:
    share = percents(used, source.node.allocatable)
    return tuple(r for r, limit in source.thresholds.high.items() if share.get(r, 0.0) > limit)


def _move(
    victim: Victim, source: Load, used: Mapping[str, float], exceeded: Sequence[str], target: Target | None
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
        group=group_key(victim.pod),
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
