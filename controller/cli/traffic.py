"""Reads traffic between workloads from Prometheus, for `propose` and `money`."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass

from controller.cli.session import Session
from controller.cluster.costs import locations_of
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.graph import TrafficGraph, build_traffic_graph
from controller.traffic.sources import SOURCES, Source, read_flows
from controller.traffic.workloads import Workloads
from kubekit.durations import parse_duration
from kubekit.errors import ConfigError
from kubekit.text import join_first

MAX_UNKNOWN_SHOWN = 3


@dataclass(frozen=True)
class Traffic:
    """Measured traffic, with the objects of its cluster.

    Attributes:
        workloads: all workloads of the cluster.
        source: metrics from which the traffic was read.
        window_s: range of the traffic's rates; differs from the request if Prometheus has less, or the source needs more.
    """

    graph: TrafficGraph
    workloads: Workloads
    source: Source
    window_s: int
    snapshot: ClusterSnapshot


def add_traffic_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command that reads traffic."""
    names = [source.name for source in SOURCES]
    parser.add_argument("--source", choices=names, default="", help="metrics (default: the first that Prometheus has)")
    window_help = "range of rates, at least 1m, such as 30m, 6h, 7d (default: 1h)"
    parser.add_argument("--window", type=_parse_window, default=3600, metavar="TIME", help=window_help)


def _parse_window(text: str) -> int:
    """The seconds of a duration such as ``30m``."""
    try:
        return int(parse_duration(text, "", minimum_s=60.0))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error.problem} ({error.fix})") from error


async def read_traffic(session: Session, source_name: str, requested_window_s: int) -> Traffic:
    """Read traffic and the cluster; adds notes on incomplete data, and on traffic that the source does not show.

    For ``source_name`` and ``requested_window_s`` see `read_flows`.

    Raises:
        ConfigError: no Prometheus is named, or it has no traffic of this source.
        KubekitError: Prometheus or the API server does not answer.
    """
    if session.prometheus is None:
        fix = "give --prometheus http://HOST:PORT, or set NETAWARE_PROMETHEUS"
        raise ConfigError("--prometheus", "is missing; traffic is read from Prometheus", fix)
    measured, snapshot, pods = await asyncio.gather(
        read_flows(session.prometheus, source_name, requested_window_s),
        session.read_snapshot(groups=True),
        session.list_unfinished_pods(),
    )
    source, workloads = measured.source, Workloads.from_objects(pods, locations_of(snapshot.nodes))
    flows, bytes_by_unknown = workloads.resolve(measured.flows)
    if bytes_by_unknown:
        names = join_first(sorted(bytes_by_unknown, key=lambda name: -bytes_by_unknown[name]), MAX_UNKNOWN_SHOWN)
        session.notes.append(f"traffic of workloads that do not exist, or no longer, is left out: {names}")
    session.notes += measured.remarks
    minutes = measured.window_s // 60
    if measured.window_s < requested_window_s:
        session.notes.append(f"Prometheus has this traffic for {minutes} of the last {requested_window_s // 60} min")
    session.notes.append(f"traffic: {source.title}, the last {minutes} min; not visible in it: {source.limitations}")
    graph = build_traffic_graph(flows, session.netaware_namespace)
    return Traffic(graph, workloads, source, measured.window_s, snapshot)
