"""The honest dry-run: reads the cluster once and decides by the very function that the live loop decides by.

What it cannot see from outside is for how long nodes have been hot: it takes them for hot long enough, and says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GroupPod, Target
from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES, SERVICES, AppGroup, NetworkTopology
from controller.cluster.services import Service
from controller.cluster.volumes import (
    CLAIMS,
    CLASSES,
    VOLUMES,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    Volumes,
)
from controller.descheduler.conditions import CONDITIONS
from controller.descheduler.config import DeschedulerConfig
from controller.descheduler.decide import RoundDecision, RoundState, confirm, evaluate, questions
from controller.descheduler.decision import Answer, RoundPlan
from controller.descheduler.history import History, HistoryStore
from controller.descheduler.snapshot import BUDGETS, Budget, World
from controller.descheduler.sources import UsageReader, UsageSource
from controller.descheduler.usage import UsageSmoother
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import plan_group, without
from controller.scheduler.state import State
from controller.traffic.prices import PriceTable
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import NAMESPACES, NODES, PODS, Node, Object, Resource

T = TypeVar("T", bound=Object)


class ConditionState(Answer, frozen=True):
    """A condition of a move, and how many pods it keeps; see `controller.descheduler.conditions`."""

    name: str
    requires: str
    keeps: int


class Preview(Answer, frozen=True):
    """What `kubectl netaware deschedule --dry-run` prints.

    Attributes:
        plan: see `RoundPlan`.
        conditions: all of them, in the order in which they are asked.
        faults: usage that could not be read.
        refused: usage readings that were not believed, by reason.
        notes: what could not be seen, and what that means for the plan.
    """

    plan: RoundPlan
    conditions: tuple[ConditionState, ...] = ()
    faults: tuple[str, ...] = ()
    refused: dict[str, int] = {}
    notes: tuple[str, ...] = ()


async def preview(
    client: Client,
    config: DeschedulerConfig,
    *,
    namespace: str,
    scheduler: SchedulerConfig | None = None,
    prices: PriceTable | None = None,
    source: UsageSource | None = None,
    now: float | None = None,
) -> Preview:
    """Decide one round without evicting anybody.

    Args:
        client: needs to list nodes, pods, disruption budgets and usage; AppGroups, NetworkTopologies and the history ConfigMap
            where they may be read.
        config: the section of the controller's configuration, or one around a policy file.
        namespace: netaware's.
        scheduler: the scheduler's section.
        prices: of bytes between zones, for groups whose plans weigh money.
        source: of usage; by default what the configuration names.
        now: unix seconds, by default the clock's.

    Raises:
        ConfigError: the configuration makes no sense.
        KubekitError: nodes, pods or disruption budgets cannot be read.
    """
    settings = config.compiled()
    notes: list[str] = []
    reader = source or UsageReader(config.usage, client)
    nodes, pods, budgets = await asyncio.gather(
        client.list(NODES, Node), client.list(PODS, GroupPod), client.list(BUDGETS, Budget)
    )
    groups, namespaces, topologies, services, history, batch = await asyncio.gather(
        _optional(client, APPGROUPS, AppGroup, notes),
        _optional(client, NAMESPACES, Object, notes),
        _optional(client, NETWORK_TOPOLOGIES, NetworkTopology, notes),
        _optional(client, SERVICES, Service, notes),
        _history(client, namespace, notes),
        reader.read(),
    )
    volumes, claims, classes = await asyncio.gather(
        _optional(client, VOLUMES, PersistentVolume, notes),
        _optional(client, CLAIMS, PersistentVolumeClaim, notes),
        _optional(client, CLASSES, StorageClass, notes),
    )
    moment = time.time() if now is None else now
    reached = Volumes.among(volumes, claims, classes)
    world = World(State(scheduler or SchedulerConfig(), namespace), reached)
    world.take_lists(
        nodes,
        map(PodReader().read, pods),
        budgets,
        namespaces=namespaces,
        services=services,
        groups=groups,
        topologies=topologies,
    )
    usage = UsageSmoother(0, settings.expiry_s)
    found = evaluate(world, usage, batch, history, RoundState(), settings=settings, now=moment, confirmed=True)
    asked = questions(found.snapshot, found.unconfirmed.decision.plan.moves)
    planner = _Planner(world, reached, prices, found.unconfirmed.decision)
    plan = (await confirm(found.unconfirmed, asked, found.history, planner.simulate_replacement)).decision.plan
    notes.append("hot nodes and misplaced pods are taken for lasting; the live loop waits until they have lasted")
    counts = {str(reason): count for reason, count in sorted(found.refused.items())}
    return Preview(plan, states_of(plan), batch.faults, counts, tuple(notes))


def states_of(plan: RoundPlan) -> tuple[ConditionState, ...]:
    """Every condition, in order, with the pods that it keeps."""
    return tuple(ConditionState(c.name, c.requires, plan.skipped.get(c.name, 0)) for c in CONDITIONS)


class _Planner:
    """The planner of the controller, over what was listed: promises to other groups and replicas to come are not known here."""

    def __init__(self, world: World, volumes: Volumes, prices: PriceTable | None, decision: RoundDecision) -> None:
        self._pods = [pod.wire for pod in world.pods.values() if pod.wire is not None]
        node_cache = NodeCache()
        node_cache.hosts = world.nodes
        for key, pod in world.pods.items():
            node_cache.take_pod(key, None, pod)
        node_cache.set_hot_nodes(frozenset(state.node for state in decision.plan.nodes if state.kind == "over"))
        self._inputs = PlanInputs(world.network, node_cache, volumes, prices)

    async def simulate_replacement(self, group: str, key: str, turn: int) -> Target | None:
        """Where a plan would put a bound pod of a group, were it gone."""
        group_of = self._inputs.state.group_of
        pods = [pod for pod in self._pods if group_of(pod.metadata.namespace, pod.group) == group]
        question = without(self._inputs.snapshot(group, pods), key)
        plan = await asyncio.to_thread(plan_group, msgspec.structs.replace(question, turn=turn))
        return plan.targets.get(key)


async def _optional(client: Client, resource: Resource, type_: type[T], notes: list[str]) -> Sequence[T]:
    try:
        return await client.list(resource, type_)
    except ApiError as error:
        if not (error.forbidden or error.not_found):
            raise
        notes.append(
            f"{resource.plural} cannot be read, so network misplacement is not looked at as the controller does"
        )
        return ()


async def _history(client: Client, namespace: str, notes: list[str]) -> History:
    try:
        return await HistoryStore(client, namespace).load()
    except ApiError as error:
        if not error.forbidden:
            raise
        notes.append("the descheduler's history cannot be read, so back-off and the hourly budget are not counted")
        return History()
