"""A plan that was made, and whether it still holds.

Pods are bound one after the other, and most bindings are as planned: planning anew for each of them would cost a plan per pod, and
would let targets wander for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.cluster.costs import CostTable
from controller.cluster.graph import Graph
from controller.cluster.hosts import Fleet
from controller.cluster.pods import GroupPod, NodeSelector, Target, target_of
from controller.cluster.requests import Amounts, add, lacking
from controller.scheduler.foreign import ForeignPods
from controller.scheduler.planner import GroupSnapshot, Plan
from controller.scheduler.reservations import ReservationCache

UNPLACED_FOR_S = 5.0
"""A plan that left pods out is made anew after this time, if room was freed since."""


class CachedPlan(msgspec.Struct, frozen=True):
    """A plan with what it was made for.

    Attributes:
        plan: the plan.
        graph: of the group.
        costs: the weight that was in use.
        fleet_version: of the hosts.
        freed: `ReservationCache.freed` at that time.
        members: keys of the pods that were there and that nobody else holds back.
        replicas: declared ones.
        volumes: what the pods' volumes demanded.
        foreign: pods of others that a rule which must hold counts.
        made_at: when, on the planner's clock.
        took_s: how long it took.
    """

    plan: Plan
    graph: Graph
    costs: CostTable
    fleet_version: int
    freed: int
    members: frozenset[str]
    replicas: Mapping[str, int]
    volumes: Mapping[str, tuple[NodeSelector, ...]]
    foreign: tuple[ForeignPods, ...]
    made_at: float
    took_s: float

    @classmethod
    def of(
        cls, snapshot: GroupSnapshot, fleet_version: int, freed: int, plan: Plan, *, made_at: float, took_s: float
    ) -> CachedPlan:
        """Remember what a plan was made for."""
        return cls(
            plan,
            snapshot.graph,
            snapshot.costs,
            fleet_version,
            freed,
            members_of(snapshot.pods),
            dict(snapshot.replicas),
            snapshot.volumes,
            _required(snapshot.foreign),
            made_at,
            took_s,
        )

    def fits(
        self,
        graph: Graph,
        costs: CostTable,
        fleet_version: int,
        pods: Sequence[GroupPod],
        *,
        replicas: Mapping[str, int],
        volumes: Mapping[str, tuple[NodeSelector, ...]],
        foreign: Sequence[ForeignPods] = (),
    ) -> bool:
        """Whether a new plan would be made for the same group, costs, hosts and pods."""
        return (
            self.graph == graph
            and self.costs is costs
            and self.fleet_version == fleet_version
            and self.members == members_of(pods)
            and self.replicas == replicas
            and self.volumes == volumes
            and self.foreign == _required(foreign)
        )


def _required(foreign: Iterable[ForeignPods]) -> tuple[ForeignPods, ...]:
    return tuple(others for others in foreign if others.required)


def members_of(pods: Sequence[GroupPod]) -> frozenset[str]:
    """Keys of the pods that a plan is for: those behind another gate are planned around until that opens."""
    return frozenset(p.metadata.key for p in pods if not p.over and not (p.waiting and p.other_gates))


class PlanVerdict(msgspec.Struct, frozen=True):
    """How a plan fares.

    Attributes:
        uncounted: pods that their hosts do not count yet, each with its host: planned, or bound a moment ago.
        followed: every pod that was bound or released since is where the plan has it, and none was refused its host.
        has_room: the hosts have room for the rest, beside what other groups were promised.
    """

    uncounted: Sequence[tuple[GroupPod, str]]
    followed: bool
    has_room: bool


def judge(plan: Plan, group: str, pods: Sequence[GroupPod], fleet: Fleet, assumed: ReservationCache) -> PlanVerdict:
    """Hold a plan against the cluster.

    Args:
        plan: of the group.
        group: its key.
        pods: its pods.
        fleet: the hosts and what bound pods use of them.
        assumed: promises and refusals.
    """
    uncounted, followed = hold_against(plan, pods, fleet, assumed)
    return PlanVerdict(uncounted, followed, _has_room(group, uncounted, fleet, assumed))


def hold_against(
    plan: Plan, pods: Sequence[GroupPod], fleet: Fleet, assumed: ReservationCache
) -> tuple[list[tuple[GroupPod, str]], bool]:
    """The first two of `PlanVerdict`. Whether there is room takes longer, and whoever has just planned need not ask."""
    uncounted: list[tuple[GroupPod, str]] = []
    followed = True
    refused = assumed.refused(pods)
    for pod in pods:
        if pod.over:
            continue
        key = pod.metadata.key
        target, seat = plan.targets.get(key), fleet.seat_of(key)
        node = pod.spec.node_name or seat
        if target is not None:
            # A gated pod that nobody refused is where the plan has it: most of a large group, most of the time.
            carried = carried_target(pod) if not pod.gated else None
            astray = (node and node != target.node) or (carried is not None and carried.node != target.node)
            followed &= not astray and not (refused and target.node in refused.get(key, ()))
        if not seat and (node or target is not None):
            uncounted.append((pod, node or (target.node if target is not None else "")))
    return uncounted, followed


def _has_room(group: str, uncounted: Sequence[tuple[GroupPod, str]], fleet: Fleet, assumed: ReservationCache) -> bool:
    by_node: dict[str, Amounts] = {}
    for pod, node in uncounted:
        add(by_node.setdefault(node, {}), assumed.asks_of(pod))
    return all(_fits(node, wanted, group, fleet, assumed) for node, wanted in by_node.items())


def carried_target(pod: GroupPod) -> Target | None:
    """The target of a pod that the scheduler has in hand; one that it found no node for is not among these."""
    if not pod.waiting or pod.gated or pod.found_no_node:
        return None
    return target_of(pod)


def _fits(node: str, wanted: Amounts, group: str, fleet: Fleet, assumed: ReservationCache) -> bool:
    host = fleet.hosts.get(node)
    if host is None:
        return False
    return not lacking(wanted, host.allocatable, fleet.used.get(node, {}), assumed.others_on(group, node))
