"""The honest dry-run: reads the cluster once and decides by the very function that the live loop decides by.

What it cannot see from outside is for how long nodes have been hot: it takes them for hot long enough, and says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TypeVar

from controller.descheduler.config import DeschedulerConfig
from controller.descheduler.decision import Answer, Plan, Watched
from controller.descheduler.followup import follow
from controller.descheduler.memory import Memory
from controller.descheduler.objects import BUDGETS, Budget, MovablePod
from controller.descheduler.plan import decide
from controller.descheduler.sources import UsageSource, source_of
from controller.descheduler.store import MemoryStore
from controller.descheduler.usage import UsageBook
from controller.descheduler.world import World
from controller.resources import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.scheduler.config import SchedulerConfig
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import NODES, PODS, Node, Object, Resource

T = TypeVar("T", bound=Object)


class Preview(Answer, frozen=True):
    """What `kubectl netaware deschedule --dry-run` prints.

    Attributes:
        plan: see `Plan`.
        faults: usage that could not be read.
        refused: usage readings that were not believed, by reason.
        notes: what could not be seen, and what that means for the plan.
    """

    plan: Plan
    faults: tuple[str, ...] = ()
    refused: dict[str, int] = {}
    notes: tuple[str, ...] = ()


async def preview(
    client: Client,
    config: DeschedulerConfig,
    *,
    namespace: str,
    scheduler: SchedulerConfig | None = None,
    source: UsageSource | None = None,
    now: float | None = None,
) -> Preview:
    """Decide one round without evicting anybody.

    Args:
        client: needs to list nodes, pods, disruption budgets and usage; AppGroups, NetworkTopologies and the memory ConfigMap
            where they may be read.
        config: the section of the controller's configuration, or one around a policy file.
        namespace: netaware's.
        scheduler: the scheduler's section.
        source: of usage; by default what the configuration names.
        now: unix seconds, by default the clock's.

    Raises:
        ConfigError: the configuration makes no sense.
        KubekitError: nodes, pods or disruption budgets cannot be read.
    """
    settings = config.compiled()
    notes: list[str] = []
    reader = source or source_of(config.usage, client)
    nodes, pods, budgets = await asyncio.gather(
        client.list(NODES, Node), client.list(PODS, MovablePod), client.list(BUDGETS, Budget)
    )
    groups, topologies, memory, batch = await asyncio.gather(
        _optional(client, APPGROUPS, AppGroup, notes),
        _optional(client, NETWORK_TOPOLOGIES, NetworkTopology, notes),
        _memory(client, namespace, notes),
        reader.read(),
    )
    moment = time.time() if now is None else now
    world = World(scheduler or SchedulerConfig(), namespace)
    world.take_lists(nodes, pods, budgets, groups, topologies)
    book = UsageBook(0, settings.load.expiry_s if settings.load else 180.0)
    refused = book.fold(batch, world.nodes, world.pods.by_key, moment)
    snapshot = world.snapshot(book.view(moment))
    memory, _ = follow(snapshot, memory, settings.limits, moment)
    decision = decide(snapshot, memory, Watched(), settings, moment, confirmed=True)
    notes.append("hot nodes and misplaced pods are taken for lasting; the live loop waits until they have lasted")
    counts = {str(reason): count for reason, count in sorted(refused.items())}
    return Preview(decision.plan, batch.faults, counts, tuple(notes))


async def _optional(client: Client, resource: Resource, type_: type[T], notes: list[str]) -> Sequence[T]:
    try:
        return await client.list(resource, type_)
    except ApiError as error:
        if not (error.forbidden or error.not_found):
            raise
        notes.append(f"{resource.plural} cannot be read, so network misplacement is not looked at")
        return ()


async def _memory(client: Client, namespace: str, notes: list[str]) -> Memory:
    try:
        return await MemoryStore(client, namespace).load()
    except ApiError as error:
        if not error.forbidden:
            raise
        notes.append("the descheduler's memory cannot be read, so back-off and the hourly budget are not counted")
        return Memory()
