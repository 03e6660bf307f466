"""A group's plan, and whether it is still valid.

Pods are bound one after the other, and most bindings are as planned: planning again for each of them would cost a plan per pod, and
would let targets wander for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from controller.cluster.costs import CostTable
from controller.cluster.graph import Graph
from controller.cluster.pods import GroupPod, NodeSelector, carried_target
from controller.cluster.requests import Amounts, add
from controller.scheduler.gating.reservations import ReservationCache
from controller.scheduler.placement.foreign import ForeignPods
from controller.scheduler.placement.planner import GroupSnapshot, Plan

UNPLACED_FOR_S = 5.0
"""A plan with unplaced pods is made again after this time, if resources were freed since."""


class CachedPlan(msgspec.Struct, frozen=True):
    """A plan with its inputs.

    Attributes:
        plan: the plan.
        graph: of the group.
        costs: the weight that was in use.
        nodes_version: of the hosts.
        freed: `ReservationCache.freed` at that time.
        members: keys of the pods that were there and that nobody else holds back.
        replicas: declared ones.
        volumes: what the pods' volumes demanded.
        foreign: pods of others that a rule which must hold counts.
        made_at: when, on the planner's clock.
        took_s: how long it took.
        evicts_below: pods of less priority are evicted for it; None where it found room without.
    """

    plan: Plan
    graph: Graph
    costs: CostTable
    nodes_version: int
    freed: int
    members: frozenset[str]
    replicas: Mapping[str, int]
    volumes: Mapping[str, tuple[NodeSelector, ...]]
    foreign: tuple[ForeignPods, ...]
    made_at: float
    took_s: float
    evicts_below: int | None

    @classmethod
    def of(
        cls,
        snapshot: GroupSnapshot,
        nodes_version: int,
        freed: int,
        plan: Plan,
        *,
        made_at: float,
        took_s: float,
        evicts_below: int | None = None,
    ) -> CachedPlan:
        """Record the inputs of a plan."""
        return cls(
            plan,
            snapshot.graph,
            snapshot.costs,
            nodes_version,
            freed,
            members_of(snapshot.pods),
            dict(snapshot.replicas),
            snapshot.volumes,
            _required(snapshot.foreign),
            made_at,
            took_s,
            evicts_below,
        )

    def fits(
        self,
        graph: Graph,
        costs: CostTable,
        nodes_version: int,
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
            and self.nodes_version == nodes_version
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


class ComingRoom(msgspec.Struct, frozen=True):
    """Requests that hosts will lose once a group's pods have come: node -> requests.

    Attributes:
        leaving: of the group's pods that a rollout is about to replace.
        evictable: of pods that the scheduler may evict for the group's.
    """

    leaving: Mapping[str, Amounts] = {}
    evictable: Mapping[str, Amounts] = {}


class PlanCheck(msgspec.Struct, frozen=True):
    """Whether a plan is still valid.

    Attributes:
        uncounted: pods that their hosts do not count yet, each with its host: planned, or bound a moment ago.
        followed: every pod that was bound or released since is where the plan has it, and none was refused its host.
        has_room: the hosts have room for the rest, beside what other groups were promised, once the pods that a rollout is about to
            replace are gone.
        crowded: gated pods whose hosts have none until then.
    """

    uncounted: Sequence[tuple[GroupPod, str]]
    followed: bool
    has_room: bool
    crowded: frozenset[str]


def check_plan(
    plan: Plan,
    group: str,
    pods: Sequence[GroupPod],
    assumed: ReservationCache,
    coming: ComingRoom,
) -> PlanCheck:
    """Hold a plan against the cluster.

    Args:
        plan: of the group.
        group: its key.
        pods: its pods.
        assumed: promises and refusals.
        coming: room that is not free yet.
    """
    uncounted, followed = hold_against(plan, pods, assumed)
    by_node: dict[str, list[GroupPod]] = {}
    for pod, node in uncounted:
        by_node.setdefault(node, []).append(pod)
    has_room, crowded = True, set[str]()
    for node, there in by_node.items():
        freed = {name: -value for name, value in coming.evictable.get(node, {}).items()}
        wanted = freed.copy()
        for pod in there:
            add(wanted, assumed.asks_of(pod))
        if not assumed.has_room(group, node, wanted, now=True):
            crowded.update(_crowded(node, there, group, assumed, freed))
        add(wanted, coming.leaving.get(node, {}), -1)
        has_room = has_room and assumed.has_room(group, node, wanted)
    return PlanCheck(uncounted, followed, has_room, frozenset(crowded))


def _crowded(
    node: str, pods: Sequence[GroupPod], group: str, assumed: ReservationCache, held: Amounts
) -> Iterator[str]:
    """Keys of gated pods that a host has no room for now. Those on their way have theirs first, then the older."""
    for pod in sorted(pods, key=lambda p: (p.gated, p.metadata.creation_timestamp or "", p.metadata.key)):
        asks = assumed.asks_of(pod)
        add(held, asks)
        if pod.gated and not assumed.has_room(group, node, held, now=True):
            add(held, asks, -1)
            yield pod.metadata.key


def hold_against(
    plan: Plan, pods: Sequence[GroupPod], assumed: ReservationCache
) -> tuple[list[tuple[GroupPod, str]], bool]:
    """The first two of `PlanCheck`. Whether there is room takes longer, and whoever has just planned need not ask."""
    uncounted: list[tuple[GroupPod, str]] = []
    followed = True
    refused = assumed.refused(pods)
    for pod in pods:
        if pod.over:
            continue
        key = pod.metadata.key
        target, assigned_node = plan.targets.get(key), assumed.node_cache.assigned_node(key)
        node = pod.spec.node_name or assigned_node
        if target is not None:
            # A gated pod that nobody refused is where the plan has it: most of a large group, most of the time.
            carried = carried_target(pod) if not pod.gated else None
            astray = (node and node != target.node) or (carried is not None and carried.node != target.node)
            followed &= not astray and not (refused and target.node in refused.get(key, ()))
        if not assigned_node and (node or target is not None):
            uncounted.append((pod, node or (target.node if target is not None else "")))
    return uncounted, followed
