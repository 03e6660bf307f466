"""`explain group NAME`: what the loss of each zone would stop, and advice on routing."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.session import NotFoundError, Session
from controller.cli.shared import state_of
from controller.cli.style import BAD, GOOD, STRONG, grid
from controller.cluster.resources import APPGROUPS
from controller.scheduler.balance import Advice, PlacedGroup, advise, placed_group
from controller.scheduler.placement.survival import Survival, describe, survival_of
from controller.scheduler.state import State
from kubekit.text import counted


class ExplainedGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The answer.

    Attributes:
        group: ``namespace/name``.
        placed: pods that count.
        survival: what each zone's loss would take.
        advice: what would route calls better.
    """

    group: str
    placed: int
    survival: Survival
    advice: tuple[Advice, ...]


async def explain_group(session: Session, name: str) -> ExplainedGroup:
    """Read the cluster.

    Raises:
        NotFoundError: there is no such AppGroup.
    """
    namespace = session.namespace or "default"
    session.namespace = None
    snapshot = await session.snapshot(groups=True)
    session.require(APPGROUPS)
    state = state_of(snapshot, snapshot.pods)
    key = f"{namespace}/{name}"
    if key not in state.groups:
        msg = f"there is no AppGroup {name!r} in namespace {namespace}"
        raise NotFoundError(msg)
    return explain_placed_group(state, key)


def explain_placed_group(state: State, key: str) -> ExplainedGroup:
    """The answer."""
    current = placed_group(state, key)
    return ExplainedGroup(
        group=key,
        placed=sum(sum(nodes.values()) for nodes in current.members),
        survival=survival_of_placed(current),
        advice=tuple(advise(current)),
    )


def survival_of_placed(current: PlacedGroup) -> Survival:
    """What the loss of each zone would stop in a placed group."""
    graph = current.graph
    return survival_of(graph.selectors, current.members, current.locations, graph.edges)


def show_group(answer: ExplainedGroup) -> RenderableType:
    """A line per zone, then advice."""
    head = Text.assemble((answer.group, STRONG), f"  {counted(answer.placed, 'placed pod')}")
    table = grid("WITHOUT ZONE", "WHAT HAPPENS")
    for loss in answer.survival.losses:
        table.add_row(loss.zone, Text(describe(loss), style=BAD if loss.stops else GOOD))
    return Group(head, Text(), table, *(Text(advice.text) for advice in answer.advice))
