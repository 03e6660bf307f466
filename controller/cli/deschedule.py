"""`deschedule --dry-run`: which pods the descheduler would move, why and where to."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.plan_inputs import make_group_filter, read_inputs
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, STRONG, make_table
from controller.cluster.pods import Target
from controller.descheduler.conditions import CONDITIONS
from controller.descheduler.config import DeschedulerConfig
from controller.descheduler.decide import ReasonDurations, decide
from controller.descheduler.history import History, HistoryStore
from controller.descheduler.node_load import LoadClass
from controller.descheduler.plan import DescheduleOutput, DeschedulePlan, Move, NodeState, Skip
from controller.descheduler.snapshot import DISRUPTION_BUDGETS, PodDisruptionBudget, take_snapshot
from controller.descheduler.sources import UsageReader
from controller.descheduler.usage import UsageStore
from controller.scheduler.placement.planner import plan_group
from controller.scheduler.placement.snapshot import without_pod
from kubekit.errors import ApiError, ConfigError
from kubekit.settings import load_yaml
from kubekit.wire import PODS

MAX_SKIPS = 20
_LOAD_TEXTS: tuple[tuple[LoadClass, str], ...] = (
    ("overutilized", "hot"),
    ("normal", "normal"),
    ("underutilized", "with low load"),
    ("unknown", "of unknown load"),
)


class ConditionState(DescheduleOutput, frozen=True):
    """A condition of `controller.descheduler.conditions`, and the number of pods that stay because of it."""

    name: str
    requires: str
    keeps: int


class Preview(DescheduleOutput, frozen=True):
    """One round of descheduling.

    Attributes:
        plan: moves, nodes, and pods that stay.
        conditions: all conditions, in the order of their evaluation.
        faults: usage that could not be read.
        refused: reason -> number of usage readings that were ignored for it.
    """

    plan: DeschedulePlan
    conditions: tuple[ConditionState, ...] = ()
    faults: tuple[str, ...] = ()
    refused: dict[str, int] = {}


class DescheduleCommand(Command):
    examples = (
        ("deschedule --dry-run", "which pods would move, why and where to"),
        ("deschedule --dry-run --policy lownodeload.yaml", "with a policy to try"),
    )
    description = (
        "Decides one round of descheduling as the controller does, without evictions: deducts capacity move by move, and applies "
        "PodDisruptionBudgets, limits and back-offs. Uses the running controller's configuration, with --policy another policy. "
        "Percentages are of allocatable, before and after each move."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="required; only the controller evicts")
        parser.add_argument("--policy", metavar="FILE", help="LowNodeLoadArgs or a DeschedulerConfiguration")

    async def run(self, session: Session, options: argparse.Namespace) -> Preview:
        if not options.dry_run:
            raise ConfigError("--dry-run", "is missing", "add it; only the controller evicts")
        config = await session.read_configuration()
        section = config.descheduler
        if options.policy:
            policy = await asyncio.to_thread(load_yaml, options.policy, "--policy")
            if not isinstance(policy, dict):
                raise ConfigError("--policy", f"{options.policy} holds no mapping", "give LowNodeLoadArgs")
            section = msgspec.structs.replace(section, policy=policy)
        if session.prometheus is not None:
            section = _with_prometheus(section, session.prometheus.address)
        answer = await preview(session, section)
        for fault in answer.faults:
            session.unreadable[f"usage ({fault.partition(':')[0]})"] = fault.partition(": ")[2]
        if not section.enabled:
            session.notes.append("the descheduler is not enabled: no pod will be moved")
        session.notes.append("the controller also waits until nodes have been hot, or pods misplaced, for some time")
        return answer

    def render(self, answer: Preview, options: argparse.Namespace, width: int) -> RenderableType:
        """Moves, hot nodes, pods that stay, conditions, and the summary."""
        parts: list[RenderableType] = [
            _move_table(answer.plan.moves) if answer.plan.moves else Text("no pod would move")
        ]
        hot = [node for node in answer.plan.nodes if node.kind == "overutilized"]
        if hot:
            parts += [Text(), _hot_node_table(hot)]
        if answer.plan.skips:
            parts += [Text(), _skip_table(answer.plan.skips)]
        parts += [Text(), _condition_table(answer.conditions)]
        parts += [Text(_summary(answer), style=FAINT), *(Text(note, style=BAD) for note in answer.plan.notes)]
        return Group(*parts)


async def preview(session: Session, config: DeschedulerConfig) -> Preview:
    """Decide one round as the controller does, without evictions.

    Raises:
        ConfigError: the configuration is wrong.
        KubekitError: nodes, pods or disruption budgets cannot be read.
    """
    settings, now = config.resolve(), session.clock()
    snapshot, budgets, history, batch = await asyncio.gather(
        session.read_snapshot(groups=True),
        session.client.list(DISRUPTION_BUDGETS, PodDisruptionBudget),
        _history(session),
        UsageReader(config.usage, session.client).read(),
    )
    inputs, pods = await read_inputs(session, snapshot)
    session.require_readable(PODS)
    usage = UsageStore(settings.expiry_s)
    cluster = take_snapshot(inputs, {pod.key: pod for pod in pods}, budgets, session.netaware_namespace)
    refused = usage.update(batch, cluster.nodes, cluster.pods.by_key, now)
    cluster = dataclasses.replace(cluster, usage=usage.view(now))
    unconfirmed = decide(cluster, history, ReasonDurations(), settings, now, assume_lasting=True)
    overutilized = (state.node for state in unconfirmed.decision.plan.nodes if state.kind == "overutilized")
    inputs.node_cache.set_avoided_nodes(frozenset(overutilized))

    async def simulate_replacement(group: str, key: str, seed_offset: int) -> Target | None:
        """Plan as the controller does, but without its reservations for pods that are not bound yet."""
        is_member = make_group_filter(inputs.state, group)
        members = [pod.group_pod for pod in pods if pod.group_pod is not None and is_member(pod)]
        group_snapshot = msgspec.structs.replace(
            without_pod(inputs.snapshot(group, members), key), seed_offset=seed_offset
        )
        return (await asyncio.to_thread(plan_group, group_snapshot)).targets.get(key)

    plan = (await unconfirmed.confirm(simulate_replacement)).plan
    counts = {str(reason): count for reason, count in sorted(refused.items())}
    return Preview(plan, states_of(plan), batch.faults, counts)


def states_of(plan: DeschedulePlan) -> tuple[ConditionState, ...]:
    """All conditions in order, with the number of pods that each keeps."""
    return tuple(ConditionState(c.name, c.requires, plan.skip_counts.get(c.name, 0)) for c in CONDITIONS)


async def _history(session: Session) -> History:
    try:
        return await HistoryStore(session.client, session.netaware_namespace).load()
    except ApiError as error:
        if not error.is_forbidden:
            raise
        session.unreadable["history"] = "not allowed to read it, so back-offs and earlier evictions are not counted"
        return History()


def _with_prometheus(section: DeschedulerConfig, url: str) -> DeschedulerConfig:
    """The configuration with the user's Prometheus: the controller's may be unreachable from outside the cluster."""
    prometheus = msgspec.structs.replace(section.usage.prometheus, url=url)
    usage = msgspec.structs.replace(section.usage, prometheus=prometheus)
    return msgspec.structs.replace(section, usage=usage)


def _move_table(moves: Iterable[Move]) -> RenderableType:
    table = make_table("POD", "FROM", "TO", "NODE", "COST", "REASON")
    for move in moves:
        table.add_row(
            Text(move.pod, style=STRONG),
            move.node,
            move.target or "anywhere",
            _change(move.node_before, move.node_after),
            "-" if move.cost_before < 0 else f"{move.cost_before} → {move.cost_after}",
            move.reason,
        )
    return table


def _change(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    parts = [f"{_short_name(r)} {before[r]:.0f} → {after[r]:.0f} %" for r in before if r in after]
    return ", ".join(parts) or "-"


def _short_name(resource: str) -> str:
    return resource.rpartition("/")[2]


def _hot_node_table(nodes: Iterable[NodeState]) -> RenderableType:
    table = make_table("HOT NODE", "POOL", "USAGE", "THRESHOLD", "STATE")
    for node in nodes:
        usage = ", ".join(f"{_short_name(r)} {percent:.0f} %" for r, percent in node.usage_percent.items())
        limits = ", ".join(f"{_short_name(r)} {percent:.0f} %" for r, percent in node.high.items())
        state = Text(node.why or "relieved by the moves above", style=BAD if node.stuck else "")
        table.add_row(Text(node.node, style=STRONG), node.pool, usage, limits, state)
    return table


def _skip_table(skips: Iterable[Skip]) -> RenderableType:
    skips = tuple(skips)
    table = make_table("STAYS", "NODE", "WHY")
    for skip in skips[:MAX_SKIPS]:
        table.add_row(skip.pod, skip.node, skip.why)
    if len(skips) > MAX_SKIPS:
        more = Counter(skip.condition for skip in skips[MAX_SKIPS:])
        kinds = ", ".join(f"{count} {kind}" for kind, count in more.most_common())
        table.add_row(Text(f"and {len(skips) - MAX_SKIPS} more", style=FAINT), "", Text(kinds, style=FAINT))
    return table


def _condition_table(conditions: Iterable[ConditionState]) -> RenderableType:
    table = make_table("CONDITION", "KEEPS", "REQUIRES")
    for condition in conditions:
        table.add_row(
            condition.name, str(condition.keeps or "-"), Text(condition.requires.replace("`", ""), style=FAINT)
        )
    return table


def _summary(answer: Preview) -> str:
    kinds = Counter(node.kind for node in answer.plan.nodes)
    nodes = ", ".join(f"{kinds[kind]} {text}" for kind, text in _LOAD_TEXTS if kinds[kind])
    refused = sum(answer.refused.values())
    return f"nodes: {nodes or 'none evaluated'}" + (f"; {refused} usage readings ignored" if refused else "")
