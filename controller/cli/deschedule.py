"""`deschedule --dry-run`: which pods the descheduler would move, why and where to."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import get_args

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.plan_inputs import make_group_filter, read_inputs
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, STRONG, make_table
from controller.cluster.pods import Target
from controller.descheduler.config import DeschedulerConfig
from controller.descheduler.decide import ReasonDurations, decide
from controller.descheduler.disruption_budgets import DISRUPTION_BUDGETS, PodDisruptionBudget
from controller.descheduler.history import History, HistoryStore
from controller.descheduler.node_load import LoadClass
from controller.descheduler.plan import DescheduleOutput, DeschedulePlan, Move, NodeState
from controller.descheduler.snapshot import take_snapshot
from controller.descheduler.sources import UsageReader
from controller.descheduler.usage import UsageStore
from controller.scheduler.placement.planner import plan_group
from controller.scheduler.placement.snapshot import without_pod
from kubekit.errors import ApiError, ConfigError
from kubekit.settings import load_yaml
from kubekit.wire import PODS

MAX_SKIPS_SHOWN = 20


class RoundPreview(DescheduleOutput, frozen=True):
    """The result of one round of descheduling.

    Attributes:
        plan: moves, nodes, and pods that are not moved.
        faults: why usage could not be read, a text for each source or metric.
        dropped_readings_by_reason: reason -> number of usage readings that were dropped for it.
    """

    plan: DeschedulePlan
    faults: tuple[str, ...] = ()
    dropped_readings_by_reason: dict[str, int] = {}


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

    async def run(self, session: Session, options: argparse.Namespace) -> RoundPreview:
        if not options.dry_run:
            raise ConfigError("--dry-run", "is missing", "add it; only the controller evicts")
        config = (await session.read_configuration()).descheduler
        if options.policy:
            policy = await asyncio.to_thread(load_yaml, options.policy, "--policy")
            if not isinstance(policy, dict):
                fix = "give LowNodeLoadArgs or a DeschedulerConfiguration"
                raise ConfigError("--policy", f"{options.policy} is not a mapping", fix)
            config = msgspec.structs.replace(config, policy=policy)
        if session.prometheus is not None:
            config = _with_prometheus(config, session.prometheus.url)
        answer = await preview_round(session, config)
        session.notes += [f"usage was not read: {fault}" for fault in answer.faults]
        if not config.enabled:
            session.notes.append("the descheduler is not enabled: no pod will be moved")
        note = "the controller also waits until nodes have been overutilized, or pods misplaced, for some time"
        session.notes.append(note)
        return answer

    def render(self, answer: RoundPreview, options: argparse.Namespace, width: int) -> RenderableType:
        """Moves, overutilized nodes, pods that are not moved, and the summary."""
        plan = answer.plan
        parts: list[RenderableType] = [_make_move_table(plan.moves) if plan.moves else Text("no pod would move")]
        overutilized = [node for node in plan.nodes if node.kind == "overutilized"]
        if overutilized:
            parts += [Text(), _make_node_table(overutilized)]
        if plan.skips:
            parts += [Text(), _make_skip_table(plan)]
        parts += [Text(), Text(_format_summary(answer), style=FAINT)]
        return Group(*parts, *(Text(note, style=BAD) for note in plan.notes))


async def preview_round(session: Session, config: DeschedulerConfig) -> RoundPreview:
    """Decide one round as the controller does, without evictions.

    Raises:
        ConfigError: the configuration is wrong.
        KubekitError: nodes, pods or disruption budgets cannot be read.
    """
    settings, now_s = config.resolve(), time.time()
    snapshot, budgets, history, usage_batch = await asyncio.gather(
        session.read_snapshot(groups=True),
        session.client.list(DISRUPTION_BUDGETS, PodDisruptionBudget),
        _load_history(session),
        UsageReader(config.usage, session.client).read(),
    )
    inputs, pods = await read_inputs(session, snapshot)
    session.require_readable(PODS)
    usage = UsageStore(settings.usage_expiry_s)
    cluster = take_snapshot(inputs, {pod.key: pod for pod in pods}, budgets, session.netaware_namespace)
    dropped_counts = usage.update(usage_batch, cluster.nodes, cluster.pods.by_key, now_s)
    cluster = dataclasses.replace(cluster, usage=usage.view(now_s))
    unconfirmed_decision = decide(cluster, history, ReasonDurations(), settings, now_s, ignore_durations=True)
    overutilized = (state.node for state in unconfirmed_decision.decision.plan.nodes if state.kind == "overutilized")
    inputs.node_cache.set_avoided_nodes(frozenset(overutilized))

    async def simulate_replacement(group_key: str, pod_key: str, seed_offset: int) -> Target | None:
        """Plan as the controller does, but without its reservations for pods that are not bound yet."""
        is_member = make_group_filter(inputs.state, group_key)
        members = [pod.group_pod for pod in pods if pod.group_pod is not None and is_member(pod)]
        group_snapshot = without_pod(inputs.build_snapshot(group_key, members), pod_key)
        group_snapshot = msgspec.structs.replace(group_snapshot, seed_offset=seed_offset)
        return (await asyncio.to_thread(plan_group, group_snapshot)).targets.get(pod_key)

    plan = (await unconfirmed_decision.confirm(simulate_replacement)).plan
    dropped_by_reason = {str(reason): count for reason, count in sorted(dropped_counts.items())}
    return RoundPreview(plan, usage_batch.faults, dropped_by_reason)


async def _load_history(session: Session) -> History:
    try:
        return await HistoryStore(session.client, session.netaware_namespace).load()
    except ApiError as error:
        if not error.is_forbidden:
            raise
        session.read_errors["history"] = "not allowed to read it, so back-offs and earlier evictions are not counted"
        return History()


def _with_prometheus(config: DeschedulerConfig, url: str) -> DeschedulerConfig:
    """The configuration with the user's Prometheus, because the controller's may be unreachable from outside the cluster."""
    prometheus = msgspec.structs.replace(config.usage.prometheus, url=url)
    usage = msgspec.structs.replace(config.usage, prometheus=prometheus)
    return msgspec.structs.replace(config, usage=usage)


def _make_move_table(moves: Iterable[Move]) -> RenderableType:
    table = make_table("POD", "FROM", "TO", "NODE", "COST", "REASON")
    for move in moves:
        table.add_row(
            Text(move.pod, style=STRONG),
            move.node,
            move.target or "anywhere",
            _format_change(move.node_before, move.node_after),
            "-" if move.cost_before < 0 else f"{move.cost_before} → {move.cost_after}",
            move.reason,
        )
    return table


def _format_change(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    parts = [f"{_short_resource_name(r)} {before[r]:.0f} → {after[r]:.0f} %" for r in before if r in after]
    return ", ".join(parts) or "-"


def _format_percents(percent_by_resource: Mapping[str, float]) -> str:
    return ", ".join(f"{_short_resource_name(r)} {percent:.0f} %" for r, percent in percent_by_resource.items())


def _short_resource_name(resource: str) -> str:
    return resource.rpartition("/")[2]


def _make_node_table(nodes: Iterable[NodeState]) -> RenderableType:
    table = make_table("OVERUTILIZED NODE", "POOL", "USAGE", "THRESHOLD", "STATE")
    for node in nodes:
        usage, thresholds = map(_format_percents, (node.usage_percent, node.high_thresholds))
        state = Text(node.reason or "relieved by the moves above", style=BAD if node.is_stuck else "")
        table.add_row(Text(node.node, style=STRONG), node.pool, usage, thresholds, state)
    return table


def _make_skip_table(plan: DeschedulePlan) -> RenderableType:
    """The first skipped pods, then the number of all others by condition."""
    shown = plan.skips[:MAX_SKIPS_SHOWN]
    table = make_table("SKIPPED POD", "NODE", "REASON")
    for skip in shown:
        table.add_row(skip.pod, skip.node, skip.reason)
    hidden = Counter(plan.skip_counts) - Counter(skip.condition for skip in shown)
    if hidden:
        conditions = ", ".join(f"{count} {condition}" for condition, count in hidden.most_common())
        table.add_row(Text(f"and {hidden.total()} more", style=FAINT), "", Text(conditions, style=FAINT))
    return table


def _format_summary(answer: RoundPreview) -> str:
    counts = Counter(node.kind for node in answer.plan.nodes)
    nodes = ", ".join(f"{counts[kind]} {kind}" for kind in get_args(LoadClass) if counts[kind])
    dropped = sum(answer.dropped_readings_by_reason.values())
    return f"nodes: {nodes or 'none evaluated'}" + (f"; {dropped} usage readings dropped" if dropped else "")
