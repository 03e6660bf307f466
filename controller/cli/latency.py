"""`latency A B`: what lies between two zones now, and how that was over time."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command, Table
from controller.cli.looking import UNMEASURED, note_unused
from controller.cli.parser import duration
from controller.cli.session import NotFoundError, Session
from controller.cli.style import BAD, FAINT, STRONG, age, grid, milliseconds, sparkline
from controller.cluster.zones import draw_map
from controller.diagnosis.model import PairView, View
from controller.diagnosis.zones import build_network, by_pair
from controller.prometheus import PrometheusClient, PrometheusError, Series

QUANTILES = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}
METRIC = "netaware_probe_latency_seconds"


class LatencyView(View, frozen=True):
    """Both directions of a pair, and its history.

    Attributes:
        history: by percentile, ``[unix seconds, microseconds]`` in order of time; null without Prometheus.
        since_s: what the history covers, in seconds.
    """

    at: float
    there: PairView
    back: PairView
    history: dict[str, list[tuple[float, float]]] | None
    since_s: float


class Latency(Command):
    """See `controller.cli.command.Command`."""

    name = "latency"
    examples = (
        ("latency eu-1a eu-1b", "both directions"),
        ("latency eu-1a eu-1b --since 7d --prometheus http://localhost:9090", "with its history"),
    )
    description = (
        "Round trips between two zones, or the zones of two nodes. One node per zone measures, so usually one direction has "
        "samples and stands for both. With --prometheus the history is drawn, lowest to highest value of the time shown."
    )
    completes = "zones"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("origin", metavar="A", help="zone or node")
        parser.add_argument("destination", metavar="B", help="zone or node")
        parser.add_argument("--since", type=duration(), default="6h", metavar="TIME", help="30m, 6h, 7d (default: 6h)")

    async def ask(self, session: Session, options: argparse.Namespace) -> LatencyView:
        """Read the pair, then its history."""
        snapshot = await session.snapshot()
        network, places = build_network(snapshot), draw_map(snapshot.nodes).places
        note_unused(session, network)
        pairs = by_pair(network.pairs)
        known = {zone.name for zone in network.zones}
        ends = [places[name].zone if name in places else name for name in (options.origin, options.destination)]
        for name, zone in zip((options.origin, options.destination), ends, strict=True):
            if zone not in known:
                msg = f"there is no zone or node {name!r}; zones: {', '.join(z.name for z in network.zones) or 'none'}"
                raise NotFoundError(msg)
        if ends[0] == ends[1]:
            msg = f"{options.origin} and {options.destination} are in one zone, {ends[0]}; its latency is not measured"
            raise NotFoundError(msg)
        history = None
        if session.prometheus is not None:
            try:
                history = await _history(session.prometheus, (ends[0], ends[1]), snapshot.now_s, options.since)
            except PrometheusError as error:
                session.notes["Prometheus"] = str(error)
        return LatencyView(
            at=snapshot.now_s,
            there=pairs[ends[0], ends[1]],
            back=pairs[ends[1], ends[0]],
            history=history,
            since_s=options.since,
        )

    def show(self, answer: LatencyView, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The newest sample as a table, the history as sparklines."""
        parts: list[RenderableType] = [_headline(answer), Text(), _now(answer)]
        if answer.history is None:
            parts += [Text(), Text("give --prometheus URL for the history", style=FAINT)]
        elif not any(answer.history.values()):
            parts += [Text(), Text(f"Prometheus has no samples of the last {age(answer.since_s)}", style=FAINT)]
        else:
            parts += [Text(), *_sparks(answer, min(width, 160))]
        return Group(*parts)

    def rows(self, answer: LatencyView, options: argparse.Namespace) -> Table:  # noqa: ARG002
        """The history, one row per time and percentile; without one the newest sample."""
        if answer.history is None:
            newest = [(name, value) for name, value in answer.there.percentiles_us.items() if value is not None]
            return ("time", "percentile", "us"), [(answer.there.measured_at, name, value) for name, value in newest]
        rows = [(at, name, us) for name, points in answer.history.items() for at, us in points]
        return ("time", "percentile", "us"), rows

    def is_bad(self, answer: LatencyView) -> bool:
        """There is no measurement, an old one, or one that is not trusted."""
        return answer.there.basis in UNMEASURED or bool(answer.there.doubts)


async def _history(
    prometheus: PrometheusClient, zones: tuple[str, str], now_s: float, since_s: float
) -> dict[str, list[tuple[float, float]]]:
    """Points of each percentile, at most about 240, whichever direction was measured."""
    step_s = max(15.0, since_s / 240)
    found: dict[str, list[tuple[float, float]]] = {}
    for name, quantile in QUANTILES.items():
        both = [f'origin_zone="{_quoted(a)}",destination_zone="{_quoted(b)}"' for a, b in (zones, zones[::-1])]
        there, back = (f'max({METRIC}{{{labels},quantile="{quantile}"}})' for labels in both)
        series = await prometheus.query_range(f"{there} or {back}", now_s - since_s, now_s, step_s)
        found[name] = _points(series)
    return found


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _points(series: Iterable[Series]) -> list[tuple[float, float]]:
    by_time: dict[float, float] = {}
    for one in series:
        by_time |= {at: round(seconds * 1e6, 2) for at, seconds in one.points}
    return sorted(by_time.items())


def _headline(answer: LatencyView) -> Text:
    there = answer.there
    text = Text.assemble((f"{there.origin} to {there.destination}", STRONG))
    text.append(f"  cost {there.cost if there.cost is not None else 'unknown'}")
    if answer.back.cost != there.cost:
        text.append(f", {answer.back.cost if answer.back.cost is not None else 'unknown'} back")
    text.append(f"  {there.basis}", style=BAD if there.basis in UNMEASURED else FAINT)
    if there.doubts:
        text.append(f"  newest sample not trusted: {', '.join(there.doubts)}", style=BAD)
    return text


def _now(answer: LatencyView) -> RenderableType:
    pair = answer.there
    if pair.measured_at is None and pair.p50_us is None:
        return Text("not measured", style=BAD)
    numbers = ("P50", "P90", "P99", "JITTER", "LOSS", "AGE")
    table = grid(*numbers, "PROBER", "MEASURED BY", right=numbers)
    loss = "-" if pair.loss_ratio is None else f"{pair.loss_ratio:.2%}"
    seconds = None if pair.measured_at is None else answer.at - pair.measured_at
    nodes = f"{pair.origin_node} to {pair.destination_node}"
    values = [milliseconds(value) for value in pair.percentiles_us.values()]
    table.add_row(*values, milliseconds(pair.jitter_us), loss, age(seconds), pair.prober or "-", nodes)
    return table


def _sparks(answer: LatencyView, width: int) -> list[RenderableType]:
    history: dict[str, list[tuple[float, float]]] = answer.history or {}
    room = max(20, width - 34)
    lines: list[RenderableType] = []
    for name, points in history.items():
        values = [us for _, us in points]
        if not values:
            continue
        slots = _resampled(points, answer.at - answer.since_s, answer.at, room)
        line = Text.assemble((f"{name}  ", STRONG), (sparkline(slots, min(values), max(values)), "#4292c6"))
        line.append(f"  {milliseconds(min(values))} to {milliseconds(max(values))}", style=FAINT)
        lines.append(line)
    axis = f"     {age(answer.since_s)} ago".ljust(room + 2) + "now"
    return [*lines, Text(axis, style=FAINT)]


def _resampled(points: Sequence[tuple[float, float]], start: float, end: float, count: int) -> list[float | None]:
    """The highest value of each of ``count`` equal spans of time; None where there is none."""
    slots: list[Any] = [None] * count
    for at, us in points:
        index = min(count - 1, max(0, int((at - start) / max(end - start, 1e-9) * count)))
        slots[index] = us if slots[index] is None else max(slots[index], us)
    return slots
