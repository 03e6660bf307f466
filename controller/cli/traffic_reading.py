"""Reads traffic between workloads from Prometheus, for `propose` and `money`."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass

from controller.cli.session import Session
from controller.cluster.costs import CostTable, locations_of
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.traffic.graph import TrafficGraph, build_traffic_graph
from controller.traffic.sources import SOURCES, Source, read_flows
from controller.traffic.workloads import Workloads
from kubekit.durations import seconds
from kubekit.errors import ConfigError

MAX_UNKNOWN = 3


@dataclass(frozen=True)
class Traffic:
    """Measured traffic with the objects that it belongs to.

    Attributes:
        graph: who depends on whom.
        workloads: what the cluster has.
        source: the source of the traffic.
        window_s: over how long.
        costs: the scheduler's, for the chosen namespace.
        snapshot: the cluster that the costs come from.
    """

    graph: TrafficGraph
    workloads: Workloads
    source: Source
    window_s: int
    costs: CostTable
    snapshot: ClusterSnapshot


def add_traffic_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of every command that reads traffic."""
    names = [source.name for source in SOURCES]
    parser.add_argument(
        "--source", choices=names, default="", help="source of traffic (default: the first that Prometheus has)"
    )
    parser.add_argument(
        "--window",
        type=_window_s,
        default=3600,
        metavar="TIME",
        help="range of rates, such as 30m, 6h, 7d (default: 1h)",
    )


def _window_s(text: str) -> int:
    try:
        return int(seconds(text, ""))
    except ConfigError as error:
        msg = f"{error.problem} ({error.fix})"
        raise argparse.ArgumentTypeError(msg) from error


async def read_traffic(session: Session, chosen: str, asked_s: int) -> Traffic:
    """Read traffic as `read_flows` does, and the cluster.

    Raises:
        ConfigError: no Prometheus was named, or it has no traffic.
        KubekitError: no answer.
    """
    if session.prometheus is None:
        fix = "name one: --prometheus http://HOST:PORT, or NETAWARE_PROMETHEUS"
        raise ConfigError("--prometheus", "is not set; traffic is read from Prometheus", fix)
    (source, window_s, flows, remarks), snapshot, pods = await asyncio.gather(
        read_flows(session.prometheus, chosen, asked_s), session.snapshot(groups=True), session.unfinished_pods()
    )
    workloads = Workloads.from_objects(pods, locations_of(snapshot.nodes))
    known, unknown = workloads.resolve(flows)
    if unknown:
        first = ", ".join(sorted(unknown, key=lambda name: -unknown[name])[:MAX_UNKNOWN])
        session.remarks.append(
            f"ignored traffic of {len(unknown)} workloads that do not exist (any more), such as {first}"
        )
    session.remarks += remarks
    if window_s < asked_s:
        session.remarks.append(
            f"Prometheus knows this traffic for the last {window_s // 60} min only, not the {asked_s // 60} asked for"
        )
    session.remarks.append(
        f"traffic: {source.title}, the last {window_s // 60} min; it does not know: {source.limitations}"
    )
    costs = snapshot.costs().for_namespace(session.namespace or session.home).table
    return Traffic(build_traffic_graph(known), workloads, source, window_s, costs, snapshot)
