"""`explain group NAME`: what the loss of each zone would take from an AppGroup, and what surviving one costs its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.session import NotFoundError, Session
from controller.cli.shared import belongs_to, read_inputs
from controller.cli.style import BAD, FAINT, GOOD, STRONG, grid
from controller.cluster.pods import GroupPod
from controller.cluster.resources import APPGROUPS, SPREAD_ANNOTATION
from controller.scheduler.balance import Advice, PlacedGroup, advise, placed_group
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import GroupSnapshot, plan_group
from controller.scheduler.placement.problem_builder import Spread
from controller.scheduler.placement.survival import Survival, describe, survival_of
from kubekit.text import counted

LONGEST_S = 20.0
"""For the two plans that the price is the difference of."""


class ExplainedGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The answer.

    Attributes:
        group: ``namespace/name``.
        placed: pods that count.
        survival: what each zone's loss would take; with a price where the group's plans survive a zone.
        could_pay_us: what surviving a zone would cost a call where the group does not ask for it; None where it does.
        advice: what would route calls better.
    """

    group: str
    placed: int
    survival: Survival
    could_pay_us: float | None
    advice: tuple[Advice, ...]


async def explain_group(session: Session, name: str) -> ExplainedGroup:
    """Read the cluster, and plan the group anew both ways.

    Raises:
        NotFoundError: there is no such AppGroup.
    """
    namespace = session.namespace or "default"
    session.namespace = None
    snapshot = await session.snapshot(groups=True)
    session.require(APPGROUPS)
    key = f"{namespace}/{name}"
    inputs = await read_inputs(session, snapshot)
    if key not in inputs.state.groups:
        msg = f"there is no AppGroup {name!r} in namespace {namespace}"
        raise NotFoundError(msg)
    return await asyncio.to_thread(explain_placed_group, inputs, key, snapshot.pods)


def explain_placed_group(inputs: PlanInputs, key: str, pods: Sequence[GroupPod]) -> ExplainedGroup:
    """The answer; the group is planned as if none of its pods were there.

    Args:
        inputs: the cluster, from which the group's pods are taken away.
        key: of the group.
        pods: those of AppGroups.
    """
    state = inputs.state
    current = placed_group(state, key)
    mine = [p for p in pods if state.group_of(p.metadata.namespace, p.group) == key and not p.over]
    inputs.node_cache.drop(belongs_to(state, key))
    anew = [msgspec.structs.replace(p, spec=msgspec.structs.replace(p.spec, node_name="")) for p in mine]
    start = msgspec.structs.replace(inputs.snapshot(key, anew), released={})
    paid_us, could_us = _prices(start, current)
    return ExplainedGroup(
        group=key,
        placed=sum(sum(nodes.values()) for nodes in current.members),
        survival=standing_survival(current, paid_us),
        could_pay_us=could_us,
        advice=tuple(advise(current)),
    )


def standing_survival(current: PlacedGroup, price_us: float | None = None) -> Survival:
    """What the loss of each zone would take from a group as it stands."""
    graph = current.graph
    return survival_of(graph.selectors, current.members, current.locations, graph.edges, price_us)


def _prices(start: GroupSnapshot, current: PlacedGroup) -> tuple[float | None, float | None]:
    """What the group's plans pay, or, where none of it asks for that, what they would."""
    asks = "zone" in current.spreads
    question = start if asks else _spread(start, "zone")
    price = plan_group(question, deadline_s=LONGEST_S, priced=True).survival_us
    return (price, None) if asks else (None, price)


def _spread(start: GroupSnapshot, spread: Spread) -> GroupSnapshot:
    """The same group if it were annotated so; pods that say so themselves keep what they say."""
    annotations = {**(start.group.metadata.annotations or {}), SPREAD_ANNOTATION: spread}
    metadata = msgspec.structs.replace(start.group.metadata, annotations=annotations)
    return msgspec.structs.replace(start, group=msgspec.structs.replace(start.group, metadata=metadata))


def show_group(answer: ExplainedGroup) -> RenderableType:
    """A line per zone, then the price, then advice."""
    head = Text.assemble((answer.group, STRONG), f"  {counted(answer.placed, 'placed pod')}")
    table = grid("WITHOUT ZONE", "WHAT HAPPENS")
    for loss in answer.survival.losses:
        table.add_row(loss.zone, Text(describe(loss), style=BAD if loss.stops else GOOD))
    parts: list[RenderableType] = [head, Text(), table, Text(), Text(price_line(answer))]
    parts += [Text(advice.text) for advice in answer.advice]
    return Group(*parts)


def price_line(answer: ExplainedGroup) -> str:
    """What surviving costs, in a sentence."""
    if answer.survival.price_us is not None:
        return f"its plans survive a zone's loss, for which a call pays {answer.survival.price_us:.0f} µs"
    if answer.could_pay_us is not None:
        return f"with netaware.io/spread: zone its plans would survive one, for {answer.could_pay_us:.0f} µs a call"
    return "what surviving a zone costs could not be worked out: no calls, or a group that minimises costs (parity)"


def survival_lines(survival: Survival) -> list[Text]:
    """The losses that stop something, for answers that are about something else."""
    return [Text(f"without {loss.zone}: {describe(loss)}", style=FAINT) for loss in survival.losses if loss.stops]
