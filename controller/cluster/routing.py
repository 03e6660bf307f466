"""Whether calls stay in their zone, as kube-proxy decides it: the one rule of planner, score, status and traffic."""

from __future__ import annotations

from collections.abc import Iterable

from controller.cluster.services import Routing


def has_zone_hints(routing: Routing, zones: Iterable[object]) -> bool:
    """Whether callers are answered in their own zone where it has a replica.

    One replica on a node without a zone label turns that off for all of them (pkg/proxy/topology.go, topologyModeFromHints).

    Args:
        routing: of the Service.
        zones: of the nodes of its replicas, or whether they have one; empty, or false, for a node without the label.
    """
    return routing is not Routing.ANY and all(zones)
