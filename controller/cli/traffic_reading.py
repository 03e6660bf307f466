"""Reads traffic between workloads from Prometheus, for `propose` and `money`."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from controller.cli.parser import duration
from controller.cli.session import Session
from controller.cluster.costs import SAME_ZONE_COST, Location
from controller.cluster.resources import AppGroup
from controller.cluster.zones import build_zone_map
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.graph import TrafficGraph, build_traffic_graph
from controller.traffic.prices import PRESETS, PriceTable, price_table
from controller.traffic.proposals import CostOf
from controller.traffic.sources import SOURCES, Source, choose_among, known_window, read_flows
from controller.traffic.workloads import Place, Workloads
from kubekit.errors import ConfigError

SHOWN_UNKNOWN = 3


@dataclass(frozen=True)
class Traffic:
    """Measured traffic with the objects that it belongs to.

    Attributes:
        graph: who depends on whom.
        workloads: what the cluster has.
        source: where the traffic is known from.
        window_s: over how long.
        groups: AppGroups of all namespaces.
        cost_of: costs as the scheduler has them.
        snapshot: nodes and costs, and by which configuration they count.
    """

    graph: TrafficGraph
    workloads: Workloads
    source: Source
    window_s: int
    groups: list[AppGroup]
    cost_of: CostOf
    snapshot: ClusterSnapshot


def add_traffic_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of every command that reads traffic."""
    names = [source.name for source in SOURCES]
    parser.add_argument(
        "--source", choices=names, default="", help="source of traffic (default: the first that Prometheus has)"
    )
    window = duration(least_s=60, most_s=90 * 86_400)
    parser.add_argument(
        "--window",
        type=lambda text: int(window(text)),
        default=3600,
        metavar="TIME",
        help="range of rates, such as 30m, 6h, 7d (default: 1h)",
    )


def add_price_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of every command that shows prices."""
    text = f"a preset ({', '.join(PRESETS)}: list prices), or a YAML file with your own (default: none)"
    parser.add_argument("--prices", default="", metavar="PRESET|FILE", help=text)


def read_prices(text: str) -> PriceTable | None:
    """The table that ``--prices`` names; None without one.

    Raises:
        ConfigError: it is neither a preset nor a readable file with prices.
    """
    path = Path(text)
    if not text or text in PRESETS or ("/" not in text and not path.suffix and not path.exists()):
        return price_table(text)
    try:
        table = msgspec.convert(yaml.safe_load(path.read_text()), PriceTable)
    except OSError as error:
        raise ConfigError("--prices", f"{text}: {error.strerror}", f"or one of {', '.join(PRESETS)}") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            "--prices", f"{text}: {' '.join(str(error).split())}", "fields: currency, sameZone, betweenZones, ..."
        ) from error
    return price_table("", table)


async def read_traffic(session: Session, chosen: str, asked_s: int) -> Traffic:
    """Read traffic of the last ``asked_s`` seconds, or as much of it as there is, and the cluster; ``chosen`` is the source's name, empty
    for what Prometheus has.

    Raises:
        ConfigError: no Prometheus was named, or it has no traffic.
        KubekitError: no answer.
    """
    if session.prometheus is None:
        fix = "name one: --prometheus http://HOST:PORT, or NETAWARE_PROMETHEUS"
        raise ConfigError("--prometheus", "is not set, and traffic is known from Prometheus", fix)
    source, *others = await choose_among(session.prometheus, chosen)
    snapshot, pods = await asyncio.gather(session.snapshot(groups=True, measurements=False), session.unfinished_pods())
    groups = list(snapshot.groups)
    workloads = Workloads.from_objects(pods, build_zone_map(snapshot.nodes).locations, snapshot.services)
    window_s = await known_window(session.prometheus, source, asked_s)
    flows = await read_flows(session.prometheus, source, window_s)
    known, unknown = workloads.resolve(flows)
    if unknown:
        first = sorted(unknown, key=lambda name: -unknown[name])[:SHOWN_UNKNOWN]
        session.remarks.append(
            f"left out {len(unknown)} ends that the cluster does not have (any more): {', '.join(first)}"
            + (", ..." if len(unknown) > len(first) else "")
        )
    if window_s < asked_s:
        session.remarks.append(
            f"Prometheus knows this traffic for the last {window_s // 60} min only, not the {asked_s // 60} asked for"
        )
    if others:
        names = ", ".join(f"--source {other.name}" for other in others)
        session.remarks.append(f"Prometheus has traffic from elsewhere too, which may cover other workloads: {names}")
    session.remarks.append(
        f"traffic: {source.title}, the last {window_s // 60} min; it does not know: {source.limitations}"
    )
    graph = build_traffic_graph(known)
    return Traffic(
        graph, workloads, source, window_s, groups, _costs(snapshot, session.namespace or session.home), snapshot
    )


def _costs(snapshot: ClusterSnapshot, namespace: str) -> CostOf:
    table = snapshot.costs().of(namespace).table

    def cost_of(client: Place, server: Place) -> int | None:
        return SAME_ZONE_COST if client == server else table.cost(Location(*client), Location(*server))

    return cost_of
